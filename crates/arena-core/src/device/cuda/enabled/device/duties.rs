//! The calls and the duties of [`Device`].

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaStream, sys};

use super::super::code::{Failure, done};
use super::super::context::with_current;
use super::super::event::{Event, record, synchronise, wait};
use super::super::external::CudaMemory;
use super::super::staging::{Staged, Staging};
use super::super::virtual_memory;
use super::copies::is_pinned;
use super::{Cuda, is_per_thread, memory_info};
use crate::bytes::Alignment;
use crate::device::{Device, DeviceMemory, Obtained, Pattern};
use crate::error::{DeviceError, DeviceErrorKind};

impl Cuda {
    /// The error of a request for `asked_bytes`, with what the device has free, if it has no room for them.
    fn with_figures_if_short(&self, error: DeviceError, asked_bytes: u64) -> DeviceError {
        if error.kind != DeviceErrorKind::OutOfMemory(None) {
            return error;
        }
        match self.memory() {
            Ok(memory) => memory.shortage(asked_bytes).refuse(memory.device, error.call),
            Err(_) => error,
        }
    }

    /// Waits until no queued work uses the region's memory any more: it has ended, or will never run. What the work
    /// itself failed with is the inner error.
    fn wait_for_the_last_use(&self) -> Result<Result<(), Failure>, Failure> {
        let first = synchronise(&self.stream);
        match first.or_else(|_| synchronise(&self.stream)) {
            Err(failure) if !failure.runs_nothing_more() => Err(failure),
            _ => Ok(first),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a `usize` has 64 bits, see the crate's root")]
const fn length(bytes: u64) -> usize {
    bytes as usize
}

// SAFETY: by the duties' numbers. 1: `cuMemAlloc` gives memory of its own, which only `cuMemFree` takes
// back, and who gives memory promises the same of it; reserved addresses and what is mapped to them are the caller's in
// the same way until `cuMemUnmap` and `cuMemAddressFree`; the device is not host visible. 2: see `base_alignment`; there are no guard pages. 3: the driver
// gets the range as it is named. 4: the driver calls nothing of this program here. 5: a call that fails
// has at most queued its own work, on the arena's stream. 6: nothing panics between two driver calls that
// belong together. 7: see `copy_in` and `copy_out`. 8: all work goes to one stream, which the driver runs
// in order; `release` and both kinds of synchronising wait for it. 9: so do events promise it for streams
// of one context; the per-thread stream, which is another one on each thread, is refused. 10: it wraps
// nothing.
unsafe impl Device for Cuda {
    type Memory = CudaMemory;
    type Stream = Arc<CudaStream>;
    type Event = Event;

    const CAPTURES: bool = true;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn memory(&self) -> Result<DeviceMemory, DeviceError> {
        let (free_bytes, total_bytes) = self.call(memory_info)?;
        Ok(DeviceMemory::new(self.name(), free_bytes, total_bytes))
    }

    /// What `cuMemAlloc` promises ("suitably aligned for any kind of variable") is 256 bytes on every
    /// device so far; the texture alignment, which is larger on some, is not promised. Memory of the program's may be
    /// less aligned.
    fn base_alignment(&self) -> Alignment {
        self.alignment
    }

    fn obtain(&self, bytes: u64) -> Result<Obtained<CudaMemory>, DeviceError> {
        if let Some(external) = self.obtain_external(bytes)? {
            return Ok(external);
        }
        if bytes == 0 {
            // The driver refuses nothing as a size. No byte will be used.
            let handle = CudaMemory::default();
            return Ok(Obtained { base_address: Alignment::DEFAULT.bytes(), handle });
        }
        let mut base_address = 0;
        let obtained = self.call(|| {
            let _held = self.not_in_capture("cuMemAlloc")?;
            // SAFETY: the address goes into a live variable.
            let code = unsafe { sys::cuMemAlloc_v2(&raw mut base_address, length(bytes)) };
            done("cuMemAlloc", code)
        });
        let handle = CudaMemory::default();
        obtained
            .map(|()| Obtained { base_address, handle })
            .map_err(|error| self.with_figures_if_short(error, bytes))
    }

    unsafe fn release(&self, memory: Obtained<CudaMemory>, bytes: u64) -> Result<(), DeviceError> {
        let Obtained { base_address, handle: CudaMemory { held: mut external, .. } } = memory;
        if bytes == 0 && external.is_none() {
            return Ok(());
        }
        let released = self.call_even_if_lost(|| {
            // If queued work may still use the memory, it is given up, not freed.
            let first = self.wait_for_the_last_use()?;
            if let Some(external) = external.take() {
                self.external.put_back(external);
                return first;
            }
            // SAFETY: the caller passes what `obtain` got from `cuMemAlloc`, and nobody uses it any
            // more: what was queued has ended, or will never run.
            let freed = done("cuMemFree", unsafe { sys::cuMemFree_v2(base_address) });
            first.and(freed)
        });
        std::mem::forget(external); // If it was not put back, it is given up too.
        released
    }

    /// Never: memory of `cuMemAlloc` goes back as a whole.
    unsafe fn give_back(&self, _address: u64, _bytes: u64) -> Result<u64, DeviceError> {
        Err(DeviceError {
            device: self.name(),
            call: "give_back",
            reason:
                "memory of one allocation goes back as a whole: use a region of the kind Virtual"
                    .to_owned(),
            kind: DeviceErrorKind::Unsupported,
        })
    }

    /// None for memory that the program gave.
    fn commit_granularity(&self) -> Option<Alignment> {
        if self.external.is_given() {
            return None;
        }
        self.call(|| virtual_memory::granularity(self.context().cu_device())).ok().flatten()
    }

    fn reserve(&self, bytes: u64) -> Result<Obtained<CudaMemory>, DeviceError> {
        let handle = CudaMemory::default();
        let base_address = self.call(|| {
            let granularity = virtual_memory::granularity(self.context().cu_device())?;
            let alignment = granularity.unwrap_or(Alignment::DEFAULT);
            if bytes == 0 {
                return Ok(alignment.bytes()); // The driver refuses nothing as a size.
            }
            let _held = self.not_in_capture("cuMemAddressReserve")?;
            virtual_memory::reserve(length(bytes), alignment)
        })?;
        Ok(Obtained { base_address, handle })
    }

    /// Waits for the stream first, on the host.
    unsafe fn unreserve(
        &self,
        memory: Obtained<CudaMemory>,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        self.call_even_if_lost(|| {
            let _ = self.wait_for_the_last_use()?;
            for (address, bytes) in memory.handle.mapped().drain(..) {
                // SAFETY: a piece that `commit` mapped, and what used it has ended, or will never run.
                unsafe { virtual_memory::unmap(address, length(bytes)) }?;
            }
            // SAFETY: the caller passes what `reserve` returned, and nothing is mapped there any more.
            unsafe { virtual_memory::unreserve(memory.base_address, length(bytes)) }
        })
    }

    unsafe fn commit(
        &self,
        memory: &CudaMemory,
        address: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let committed = self.call(|| {
            let _held = self.not_in_capture("cuMemCreate")?;
            // SAFETY: the caller gives a range of reserved addresses without memory.
            unsafe { virtual_memory::map(self.context().cu_device(), address, length(bytes)) }?;
            memory.mapped().push((address, bytes));
            Ok(())
        });
        committed.map_err(|error| self.with_figures_if_short(error, bytes))
    }

    /// Waits for the stream first, on the host.
    unsafe fn decommit(
        &self,
        memory: &CudaMemory,
        address: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        self.call_even_if_lost(|| {
            let _held = self.not_in_capture("cuMemUnmap")?;
            let _ = self.wait_for_the_last_use()?;
            // SAFETY: the caller gives a range that `commit` mapped, and what used it has ended, or will never run.
            unsafe { virtual_memory::unmap(address, length(bytes)) }?;
            memory.mapped().retain(|&(start, _)| start != address);
            Ok(())
        })
    }

    unsafe fn fill(&self, address: u64, bytes: u64, pattern: Pattern) -> Result<(), DeviceError> {
        let (count, stream) = (length(bytes / pattern.bytes()), self.stream.cu_stream());
        self.call(|| match pattern {
            Pattern::Bits8(value) => {
                // SAFETY: the caller gives a range of the region; the stream is alive.
                let code = unsafe { sys::cuMemsetD8Async(address, value, count, stream) };
                done("cuMemsetD8Async", code)
            }
            Pattern::Bits16(value) => {
                // SAFETY: as above, and the address is aligned for it.
                let code = unsafe { sys::cuMemsetD16Async(address, value, count, stream) };
                done("cuMemsetD16Async", code)
            }
            Pattern::Bits32(value) => {
                // SAFETY: as above.
                let code = unsafe { sys::cuMemsetD32Async(address, value, count, stream) };
                done("cuMemsetD32Async", code)
            }
        })
    }

    /// Pageable memory is copied into page-locked memory of the device's own first, so the call waits for the stream
    /// only when half a MiB is still on its way. Page-locked memory of the caller is read when the copy runs,
    /// so that is waited for, also when the call that queues it fails: it may report an earlier error. To overlap such
    /// a copy use cudarc's calls on the buffer, which keep a pinned source busy with an event.
    unsafe fn copy_in(&self, to_address: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.call(|| {
            let _held = self.not_in_capture("cuMemcpyHtoDAsync")?;
            let mut staging = self.staging.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let is_pageable = !is_pinned(from)?;
            if staging.is_none() && is_pageable {
                // Without page-locked memory the copy is waited for instead.
                *staging = Staging::new(self.context()).ok();
            }
            match &mut *staging {
                Some(staging) if is_pageable => {
                    let (mut to_address, mut from) = (to_address, from);
                    while !from.is_empty() {
                        let Staged { from: staged, len } = staging.take(from, &self.stream)?;
                        // SAFETY: the caller gives a range of the region with as many bytes as `from` had, of which
                        // those that were taken come next. They stay where they are until the copy has ended.
                        unsafe { self.queue_copy_in(to_address, staged, len) }?;
                        to_address += len as u64;
                        from = &from[len..];
                    }
                    Ok(())
                }
                _ => {
                    // SAFETY: the caller gives a range of the region with as many bytes as `from`, which is borrowed
                    // until the wait below. Nothing unwinds in between.
                    let queued =
                        unsafe { self.queue_copy_in(to_address, from.as_ptr(), from.len()) };
                    queued.and(self.wait_for_borrowed())
                }
            }
        })
    }

    unsafe fn copy_out(&self, to: &mut [u8], from_address: u64) -> Result<(), DeviceError> {
        self.call(|| {
            let _held = self.not_in_capture("cuMemcpyDtoHAsync")?;
            let (target, stream) = (to.as_mut_ptr().cast::<c_void>(), self.stream.cu_stream());
            // SAFETY: the caller gives a range of the region with as many bytes as `to`, which is
            // borrowed mutably until the wait below. Nothing unwinds in between.
            let code = unsafe { sys::cuMemcpyDtoHAsync_v2(target, from_address, to.len(), stream) };
            let queued = done("cuMemcpyDtoHAsync", code);
            queued.and(self.wait_for_borrowed())
        })
    }

    /// The driver learns from the addresses on which devices the two ends lie, so they may be two.
    unsafe fn copy_within(
        &self,
        to_address: u64,
        from_address: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        self.call(|| {
            let (bytes, stream) = (length(bytes), self.stream.cu_stream());
            // SAFETY: the caller gives two ranges of regions of such devices that do not overlap.
            let code = unsafe { sys::cuMemcpyAsync(to_address, from_address, bytes, stream) };
            done("cuMemcpyAsync", code)
        })
    }

    fn synchronise(&self) -> Result<(), DeviceError> {
        self.synchronise_stream(&self.stream)
    }

    /// Of this context, and of the primary contexts of the other devices, whose copies can read this one's memory.
    fn synchronise_all(&self) -> Result<(), DeviceError> {
        self.wait_for_every_stream()?;
        self.synchronise()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// A stream of another device or context as well: events order them too.
    fn owns_stream(&self, stream: &Arc<CudaStream>) -> bool {
        !is_per_thread(stream)
    }

    fn health(&self) -> Result<(), DeviceError> {
        self.lost.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn refuse_in_capture(&self, call: &'static str) -> Result<(), DeviceError> {
        self.call(|| self.not_in_capture(call).map(drop))
    }

    fn begin_range(&self, name: &'static str) -> Option<u64> {
        self.ranges.as_ref().map(|ranges| ranges.begin(name))
    }

    fn end_range(&self, id: u64) {
        if let Some(ranges) = &self.ranges {
            ranges.end(id);
        }
    }

    fn new_event(&self) -> Result<Event, DeviceError> {
        self.call(|| Event::new(self.context()))
    }

    /// An event is recorded on streams of its own context only. So for a stream of another one, one of that
    /// context is recorded there, the arena's stream waits for it, and `event` is recorded behind that.
    fn record(&self, event: &Event, stream: &Arc<CudaStream>) -> Result<(), DeviceError> {
        self.call(|| {
            if stream.context() != self.context() {
                let there = with_current(stream.context(), || {
                    let there = Event::new(stream.context())?;
                    record(&there, stream).map(|()| there)
                })?;
                wait(&self.stream, &there)?;
                return record(event, &self.stream);
            }
            self.wait_for_peers(stream)?;
            record(event, stream)
        })
    }

    fn wait(&self, stream: &Arc<CudaStream>, event: &Event) -> Result<(), DeviceError> {
        self.call(|| with_current(stream.context(), || wait(stream, event)))
    }

    fn synchronise_stream(&self, stream: &Arc<CudaStream>) -> Result<(), DeviceError> {
        self.call(|| {
            let _held = self.not_in_capture("cuStreamSynchronize")?;
            self.wait_for_peers(stream)?;
            with_current(stream.context(), || synchronise(stream))
        })
    }
}
