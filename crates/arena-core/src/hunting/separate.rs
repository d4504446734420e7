//! For hunting bugs: each transient buffer is an allocation of its own, with guard zones around it, or
//! lies anywhere in one second allocation, the shadow.
//!
//! The zones go on as under the bump, so that figures, signatures and capacity errors are the same;
//! what they give is the buffer's *offset*, and its address is elsewhere. So nobody but the buffer with
//! an offset has a claim to the region's bytes there, and it gets them when the shadow is full.
//!
//! The table is behind a lock, for any thread that holds a buffer may ask for its offset.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::bytes::Alignment;
use crate::device::{Device, Obtained};
use crate::error::{Error, GuardZone};
use crate::layout::{Span, align_down, align_up};
use crate::placement::Placement;
use crate::region::{Claimed, Region, unless_it_panics};

use super::Shuffled;

/// Bytes of the zone before a buffer, and of the one behind it.
const GUARD_BYTES: u64 = 256;

/// What they hold: neither poison nor zero, and no likely value of a program.
const GUARD_BYTE: u8 = 0xa5;

/// The buffers that are alive, in the order of their requests, and so of their offsets.
pub(crate) struct Separate<D: Device> {
    guard_bytes: u64,
    region: Arc<Region<D>>,
    /// With its bytes; only when shuffled.
    shadow: Option<(Obtained<D::Memory>, u64)>,
    table: Mutex<Table<D::Memory>>,
}

struct Table<M> {
    buffers: Vec<Alone<M>>,
    /// Of the shadow.
    places: Option<Shuffled>,
    /// Since the root scope opened, empty ones included.
    requests: u64,
}

/// One buffer. Its guard zones lie inside the allocation, right before and right behind it.
struct Alone<M> {
    /// With its bytes; none in the shadow.
    memory: Option<(Obtained<M>, u64)>,
    address: u64,
    bytes: u64,
    offset_bytes: u64,
    request: u64,
}

impl<D: Device> Separate<D> {
    /// What a placement needs; nothing for the bump. A device that only measures has no memory that
    /// could be overrun, so there every placement is the bump.
    ///
    /// The device may refuse the shadow.
    pub(crate) fn of(
        placement: Placement,
        region: &Arc<Region<D>>,
    ) -> Result<Option<Box<Self>>, Error> {
        if D::MEASURES_ONLY || placement == Placement::Bump {
            return Ok(None);
        }
        let guard_bytes = if placement == Placement::Separate { GUARD_BYTES } else { 0 };
        let mut table = Table { buffers: Vec::new(), places: None, requests: 0 };
        let mut shadow = None;
        if let Placement::Shuffled { seed } = placement {
            let bytes = 2 * region.capacity_bytes(); // A capacity is at most 2⁶².
            let claimed = Claimed::Base(region.device().base_alignment());
            let memory = checked(region, region.device().obtain(bytes)?, bytes, claimed)?;
            table.places = Some(Shuffled::new(memory.base_address, bytes, seed));
            shadow = Some((memory, bytes));
        }
        let (region, table) = (Arc::clone(region), Mutex::new(table));
        Ok(Some(Box::new(Self { guard_bytes, region, shadow, table })))
    }

    /// What another thread's panic left behind is whole: other threads only read.
    fn lock(&self) -> MutexGuard<'_, Table<D::Memory>> {
        self.table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A place for the request that has these offsets, filled with `contents`; its address.
    pub(crate) fn place(
        &self,
        span: Span,
        alignment: Alignment,
        contents: u8,
    ) -> Result<u64, Error> {
        let mut table = self.lock();
        let (bytes, offset_bytes) = (span.len_bytes(), span.start_bytes);
        let (memory, address) = match &mut table.places {
            Some(places) => {
                let in_the_region = self.region.base_address() + offset_bytes;
                (None, places.take(bytes, alignment).unwrap_or(in_the_region))
            }
            None => {
                let (memory, obtained_bytes, address) = self.obtain_alone(bytes, alignment)?;
                (Some((memory, obtained_bytes)), address)
            }
        };
        let request = table.requests;
        let alone = Alone { memory, address, bytes, offset_bytes, request };
        // Should the device panic, the buffer is in the table, and goes with its scope.
        table.buffers.push(alone);
        let Table { buffers, places, .. } = &mut *table;
        let prepared = buffers.last().map_or(Ok(()), |alone| self.prepare(alone, contents));
        if prepared.is_err()
            && let Some(alone) = buffers.pop()
        {
            // SAFETY: nobody knows the buffer.
            let _ = unsafe { self.release(alone, places) };
        }
        prepared.map(|()| address)
    }

    /// An allocation for a buffer between its guard zones: with its bytes, and the buffer's address.
    fn obtain_alone(
        &self,
        bytes: u64,
        alignment: Alignment,
    ) -> Result<(Obtained<D::Memory>, u64, u64), Error> {
        let (device, guard_bytes) = (self.region.device(), self.guard_bytes);
        // The buffer and the zone behind it end as near to the memory's end as the alignment allows.
        // No sum overflows: a span lies below 2⁶², and an alignment is at most 2⁶¹.
        let tail_bytes = bytes + guard_bytes;
        let claimed = device
            .guard_pages()
            .map_or_else(|| Claimed::Base(device.base_alignment()), Claimed::End);
        let obtained_bytes = match claimed {
            Claimed::End(end) if alignment <= end => guard_bytes + align_up(tail_bytes, alignment),
            Claimed::Base(base) if alignment <= base => {
                align_up(guard_bytes, alignment) + tail_bytes
            }
            _ => guard_bytes + alignment.bytes() + tail_bytes,
        };
        let memory = device.obtain_guarded(obtained_bytes)?;
        // What is claimed decides whether the zone before the buffer lies inside.
        let memory = checked(&self.region, memory, obtained_bytes, claimed)?;
        let end_address = memory.base_address + obtained_bytes;
        Ok((memory, obtained_bytes, align_down(end_address - tail_bytes, alignment)))
    }

    /// Gives a buffer's memory back, which is released after what the device's stream has queued.
    ///
    /// # Safety
    ///
    /// The buffer is not used again, and the arena's stream waits for every other stream that used it.
    unsafe fn release(
        &self,
        alone: Alone<D::Memory>,
        places: &mut Option<Shuffled>,
    ) -> Result<(), Error> {
        if let Some((memory, obtained_bytes)) = alone.memory {
            // SAFETY: the memory was obtained for these bytes, and the caller says that no use of it is
            // left.
            unsafe { self.region.device().release(memory, obtained_bytes) }?;
        } else if let Some(places) = places {
            places.give_back(alone.address);
        }
        Ok(())
    }

    fn prepare(&self, alone: &Alone<D::Memory>, contents: u8) -> Result<(), Error> {
        let (device, guard_bytes) = (self.region.device(), self.guard_bytes);
        if guard_bytes > 0 {
            let (start, bytes) = (alone.address - guard_bytes, alone.bytes + 2 * guard_bytes);
            // SAFETY: the zones and the buffer lie inside the allocation, which nobody else knows.
            unsafe { device.fill(start, bytes, GUARD_BYTE.into()) }?;
        }
        // SAFETY: the buffer lies inside an allocation of its own, in a free place of the shadow, or in
        // the region where no other buffer is and nothing is kept: below the cursor, at its own offset.
        unsafe { device.fill(alone.address, alone.bytes, contents.into()) }?;
        Ok(())
    }

    /// Fills the buffers whose offsets lie in `span`.
    ///
    /// # Safety
    ///
    /// None of them is used again.
    pub(crate) unsafe fn fill(&self, span: Span, value: u8) -> Result<(), Error> {
        let table = self.lock();
        let inside = (table.buffers.iter())
            .filter(|alone| (span.start_bytes..span.end_bytes).contains(&alone.offset_bytes));
        for alone in inside {
            // SAFETY: the buffer's own bytes, which the caller says nobody uses.
            unsafe { self.region.device().fill(alone.address, alone.bytes, value.into()) }?;
        }
        Ok(())
    }

    /// Checks the guard zones of the buffers from an offset on, and releases them all, whatever fails.
    /// The first error is the one returned.
    ///
    /// # Safety
    ///
    /// None of them is used again, and the arena's stream waits for every other stream that used them.
    pub(crate) unsafe fn release_from(&self, offset_bytes: u64) -> Result<(), Error> {
        if self.region.fences().is_lost() {
            return Ok(()); // Some stream may still be writing; the arena's end tries again.
        }
        let Table { buffers, places, .. } = &mut *self.lock();
        let first = buffers.partition_point(|alone| alone.offset_bytes < offset_bytes);
        let checked = buffers[first..].iter().map(|alone| self.check(alone));
        let mut outcome = checked.fold(Ok(()), Result::and);
        // One at a time: should the device panic, those that are left are released with a later call.
        while buffers.len() > first
            && let Some(alone) = buffers.pop()
        {
            // SAFETY: the caller's promise.
            outcome = outcome.and(unsafe { self.release(alone, places) });
        }
        outcome
    }

    /// Releases the buffer of the request made last, if it is the one of this address: as if it had not
    /// been made.
    ///
    /// # Safety
    ///
    /// The buffer is not used again, and no other stream has used it.
    pub(crate) unsafe fn take_back(&self, address: u64) -> Result<(), Error> {
        let Table { buffers, places, requests } = &mut *self.lock();
        let Some(alone) = buffers.pop_if(|alone| alone.address == address) else { return Ok(()) };
        *requests -= 1;
        // SAFETY: the caller's promise.
        unsafe { self.release(alone, places) }
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

    pub(crate) fn offset_of(&self, address: u64) -> Option<u64> {
        let table = self.lock();
        let alone = table.buffers.iter().rev().find(|alone| alone.address == address)?;
        Some(alone.offset_bytes)
    }

    pub(crate) fn restart_count(&self) {
        self.lock().requests = 0;
    }

    pub(crate) fn count_request(&self) {
        self.lock().requests += 1;
    }
}

/// Counts memory that was obtained just now; where it does not lie as claimed it is released.
fn checked<D: Device>(
    region: &Region<D>,
    memory: Obtained<D::Memory>,
    bytes: u64,
    claimed: Claimed,
) -> Result<Obtained<D::Memory>, Error> {
    region.count_driver_allocation();
    if let Err(error) = claimed.check(region.device(), memory.base_address, bytes) {
        // SAFETY: it was obtained just now for these bytes, and nobody knows it.
        let _ = unsafe { region.device().release(memory, bytes) };
        return Err(error);
    }
    Ok(memory)
}

impl<D: Device> Drop for Separate<D> {
    /// Releases what a forgotten guard, or a lost order, left behind.
    fn drop(&mut self) {
        // Declarations at depth 0 are of persistent buffers, and stay.
        if unless_it_panics(|| self.region.wait_for_declared(1)).is_none() {
            return; // Nobody knows what was waited for, so the memory is given up.
        }
        let table = self.table.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        let alone = table.buffers.drain(..).filter_map(|alone| alone.memory);
        for (memory, obtained_bytes) in alone.chain(self.shadow.take()) {
            unless_it_panics(|| {
                // SAFETY: obtained for these bytes; the arena is gone and with it every buffer, and its
                // stream was made to wait for the others just now.
                unsafe { self.region.device().release(memory, obtained_bytes) }
            });
        }
    }
}
