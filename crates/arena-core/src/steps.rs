//! The region with its zones, and the steps that run above its mark.
//!
//! This is what `arena-scope` and [`RawArena`](crate::RawArena) are made of. It knows frames and modes:
//! which scopes are open, what each has to clear, and how requests are served meanwhile. Of scopes it
//! knows a label for errors, and neither keys nor lifetimes.

mod alone;
mod choose;
mod close;
mod debts;
mod detached;
mod drops;
mod filled;
mod frames;
mod memory;
mod mode;
mod open;
mod pause;
mod planned;
mod requests;
mod saved;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use bytemuck::Pod;

use crate::buffer::Persistent;
use crate::bytes::{Alignment, ByteSize};
use crate::demand::{Demand, Kind};
use crate::detached::Drops;
use crate::device::{Device, Host, Probe};
use crate::error::{Error, ErrorKind};
use crate::exhausted::ScopeFacts;
use crate::holders::{Keepers, record_facts};
use crate::hunting::Separate;
use crate::layout::{Span, bytes_of};
use crate::one_thread::UsedOnSeveralThreads;
use crate::pin::RegionPin;
use crate::placement::Placement;
use crate::plan::Plans;
use crate::region::{Region, unless_it_panics};
use crate::region_kind::RegionOptions;
use crate::reset::Reset;
use crate::signature::{Running, StepSignature};
use crate::stats::{Stats, Status};
use crate::step_log::StepLog;
use crate::zones::Zones;

use debts::Debts;
pub use frames::FrameId;
use frames::Frames;
use mode::Mode;
pub use open::Watch;
use saved::Paused;

/// A region with its zones, and the frames above its mark.
///
/// It can be sent to another thread, but not shared: requests go through cells, without a lock.
#[repr(C)] // What the hot path reads comes first, in one cache line and within short displacements.
pub struct Steps<D: Device = Host> {
    mode: Cell<Mode>,
    zones: Zones,
    running: Running,
    plans: Plans,
    region: Arc<Region<D>>,
    frames: Frames,
    /// The policy of frames that have none of their own, and of kept bytes that are given back.
    reset: Reset,
    /// Whether the open step is signed.
    signs: Cell<bool>,
    /// The signature before the last request that came down the ladder.
    signed_before: Cell<[u64; 3]>,
    log: RefCell<Option<StepLog>>,
    poisoned_to: Cell<Option<u64>>,
    debts: Debts,
    demand: Option<RefCell<Demand>>,
    separate: Option<Box<Separate<D>>>,
    last: Cell<StepFigures>,
    /// Root frames ended so far.
    resets: Cell<u64>,
    /// Buffers without a lifetime that were dropped.
    detached: Arc<Drops>,
    /// What a pause keeps, until all of it is back.
    paused: RefCell<Option<Paused>>,
    /// Who made what is kept.
    keepers: RefCell<Keepers>,
}

// SAFETY: nothing implements the trait, so this promises nothing.
unsafe impl<D: Device> Sync for Steps<D> where Self: UsedOnSeveralThreads {}

/// What is known of a root scope that has closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepFigures {
    /// If it was observed, recorded or planned.
    pub signature: Option<StepSignature>,
    /// The highest cursor, in bytes from the base.
    pub high_water_bytes: u64,
}

/// Who asks for a buffer, for errors.
#[derive(Debug, Clone, Copy)]
struct Asked {
    call_site: &'static Location<'static>,
    /// Of the scope; 0 is none.
    depth: u32,
}

impl<D: Device> Steps<D> {
    /// Obtains a region of exactly `capacity` from `device`, in one call.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`] when the device refuses; nothing is held then.
    pub fn new(
        device: D,
        capacity: ByteSize,
        placement: Placement,
        reset: Reset,
    ) -> Result<Self, Error> {
        Self::with_region(device, RegionOptions::fixed(capacity), placement, reset)
    }

    /// Obtains a region as the options say.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new); of the kind [`Unsupported`](crate::DeviceErrorKind::Unsupported) where the device
    /// has no region of that kind.
    pub fn with_region(
        device: D,
        options: RegionOptions,
        placement: Placement,
        reset: Reset,
    ) -> Result<Self, Error> {
        let capacity_bytes = options.capacity.bytes();
        let region = Arc::new(Region::obtain(device, options)?);
        let base_address = region.base_address();
        let steps = Self {
            mode: Cell::new(Mode::Bump),
            separate: Separate::of(placement, &region)?,
            zones: Zones::new(base_address, capacity_bytes),
            running: Running::default(),
            plans: Plans::default(),
            region,
            frames: Frames::new(),
            reset,
            signs: Cell::new(false),
            signed_before: Cell::default(),
            log: RefCell::new(None),
            poisoned_to: Cell::new(None),
            debts: Debts::new(),
            demand: D::MEASURES_ONLY.then(|| RefCell::new(Demand::new(base_address))),
            last: Cell::default(),
            resets: Cell::new(0),
            detached: Arc::default(),
            paused: RefCell::new(None),
            keepers: RefCell::default(),
        };
        steps.follow_memory();
        steps.choose_mode();
        Ok(steps)
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
            committed_bytes: self.region.committed_bytes(),
            driver_allocations: self.region.driver_allocations(),
        }
    }

    /// The same for people, with what the device has.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::new(self.stats(), self.region.device().memory().ok())
    }

    /// What is known of the last root scope that closed.
    #[must_use]
    pub fn last_step(&self) -> StepFigures {
        self.last.get()
    }

    /// Root frames ended so far.
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.resets.get()
    }

    /// Frames of any depth ended so far.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.frames.ended()
    }

    /// Open frames.
    #[must_use]
    #[inline]
    pub fn depth(&self) -> u32 {
        self.frames.depth()
    }

    /// The open frame of this depth.
    #[must_use]
    pub fn frame(&self, depth: u32) -> Option<FrameId> {
        self.frames.id(depth)
    }

    /// Sets the mark: the persistent buffers made so far lie below it. Under [`Reset::Poison`] fresh
    /// memory is poisoned from now on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MarkAlreadySet`] the second time.
    pub fn set_mark(&self) -> Result<(), Error> {
        self.zones.set_mark()?;
        if self.reset == Reset::Poison {
            self.poisoned_to.set(Some(self.zones.peak_bytes()));
            self.choose_mode();
        }
        Ok(())
    }

    /// Whether the mark is set.
    #[must_use]
    #[inline]
    pub fn mark_is_set(&self) -> bool {
        self.zones.mark_is_set()
    }

    // --- buffers ------------------------------------------------------------------------------

    /// A persistent buffer of `len` elements with unspecified contents, asked for in the scope of `depth`
    /// (0: in none): below the mark before it is set, kept at the region's top afterwards.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`] when it does not fit, [`ErrorKind::TooBig`] when it never can, or an
    /// error that a close left behind.
    #[track_caller]
    pub fn persistent<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        depth: u32,
    ) -> Result<Persistent<T, D>, Error> {
        let asked = Asked { call_site: Location::caller(), depth };
        self.ready()?;
        self.region.device().refuse_in_capture("persistent")?;
        let alignment = alignment.max(Alignment::of::<T>());
        let bytes = bytes_of::<T>(len)?;
        let mut placed = self.place_persistent(bytes, alignment);
        if placed.is_err() && self.leave_plan_for(bytes, alignment) {
            placed = self.place_persistent(bytes, alignment);
        }
        let (span, kept) = placed.map_err(|error| self.asked(error, asked))?;
        if kept {
            self.keepers.borrow_mut().add(span, asked.call_site, self.resets());
        }
        if let (true, Some(demand)) = (kept, &self.demand) {
            demand.borrow_mut().note_keep(span, alignment, self.zones.cursor_bytes());
        }
        let (address, region) = (self.address_of(span), Arc::clone(&self.region));
        region.uses().forget(address, bytes);
        // SAFETY: 1: the address is aligned by the zones, and not zero, as no base is. 2: the span
        // lies in the zones of this region, where memory is committed. 3: neither the bump nor the kept zone gives a byte of
        // it away again before the buffer's drop.
        Ok(unsafe { Persistent::new(address, len, region, kept.then_some(span)) })
    }

    fn address_of(&self, span: Span) -> u64 {
        self.zones.base_address() + span.start_bytes
    }

    /// An address of this region as an offset from its base.
    #[must_use]
    #[inline]
    pub(crate) fn offset_of(&self, address: u64) -> u64 {
        self.zones.offset_of(address)
    }

    /// Where a buffer that is not empty lies by the zones: its address alone does not tell if it is an
    /// allocation of its own.
    pub(crate) fn offset_of_buffer(&self, address: u64) -> u64 {
        let alone = self.separate.as_ref().and_then(|separate| separate.offset_of(address));
        alone.unwrap_or_else(|| self.offset_of(address))
    }

    /// Adds to a request that did not fit who asked, and in what step.
    #[cold]
    fn asked(&self, mut error: Error, asked: Asked) -> Error {
        if let ErrorKind::Exhausted(exhausted) = error.kind_mut() {
            exhausted.call_site = Some(asked.call_site);
            exhausted.kept = self.keepers.borrow().holders();
            let request = (asked.call_site, exhausted.asked_bytes);
            exhausted.scope = self.frames.at(asked.depth).map(|frame| {
                let mut scope = self.scope_facts(frame.label, asked.depth, self.signs.get());
                let log = self.log.borrow();
                scope.record = log.as_ref().map(|log| record_facts(log, request));
                scope
            });
        }
        error
    }

    /// `counts` says whether the open step's requests are counted.
    fn scope_facts(&self, name: &'static str, depth: u32, counts: bool) -> ScopeFacts {
        ScopeFacts {
            name,
            path: (1..depth)
                .filter_map(|depth| self.frames.at(depth))
                .map(|frame| frame.label)
                .chain([name])
                .collect(),
            depth,
            requests: counts.then(|| self.running.requests()),
            largest_bytes: counts.then(|| self.running.largest_bytes()),
            resets: self.resets(),
            record: None,
        }
    }

    // --- memory -------------------------------------------------------------------------------

    /// Fills a range of the transient zone, in stream order. What of it is kept meanwhile is left out.
    ///
    /// # Safety
    ///
    /// No live buffer has a byte in `span` below the kept floor.
    unsafe fn fill(&self, span: Span, value: u8) -> Result<(), Error> {
        let end_bytes = span.end_bytes.min(self.zones.floor_bytes());
        debug_assert!(span.start_bytes >= self.zones.mark_bytes(), "{span:?} is persistent");
        if let Some(separate) = &self.separate {
            // SAFETY: the caller says that no live buffer has a byte there.
            return unsafe { separate.fill(span, value) };
        }
        if span.start_bytes < end_bytes {
            let span = Span { end_bytes, ..span };
            let (address, bytes) = (self.address_of(span), span.len_bytes());
            // SAFETY: the range lies in the transient zone, and the caller says that it is free.
            unsafe { self.region.device().fill(address, bytes, value.into()) }?;
        }
        Ok(())
    }

    /// Poisons what of `span` was never given out, if fresh memory is to be poisoned.
    fn poison_fresh(&self, span: Span) -> Result<(), Error> {
        let Some(poisoned_to) = self.poisoned_to.get() else { return Ok(()) };
        if span.end_bytes > poisoned_to && !span.is_empty() {
            let fresh = Span { start_bytes: poisoned_to, end_bytes: span.end_bytes };
            // SAFETY: nothing above `poisoned_to` was given out before, and of the span, which was
            // placed just now, no buffer was made yet.
            unsafe { self.fill(fresh, crate::POISON_BYTE) }?;
            self.poisoned_to.set(Some(span.end_bytes));
        }
        Ok(())
    }

    fn give_back_kept(&self, span: Span) {
        if let Some(demand) = &self.demand {
            demand.borrow_mut().note_give_back(span, self.zones.cursor_bytes());
        }
        self.keepers.borrow_mut().remove(span);
        self.zones.give_back_kept(span);
    }

    fn note_cursor(&self) {
        if let Some(demand) = &self.demand {
            demand.borrow_mut().note_cursor(self.zones.cursor_bytes());
        }
    }
}

// What the run demands of the region.
impl<D: Device> Steps<D> {
    /// Notes from now on what the run demands, or stops. A device that only measures always does.
    pub fn record_demand(&mut self, records: bool) {
        if !D::MEASURES_ONLY {
            self.demand = records.then(|| RefCell::new(self.demand_of_now()));
        }
    }

    /// A demand that begins with what lies in the region now. What is kept counts with its present padding.
    fn demand_of_now(&self) -> Demand {
        let mut demand = Demand::new(self.zones.base_address());
        let end_bytes = self.zones.capacity_bytes();
        let kept = Span { start_bytes: self.zones.floor_bytes(), end_bytes };
        let cursor_bytes = self.zones.cursor_bytes();
        demand.note_cursor(cursor_bytes);
        if !kept.is_empty() {
            demand.note_keep(kept, Alignment::ONE, cursor_bytes);
        }
        demand
    }

    /// What follows is demanded by a step of this kind; none is outside of steps.
    pub fn set_kind(&self, kind: Option<Kind>) {
        if let Some(demand) = &self.demand {
            demand.borrow_mut().set_kind(kind);
        }
    }

    /// The steps of this kind are demanded as they were from now on, whatever plans there are.
    pub fn forget_kind(&self, kind: Kind) {
        if let Some(demand) = &self.demand {
            demand.borrow_mut().forget_kind(kind);
        }
    }

    /// What the run demands: since it is noted, or of what lies in the region now.
    #[must_use]
    pub fn demand(&self) -> Demand {
        self.note_cursor();
        let noted = self.demand.as_ref().map(|demand| demand.borrow().clone());
        noted.unwrap_or_else(|| self.demand_of_now())
    }
}

impl Steps<Probe> {
    /// The smallest capacity in bytes for which the requests made so far fit, in their order and
    /// with the padding of the kept part.
    #[must_use]
    pub fn smallest_capacity_bytes(&self) -> u64 {
        self.demand().smallest_capacity_bytes()
    }
}

impl<D: Device> Drop for Steps<D> {
    /// Ends the ranges of scopes that were never closed, the innermost first. What the region owes
    /// its streams is its own to wait for.
    fn drop(&mut self) {
        let mut ranges = std::mem::take(self.debts.ranges.get_mut());
        while let Some(frame) = self.frames.pop(0) {
            ranges.splice(..0, frame.range);
        }
        while let Some(id) = ranges.pop() {
            unless_it_panics(|| self.region.device().end_range(id));
        }
    }
}

impl<D: Device> fmt::Debug for Steps<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps")
            .field("region", &self.region)
            .field("depth", &self.depth())
            .field("resets", &self.resets())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use static_assertions::{assert_impl_all, assert_not_impl_any, const_assert};

    use super::*;
    use crate::buffer::{Transient, View, ViewMut};

    assert_impl_all!(Steps<Host>: Send);
    assert_not_impl_any!(Steps<Host>: Sync);
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
}
