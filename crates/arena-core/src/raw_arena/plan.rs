//! Steps that follow a plan: the root scope takes the plan's bytes, slots are given out of them, and
//! the bump goes on above.

use super::RawArena;
use crate::buffer::NO_SLOT;
use crate::bytes::Alignment;
use crate::device::Device;
use crate::error::{Error, ErrorKind, PlanFacts};
use crate::event_log::Event;
use crate::layout::{Span, align_up};
use crate::placement::{Deviations, PlanId, SlotTable};

impl<D: Device> RawArena<D> {
    /// Adds a plan, which a root scope may follow from now on. It sets the mark if that is not set,
    /// for a plan starts there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`] when its bytes do not fit above the mark, [`ErrorKind::PlanInUse`]
    /// while a root scope follows one.
    pub fn add_plan(&self, table: SlotTable) -> Result<PlanId, Error> {
        let start_bytes = self.plan_start(&table)?;
        Ok(self.plans.borrow_mut().add(table, start_bytes))
    }

    /// Puts another table in the place of a plan's.
    ///
    /// # Errors
    ///
    /// As for [`add_plan`](Self::add_plan); the plan stays then.
    pub fn replace_plan(&self, plan: PlanId, table: SlotTable) -> Result<(), Error> {
        let start_bytes = self.plan_start(&table)?;
        self.plans.borrow_mut().replace(plan, table, start_bytes);
        Ok(())
    }

    fn plan_start(&self, table: &SlotTable) -> Result<u64, Error> {
        if self.plans.borrow().is_active() {
            return Err(ErrorKind::PlanInUse.into());
        }
        if !self.zones.mark_is_set() {
            self.zones.set_mark()?;
        }
        let base_address = self.zones.base_address();
        let mark_address = base_address + self.zones.mark_bytes();
        let start_bytes = align_up(mark_address, table.alignment()) - base_address;
        self.check_room(start_bytes + table.peak_bytes(), table)?;
        Ok(start_bytes)
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
        self.plans.borrow().table(plan).map(SlotTable::id)
    }

    /// Where a plan's bytes lie.
    #[must_use]
    pub fn plan_span(&self, plan: PlanId) -> Option<Span> {
        self.plans.borrow().span(plan)
    }

    /// What was not as planned since a plan was installed.
    #[must_use]
    pub fn plan_deviations(&self, plan: PlanId) -> Option<Deviations> {
        self.plans.borrow().deviations(plan)
    }

    /// A root scope opens. If it follows a plan, the cursor goes above the plan's bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`] when what is kept has grown into the plan's bytes; nothing is open
    /// then.
    pub fn enter_root(&self, plan: Option<PlanId>) -> Result<(), Error> {
        if let Some(separate) = &self.separate {
            separate.restart_count();
        }
        let plan = plan.filter(|_| self.separate.is_none());
        let known = plan.and_then(|plan| Some((plan, self.plan_span(plan)?)));
        if let Some((plan, span)) = known {
            if let Some(table) = self.plans.borrow().table(plan) {
                self.check_room(span.end_bytes, table)?;
            }
            self.poison_fresh(span)?;
            self.zones.raise(span.end_bytes);
            self.plans.borrow_mut().begin(plan);
            self.choose_path();
        }
        self.log_event(Event::Open);
        Ok(())
    }

    /// A scope opens inside another.
    pub fn enter_inner(&self) {
        // What minds drops, a plan or a log, is all that minds scopes.
        if self.minds_drops.get() {
            self.plans.borrow_mut().open();
            self.log_event(Event::Open);
        }
    }

    /// The innermost scope has closed; `root` says that it was the last. What a plan gave out in it
    /// may be given out again: the caller has put the cursor back, which says that nothing of it is
    /// used any more.
    #[inline]
    pub fn leave(&self, root: bool) {
        if self.minds_drops.get() {
            self.leave_watched(root);
        }
    }

    #[cold]
    #[inline(never)]
    fn leave_watched(&self, root: bool) {
        self.plans.borrow_mut().close(root);
        self.log_event(Event::Close);
        if root {
            self.choose_path();
        }
    }

    /// The innermost scope ends with the one around it, because its guard was forgotten: what it has
    /// given out stays taken until then.
    pub fn merge_inner(&self) {
        if self.minds_drops.get() {
            self.plans.borrow_mut().merge();
            self.log_event(Event::Close);
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
        let mut from = 0;
        while let Some((next, span)) = self.own_span(from) {
            from = next;
            // SAFETY: slots of this scope held no byte of a buffer that lived before them, and none
            // of their own is used again.
            unsafe { self.fill(span, value) }?;
        }
        Ok(())
    }

    /// The borrow ends here: the device is not called with it.
    fn own_span(&self, from: usize) -> Option<(usize, Span)> {
        self.plans.borrow().own_span(from)
    }

    /// The way of a request under a plan where nobody else minds: `None` if it is not just as planned,
    /// or if somebody does.
    #[inline]
    pub(super) fn place_as_planned(&self, bytes: u64, alignment: Alignment) -> Option<(u64, u32)> {
        if !self.follows_plan.get() {
            return None;
        }
        let (slot, offset_bytes) = self.plans.borrow_mut().place_as_planned(bytes, alignment)?;
        Some((offset_bytes, slot + 1)) // A handle counts slots from 1.
    }

    pub(super) fn place_by_plan(&self, bytes: u64, alignment: Alignment) -> Option<(u64, u32)> {
        if bytes == 0 {
            return None; // Empty requests take no room, and no slot.
        }
        let (slot, offset_bytes) = self.plans.borrow_mut().place(bytes, alignment)?;
        Some((offset_bytes, slot + 1)) // A handle counts slots from 1.
    }

    #[inline(always)]
    pub(super) fn drop_slot(&self, slot: u32) {
        // While another stream may use the scope's buffers, a dropped one lives until its scope's close
        // has joined that stream.
        if slot != NO_SLOT && !self.region.fences().any_declared() {
            self.plans.borrow_mut().drop_slot(slot - 1);
        }
    }

    /// Adds what is known of the plan to an error of the bump, if the step follows one.
    #[cold]
    pub(super) fn off_plan(&self, mut error: Error) -> Error {
        if let ErrorKind::Exhausted(exhausted) = error.kind_mut() {
            let facts = self.plans.borrow().facts();
            exhausted.plan =
                facts.map(|(peak_bytes, deviations)| PlanFacts::new(peak_bytes, deviations));
        }
        error
    }
}
