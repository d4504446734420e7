//! Requests for transient buffers: one ladder, from a bump to a look at everything.

use std::hint::cold_path;
use std::panic::Location;

use bytemuck::Pod;

use super::{Asked, Mode, Steps};
use crate::buffer::Transient;
use crate::bytes::{Alignment, MAX_BYTES};
use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::layout::{Span, bytes_of};
use crate::packed::{MAX_ELEMENTS, NO_SLOT};

impl<D: Device> Steps<D> {
    /// A transient buffer of `len` elements with unspecified but initialised contents, asked for in the
    /// scope of `depth` (0: in none).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`] when it does not fit, [`ErrorKind::TooBig`] when it never can, or an
    /// error that a close left behind.
    #[inline]
    #[track_caller]
    pub fn transient<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        depth: u32,
    ) -> Result<Transient<'_, T, D>, Error> {
        let placed = small::<T>(len, alignment)
            .and_then(|(bytes, alignment)| self.place_inline(bytes, alignment));
        match placed {
            // SAFETY: as in `transient_slowly`.
            Some((address, slot)) => Ok(unsafe { Transient::new(address, len, self, slot) }),
            None => self.transient_slowly(
                len,
                alignment,
                Asked { call_site: Location::caller(), depth },
            ),
        }
    }

    /// The same for another caller, whose call is named.
    ///
    /// # Errors
    ///
    /// As for [`transient`](Self::transient).
    pub fn transient_at<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        depth: u32,
        call_site: &'static Location<'static>,
    ) -> Result<Transient<'_, T, D>, Error> {
        self.transient_slowly(len, alignment, Asked { call_site, depth })
    }

    /// The first steps of the ladder; `None` sends the request further down.
    #[inline(always)]
    fn place_inline(&self, bytes: u64, alignment: Alignment) -> Option<(u64, u32)> {
        // Comparisons, not a `match`: a jump table would cost more than the bump.
        let mode = self.mode.get();
        if mode == Mode::Bump {
            return self.zones.bump(bytes, alignment).map(|address| (address, NO_SLOT));
        }
        cold_path(); // A hint to the compiler: the bump's instructions lie in one straight run.
        if mode == Mode::Repeating {
            self.plans.current().place_as_before(bytes, alignment)
        } else if mode == Mode::Observed {
            self.bump_observed(bytes, alignment).map(|address| (address, NO_SLOT))
        } else {
            None
        }
    }

    #[inline(never)]
    fn bump_observed(&self, bytes: u64, alignment: Alignment) -> Option<u64> {
        let address = self.zones.bump(bytes, alignment)?;
        self.running.add(self.offset_of(address), bytes, alignment, self.depth());
        Some(address)
    }

    /// A request that is empty, too big, does not fit, or is not served by the first steps of the ladder.
    #[inline(never)]
    fn transient_slowly<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        asked: Asked,
    ) -> Result<Transient<'_, T, D>, Error> {
        let (bytes, alignment) = (bytes_of::<T>(len)?, alignment.max(Alignment::of::<T>()));
        if len as u64 > MAX_ELEMENTS {
            let element_bytes = size_of::<T>() as u64;
            return Err(ErrorKind::TooBig { elements: len as u64, element_bytes }.into());
        }
        let placed = match self.repeat_after_drops(bytes, alignment) {
            Some(placed) => Ok(placed),
            None => self.place(bytes, alignment, asked),
        };
        let (address, slot) = placed.map_err(|error| self.asked(error, asked))?;
        // SAFETY: 1: the address is aligned by the zones or by the plan, and not zero, as no base is.
        // 2: the bytes lie in the zones of this region, where memory is committed, and the plan's in the part of
        // them that the root scope took for it; or in memory beside it, which the arena holds and gives to no other
        // buffer until the cursor goes back. 3: the bump gives no byte twice unless the cursor goes back, and
        // the caller that lets it go back answers for the buffers above; a plan gives a byte again only after
        // the buffer that had it was dropped, or its scope closed.
        Ok(unsafe { Transient::new(address, len, self, slot) })
    }

    /// A repeating step goes on as before, if what kept it from that were drops that it had not seen yet.
    #[inline]
    fn repeat_after_drops(&self, bytes: u64, alignment: Alignment) -> Option<(u64, u32)> {
        if !self.detached.any() {
            return None;
        }
        self.note_detached_drops(None);
        let repeats = self.mode.get() == Mode::Repeating && bytes > 0;
        repeats.then(|| self.plans.current().place_as_before(bytes, alignment)).flatten()
    }

    /// An address for a request, and its slot where a plan gave it.
    fn place(&self, bytes: u64, alignment: Alignment, asked: Asked) -> Result<(u64, u32), Error> {
        if self.mode.get() == Mode::Hunting {
            self.ready()?;
            self.choose_mode(); // What waited was told or paid, here or by a read.
        }
        let (address, offset_bytes, slot) = if let Some(separate) = &self.separate {
            let (address, offset_bytes) = self.place_alone(separate, bytes, alignment)?;
            (address, offset_bytes, NO_SLOT)
        } else {
            let placed = self.place_by_plan(bytes, alignment, asked);
            let (address, slot) = match placed {
                Some(placed) => placed,
                None => (self.address_of(self.place_by_bump(bytes, alignment)?), NO_SLOT),
            };
            (address, self.offset_of(address), slot)
        };
        if self.signs.get() {
            self.note_request(address, offset_bytes, bytes, alignment, asked);
        }
        Ok((address, slot))
    }

    /// Signs a request that was served, and logs it if the step is recorded.
    fn note_request(
        &self,
        address: u64,
        offset_bytes: u64,
        bytes: u64,
        alignment: Alignment,
        asked: Asked,
    ) {
        self.signed_before.set(self.running.snapshot());
        if bytes > 0 {
            self.running.add(offset_bytes, bytes, alignment, self.depth());
        }
        if let Some(log) = self.log.borrow_mut().as_mut() {
            log.push_request(address, (offset_bytes, bytes, alignment), asked.call_site);
            self.region.uses().set_events(log.events().len());
        }
    }

    /// Empty requests take no room, and no slot.
    fn place_by_plan(&self, bytes: u64, alignment: Alignment, asked: Asked) -> Option<(u64, u32)> {
        let planned = self.plans.followed().filter(|_| bytes > 0)?;
        self.count_from_here();
        let placed = planned.place(bytes, alignment, asked.call_site);
        if placed.is_none() && planned.table().yields() {
            self.leave_plan_for(bytes, alignment);
        }
        placed
    }

    fn place_by_bump(&self, bytes: u64, alignment: Alignment) -> Result<Span, Error> {
        let mut before_bytes = self.zones.cursor_bytes();
        let mut placed = self.bump_grown(bytes, alignment);
        if placed.is_err() && self.leave_plan_for(bytes, alignment) {
            before_bytes = self.zones.cursor_bytes(); // What the plan did not hold is free now.
            placed = self.bump_grown(bytes, alignment);
        }
        let span = placed.map_err(|error| self.off_plan(error, bytes, alignment))?;
        if let Err(error) = self.poison_fresh(span) {
            self.zones.take_back(before_bytes, span);
            return Err(error);
        }
        if let Some(planned) = self.plans.followed() {
            planned.note_bumped(bytes, alignment);
        }
        Ok(span)
    }
}

/// The bytes and the alignment of a request that is neither empty nor too big.
#[inline]
fn small<T: Pod>(len: usize, alignment: Alignment) -> Option<(u64, Alignment)> {
    // One comparison for "empty" and for "too big": zero wraps round to the largest number.
    let serves = (len as u64).wrapping_sub(1) < const { most_elements::<T>() };
    serves.then(|| (len as u64 * size_of::<T>() as u64, alignment.max(Alignment::of::<T>())))
}

/// The most elements that the first steps of the ladder serve: 0 for a type without bytes. It is a power of
/// two, with which a number is compared by a shift.
const fn most_elements<T>() -> u64 {
    match MAX_BYTES.checked_div(size_of::<T>() as u64) {
        Some(most) if most < MAX_ELEMENTS => 1 << most.ilog2(),
        Some(_) => 1 << MAX_ELEMENTS.ilog2(),
        None => 0,
    }
}
