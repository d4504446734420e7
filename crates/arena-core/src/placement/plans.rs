//! The plans of an arena, and the one that the open step follows.

use std::cell::Cell;
use std::mem;
use std::panic::Location;

use super::deviations::Deviations;
use super::replay::Replay;
use super::sites::DeviationSite;
use super::slots::SlotTable;
use crate::bytes::Alignment;

/// Names a plan of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanId(pub(super) usize);

/// Plans by number. At most one is followed at a time.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    /// The one that the open step follows, or the next one will: what every request of a planned step
    /// looks at, without a way through the list. Its place in the list holds an empty one meanwhile.
    selected: Planned,
    selected_id: Option<PlanId>,
    is_followed: Cell<bool>,
    plans: Vec<Planned>,
}

/// A plan, where it starts, and where its step has got to.
#[derive(Debug, Default)]
pub(crate) struct Planned {
    start_address: u64,
    replay: Replay,
}

impl Plans {
    /// Adds a plan that starts at this address.
    pub(crate) fn add(&mut self, table: SlotTable, start_address: u64) -> PlanId {
        self.plans.push(Planned { start_address, replay: Replay::new(table) });
        PlanId(self.plans.len() - 1)
    }

    /// Puts another table in the place of a plan's.
    pub(crate) fn replace(&mut self, id: PlanId, table: SlotTable, start_address: u64) {
        self.select(None);
        if let Some(planned) = self.plans.get_mut(id.0) {
            *planned = Planned { start_address, replay: Replay::new(table) };
        }
    }

    pub(crate) fn get(&self, id: PlanId) -> Option<&Planned> {
        if self.selected_id == Some(id) { Some(&self.selected) } else { self.plans.get(id.0) }
    }

    /// Between two steps: the next one will follow `plan`, or none. A step that was never ended ends.
    pub(crate) fn select(&mut self, plan: Option<PlanId>) {
        if self.is_followed.take() {
            self.selected.replay.abandon();
        }
        let plan = plan.filter(|&plan| self.get(plan).is_some());
        if plan != self.selected_id {
            self.exchange(plan);
        }
        if plan.is_some() {
            self.selected.replay.prepare();
        }
    }

    #[cold]
    fn exchange(&mut self, plan: Option<PlanId>) {
        for id in [self.selected_id, plan].into_iter().flatten() {
            if let Some(planned) = self.plans.get_mut(id.0) {
                mem::swap(&mut self.selected, planned);
            }
        }
        self.selected_id = plan;
    }

    /// The plan that the next step will follow.
    pub(crate) fn selected(&self) -> Option<&Planned> {
        self.selected_id.map(|_| &self.selected)
    }

    /// The plan that the open step follows.
    pub(crate) fn followed(&self) -> Option<&Planned> {
        self.is_followed.get().then_some(&self.selected)
    }

    /// The same without a look at whether there is one: a plan that no step follows serves nothing as
    /// before, for its script was left or is at its end.
    #[inline]
    pub(crate) fn current(&self) -> &Planned {
        &self.selected
    }

    /// A root scope opens and follows the selected plan.
    pub(crate) fn begin(&self) {
        self.is_followed.set(true);
        self.selected.replay.open_root();
    }

    /// The innermost scope closes; `root` says that it is the last.
    pub(crate) fn close(&self, root: bool) {
        match self.followed() {
            Some(planned) if root => planned.replay.close_root(),
            Some(planned) => planned.replay.close(),
            None => {}
        }
        if root {
            self.is_followed.set(false);
        }
    }
}

impl Planned {
    /// The address of its first byte.
    pub(crate) fn start_address(&self) -> u64 {
        self.start_address
    }

    pub(crate) fn table(&self) -> &SlotTable {
        self.replay.table()
    }

    pub(crate) fn deviations(&self) -> Deviations {
        self.replay.deviations()
    }

    /// Where requests were not as planned.
    pub(crate) fn sites(&self) -> Vec<DeviationSite> {
        self.replay.sites()
    }

    /// The last such request.
    pub(crate) fn last_site(&self) -> Option<DeviationSite> {
        self.replay.last_site()
    }

    /// Whether the step has repeated an earlier one to its end.
    #[cfg(test)]
    pub(crate) fn repeats(&self) -> bool {
        self.replay.repeats()
    }

    /// The slot that was given out last was not used after all. Whether it was the last.
    pub(crate) fn take_back(&self, slot: u32) -> bool {
        self.replay.take_back(slot)
    }

    /// Gives nothing more out in this step.
    pub(crate) fn stop(&self) {
        self.replay.stop();
    }

    /// A scope opens inside.
    pub(crate) fn open(&self) {
        self.replay.open();
    }

    /// The innermost scope ends with the one around it.
    pub(crate) fn merge(&self) {
        self.replay.merge();
    }

    /// The slot and the address for a request that repeats an earlier step.
    #[inline]
    pub(crate) fn place_as_before(&self, bytes: u64, alignment: Alignment) -> Option<(u32, u64)> {
        self.replay.alloc_as_before(bytes, alignment, self.start_address)
    }

    /// The same for a request that does not, but is just as planned.
    pub(crate) fn place_counted(&self, bytes: u64, alignment: Alignment) -> Option<(u32, u64)> {
        let (slot, offset_bytes) = self.replay.alloc_counted(bytes, alignment)?;
        Some((slot, self.start_address + offset_bytes))
    }

    /// The same for any request, or `None` if the bump must serve it.
    pub(crate) fn place(
        &self,
        bytes: u64,
        alignment: Alignment,
        call_site: &'static Location<'static>,
    ) -> Option<(u32, u64)> {
        let (slot, offset_bytes) = self.replay.alloc(bytes, alignment, call_site)?;
        Some((slot, self.start_address + offset_bytes))
    }

    /// Whether the drop of a slot's handle repeats an earlier step; it is done with then.
    #[inline]
    pub(crate) fn drop_as_before(&self, slot: u32) -> bool {
        self.replay.drop_as_before(slot)
    }

    /// The handle of a slot was dropped.
    pub(crate) fn drop_slot(&self, slot: u32) {
        self.replay.drop_counted(slot);
    }

    /// From here on each request and drop of the step is counted.
    pub(crate) fn leave_script(&self) {
        self.replay.leave_script();
    }

    /// The first slot at or after `from` that was given out in the innermost scope, as addresses, and
    /// the number after it.
    pub(crate) fn own_range(&self, from: usize) -> Option<(usize, (u64, u64))> {
        let (next, (start, end)) = self.replay.own_range(from)?;
        Some((next, (self.start_address + start, self.start_address + end)))
    }
}
