//! The device: one context, one stream, and the calls of [`Device`] on them.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::thread::ThreadId;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream, sys};

use super::code::{Failure, done};
use super::context::{Restore, with_current};
use super::contexts;
use super::event::{Event, record, synchronise, wait};
use super::every_stream::EveryStream;
use super::external::{CudaMemory, External};
use super::lent_slices::LentSlices;
use super::peers::Peers;
use super::presence;
use super::ranges::Ranges;
use super::staging::{Staged, Staging};
use crate::bytes::Alignment;
use crate::device::{Device, DeviceMemory, Obtained, Pattern};
use crate::error::{DeviceError, DeviceErrorKind, Error, Shortage};

/// A CUDA device, with the stream that the arena belongs to.
///
/// Fills and copies are queued on that stream, and wait for no other stream. The region is obtained by one
/// `cuMemAlloc`. It is released by one `cuMemFree`, after the arena has waited for the stream. Each call makes
/// the device's context current on its thread and restores the previous context afterwards.
///
/// ```
/// use arena_core::{ByteSize, Cuda, RawArena};
///
/// match Cuda::new(0) {
///     Ok(device) => {
///         let arena = RawArena::new(device, ByteSize::mib(1))?;
///         let weights = arena.persistent_from(&[0.5_f32; 25])?;
///         assert_eq!(weights.view().to_vec()?[24], 0.5);
///     }
///     // No driver, no device, an old driver, or built without the feature: it says which.
///     Err(reason) => println!("not on a GPU: {reason}"),
/// }
/// # Ok::<(), arena_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Cuda {
    stream: Arc<CudaStream>,
    name: String,
    /// Streams made by this device: where one is handed to a call as a bare reference, its owner is
    /// found here.
    streams: Mutex<Vec<Weak<CudaStream>>>,
    /// The error that broke the device.
    lost: OnceLock<DeviceError>,
    ranges: Option<Ranges>,
    /// Read by calls that must not be captured, written by who begins a capture, with the thread that does.
    capturing: RwLock<Option<ThreadId>>,
    /// Contexts of other devices that may be reading the arena's memory.
    peers: Peers,
    /// Where uploads from pageable memory lie on their way; made by the first of them.
    staging: Mutex<Option<Staging>>,
    every_stream: EveryStream,
    pub(crate) lent: LentSlices,
    pub(super) external: External,
    /// Of each region's base.
    pub(super) alignment: Alignment,
    /// Last, to act when the fields above are gone.
    restore: Restore,
}

impl Cuda {
    /// The device with this number, in its primary context, with a new stream. For a program that does not use
    /// CUDA by itself: one that has a context passes it to [`in_context`](Self::in_context), or a stream to
    /// [`on`](Self::on). All devices of this call with one number share one context object.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) with [`DeviceErrorKind::Unavailable`] when there
    /// is no driver, no such device, or only an older driver; with [`DeviceErrorKind::Refused`] when the program
    /// uses the primary context already, or the driver refuses. The error says which. It never panics.
    ///
    /// A context that the program makes *after* this call cannot be noticed. Two context objects of cudarc do not
    /// wait for each other's work, so a copy on a stream of the one may come too late for the other. Take
    /// [`context`](Self::context) instead.
    pub fn new(ordinal: usize) -> Result<Self, Error> {
        let name = format!("cuda:{ordinal}");
        let count = presence::device_count(&name)?;
        if ordinal >= count {
            return Err(DeviceError {
                device: name,
                call: "cuDeviceGet",
                reason: format!("there is no such device: they are numbered 0 to {}", count - 1),
                kind: DeviceErrorKind::Unavailable,
            }
            .into());
        }
        let _restore = Restore::remember();
        Self::in_context(&contexts::shared(ordinal, &name)?)
    }

    /// The device of a context that the program has, with a new stream of it.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    pub fn in_context(context: &Arc<CudaContext>) -> Result<Self, Error> {
        let _restore = Restore::remember();
        let stream = context.new_stream().map_err(|error| {
            let name = format!("cuda:{}", context.ordinal());
            Failure::Driver { call: "cuStreamCreate", code: error.0 }.on(&name)
        })?;
        Self::on(stream)
    }

    /// The device of a stream that the program has, to which the arena then belongs. What the program queues on it
    /// is ordered with the arena's work. The null stream is accepted, but no graph can be captured on it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) for the per-thread default stream: an arena can
    /// move to another thread, where that handle means another stream.
    pub fn on(stream: Arc<CudaStream>) -> Result<Self, Error> {
        let name = format!("cuda:{}", stream.context().ordinal());
        if is_per_thread(&stream) {
            return Err(crate::ErrorKind::WrongDevice {
                what: "the per-thread default stream, which is another one on each thread,".into(),
                device: name,
            }
            .into());
        }
        Ok(Self {
            stream,
            name,
            streams: Mutex::new(Vec::new()),
            lost: OnceLock::new(),
            ranges: None,
            capturing: RwLock::new(None),
            peers: Peers::default(),
            staging: Mutex::new(None),
            every_stream: EveryStream::default(),
            lent: LentSlices::default(),
            external: External::default(),
            alignment: Alignment::DEFAULT,
            restore: Restore::nothing(),
        })
    }

    /// The same device, but each scope is shown to profilers as an NVTX range with the scope's name, on the
    /// timeline of the host: from its opening to the end of its close. Without this call NVTX is not loaded.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) with [`DeviceErrorKind::Unavailable`] when NVTX
    /// is not installed.
    pub fn with_ranges(mut self) -> Result<Self, Error> {
        self.ranges = Some(Ranges::load(&self.name)?);
        Ok(self)
    }

    /// The number of devices.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new); there is at least one device otherwise.
    pub fn device_count() -> Result<usize, Error> {
        Ok(presence::device_count("cuda")?)
    }

    /// The context, which lives as long as the device.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        self.stream.context()
    }

    /// The arena's stream, for calls and launches of the program's own. It is
    /// [`Device::stream`], for programs that do not import the trait.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// A new stream of this device, which waits for no other stream. Declare it to the scope or to the buffers
    /// that it uses. Passing a buffer of the arena to a safe call of cudarc on this stream declares it too. A
    /// kernel launch does not, because cudarc does not tell its arguments the stream.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    pub fn new_stream(&self) -> Result<Arc<CudaStream>, Error> {
        let stream = self.call(|| {
            let made = self.context().new_stream();
            made.map_err(|error| Failure::Driver { call: "cuStreamCreate", code: error.0 })
        })?;
        let mut streams = self.streams.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&stream));
        Ok(stream)
    }

    /// The owner of a stream that this device made.
    pub(crate) fn find_stream(&self, stream: &CudaStream) -> Option<Arc<CudaStream>> {
        let streams = self.streams.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        streams.iter().find(|known| ptr::eq(known.as_ptr(), stream)).and_then(Weak::upgrade)
    }

    /// The error of a request for `asked_bytes` that the device has no room for, with what it has free.
    fn with_figures(&self, error: DeviceError, asked_bytes: u64) -> DeviceError {
        let Ok((free_bytes, total_bytes)) = self.call(memory_info) else { return error };
        let shortage = Shortage { asked_bytes, free_bytes, total_bytes };
        DeviceError {
            reason: format!(
                "{}: asked {asked_bytes} bytes, free {free_bytes} of {total_bytes}; the rest is held by \
                 this program and by other programs: ask for less, or for a fraction of what is free",
                error.reason
            ),
            kind: DeviceErrorKind::OutOfMemory(Some(shortage)),
            ..error
        }
    }

    /// Runs driver calls with the device current, unless it is lost.
    pub(crate) fn call<R>(
        &self,
        body: impl FnOnce() -> Result<R, Failure>,
    ) -> Result<R, DeviceError> {
        self.health()?;
        self.call_even_if_lost(body)
    }

    pub(crate) fn call_even_if_lost<R>(
        &self,
        body: impl FnOnce() -> Result<R, Failure>,
    ) -> Result<R, DeviceError> {
        with_current(self.context(), body).map_err(|failure| {
            let error = failure.on(&self.name);
            if error.kind == DeviceErrorKind::Final {
                return self.lost.get_or_init(|| error).clone();
            }
            error
        })
    }

    /// Refuses `call` while a graph is captured on the arena's stream: the driver would refuse it too,
    /// and throw the capture away. While what is returned lives no capture of this device begins, so that
    /// a call of another thread is not captured half way, with the address of its host memory.
    pub(crate) fn not_in_capture(
        &self,
        call: &'static str,
    ) -> Result<RwLockReadGuard<'_, Option<ThreadId>>, Failure> {
        let held = self.capturing.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive, and the status goes into a live variable.
        let code = unsafe { sys::cuStreamIsCapturing(self.stream.cu_stream(), &raw mut status) };
        done("cuStreamIsCapturing", code)?;
        match status {
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(held),
            _ => Err(Failure::InCapture { call }),
        }
    }

    /// [`not_in_capture`](Self::not_in_capture) for a call that queues nothing on the arena's stream: it may also come
    /// from another thread than the one that captures, because captures of this device are thread-local.
    pub(crate) fn not_captured_here(
        &self,
        call: &'static str,
    ) -> Result<RwLockReadGuard<'_, Option<ThreadId>>, Failure> {
        let held = self.capturing.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        if held.is_some_and(|thread| thread != std::thread::current().id()) {
            return Ok(held);
        }
        drop(held);
        self.not_in_capture(call)
    }

    /// Held while a capture begins, with the thread that captures from then on: no thread is between
    /// [`not_in_capture`](Self::not_in_capture) and the end of its call.
    pub(crate) fn no_call_is_under_way(&self) -> RwLockWriteGuard<'_, Option<ThreadId>> {
        self.capturing.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes the arena's stream wait for all that is queued on any stream: on the device, or on the host where the
    /// driver is older than CUDA 12.5.
    pub(crate) fn wait_for_every_stream(&self) -> Result<(), DeviceError> {
        self.call(|| {
            let _held = self.not_in_capture("cuCtxRecordEvent")?;
            self.every_stream.wait_on(&self.stream)
        })
    }

    /// Queues a copy from the host on the arena's stream.
    ///
    /// # Safety
    ///
    /// `to_address` is that of `len` bytes of the region; `from` is readable for as many until the copy has ended.
    unsafe fn queue_copy_in(
        &self,
        to_address: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), Failure> {
        let stream = self.stream.cu_stream();
        // SAFETY: by what the caller promises; the stream is alive.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to_address, from.cast(), len, stream) };
        done("cuMemcpyHtoDAsync", code)
    }

    /// Waits for the arena's stream on behalf of host memory that is only borrowed, and that a queued copy
    /// may still use: this returns when that copy has ended. A driver that refuses the wait for a passing
    /// reason is asked again until it knows, for the borrow ends with the call; a lost device runs nothing
    /// any more. The first refusal is returned all the same.
    fn wait_for_borrowed(&self) -> Result<(), Failure> {
        let first = synchronise(&self.stream);
        let mut last = first;
        while last.is_err_and(|failure| !failure.runs_nothing_more()) {
            std::thread::sleep(Duration::from_millis(1));
            last = synchronise(&self.stream);
        }
        // It has landed, or the device is lost, which says more than what came before.
        last.and(first)
    }

    /// A stream to declare for the work of another context, if that is current: a copy to another device is being
    /// queued then. Whoever waits for this stream waits for that context.
    pub(crate) fn stream_for_peers(&self) -> Result<Option<Arc<CudaStream>>, DeviceError> {
        // Not in `call`, which makes the own context current.
        self.peers.note(&self.stream).map_err(|failure| failure.on(&self.name))
    }

    /// Waits for the contexts that [`stream_for_peers`](Self::stream_for_peers) noted.
    fn wait_for_peers(&self, stream: &CudaStream) -> Result<(), Failure> {
        if *stream == *self.stream { Ok(()) } else { self.peers.wait() }
    }

    /// Makes a stream, of this context or another one, wait for what is queued on the arena's stream;
    /// on the host if the device cannot.
    pub(crate) fn order_before(&self, stream: &CudaStream) -> Result<(), DeviceError> {
        let on_the_device = self.call(|| {
            let event = Event::new(self.context())?;
            record(&event, &self.stream)?;
            wait(stream, &event)
        });
        on_the_device.or_else(|_| self.synchronise())
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let staging = self.staging.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(staging) = staging.take() {
            let waited = self.call_even_if_lost(|| match synchronise(&self.stream) {
                Err(failure) if !failure.runs_nothing_more() => Err(failure),
                _ => Ok(()),
            });
            if waited.is_err() {
                staging.leak();
            }
        }
        self.restore = Restore::remember();
    }
}

/// Whether a stream is the per-thread default stream, which has the handle 2 on every thread.
fn is_per_thread(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() == 2
}

pub(crate) fn memory_info() -> Result<(u64, u64), Failure> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both numbers go into live variables.
    done("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    Ok((free as u64, total as u64))
}

/// Whether the driver knows this host memory, so that copies from it are read only when they run. The
/// call for several attributes is no error where the driver does not, which a checker would report.
fn is_pinned(from: &[u8]) -> Result<bool, Failure> {
    let mut kind = 0_u32;
    let mut attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    let mut target = (&raw mut kind).cast::<c_void>();
    let (asked, at) = (&raw mut attribute, from.as_ptr().addr() as u64);
    // SAFETY: one attribute, an `unsigned int`, which goes into a live variable; the address is only
    // looked up.
    let code = unsafe { sys::cuPointerGetAttributes(1, asked, &raw mut target, at) };
    done("cuPointerGetAttributes", code)?;
    Ok(kind != 0)
}

#[expect(clippy::cast_possible_truncation, reason = "a `usize` has 64 bits, see the crate's root")]
const fn length(bytes: u64) -> usize {
    bytes as usize
}

// SAFETY: by the duties' numbers. 1: `cuMemAlloc` gives memory of its own, which only `cuMemFree` takes
// back, and who gives memory promises the same of it; the device is not host visible. 2: see `base_alignment`; there are no guard pages. 3: the driver
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
        Ok(DeviceMemory { device: self.name(), free_bytes, total_bytes })
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
            let handle = CudaMemory(None);
            return Ok(Obtained { base_address: Alignment::DEFAULT.bytes(), handle });
        }
        let mut base_address = 0;
        let obtained = self.call(|| {
            let _held = self.not_in_capture("cuMemAlloc")?;
            // SAFETY: the address goes into a live variable.
            let code = unsafe { sys::cuMemAlloc_v2(&raw mut base_address, length(bytes)) };
            done("cuMemAlloc", code)
        });
        match obtained {
            Ok(()) => Ok(Obtained { base_address, handle: CudaMemory(None) }),
            Err(error) if error.kind == DeviceErrorKind::OutOfMemory(None) => {
                Err(self.with_figures(error, bytes))
            }
            Err(error) => Err(error),
        }
    }

    unsafe fn release(&self, memory: Obtained<CudaMemory>, bytes: u64) -> Result<(), DeviceError> {
        let Obtained { base_address, handle: CudaMemory(mut external) } = memory;
        if bytes == 0 && external.is_none() {
            return Ok(());
        }
        let released = self.call_even_if_lost(|| {
            let first = synchronise(&self.stream);
            let waited = first.or_else(|_| synchronise(&self.stream));
            if let Err(failure) = waited
                && !failure.runs_nothing_more()
            {
                return Err(failure); // Queued work may still use the memory: it is given up, not freed.
            }
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
