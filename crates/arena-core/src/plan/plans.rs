//! The plans of an arena, and the one that the open step follows.

use std::cell::Cell;
use std::mem;

use super::replay::Replay;
use super::table::SlotTable;

/// Names a plan of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanId(pub(super) usize);

/// Plans by number. At most one is followed at a time.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    /// The one that the open step follows, or the next one will: what every request of a planned step
    /// looks at, without a way through the list. Its place in the list is empty meanwhile.
    selected: Replay,
    selected_id: Option<PlanId>,
    is_followed: Cell<bool>,
    plans: Vec<Option<Replay>>,
    /// Places in the list for which there is no plan any more.
    vacant: Vec<usize>,
}

impl Plans {
    /// Adds a plan that starts at this address.
    pub(crate) fn add(&mut self, table: SlotTable, start_address: u64) -> PlanId {
        let planned = Some(Replay::new(table, start_address));
        if let Some(place) = self.vacant.pop() {
            self.plans[place] = planned;
            return PlanId(place);
        }
        self.plans.push(planned);
        PlanId(self.plans.len() - 1)
    }

    /// Puts another table in the place of a plan's.
    pub(crate) fn replace(&mut self, id: PlanId, table: SlotTable, start_address: u64) {
        self.deselect(id);
        if let Some(Some(planned)) = self.plans.get_mut(id.0) {
            *planned = Replay::new(table, start_address);
        }
    }

    /// Removes a plan. Another one may get its number.
    pub(crate) fn remove(&mut self, id: PlanId) {
        self.deselect(id);
        if self.plans.get_mut(id.0).and_then(Option::take).is_some() {
            self.vacant.push(id.0);
        }
    }

    fn deselect(&mut self, id: PlanId) {
        if self.selected_id == Some(id) {
            self.select(None);
        }
    }

    /// Folds a plan, unless it is selected.
    pub(crate) fn fold(&mut self, id: PlanId) {
        if let Some(Some(planned)) = self.plans.get_mut(id.0) {
            planned.fold();
        }
    }

    pub(crate) fn get(&self, id: PlanId) -> Option<&Replay> {
        if self.selected_id == Some(id) {
            Some(&self.selected)
        } else {
            self.plans.get(id.0)?.as_ref()
        }
    }

    /// Between two steps: the next one will follow `plan`, or none. A step that was never ended ends. Whether the
    /// plan was folded.
    pub(crate) fn select(&mut self, plan: Option<PlanId>) -> bool {
        self.is_followed.set(false);
        let plan = plan.filter(|&plan| self.get(plan).is_some());
        let was_folded = plan != self.selected_id && self.exchange(plan);
        if plan.is_some() {
            self.selected.prepare();
        }
        was_folded
    }

    #[cold]
    fn exchange(&mut self, plan: Option<PlanId>) -> bool {
        let next = plan.and_then(|id| self.plans.get_mut(id.0)?.take());
        let selected = mem::replace(&mut self.selected, next.unwrap_or_default());
        if let Some(place) = self.selected_id.and_then(|id| self.plans.get_mut(id.0)) {
            *place = Some(selected);
        }
        self.selected_id = plan;
        plan.is_some() && self.selected.unfold()
    }

    /// The plan that the next step will follow.
    #[inline]
    pub(crate) fn selected(&self) -> Option<&Replay> {
        self.selected_id.map(|_| &self.selected)
    }

    /// The plan that the open step follows.
    #[inline]
    pub(crate) fn followed(&self) -> Option<&Replay> {
        self.is_followed.get().then_some(&self.selected)
    }

    /// The same for who knows that there is one: the mode of the step says so.
    #[inline]
    pub(crate) fn current(&self) -> &Replay {
        &self.selected
    }

    /// A root scope opens at this address, and follows the selected plan.
    pub(crate) fn begin(&self, bump_address: u64) {
        self.is_followed.set(true);
        self.selected.begin(bump_address);
    }

    /// The root scope that followed a plan has closed.
    pub(crate) fn end(&self) {
        self.is_followed.set(false);
    }
}
