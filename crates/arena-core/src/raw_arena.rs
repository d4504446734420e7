//! The arena without scopes: persistent buffers at the bottom, a bump pointer above the mark.

mod filled;
mod plan;
mod requests;
mod separate;
mod watch;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use bytemuck::Pod;

use crate::buffer::Persistent;
use crate::bytes::{Alignment, ByteSize, bytes_of};
use crate::demand::Demand;
use crate::device::{Device, Host, Probe};
use crate::error::Error;
use crate::event_log::EventLog;
use crate::layout::Span;
use crate::pin::RegionPin;
use crate::placement::{Placement, Plans};
use crate::region::Region;
use crate::stats::Stats;
use crate::zones::Zones;

use separate::Separate;

/// What poisoned memory is filled with: every float of every width reads as NaN, every signed
/// integer as -1.
pub const POISON_BYTE: u8 = 0xff;

/// A region with its zones. The layer above gives it scopes; by itself it offers transient buffers
/// that live until [`reset_to_mark`](Self::reset_to_mark), which needs `&mut self`.
///
/// It can be sent to another thread, but not shared: requests go through cells, without a lock.
#[repr(C)] // What the hot path reads comes first, in one cache line and within short displacements.
pub struct RawArena<D: Device = Host> {
    /// Whether a dropped handle matters, to a log or to a plan: all that a drop looks at.
    minds_drops: Cell<bool>,
    /// Somebody logs requests, or an error waits, or each buffer is an allocation of its own: no request
    /// and no drop goes by without a look.
    is_watched: Cell<bool>,
    zones: Zones,
    region: Arc<Region<D>>,
    /// Why requests take the slow path: they are logged, a plan places them, fresh memory is poisoned
    /// first, an error waits, or each buffer lies elsewhere. With none of these the fast path is open.
    log: RefCell<Option<EventLog>>,
    plans: Plans,
    poisoned_to: Cell<Option<u64>>,
    deferred: RefCell<Option<Error>>,
    demand: Option<RefCell<Demand>>,
    /// Spans of dropped kept buffers: every stream that used them is joined, or will be before they are
    /// given back.
    returned: RefCell<Vec<Span>>,
    separate: Option<Box<Separate<D>>>,
}

/// A place to which the cursor can go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    cursor_bytes: u64,
}

impl Checkpoint {
    /// The cursor at the time, in bytes from the base.
    #[must_use]
    pub const fn cursor_bytes(self) -> u64 {
        self.cursor_bytes
    }
}

impl<D: Device> RawArena<D> {
    /// Obtains a region of exactly `capacity` from `device`, in one call.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) when the device refuses; nothing is held then.
    pub fn new(device: D, capacity: ByteSize) -> Result<Self, Error> {
        Self::with_placement(device, capacity, Placement::Bump)
    }

    /// [`new`](Self::new) with a placement.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn with_placement(
        device: D,
        capacity: ByteSize,
        placement: Placement,
    ) -> Result<Self, Error> {
        let region = Arc::new(Region::obtain(device, capacity.bytes())?);
        let base_address = region.base_address();
        let arena = Self {
            separate: Separate::of(placement, &region)?,
            zones: Zones::new(base_address, capacity.bytes()),
            region,
            log: RefCell::new(None),
            plans: Plans::default(),
            minds_drops: Cell::new(false),
            is_watched: Cell::new(false),
            poisoned_to: Cell::new(None),
            deferred: RefCell::new(None),
            returned: RefCell::new(Vec::with_capacity(16)),
            demand: D::MEASURES_ONLY.then(|| RefCell::new(Demand::new(base_address))),
        };
        arena.choose_path();
        Ok(arena)
    }

    /// The region.
    #[must_use]
    #[inline]
    pub fn region(&self) -> &Region<D> {
        &self.region
    }

    /// The region, to keep it alive.
    #[must_use]
    pub fn region_arc(&self) -> Arc<Region<D>> {
        Arc::clone(&self.region)
    }

    /// Holds the region as it is, as long as the pin lives.
    #[must_use]
    pub fn pin(&self) -> RegionPin<D> {
        RegionPin::new(&self.region)
    }

    /// Where the arena stands.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (used_bytes, kept_bytes) = (self.zones.cursor_bytes(), self.zones.kept_bytes());
        Stats {
            capacity_bytes: self.zones.capacity_bytes(),
            mark_bytes: self.zones.mark_bytes(),
            used_bytes,
            free_bytes: self.zones.capacity_bytes() - kept_bytes - used_bytes,
            kept_bytes,
            peak_bytes: self.zones.peak_bytes(),
            driver_allocations: self.region.driver_allocations(),
        }
    }

    /// Sets the mark: what is persistent so far lies below it for good.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MarkAlreadySet`](crate::ErrorKind::MarkAlreadySet) the second time.
    pub fn set_mark(&self) -> Result<(), Error> {
        self.zones.set_mark()
    }

    /// Whether the mark is set.
    #[must_use]
    pub fn mark_is_set(&self) -> bool {
        self.zones.mark_is_set()
    }

    // --- buffers ------------------------------------------------------------------------------

    /// A persistent buffer of `len` elements with unspecified contents: below the mark before it is
    /// set, kept at the region's top afterwards.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted) when it does not fit,
    /// [`ErrorKind::TooBig`](crate::ErrorKind::TooBig) when it never can, or an error that a close
    /// left behind.
    #[track_caller]
    pub fn persistent<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
    ) -> Result<Persistent<T, D>, Error> {
        let call_site = Location::caller();
        self.take_deferred()?;
        self.region.device().refuse_in_capture("persistent")?;
        let alignment = alignment.max(Alignment::of::<T>());
        let placed = self.zones.place_persistent(bytes_of::<T>(len)?, alignment);
        let (span, kept) = placed.map_err(|error| error.asked_at(call_site))?;
        if let (true, Some(demand)) = (kept, &self.demand) {
            demand.borrow_mut().note_keep(span, alignment, self.zones.cursor_bytes());
        }
        let (address, region) = (self.address_of(span), Arc::clone(&self.region));
        // SAFETY: 1: the address is aligned by the zones, and not zero, as no base is. 2: the span
        // lies in the zones of this region. 3: neither the bump nor the kept zone gives a byte of
        // it away again before the buffer's drop.
        Ok(unsafe { Persistent::new(address, len, region, kept.then_some(span)) })
    }

    fn address_of(&self, span: Span) -> u64 {
        self.zones.base_address() + span.start_bytes
    }

    /// An address of this region as an offset from its base: that of what [`bump`](Self::bump) gave.
    #[must_use]
    #[inline]
    pub fn offset_of(&self, address: u64) -> u64 {
        self.zones.offset_of(address)
    }

    // --- the way back -------------------------------------------------------------------------

    /// Puts the cursor back to the mark (and sets the mark if it is not set), and follows no plan any
    /// more. That no transient buffer is alive is what `&mut self` proves.
    pub fn reset_to_mark(&mut self) {
        self.select_plan(None);
        let _ = self.zones.set_mark();
        if let Err(error) = self.join_declared(1) {
            self.defer_error(error);
        }
        self.note_cursor();
        self.release_quietly(Checkpoint { cursor_bytes: self.zones.mark_bytes() });
        self.zones.rewind(0);
        self.collect_returned();
    }

    /// Makes the arena's stream wait for every declared stream, and forgets those that were declared
    /// at `depth` or deeper. A close does this before it clears and lets the cursor go back.
    ///
    /// # Errors
    ///
    /// The device's refusal, also if the stream was waited for on the host instead; or a failure that
    /// was kept. If the host could not wait either, every later request is refused with
    /// [`ErrorKind::OrderLost`](crate::ErrorKind::OrderLost).
    #[inline]
    pub fn join_declared(&self, depth: u32) -> Result<(), Error> {
        // What is dropped after the join may have been used after it too, and waits for the next one.
        self.region.drain_returned(|span| self.returned.borrow_mut().push(span));
        let joined = self.region.join_declared(depth);
        if joined.is_err() {
            self.choose_path();
        }
        joined
    }

    /// Where the cursor is.
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint { cursor_bytes: self.zones.cursor_bytes() }
    }

    /// Puts the cursor back to `checkpoint`, but never below the mark, and takes back the kept
    /// buffers that were dropped meanwhile.
    ///
    /// # Safety
    ///
    /// No transient buffer that was made since the checkpoint is used again.
    pub unsafe fn rewind(&self, checkpoint: Checkpoint) {
        self.note_cursor();
        self.release_quietly(checkpoint);
        self.zones.rewind(checkpoint.cursor_bytes);
        self.collect_returned();
    }

    /// Fills a range above the mark, in stream order.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    ///
    /// # Safety
    ///
    /// No live buffer has a byte in `span`.
    pub unsafe fn fill(&self, span: Span, value: u8) -> Result<(), Error> {
        let inside = span.start_bytes >= self.zones.mark_bytes()
            && span.end_bytes <= self.zones.floor_bytes();
        debug_assert!(inside, "{span:?} is not in the transient zone");
        if let Some(separate) = &self.separate {
            // SAFETY: the caller says that no live buffer has a byte there.
            return unsafe { separate.fill(span, value) };
        }
        if inside && !span.is_empty() {
            let (address, bytes) = (self.address_of(span), span.len_bytes());
            // SAFETY: the range lies in the transient zone, and the caller says that it is free.
            unsafe { self.region.device().fill(address, bytes, value) }?;
        }
        Ok(())
    }

    /// From now on memory above the highest cursor so far is poisoned before it is first given out.
    pub fn poison_fresh_memory(&self) {
        self.poisoned_to.set(Some(self.zones.peak_bytes()));
        self.choose_path();
    }

    fn poison_fresh(&self, span: Span) -> Result<(), Error> {
        let Some(poisoned_to) = self.poisoned_to.get() else { return Ok(()) };
        if span.end_bytes > poisoned_to && !span.is_empty() {
            let fresh = Span { start_bytes: poisoned_to, end_bytes: span.end_bytes };
            // SAFETY: nothing above `poisoned_to` was given out before, and of the span, which was
            // placed just now, no buffer was made yet.
            unsafe { self.fill(fresh, POISON_BYTE) }?;
            self.poisoned_to.set(Some(span.end_bytes));
        }
        Ok(())
    }

    fn collect_returned(&self) {
        if !self.region.is_pinned() {
            self.returned.borrow_mut().drain(..).for_each(|span| self.give_back_kept(span));
        }
    }

    fn give_back_kept(&self, span: Span) {
        if let Some(demand) = &self.demand {
            demand.borrow_mut().note_give_back(span, self.zones.cursor_bytes());
        }
        self.zones.give_back_kept(span);
    }

    /// Gives the physical memory between `above_bytes` (or the cursor, if that is higher) and the
    /// kept part back to the device, while every address stays. Returns the bytes given back: none while
    /// the region is pinned.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    pub fn trim(&mut self, above_bytes: u64) -> Result<u64, Error> {
        let start_bytes = above_bytes.max(self.zones.cursor_bytes());
        let free = Span { start_bytes, end_bytes: self.zones.floor_bytes() };
        if start_bytes >= free.end_bytes || self.region.is_pinned() {
            return Ok(0);
        }
        if let Some(poisoned_to) = self.poisoned_to.get() {
            self.poisoned_to.set(Some(poisoned_to.min(start_bytes)));
        }
        let (address, bytes) = (self.address_of(free), free.len_bytes());
        // SAFETY: the range lies between cursor and kept floor, and `&mut self` says that no
        // transient buffer is alive.
        Ok(unsafe { self.region.device().give_back(address, bytes) }?)
    }

    fn note_cursor(&self) {
        if let Some(demand) = &self.demand {
            demand.borrow_mut().note_cursor(self.zones.cursor_bytes());
        }
    }
}

impl RawArena<Probe> {
    /// The smallest capacity in bytes for which the requests made so far fit, in their order and
    /// with the padding of the kept part.
    #[must_use]
    pub fn smallest_capacity_bytes(&self) -> u64 {
        self.note_cursor();
        self.demand.as_ref().map_or(0, |demand| demand.borrow().smallest_capacity_bytes())
    }
}

impl<D: Device> fmt::Debug for RawArena<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawArena")
            .field("region", &self.region)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use static_assertions::{assert_impl_all, assert_not_impl_any, const_assert};

    use super::*;
    use crate::buffer::{Transient, View, ViewMut};

    assert_impl_all!(RawArena<Host>: Send);
    assert_not_impl_any!(RawArena<Host>: Sync);
    // A shared buffer asks it for its offset.
    assert_impl_all!(Separate<Host>: Send, Sync);
    assert_impl_all!(Persistent<f32, Host>: Send, Sync);
    assert_impl_all!(Transient<'static, f32, Host>: Sync);
    assert_not_impl_any!(Transient<'static, f32, Host>: Send, Clone);
    assert_impl_all!(View<'static, f32, Host>: Send, Sync, Copy);
    assert_impl_all!(ViewMut<'static, f32, Host>: Send, Sync);
    assert_not_impl_any!(ViewMut<'static, f32, Host>: Clone);

    // A failed request must not make the good one slower to return.
    const_assert!(size_of::<Error>() == size_of::<usize>());
    const_assert!(size_of::<Transient<'static, f32, Host>>() == 24);
    const_assert!(
        size_of::<Result<Transient<'static, f32, Host>, Error>>()
            == size_of::<Transient<'static, f32, Host>>()
    );

    // Its last use may be newer than the join, on a stream that was declared.
    #[test]
    fn the_bytes_of_a_kept_buffer_that_goes_after_the_join_wait_for_the_next_one() {
        let arena = RawArena::new(Host::new(), ByteSize::kib(4)).unwrap();
        arena.set_mark().unwrap();
        let close = |in_between: Option<Persistent<u8, Host>>| {
            arena.join_declared(1).unwrap();
            drop(in_between);
            // SAFETY: there is no transient buffer.
            unsafe { arena.rewind(arena.checkpoint()) };
            arena.stats().kept_bytes
        };
        let kept = arena.persistent(256, Alignment::DEFAULT).unwrap();
        assert_eq!(close(Some(kept)), 256);
        assert_eq!(close(None), 0);
    }
}
