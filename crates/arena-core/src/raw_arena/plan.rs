//! Steps that follow a plan: the root scope takes the plan's bytes, slots are given out of them, and
//! the bump goes on above.

use std::panic::Location;

use super::RawArena;
use crate::bytes::Alignment;
use crate::device::Device;
use crate::error::{Error, ErrorKind, PlanFacts};
use crate::event_log::Event;
use crate::layout::{Span, align_up};
use crate::placement::{DeviationSite, Deviations, PlanId, Planned, SlotTable};

impl<D: Device> RawArena<D> {
    /// Adds a plan, which a root scope may follow from now on. It sets the mark if that is not set,
    /// for a plan starts there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`] when its bytes do not fit above the mark, [`ErrorKind::PlanInUse`]
    /// while a root scope follows one.
    pub fn add_plan(&mut self, table: SlotTable) -> Result<PlanId, Error> {
        let start_address = self.plan_start(&table)?;
        Ok(self.plans.add(table, start_address))
    }

    /// Puts another table in the place of a plan's.
    ///
    /// # Errors
    ///
    /// As for [`add_plan`](Self::add_plan); the plan stays then.
    pub fn replace_plan(&mut self, plan: PlanId, table: SlotTable) -> Result<(), Error> {
        let start_address = self.plan_start(&table)?;
        self.plans.replace(plan, table, start_address);
        Ok(())
    }

    /// The address at which a plan starts.
    fn plan_start(&self, table: &SlotTable) -> Result<u64, Error> {
        if self.plans.followed().is_some() {
            return Err(ErrorKind::PlanInUse.into());
        }
        if !self.zones.mark_is_set() {
            self.zones.set_mark()?;
        }
        let mark_address = self.zones.base_address() + self.zones.mark_bytes();
        let start_address = align_up(mark_address, table.alignment());
        self.check_room(self.zones.offset_of(start_address) + table.peak_bytes(), table)?;
        Ok(start_address)
    }

    /// That a plan's end lies below what is kept.
    fn check_room(&self, end_bytes: u64, table: &SlotTable) -> Result<(), Error> {
        if end_bytes <= self.zones.floor_bytes() {
            return Ok(());
        }
        Err(self.zones.exhausted(table.peak_bytes(), table.alignment()).into())
    }

    /// The identity of a plan, which tells plans apart.
    #[must_use]
    pub fn plan_table_id(&self, plan: PlanId) -> Option<u64> {
        self.plans.get(plan).map(|planned| planned.table().id())
    }

    /// Where a plan's bytes lie.
    #[must_use]
    pub fn plan_span(&self, plan: PlanId) -> Option<Span> {
        self.plans.get(plan).map(|planned| self.span_of(planned))
    }

    fn span_of(&self, planned: &Planned) -> Span {
        let start_bytes = self.zones.offset_of(planned.start_address());
        Span { start_bytes, end_bytes: start_bytes + planned.table().peak_bytes() }
    }

    /// What was not as planned since a plan was installed.
    #[must_use]
    pub fn plan_deviations(&self, plan: PlanId) -> Option<Deviations> {
        self.plans.get(plan).map(Planned::deviations)
    }

    /// Between root scopes: the next one will follow `plan`, or none. If one is open it is one no more:
    /// that no buffer of it is alive is what `&mut self` proves.
    pub fn select_plan(&mut self, plan: Option<PlanId>) {
        let was_open = self.plans.followed().is_some();
        self.plans.select(plan.filter(|_| self.separate.is_none()));
        if was_open {
            self.choose_path();
        }
    }

    /// Where in the program requests were not as planned since a plan was installed: the first 32
    /// places.
    #[must_use]
    pub fn plan_deviation_sites(&self, plan: PlanId) -> Vec<DeviationSite> {
        self.plans.get(plan).map(Planned::sites).unwrap_or_default()
    }

    /// A root scope opens. If it follows a plan, the cursor goes above the plan's bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`] when what is kept has grown into the plan's bytes; nothing is open
    /// then.
    ///
    /// # Safety
    ///
    /// No transient buffer is alive: the plan gives out the bytes above the mark.
    pub unsafe fn enter_root(&self) -> Result<(), Error> {
        if let Some(separate) = &self.separate {
            separate.restart_count();
        }
        if let Some(planned) = self.plans.selected() {
            let span = self.span_of(planned);
            self.check_room(span.end_bytes, planned.table())?;
            self.poison_fresh(span)?;
            self.zones.raise(span.end_bytes);
            self.plans.begin();
            self.choose_path();
        }
        self.log_event(Event::Open);
        Ok(())
    }

    /// A scope opens inside another.
    pub fn enter_inner(&self) {
        // What minds drops, a plan or a log, is all that minds scopes.
        if self.minds_drops.get() {
            if let Some(planned) = self.plans.followed() {
                planned.open();
            }
            self.log_event(Event::Open);
        }
    }

    /// The innermost scope has closed; `root` says that it was the last. What a plan gave out in it
    /// may be given out again.
    ///
    /// # Safety
    ///
    /// No transient buffer that was made since that scope opened is used again.
    #[inline]
    pub unsafe fn leave(&self, root: bool) {
        if self.minds_drops.get() {
            self.leave_watched(root);
        }
    }

    #[cold]
    #[inline(never)]
    fn leave_watched(&self, root: bool) {
        self.plans.close(root);
        self.log_event(Event::Close);
        if root {
            self.choose_path();
        }
    }

    /// The innermost scope ends with the one around it, because its guard was forgotten: what it has
    /// given out stays taken until then.
    pub fn merge_inner(&self) {
        if self.minds_drops.get() {
            if let Some(planned) = self.plans.followed() {
                planned.merge();
            }
            self.log_event(Event::Merge);
        }
    }

    /// Fills the slots that a plan gave out in the innermost scope.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    ///
    /// # Safety
    ///
    /// No buffer of that scope is used again.
    pub unsafe fn fill_own_slots(&self, value: u8) -> Result<(), Error> {
        let Some(planned) = self.plans.followed() else { return Ok(()) };
        let mut from = 0;
        while let Some((next, (start_address, end_address))) = planned.own_range(from) {
            from = next;
            let start_bytes = self.zones.offset_of(start_address);
            let span = Span { start_bytes, end_bytes: self.zones.offset_of(end_address) };
            // SAFETY: slots of this scope held no byte of a buffer that lived before them, and none of
            // their own is used again. Nobody else took their bytes since: while this scope was the
            // innermost, requests came from it alone.
            unsafe { self.fill(span, value) }?;
        }
        Ok(())
    }

    /// A place for a request that repeats an earlier step.
    #[inline(always)]
    pub(super) fn place_as_before(&self, bytes: u64, alignment: Alignment) -> Option<(u64, u32)> {
        let (slot, address) = self.plans.current().place_as_before(bytes, alignment)?;
        Some((address, slot))
    }

    /// A place for a request that does not, but is just as planned, where nobody watches.
    pub(super) fn place_counted(&self, bytes: u64, alignment: Alignment) -> Option<(u64, u32)> {
        let planned = self.plans.followed().filter(|_| !self.is_watched.get())?;
        let (slot, address) = planned.place_counted(bytes, alignment)?;
        Some((address, slot))
    }

    /// The address and the slot for any request that the plan can serve.
    pub(super) fn place_by_plan(
        &self,
        bytes: u64,
        alignment: Alignment,
        call_site: &'static Location<'static>,
    ) -> Option<(u64, u32)> {
        if bytes == 0 {
            return None; // Empty requests take no room, and no slot.
        }
        let (slot, address) = self.plans.followed()?.place(bytes, alignment, call_site)?;
        Some((address, slot))
    }

    /// The open step's plan gives nothing more out. For a step whose slots could not be cleared.
    pub fn stop_plan(&self) {
        if let Some(planned) = self.plans.followed() {
            planned.stop();
        }
    }

    /// Adds what is known of the plan to an error of the bump, if the step follows one.
    #[cold]
    pub(super) fn off_plan(&self, mut error: Error) -> Error {
        if let ErrorKind::Exhausted(exhausted) = error.kind_mut()
            && let Some(planned) = self.plans.followed()
        {
            let (peak_bytes, deviations) = (planned.table().peak_bytes(), planned.deviations());
            exhausted.plan = Some(PlanFacts::new(peak_bytes, deviations, planned.last_site()));
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw_arena::Checkpoint;
    use crate::{ByteSize, Host, PlannedSlot};

    fn step(arena: &RawArena<Host>) -> Result<bool, Error> {
        let a256 = Alignment::DEFAULT;
        // SAFETY: the step before has dropped its buffers.
        unsafe { arena.enter_root() }?;
        let a = arena.transient::<u8>(100, a256)?;
        let b = arena.transient_from(&[1_u8; 200], a256)?;
        drop(a);
        arena.enter_inner();
        let c = arena.transient_zeroed::<u8>(50, a256)?;
        drop((arena.transient::<u8>(0, a256)?, b, c));
        // SAFETY: the inner scope's buffers are dropped.
        unsafe { arena.leave(false) };
        let repeats = arena.plans.current().repeats();
        // SAFETY: and so are those of the root.
        unsafe { arena.leave(true) };
        Ok(repeats)
    }

    // However its buffers are asked for: what is not compared is counted, which is right and slow.
    #[test]
    fn a_step_that_was_as_planned_is_compared_with_from_the_next_on() -> Result<(), Error> {
        let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
        let slot = |offset_bytes, bytes| PlannedSlot {
            offset_bytes,
            bytes,
            alignment: Alignment::DEFAULT,
        };
        let table = SlotTable::new(&[slot(0, 100), slot(256, 200), slot(0, 50)]).unwrap();
        let plan = arena.add_plan(table)?;
        let mut repeats = Vec::new();
        for _ in 0..4 {
            arena.select_plan(Some(plan));
            repeats.push(step(&arena)?);
        }
        assert_eq!(repeats, [false, true, true, true]);
        assert_eq!(arena.plan_deviations(plan), Some(Deviations::default()));
        Ok(())
    }

    fn two_slots_in_one_place() -> Result<(RawArena<Host>, PlanId), Error> {
        let slot = PlannedSlot { offset_bytes: 0, bytes: 256, alignment: Alignment::DEFAULT };
        let mut arena = RawArena::new(Host::new(), ByteSize::kib(64))?;
        let plan = arena.add_plan(SlotTable::new(&[slot, slot]).unwrap())?;
        arena.select_plan(Some(plan));
        Ok((arena, plan))
    }

    fn are_apart(arena: &RawArena<Host>) -> Result<bool, Error> {
        let a = arena.transient::<u8>(256, Alignment::DEFAULT)?;
        let b = arena.transient::<u8>(256, Alignment::DEFAULT)?;
        Ok(a.address().abs_diff(b.address()) >= 256)
    }

    #[test]
    fn a_step_that_was_never_ended_ends_with_the_reset_or_the_next_choice_of_a_plan() {
        for select in [false, true] {
            let (mut arena, plan) = two_slots_in_one_place().unwrap();
            // SAFETY: no buffer was made.
            unsafe { arena.enter_root() }.unwrap();
            drop(arena.transient::<u8>(256, Alignment::DEFAULT).unwrap());
            if select {
                arena.select_plan(Some(plan));
            } else {
                arena.reset_to_mark();
            }
            assert!(are_apart(&arena).unwrap(), "by the bump");
            arena.reset_to_mark();
            // SAFETY: the buffers are dropped.
            unsafe { arena.enter_root() }.unwrap();
            assert!(
                are_apart(&arena).unwrap(),
                "by the plan, and what it cannot serve by the bump"
            );
            // SAFETY: as above.
            unsafe { arena.leave(true) };
        }
    }

    #[test]
    fn an_unended_step_repeats_nothing_where_the_bump_has_been() {
        let (mut arena, plan) = two_slots_in_one_place().unwrap();
        let ask = |arena: &RawArena<Host>| arena.transient::<u8>(256, Alignment::DEFAULT).map(drop);
        for _ in 0..3 {
            arena.select_plan(Some(plan));
            // SAFETY: no buffer is alive.
            unsafe { arena.enter_root() }.unwrap();
            ask(&arena).unwrap();
            ask(&arena).unwrap();
            // SAFETY: as above.
            unsafe { arena.rewind(Checkpoint { cursor_bytes: 0 }) };
            // SAFETY: as above.
            unsafe { arena.leave(true) };
        }
        // SAFETY: no buffer is alive.
        unsafe { arena.enter_root() }.unwrap();
        ask(&arena).unwrap();
        arena.select_plan(Some(plan)); // in the middle of the step
        arena.zones.rewind(0);
        let _all = arena.transient::<u8>(64 << 10, Alignment::DEFAULT).unwrap();
        assert!(ask(&arena).unwrap_err().is_exhausted());
    }

    #[test]
    fn a_plan_of_another_arena_is_none_here() {
        let (_, plan) = two_slots_in_one_place().unwrap();
        let mut other = RawArena::new(Host::new(), ByteSize::kib(64)).unwrap();
        other.select_plan(Some(plan));
        assert_eq!(other.plan_span(plan), None);
        // SAFETY: no buffer was made.
        unsafe { other.enter_root() }.unwrap();
        assert!(are_apart(&other).unwrap());
    }
}
