//! The plans that steps follow: the root scope takes the plan's bytes, slots are given out of them, and
//! the bump goes on above.

use super::Steps;
use crate::device::Device;
use crate::error::{Error, ErrorKind, PlanFacts};
use crate::layout::{Span, align_up};
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
    /// that no buffer of it is alive is what `&mut self` proves.
    #[inline]
    pub fn select_plan(&mut self, plan: Option<PlanId>) {
        // SAFETY: see above.
        unsafe { self.settle(0) };
        self.plans.select(plan);
    }

    /// Where in the program requests were not as planned since a plan was installed: the first 32
    /// places.
    #[must_use]
    pub fn plan_deviation_sites(&self, plan: PlanId) -> Vec<DeviationSite> {
        self.plans.get(plan).map(Replay::sites).unwrap_or_default()
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
