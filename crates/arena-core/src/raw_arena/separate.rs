//! For hunting bugs: each transient buffer is an allocation of its own, with guard zones around it.
//!
//! The zones go on as under the bump, so that figures, signatures and capacity errors are the same;
//! what they give is the buffer's *offset*, and its address is that of its allocation. The region's
//! transient part is never touched.
//!
//! The table is behind a lock, for any thread that holds a buffer may ask for its offset.

use std::sync::{Arc, Mutex, MutexGuard};

use super::{Checkpoint, POISON_BYTE, RawArena};
use crate::bytes::Alignment;
use crate::device::{Device, Obtained};
use crate::error::{Error, GuardZone};
use crate::layout::{Span, align_down, align_up};
use crate::placement::Placement;
use crate::region::{Region, check_range};

/// Bytes of the zone before a buffer, and of the one behind it.
const GUARD_BYTES: u64 = 256;

/// What they hold: neither poison nor zero, and no likely value of a program.
const GUARD_BYTE: u8 = 0xa5;

/// The buffers that are alive, in the order of their requests, and so of their offsets.
pub(super) struct Separate<D: Device> {
    guard_bytes: u64,
    region: Arc<Region<D>>,
    table: Mutex<Table<D::Memory>>,
}

struct Table<M> {
    buffers: Vec<Alone<M>>,
    /// Since the root scope opened, empty ones included.
    requests: u64,
}

/// One buffer. Its guard zones lie inside the allocation, right before and right behind it.
struct Alone<M> {
    memory: Obtained<M>,
    obtained_bytes: u64,
    address: u64,
    bytes: u64,
    offset_bytes: u64,
    request: u64,
}

impl<D: Device> Separate<D> {
    /// What a placement needs; nothing for the bump. A device that only measures has no memory that
    /// could be overrun, so there every placement is the bump.
    pub(super) fn of(placement: Placement, region: &Arc<Region<D>>) -> Option<Box<Self>> {
        let guard_bytes = match placement {
            Placement::Separate => GUARD_BYTES,
            Placement::Unguarded => 0,
            Placement::Bump => return None,
        };
        let table = Mutex::new(Table { buffers: Vec::new(), requests: 0 });
        let region = Arc::clone(region);
        (!D::MEASURES_ONLY).then(|| Box::new(Self { guard_bytes, region, table }))
    }

    /// What another thread's panic left behind is whole: other threads only read.
    fn lock(&self) -> MutexGuard<'_, Table<D::Memory>> {
        self.table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// An allocation for the request that has these offsets, filled with `contents`; its address.
    fn obtain(&self, span: Span, alignment: Alignment, contents: u8) -> Result<u64, Error> {
        let device = self.region.device();
        let (bytes, guard_bytes) = (span.len_bytes(), self.guard_bytes);
        // The buffer and the zone behind it end as near to the memory's end as the alignment allows.
        // No sum overflows: a span lies below 2⁶², and an alignment is at most 2⁶¹.
        let tail_bytes = bytes + guard_bytes;
        let obtained_bytes = match device.guard_pages() {
            Some(end) if alignment <= end => guard_bytes + align_up(tail_bytes, alignment),
            None if alignment <= device.base_alignment() => {
                align_up(guard_bytes, alignment) + tail_bytes
            }
            _ => guard_bytes + alignment.bytes() + tail_bytes,
        };
        let memory = device.obtain_guarded(obtained_bytes)?;
        self.region.count_driver_allocation();
        let checked = check_range(device, memory.base_address, obtained_bytes);
        let address = match checked {
            Ok(()) => align_down(memory.base_address + obtained_bytes - tail_bytes, alignment),
            Err(_) => 0,
        };
        let (offset_bytes, mut table) = (span.start_bytes, self.lock());
        let request = table.requests;
        let alone = Alone { memory, obtained_bytes, address, bytes, offset_bytes, request };
        if let Err(error) = checked.and_then(|()| self.prepare(&alone, contents)) {
            // SAFETY: it was obtained just now, and nobody knows it.
            let _ = unsafe { device.release(alone.memory, obtained_bytes) };
            return Err(error);
        }
        table.buffers.push(alone);
        Ok(address)
    }

    fn prepare(&self, alone: &Alone<D::Memory>, contents: u8) -> Result<(), Error> {
        let (device, guard_bytes) = (self.region.device(), self.guard_bytes);
        if guard_bytes > 0 {
            let (start, bytes) = (alone.address - guard_bytes, alone.bytes + 2 * guard_bytes);
            // SAFETY: the zones and the buffer lie inside the allocation, which nobody else knows.
            unsafe { device.fill(start, bytes, GUARD_BYTE) }?;
        }
        // SAFETY: as above.
        unsafe { device.fill(alone.address, alone.bytes, contents) }?;
        Ok(())
    }

    /// Fills the buffers whose offsets lie in `span`.
    ///
    /// # Safety
    ///
    /// None of them is used again.
    pub(super) unsafe fn fill(&self, span: Span, value: u8) -> Result<(), Error> {
        let table = self.lock();
        let inside = (table.buffers.iter())
            .filter(|alone| (span.start_bytes..span.end_bytes).contains(&alone.offset_bytes));
        for alone in inside {
            // SAFETY: the buffer's own bytes, which the caller says nobody uses.
            unsafe { self.region.device().fill(alone.address, alone.bytes, value) }?;
        }
        Ok(())
    }

    /// Checks the guard zones of the buffers from an offset on, and releases them all, whatever fails.
    /// The first error is the one returned.
    ///
    /// # Safety
    ///
    /// None of them is used again, and the arena's stream waits for every other stream that used them.
    unsafe fn release_from(&self, offset_bytes: u64) -> Result<(), Error> {
        if self.region.fences().is_lost() {
            return Ok(()); // Some stream may still be writing; the arena's end tries again.
        }
        let mut table = self.lock();
        let first = table.buffers.partition_point(|alone| alone.offset_bytes < offset_bytes);
        let mut outcome = Ok(());
        for alone in table.buffers.drain(first..) {
            let checked = self.check(&alone);
            // SAFETY: the memory is of `obtain` for these bytes, and the caller says that no use of
            // it is left; the device releases it after what its stream has queued.
            let released =
                unsafe { self.region.device().release(alone.memory, alone.obtained_bytes) };
            outcome = outcome.and(checked).and(released.map_err(Error::from));
        }
        outcome
    }

    /// That nobody wrote into a buffer's guard zones.
    fn check(&self, alone: &Alone<D::Memory>) -> Result<(), Error> {
        if self.guard_bytes == 0 {
            return Ok(());
        }
        let (address, bytes) = (alone.address, alone.bytes);
        let zones = [
            (address - GUARD_BYTES, -GUARD_BYTES.cast_signed()),
            (address + bytes, bytes.cast_signed()),
        ];
        for (zone_address, zone_offset) in zones {
            let mut zone = [0; GUARD_BYTES as usize];
            // SAFETY: the zone lies inside the allocation; what wrote to it did so by mistake, on the
            // arena's stream or on one that it waits for.
            unsafe { self.region.device().copy_out(&mut zone, zone_address) }?;
            if let Some(damaged) = (0_i64..).zip(zone).find(|(_, byte)| *byte != GUARD_BYTE) {
                let offset_bytes = zone_offset + damaged.0;
                return Err(GuardZone::new(alone.request, bytes, offset_bytes).into());
            }
        }
        Ok(())
    }

    fn offset_of(&self, address: u64) -> Option<u64> {
        let table = self.lock();
        let alone = table.buffers.iter().rev().find(|alone| alone.address == address)?;
        Some(alone.offset_bytes)
    }

    pub(super) fn restart_count(&self) {
        self.lock().requests = 0;
    }

    fn count_request(&self) {
        self.lock().requests += 1;
    }
}

impl<D: Device> Drop for Separate<D> {
    /// Releases what a forgotten guard, or a lost order, left behind.
    fn drop(&mut self) {
        // Declarations at depth 0 are of persistent buffers, and stay.
        let _ = self.region.join_declared(1);
        let table = self.table.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for alone in table.buffers.drain(..) {
            // SAFETY: the arena is gone and with it every buffer; the arena's stream was made to wait
            // for the others just now.
            let _ = unsafe { self.region.device().release(alone.memory, alone.obtained_bytes) };
        }
    }
}

impl<D: Device> RawArena<D> {
    /// The address and the offset of a request that is placed in an allocation of its own.
    pub(super) fn place_alone(
        &self,
        separate: &Separate<D>,
        bytes: u64,
        alignment: Alignment,
    ) -> Result<(u64, u64), Error> {
        let before = self.checkpoint();
        let span = self.zones.bump_checked(bytes, alignment)?;
        let contents = if self.poisoned_to.get().is_some() { POISON_BYTE } else { 0 };
        let address = if span.is_empty() {
            self.address_of(span)
        } else {
            separate
                .obtain(span, alignment, contents)
                .inspect_err(|_| self.zones.take_back(before.cursor_bytes))?
        };
        separate.count_request();
        Ok((address, span.start_bytes))
    }

    /// Under a placement in separate allocations: checks the guard zones of the buffers made since
    /// `checkpoint`, and releases their memory. Otherwise it does nothing. A [`rewind`](Self::rewind)
    /// does the same, and keeps the error for the next fallible call.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::GuardZone`](crate::ErrorKind::GuardZone) for the first buffer with damage, or the
    /// device's refusal to read or to release. Every buffer is released all the same.
    ///
    /// # Safety
    ///
    /// As for [`rewind`](Self::rewind); and every other stream that used them was joined.
    #[inline]
    pub unsafe fn release_since(&self, checkpoint: Checkpoint) -> Result<(), Error> {
        match &self.separate {
            None => Ok(()),
            // SAFETY: the caller's promise.
            Some(separate) => unsafe { separate.release_from(checkpoint.cursor_bytes) },
        }
    }

    /// As [`release_since`](Self::release_since), where no error can be returned.
    pub(super) fn release_quietly(&self, checkpoint: Checkpoint) {
        // SAFETY: the callers put the cursor back to the checkpoint, for which they need as much.
        if let Err(error) = unsafe { self.release_since(checkpoint) } {
            self.defer_error(error);
        }
    }

    /// Takes the request made last back, of which `before` is the cursor: as if it had not been made.
    pub(super) fn take_back_alone(&self, before: Checkpoint) {
        if let Some(separate) = &self.separate {
            self.release_quietly(before);
            separate.lock().requests -= 1;
        }
    }

    /// Where a buffer that is not empty lies by the zones: its address alone does not tell if it is an
    /// allocation of its own.
    pub(crate) fn offset_of_buffer(&self, address: u64) -> u64 {
        let alone = self.separate.as_ref().and_then(|separate| separate.offset_of(address));
        alone.unwrap_or_else(|| self.offset_of(address))
    }
}
