//! Requests for transient buffers, from the hot path to what somebody watches.

use std::hint::cold_path;
use std::panic::Location;

use bytemuck::Pod;

use super::RawArena;
use crate::buffer::{MAX_ELEMENTS, NO_SLOT, Transient};
use crate::bytes::{Alignment, MAX_BYTES, bytes_of};
use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::event_log::Event;
use crate::layout::Span;

impl<D: Device> RawArena<D> {
    /// A transient buffer of `len` elements with unspecified but initialised contents.
    ///
    /// # Errors
    ///
    /// As for [`persistent`](Self::persistent).
    #[inline]
    #[track_caller]
    pub fn transient<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
    ) -> Result<Transient<'_, T, D>, Error> {
        self.transient_at(len, alignment, Location::caller())
    }

    /// [`transient`](Self::transient) for somebody else, whose call is named.
    ///
    /// # Errors
    ///
    /// As for [`persistent`](Self::persistent).
    #[inline]
    pub fn transient_at<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        call_site: &'static Location<'static>,
    ) -> Result<Transient<'_, T, D>, Error> {
        let placed = self.bump(len, alignment).or_else(|| self.repeated(len, alignment));
        match placed.or_else(|| self.planned(len, alignment)) {
            Some(buffer) => Ok(buffer),
            None => self.transient_slowly(len, alignment, call_site),
        }
    }

    /// The hot path of [`transient`](Self::transient): a bump and two comparisons, no lock, no heap,
    /// no dynamic call. `None` sends the request to [`repeated`](Self::repeated), to
    /// [`planned`](Self::planned), and then to [`transient_slowly`](Self::transient_slowly), which knows
    /// why.
    #[inline]
    pub fn bump<T: Pod>(&self, len: usize, alignment: Alignment) -> Option<Transient<'_, T, D>> {
        let Some((bytes, alignment)) = small::<T>(len, alignment) else {
            cold_path();
            return None;
        };
        let address = self.zones.bump(bytes, alignment)?;
        // SAFETY: as in `transient_slowly`.
        Some(unsafe { Transient::new(address, len, self, NO_SLOT) })
    }

    /// The way of a request under a plan that repeats an earlier step: `None` if it does not.
    #[inline]
    pub fn repeated<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
    ) -> Option<Transient<'_, T, D>> {
        let (bytes, alignment) = small::<T>(len, alignment)?;
        let (address, slot) = self.place_as_before(bytes, alignment)?;
        // SAFETY: as in `transient_slowly`.
        Some(unsafe { Transient::new(address, len, self, slot) })
    }

    /// The way of one that does not, but is just as planned: `None` if it is not, or if somebody watches.
    pub fn planned<T: Pod>(&self, len: usize, alignment: Alignment) -> Option<Transient<'_, T, D>> {
        let (bytes, alignment) = small::<T>(len, alignment)?;
        let (address, slot) = self.place_counted(bytes, alignment)?;
        // SAFETY: as in `transient_slowly`.
        Some(unsafe { Transient::new(address, len, self, slot) })
    }

    /// A request that neither hot path served: it is empty, too big, does not fit, or somebody
    /// watches.
    ///
    /// # Errors
    ///
    /// As for [`persistent`](Self::persistent).
    #[cold]
    #[inline(never)]
    pub fn transient_slowly<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        call_site: &'static Location<'static>,
    ) -> Result<Transient<'_, T, D>, Error> {
        let (bytes, alignment) = (bytes_of::<T>(len)?, alignment.max(Alignment::of::<T>()));
        if len as u64 > MAX_ELEMENTS {
            let element_bytes = size_of::<T>() as u64;
            return Err(ErrorKind::TooBig { elements: len as u64, element_bytes }.into());
        }
        let placed = self.place_slowly(bytes, alignment, call_site);
        let (address, slot) = placed.map_err(|error| error.asked_at(call_site))?;
        // SAFETY: 1: the address is aligned by the zones or by the plan, and not zero, as no base is.
        // 2: the bytes lie in the zones of this region, and the plan's in the part of them that the
        // root scope took for it; or in memory beside it, which the arena holds and gives to no other
        // buffer until the cursor goes back. 3: the bump gives no byte twice unless the cursor goes back, and
        // whoever lets it go back answers for the buffers above; a plan gives a byte again only after
        // the buffer that had it was dropped, or its scope closed.
        Ok(unsafe { Transient::new(address, len, self, slot) })
    }

    /// An address for a request, and its slot where a plan gave it.
    fn place_slowly(
        &self,
        bytes: u64,
        alignment: Alignment,
        call_site: &'static Location<'static>,
    ) -> Result<(u64, u32), Error> {
        self.take_deferred()?;
        let (address, offset_bytes, slot) = match &self.separate {
            Some(separate) => {
                let (address, offset_bytes) = self.place_alone(separate, bytes, alignment)?;
                (address, offset_bytes, NO_SLOT)
            }
            None => {
                let (address, slot) = match self.place_by_plan(bytes, alignment, call_site) {
                    Some(placed) => placed,
                    None => (self.address_of(self.place_by_bump(bytes, alignment)?), NO_SLOT),
                };
                (address, self.offset_of(address), slot)
            }
        };
        if let Some(log) = self.log.borrow_mut().as_mut() {
            log.push(Event::Alloc { offset_bytes, bytes, alignment });
        }
        Ok((address, slot))
    }

    fn place_by_bump(&self, bytes: u64, alignment: Alignment) -> Result<Span, Error> {
        let before = self.checkpoint();
        let span =
            self.zones.bump_checked(bytes, alignment).map_err(|error| self.off_plan(error))?;
        if let Err(error) = self.poison_fresh(span) {
            self.zones.take_back(before.cursor_bytes);
            return Err(error);
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

/// The most elements that the hot path serves: 0 for a type without bytes.
const fn most_elements<T>() -> u64 {
    match MAX_BYTES.checked_div(size_of::<T>() as u64) {
        Some(most) if most < MAX_ELEMENTS => most,
        Some(_) => MAX_ELEMENTS,
        None => 0,
    }
}
