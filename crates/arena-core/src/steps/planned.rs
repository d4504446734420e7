//! The plans that steps follow: the root scope takes the plan's bytes, slots are given out of them, and
//! the bump goes on above.

use super::Steps;
use crate::bytes::Alignment;
use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::exhausted::PlanFacts;
use crate::layout::{Span, align_up, fit};
use crate::plan::{DeviationSite, Deviations, PlanId, Replay, SlotTable};

impl<D: Device> Steps<D> {
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

    /// Removes a plan, between root scopes: its number may become that of another.
    pub fn remove_plan(&mut self, plan: PlanId) {
        self.plans.remove(plan);
    }

    /// Gives back most of the host memory of a plan, unless it is [selected](Self::select_plan). It is taken again
    /// when the plan is selected; the plan and what was counted stay.
    pub fn fold_plan(&mut self, plan: PlanId) {
        self.plans.fold(plan);
    }

    /// The host memory of a plan.
    #[must_use]
    pub fn plan_host_bytes(&self, plan: PlanId) -> u64 {
        self.plans.get(plan).map_or(0, Replay::host_bytes)
    }

    /// The address at which a plan starts.
    fn plan_start(&self, table: &SlotTable) -> Result<u64, Error> {
        if self.plans.followed().is_some() {
            return Err(ErrorKind::PlanInUse.into());
        }
        if !self.zones.mark_is_set() {
            self.set_mark()?;
        }
        let mark_address = self.zones.base_address() + self.zones.mark_bytes();
        let start_address = align_up(mark_address, table.alignment());
        self.check_room(self.zones.offset_of(start_address) + table.peak_bytes(), table)?;
        Ok(start_address)
    }

    /// That a plan's end lies below what is kept.
    pub(super) fn check_room(&self, end_bytes: u64, table: &SlotTable) -> Result<(), Error> {
        if end_bytes <= self.zones.floor_bytes() {
            return Ok(());
        }
        Err(self.zones.exhausted(table.peak_bytes(), table.alignment()).into())
    }

    /// Where a plan's bytes lie.
    #[must_use]
    pub fn plan_span(&self, plan: PlanId) -> Option<Span> {
        self.plans.get(plan).map(|planned| self.span_of(planned))
    }

    /// Where the bytes of a plan lie.
    pub(super) fn span_of(&self, planned: &Replay) -> Span {
        let start_bytes = self.zones.offset_of(planned.start_address());
        Span { start_bytes, end_bytes: start_bytes + planned.table().peak_bytes() }
    }

    /// What was not as planned since a plan was installed.
    #[must_use]
    pub fn plan_deviations(&self, plan: PlanId) -> Option<Deviations> {
        self.plans.get(plan).map(Replay::deviations)
    }

    /// The next root scope will follow `plan`, or none. What a forgotten guard left open is closed first:
    /// that no buffer of it is alive is what `&mut self` proves. Whether the plan took host memory, because it was
    /// new or [folded](Self::fold_plan).
    #[inline]
    pub fn select_plan(&mut self, plan: Option<PlanId>) -> bool {
        // SAFETY: see above.
        unsafe { self.settle(0) };
        self.plans.select(plan)
    }

    /// Whether the next root scope asks for less than the selected plan's slots hold by design.
    pub fn expect_smaller(&self, by_design: bool) {
        if let Some(planned) = self.plans.selected() {
            planned.expect_smaller(by_design);
        }
    }

    /// Where in the program requests were not as planned since a plan was installed: the first 32
    /// places.
    #[must_use]
    pub fn plan_deviation_sites(&self, plan: PlanId) -> Vec<DeviationSite> {
        self.plans.get(plan).map(Replay::sites).unwrap_or_default()
    }

    /// The open step leaves its plan and is bumped from here on, from the end of the highest buffer that is
    /// alive, if a request fits there. Whether it did: not if the step follows none, or if something was bumped
    /// above the plan already.
    #[cold]
    pub(super) fn leave_plan_for(&self, bytes: u64, alignment: Alignment) -> bool {
        let Some(planned) = self.plans.followed() else { return false };
        let plan_end_bytes = self.span_of(planned).end_bytes;
        if self.zones.cursor_bytes() != plan_end_bytes {
            return false;
        }
        self.count_from_here();
        let floor_address = self.zones.base_address() + self.zones.floor_bytes();
        if fit(planned.live_end(), floor_address, bytes, alignment).is_none() {
            return false;
        }
        planned.live_ends_around(|depth, end_address| {
            self.frames.lower_start(depth, self.zones.offset_of(end_address));
        });
        self.frames.raise_high_water(plan_end_bytes); // Its bytes were written, and are cleared.
        self.zones.rewind(self.zones.offset_of(planned.live_end()));
        planned.leave_plan();
        self.plans.end();
        self.choose_mode();
        true
    }

    /// Adds what is known of the plan to an error of the bump, if the step follows one. If the bump would have
    /// had room for the request, the next step of this kind is bumped; and if that finds no room either, the one
    /// after it follows the plan again.
    #[cold]
    pub(super) fn off_plan(&self, mut error: Error, bytes: u64, alignment: Alignment) -> Error {
        let ErrorKind::Exhausted(exhausted) = error.kind_mut() else { return error };
        if let Some(planned) = self.plans.followed() {
            let floor_address = self.zones.base_address() + self.zones.floor_bytes();
            let is_outgrown = planned.bumped_end(bytes, alignment) <= floor_address;
            planned.set_outgrown(is_outgrown);
            exhausted.plan = Some(PlanFacts {
                peak_bytes: planned.table().peak_bytes(),
                deviations: planned.deviations(),
                last: planned.last_site(),
                is_outgrown,
            });
        } else if let Some(planned) = self.plans.selected() {
            planned.set_outgrown(false);
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::bytes::{Alignment, ByteSize};
    use crate::device::{Call, Failing, Host};
    use crate::placement::Placement;
    use crate::plan::PlannedSlot;
    use crate::reset::Reset;
    use crate::signature::StepSignature;
    use crate::steps::{FrameId, Mode};

    const A256: Alignment = Alignment::DEFAULT;

    fn steps(capacity: ByteSize) -> Result<Steps<Host>, Error> {
        Steps::new(Host::new(), capacity, Placement::Bump, Reset::Keep)
    }

    fn open(steps: &Steps<Host>) -> Result<FrameId, Error> {
        // SAFETY: every test drops its buffers before it opens a root scope.
        unsafe { steps.open_root("step", None) }
    }

    fn close(steps: &Steps<Host>, frame: FrameId) -> Result<(), Error> {
        // SAFETY: every test drops a scope's buffers before it closes it.
        unsafe { steps.close(frame) }
    }

    /// Whether it repeats the step before it to its end, and its signature.
    fn step(steps: &Steps<Host>) -> Result<(bool, Option<StepSignature>), Error> {
        let root = open(steps)?;
        let a = steps.transient::<u8>(100, A256, 1)?;
        let b = steps.transient_from(&[1_u8; 200], A256, 1)?;
        drop(a);
        // SAFETY: no deeper scope is open.
        let inner = unsafe { steps.open_inner(1, "inner", None) }?;
        let c = steps.transient_zeroed::<u8>(50, A256, 2)?;
        drop((steps.transient::<u8>(0, A256, 2)?, b, c));
        close(steps, inner)?;
        let repeats = steps.mode.get() == Mode::Repeating && steps.plans.current().is_whole();
        close(steps, root)?;
        Ok((repeats, steps.last_step().signature))
    }

    // However its buffers are asked for, and though the device has work at each close. What is not compared is
    // counted, which is right and slow.
    #[rstest]
    fn a_step_that_was_as_planned_is_repeated_from_the_next_on_with_its_signature(
        #[values(Reset::Keep, Reset::Zero)] reset: Reset,
    ) -> Result<(), Error> {
        let mut steps = Steps::new(Host::new(), ByteSize::kib(4), Placement::Bump, reset)?;
        let slot = |offset_bytes, bytes| PlannedSlot { offset_bytes, bytes, alignment: A256 };
        let table = SlotTable::new(&[slot(0, 100), slot(256, 200), slot(0, 50)]).unwrap();
        let plan = steps.add_plan(table)?;
        let mut seen = Vec::new();
        for _ in 0..4 {
            steps.select_plan(Some(plan));
            seen.push(step(&steps)?);
        }
        assert_eq!(seen.iter().map(|step| step.0).collect::<Vec<_>>(), [false, true, true, true]);
        assert!(seen[0].1.is_some() && seen.iter().all(|step| step.1 == seen[0].1), "{seen:?}");
        assert_eq!(steps.plan_deviations(plan), Some(Deviations::default()));
        Ok(())
    }

    #[test]
    fn a_step_in_which_an_upload_was_refused_repeats_and_is_repeated_too() -> Result<(), Error> {
        let device = Failing::new(Host::new());
        let switch = device.switch();
        let mut steps = Steps::new(device, ByteSize::kib(4), Placement::Bump, Reset::Keep)?;
        let slot = |offset_bytes| PlannedSlot { offset_bytes, bytes: 256, alignment: A256 };
        let plan = steps.add_plan(SlotTable::new(&[slot(0), slot(256), slot(512)]).unwrap())?;
        let mut repeats = Vec::new();
        for refused in [true, false, true, false] {
            steps.select_plan(Some(plan));
            // SAFETY: no buffer is used after its scope, here and below.
            let root = unsafe { steps.open_root("step", None) }?;
            if refused {
                switch.fail_nth(Call::CopyIn, 1);
                steps.transient_from(&[1_u8; 256], A256, 1).unwrap_err();
            }
            drop(steps.transient_from(&[1_u8; 256], A256, 1)?);
            drop(steps.transient_from(&[1_u8; 256], A256, 1)?);
            drop(steps.transient_from(&[1_u8; 256], A256, 1)?);
            repeats.push(steps.mode.get() == Mode::Repeating && steps.plans.current().is_whole());
            // SAFETY: as above.
            unsafe { steps.close(root) }?;
        }
        assert_eq!(repeats, [false, true, true, true]);
        Ok(())
    }

    fn two_slots_in_one_place() -> Result<(Steps<Host>, PlanId), Error> {
        let slot = PlannedSlot { offset_bytes: 0, bytes: 256, alignment: A256 };
        let mut steps = steps(ByteSize::kib(64))?;
        let plan = steps.add_plan(SlotTable::new(&[slot, slot]).unwrap())?;
        steps.select_plan(Some(plan));
        Ok((steps, plan))
    }

    fn are_apart(steps: &Steps<Host>) -> Result<bool, Error> {
        let a = steps.transient::<u8>(256, A256, 1)?;
        let b = steps.transient::<u8>(256, A256, 1)?;
        Ok(a.address().abs_diff(b.address()) >= 256)
    }

    #[test]
    fn a_step_that_was_never_ended_ends_with_the_reset_or_the_next_choice_of_a_plan() {
        for select in [false, true] {
            let (mut steps, plan) = two_slots_in_one_place().unwrap();
            open(&steps).unwrap();
            drop(steps.transient::<u8>(256, A256, 1).unwrap());
            if select {
                steps.select_plan(Some(plan));
            } else {
                steps.reset_to_mark();
            }
            assert!(are_apart(&steps).unwrap(), "by the bump");
            steps.reset_to_mark();
            let root = open(&steps).unwrap();
            assert!(
                are_apart(&steps).unwrap(),
                "by the plan, and what it cannot serve by the bump"
            );
            close(&steps, root).unwrap();
        }
    }

    #[test]
    fn an_unended_step_repeats_nothing_where_the_bump_has_been() {
        let (mut steps, plan) = two_slots_in_one_place().unwrap();
        let ask = |steps: &Steps<Host>| steps.transient::<u8>(256, A256, 1).map(drop);
        for _ in 0..3 {
            steps.select_plan(Some(plan));
            let root = open(&steps).unwrap();
            ask(&steps).unwrap();
            ask(&steps).unwrap();
            close(&steps, root).unwrap();
        }
        open(&steps).unwrap();
        ask(&steps).unwrap();
        steps.select_plan(Some(plan)); // in the middle of the step
        let _all = steps.transient::<u8>(64 << 10, A256, 0).unwrap();
        assert!(ask(&steps).unwrap_err().is_exhausted());
    }

    #[test]
    fn a_plan_of_another_arena_is_none_here() {
        let (_, plan) = two_slots_in_one_place().unwrap();
        let mut other = steps(ByteSize::kib(64)).unwrap();
        other.select_plan(Some(plan));
        assert_eq!(other.plan_span(plan), None);
        open(&other).unwrap();
        assert!(are_apart(&other).unwrap());
    }
}
