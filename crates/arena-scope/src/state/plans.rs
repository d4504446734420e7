//! The plans of the kinds of step: who gives them, who follows them, and the host memory for them.

use arena_core::for_scopes::PlanId;
use arena_core::{Device, Error, SlotTable};

use super::State;
use crate::kinds::{Installed, Kind, Kinds};
use crate::observer::Observer;
use crate::planner::Planning;
use crate::step_key::StepKey;

impl<D: Device> State<D> {
    /// Installs a plan for a key, between root scopes; `is_held` says that the program gives it.
    pub(crate) fn install_plan(
        &mut self,
        key: StepKey,
        table: SlotTable,
        is_held: bool,
    ) -> Result<(), Error> {
        let kinds = self.kinds.get_mut();
        let plan = match kinds.get(key).and_then(Kind::own_plan) {
            Some(plan) => self.steps.replace_plan(plan, table).map(|()| plan)?,
            None => self.steps.add_plan(table)?,
        };
        let kind = kinds.open(key);
        kind.is_held |= is_held;
        kind.follow(plan, false);
        self.count_plan(key);
        self.watches = true;
        Ok(())
    }

    /// Lets steps of `key` follow the plan of steps of `with`. Whether there is one. None of both is forgotten.
    pub(crate) fn share_plan(&mut self, key: StepKey, with: StepKey) -> bool {
        let Some(plan) = self.plan_of(with) else { return false };
        let kinds = self.kinds.get_mut();
        let own = kinds.get(key).and_then(Kind::own_plan);
        if own == Some(plan) {
            return true;
        }
        kinds.open(with).is_held = true;
        let kind = kinds.open(key);
        kind.is_held = true;
        kind.follow(plan, true);
        if let Some(own) = own
            && !follows(kinds, own)
        {
            self.steps.remove_plan(own);
        }
        self.count_plan(key);
        true
    }

    /// How much of the region its steps take, from the base: as planned, as observed, or the most so far.
    pub(crate) fn needs_bytes(&mut self) -> u64 {
        let (steps, kinds) = (&self.steps, self.kinds.get_mut());
        let needs = |kind: &Kind| {
            let planned = kind.plan.and_then(|installed| steps.plan_span(installed.plan));
            planned.map(|span| span.end_bytes).or_else(|| kind.watched.high_water_bytes())
        };
        let most = kinds.iter().filter_map(needs).max();
        most.unwrap_or_else(|| steps.stats().peak_bytes)
    }

    /// The plan that steps of this key follow.
    pub(crate) fn plan_of(&self, key: StepKey) -> Option<PlanId> {
        self.kinds.borrow().get(key)?.plan.map(|installed| installed.plan)
    }

    pub(crate) fn set_planner(&mut self, planning: Planning) {
        *self.planning.get_mut() = Some(planning);
        for kind in self.kinds.get_mut().iter_mut() {
            (kind.was_asked, kind.is_taken) = (false, false);
        }
        self.watches = true;
    }

    // --- before a root scope ----------------------------------------------------------------------

    /// A plan that does not fit (kept buffers may have grown) leaves its steps as they are. So does a region that is to
    /// be fitted and cannot be.
    pub(super) fn install_ready(&mut self) {
        let mut fits = false;
        while let Some(planning) = self.planning.get_mut()
            && let Some((key, table)) = planning.planner.ready()
        {
            fits |= planning.planner.fits();
            let _ = self.install_plan(key, table, false);
        }
        if fits {
            let needs_bytes = self.needs_bytes();
            self.steps.trim_quietly(needs_bytes);
        }
    }

    /// Asks the planner for the plan of a kind that has none, once.
    #[cold]
    pub(super) fn ask_planner(&mut self, key: StepKey) -> Option<Installed> {
        let planning = self.planning.get_mut().as_mut()?;
        self.kinds.get_mut().get_mut(key)?.was_asked = true;
        let table = planning.planner.plan_for(key)?;
        let _ = self.install_plan(key, table, false);
        self.kinds.get_mut().get(key)?.plan
    }

    /// The root scope of this key that opens next follows this plan.
    pub(super) fn select_plan(&mut self, key: StepKey, installed: Option<Installed>) {
        self.root_plan = installed.map(|installed| installed.plan);
        self.deviated_before = self.root_plan.map_or(0, |plan| self.deviating_steps(plan));
        let took_memory = self.steps.select_plan(self.root_plan);
        if let Some(installed) = installed {
            self.steps.expect_smaller(installed.shared);
        }
        if took_memory {
            self.count_plan(key);
        }
    }

    fn deviating_steps(&self, plan: PlanId) -> u64 {
        self.steps.plan_deviations(plan).map_or(0, |deviations| deviations.steps)
    }

    // --- the planner's records --------------------------------------------------------------------

    /// Whether the next step of this kind is to be recorded for the planner: it has no plan, or steps before it
    /// deviated as often in a row as the planner's patience lasts; and the planner has no record of it in work.
    pub(super) fn planner_wants(&self, key: StepKey) -> bool {
        let (planning, kinds) = (self.planning.borrow(), self.kinds.borrow());
        let (Some(planning), Some(kind)) = (&*planning, kinds.get(key)) else { return false };
        !kind.is_taken
            && kind.plan.is_none_or(|installed| installed.wants_another(planning.patience))
    }

    /// A step has closed. If it was recorded, and a plan for it is of use, the planner gets the record.
    pub(super) fn tell_planner(
        &self,
        planning: &mut Planning,
        kind: &mut Kind,
        record: Option<&Observer>,
    ) {
        let mut is_of_use = true;
        if let (Some(plan), Some(installed)) = (self.root_plan, &mut kind.plan) {
            installed.note_step(self.deviating_steps(plan) > self.deviated_before);
            is_of_use = installed.has_deviated();
        }
        if let (true, Some(observer)) = (is_of_use, record)
            && planning.planner.recorded(kind.key, observer.last())
        {
            kind.is_taken = true;
        }
    }

    // --- the budget of host memory ------------------------------------------------------------------

    /// The memory of a plan counts for the kind that it was installed for.
    fn count_plan(&mut self, key: StepKey) {
        let kinds = self.kinds.get_mut();
        let own = kinds.get(key).and_then(Kind::own_plan);
        let bytes = own.map_or(0, |plan| self.steps.plan_host_bytes(plan));
        kinds.change(key, |kind| kind.plan_bytes = bytes);
    }

    /// Gives memory back until the kinds are within the budget again, but for the kind that is used now. First go the
    /// parts of plans that can be had again from their slots, then whole kinds: each time the least recently used.
    #[cold]
    #[inline(never)]
    pub(super) fn make_room(&mut self) {
        let oldest_first = self.kinds.get_mut().oldest_first();
        for &key in &oldest_first {
            if self.kinds.get_mut().has_room() {
                return;
            }
            if let Some(plan) = self.kinds.get_mut().get(key).and_then(Kind::own_plan) {
                self.steps.fold_plan(plan);
                self.count_plan(key);
            }
        }
        for &key in &oldest_first {
            if self.kinds.get_mut().has_room() {
                return;
            }
            self.forget(key);
        }
    }

    /// Forgets a kind, or only its record where the kind [stays](Kind::stays).
    fn forget(&mut self, key: StepKey) {
        let (kinds, observer) = (self.kinds.get_mut(), self.observer.get_mut().as_mut());
        if kinds.get(key).is_some_and(Kind::stays) {
            if let Some(observer) = observer {
                kinds.change(key, |kind| observer.forget_record(&mut kind.watched));
            }
        } else if let Some(kind) = kinds.remove(key) {
            if let Some(plan) = kind.own_plan() {
                self.steps.remove_plan(plan);
            }
            if let Some(observer) = observer {
                observer.forget(&kind.watched);
            }
            self.steps.forget_kind((key.name, key.variant));
        }
    }
}

/// Whether steps of a kind follow this plan.
fn follows(kinds: &Kinds, plan: PlanId) -> bool {
    kinds.iter().any(|kind| kind.plan.is_some_and(|installed| installed.plan == plan))
}
