//! Input that is copied while the step before still runs, and results that the host reads some steps later.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{CudaStream, sys};

use super::transfer::Transfer;
use crate::buffer::{Persistent, View};
use crate::bytes::Alignment;
use crate::device::Cuda;
use crate::device::Device;
use crate::device::cuda::enabled::code::done;
use crate::device::cuda::enabled::event::Event;
use crate::error::{Error, ErrorKind};
use crate::region::Region;
use crate::steps::Steps;

/// A depth that no scope has.
const FORGET_NONE: u32 = u32::MAX;

/// A ring of input slots. Each slot is a persistent buffer on the device and page-locked memory on the host. The
/// copy of one batch runs on a separate stream and overlaps the step that reads another batch.
///
/// [`fill`](Self::fill) uses the next free slot; [`next`](Self::next) gives the oldest filled slot to the step.
/// The device orders the two streams: a step waits for its copy, and a copy waits for the steps that read its
/// slot before.
#[derive(Debug)]
pub struct InputSlots<T: Pod> {
    slots: Vec<Slot<T>>,
    stream: Arc<CudaStream>,
    region: Arc<Region<Cuda>>,
    /// Batches filled and taken so far.
    filled: usize,
    taken: usize,
    waits: u64,
}

#[derive(Debug)]
struct Slot<T: Pod> {
    /// Before the buffer, so that the copy has ended when its bytes go back.
    transfer: Transfer<T>,
    buffer: Persistent<T, Cuda>,
    /// The step that read the buffer last, once it is recorded.
    read: Event,
    is_read_recorded: bool,
}

impl<T: Pod> InputSlots<T> {
    /// `count` slots of `len` elements. Two slots are enough to overlap a copy with a step. Make them before the
    /// mark is set.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSlots`] when `count` is 0; as for [`RawArena::persistent`](crate::RawArena::persistent); or the
    /// driver's refusal.
    #[track_caller]
    pub fn new(steps: &Steps<Cuda>, count: usize, len: usize) -> Result<Self, Error> {
        if count == 0 {
            return Err(ErrorKind::NoSlots.into());
        }
        let region = steps.region_arc();
        let stream = region.device().new_stream()?;
        let mut slots = Vec::with_capacity(count);
        for _ in 0..count {
            // Not in a closure, which would be named in place of the caller.
            let buffer = steps.persistent(len, Alignment::DEFAULT, 0)?;
            let transfer = Transfer::new(&region, len)?;
            let read = region.device().new_event()?;
            slots.push(Slot { transfer, buffer, read, is_read_recorded: false });
        }
        Ok(Self { slots, stream, region, filled: 0, taken: 0, waits: 0 })
    }

    /// Writes the next batch and queues its copy. If an earlier copy still reads the host memory of the slot, it
    /// waits for that copy, and [`waits`](Self::waits) counts it. A loader's thread may call it while another thread
    /// captures a graph, for a slot whose last batch was followed by another [`next`](Self::next).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InUse`] when every slot holds a batch that no step has taken yet; or the driver's
    /// refusal. The batch is not queued then.
    pub fn fill(&mut self, write: impl FnOnce(&mut [T])) -> Result<(), Error> {
        let index = self.free_slot()?;
        self.waits += u64::from(self.slots[index].transfer.wait()?);
        self.write_and_copy(index, write)
    }

    /// [`fill`](Self::fill) that never waits.
    ///
    /// # Errors
    ///
    /// As for [`fill`](Self::fill); and [`ErrorKind::InUse`] if `fill` would wait.
    pub fn try_fill(&mut self, write: impl FnOnce(&mut [T])) -> Result<(), Error> {
        let index = self.free_slot()?;
        if !self.slots[index].transfer.has_ended()? {
            return Err(
                ErrorKind::InUse { what: "the next input slot", by: "its last copy" }.into()
            );
        }
        self.write_and_copy(index, write)
    }

    fn free_slot(&self) -> Result<usize, Error> {
        if self.filled - self.taken == self.slots.len() {
            let by = "a batch that no step has taken";
            return Err(ErrorKind::InUse { what: "every input slot", by }.into());
        }
        Ok(self.filled % self.slots.len())
    }

    fn write_and_copy(&mut self, index: usize, write: impl FnOnce(&mut [T])) -> Result<(), Error> {
        let device = self.region.device();
        let slot = &mut self.slots[index];
        if slot.is_read_recorded {
            device.call(|| device.not_captured_here("fill").map(drop))?;
        } else {
            device.refuse_in_capture("fill")?; // Something is recorded on the arena's stream below.
        }
        write(slot.transfer.as_mut_slice()?);
        if !slot.is_read_recorded {
            // Who read it last, and before its first batch who had its bytes, is queued by now.
            record_reads(&self.region, slot)?;
        }
        device.wait(&self.stream, &slot.read)?;
        let _work = self.region.begin_work()?;
        let (to, stream) = (slot.buffer.address(), self.stream.cu_stream());
        slot.transfer.start(&self.stream, |from, bytes| {
            let from = from.cast::<c_void>().cast_const();
            // SAFETY: the buffer has as many bytes as the host memory, which `Transfer` keeps until the
            // copy has ended; the copy waits for whoever read the buffer before.
            done("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, stream) })
        })?;
        slot.is_read_recorded = false;
        self.filled += 1;
        Ok(())
    }

    /// The oldest batch that no step has taken yet, for work on the arena's stream. That stream waits for the copy
    /// of the batch. The slot is free again when the view is dropped.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFilled`] when no slot holds a batch; or the driver's refusal.
    #[expect(
        clippy::should_implement_trait,
        reason = "the view borrows the slots, which no iterator does"
    )]
    pub fn next(&mut self) -> Result<View<'_, T, Cuda>, Error> {
        if self.filled == self.taken {
            return Err(ErrorKind::NotFilled.into());
        }
        self.region.device().refuse_in_capture("next")?;
        let count = self.slots.len();
        if self.taken > 0 {
            // What read the batch before is queued by now; recorded here, a copy need not wait for the
            // step that comes.
            let before = &mut self.slots[(self.taken - 1) % count];
            if self.filled - self.taken < count {
                record_reads(&self.region, before)?;
            }
        }
        let slot = &self.slots[self.taken % count];
        let device = self.region.device();
        if !slot.buffer.is_empty() {
            device.wait(device.stream(), slot.transfer.ended())?;
        }
        self.taken += 1;
        Ok(slot.buffer.view())
    }

    /// The stream of the copies.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// How often [`fill`](Self::fill) had to wait for host memory.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.waits
    }
}

impl<T: Pod> Drop for InputSlots<T> {
    fn drop(&mut self) {
        // The buffers' bytes may be used again, on the arena's stream, as soon as they are gone.
        if self.region.wait_for(&self.stream).is_err() {
            let _ = self.region.declare(&self.stream, 0);
        }
    }
}

/// Records everything that may read a slot by now: the arena's stream, and the streams declared to it.
fn record_reads<T: Pod>(region: &Region<Cuda>, slot: &mut Slot<T>) -> Result<(), Error> {
    region.wait_for_declared(FORGET_NONE)?;
    region.device().record(&slot.read, region.device().stream())?;
    slot.is_read_recorded = true;
    Ok(())
}

/// A queue of results on their way to the host. They are copied on the arena's stream, and the host reads them
/// when they have arrived.
#[derive(Debug)]
pub struct ResultQueue<T: Pod> {
    free: Vec<Transfer<T>>,
    queued: VecDeque<Transfer<T>>,
    region: Arc<Region<Cuda>>,
    len: usize,
}

impl<T: Pod> ResultQueue<T> {
    /// A queue with room for `count` results of `len` elements.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSlots`] when `count` is 0; or the driver's refusal.
    pub fn new(steps: &Steps<Cuda>, count: usize, len: usize) -> Result<Self, Error> {
        if count == 0 {
            return Err(ErrorKind::NoSlots.into());
        }
        let region = steps.region_arc();
        let free = (0..count).map(|_| Transfer::new(&region, len)).collect::<Result<_, _>>()?;
        Ok(Self { free, queued: VecDeque::with_capacity(count), region, len })
    }

    /// Queues the copy of a result after the work queued on the arena's stream, without waiting.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`] for a result of another length, [`ErrorKind::OtherArena`] for one of
    /// another arena, whose stream orders it; [`ErrorKind::InUse`] when as many
    /// results are on their way as there is room for; or the driver's refusal.
    #[track_caller]
    pub fn push(&mut self, result: View<'_, T, Cuda>) -> Result<(), Error> {
        if result.len() != self.len {
            let (expected, given) = (self.len as u64, result.len() as u64);
            return Err(ErrorKind::LengthMismatch { expected, given }.into());
        }
        if !std::ptr::eq(result.region(), &raw const *self.region) {
            return Err(ErrorKind::OtherArena.into());
        }
        let _work = self.region.begin_work()?;
        let by = "a result that was not popped";
        let full = ErrorKind::InUse { what: "every place for a result", by };
        let mut transfer = self.free.pop().ok_or(full)?;
        let stream = self.region.device().stream();
        let from = result.address();
        let started = transfer.start(stream, |to, bytes| {
            let to = to.cast::<c_void>();
            // SAFETY: the view has as many bytes as the host memory, which `Transfer` keeps until the
            // copy has ended; nobody writes the view outside the stream.
            done("cuMemcpyDtoHAsync", unsafe {
                sys::cuMemcpyDtoHAsync_v2(to, from, bytes, stream.cu_stream())
            })
        });
        match started {
            Ok(()) => self.queued.push_back(transfer),
            Err(_) => self.free.push(transfer),
        }
        started
    }

    /// The oldest result. It waits until the result has arrived. `None` when the queue is empty. In a loop prefer
    /// [`pop_with`](Self::pop_with), which makes no vector.
    ///
    /// # Errors
    ///
    /// The driver's refusal, or an error of the work that made the result.
    pub fn pop(&mut self) -> Result<Option<Vec<T>>, Error> {
        self.pop_with(<[T]>::to_vec)
    }

    /// The oldest result if it has already arrived.
    ///
    /// # Errors
    ///
    /// As for [`pop`](Self::pop).
    pub fn try_pop(&mut self) -> Result<Option<Vec<T>>, Error> {
        self.try_pop_with(<[T]>::to_vec)
    }

    /// [`pop`](Self::pop) without a copy: `read` gets the result in place, and its value is returned.
    ///
    /// # Errors
    ///
    /// As for [`pop`](Self::pop); `read` is not called then.
    ///
    /// # Panics
    ///
    /// If `read` panics. The result then stays in the queue.
    pub fn pop_with<R>(&mut self, read: impl FnOnce(&[T]) -> R) -> Result<Option<R>, Error> {
        let Some(oldest) = self.queued.front_mut() else { return Ok(None) };
        oldest.wait()?;
        self.take_arrived(read)
    }

    /// [`try_pop`](Self::try_pop) without a copy.
    ///
    /// # Errors
    ///
    /// As for [`pop`](Self::pop); `read` is not called then.
    ///
    /// # Panics
    ///
    /// If `read` panics. The result then stays in the queue.
    pub fn try_pop_with<R>(&mut self, read: impl FnOnce(&[T]) -> R) -> Result<Option<R>, Error> {
        let arrived = match self.queued.front_mut() {
            Some(oldest) => oldest.has_ended()?,
            None => false,
        };
        if arrived { self.take_arrived(read) } else { Ok(None) }
    }

    /// Shows the oldest result, which has arrived, and makes its place free.
    fn take_arrived<R>(&mut self, read: impl FnOnce(&[T]) -> R) -> Result<Option<R>, Error> {
        let Some(oldest) = self.queued.front() else { return Ok(None) };
        let result = read(oldest.as_slice()?);
        self.free.extend(self.queued.pop_front());
        Ok(Some(result))
    }
}
