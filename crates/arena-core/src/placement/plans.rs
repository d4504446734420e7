//! The plans of an arena, and the one that the open step follows.

use std::mem;

use super::replay::{Deviations, Replay};
use super::slots::SlotTable;
use crate::bytes::Alignment;
use crate::layout::Span;

/// Names a plan of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanId(pub(super) usize);

/// Plans by number, with where each starts. At most one is followed at a time.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    /// The plan that the open step follows, or one of no slot, which serves nothing: what every
    /// request of a planned step looks at, without a way through the list.
    followed: Planned,
    /// Which one that is. Its place in `plans` holds the empty one meanwhile.
    active: Option<usize>,
    plans: Vec<Planned>,
}

#[derive(Debug, Default)]
struct Planned {
    start_bytes: u64,
    replay: Replay,
}

impl Plans {
    /// Adds a plan that starts at an offset of the region.
    pub(crate) fn add(&mut self, table: SlotTable, start_bytes: u64) -> PlanId {
        self.plans.push(Planned { start_bytes, replay: Replay::new(table) });
        PlanId(self.plans.len() - 1)
    }

    /// Puts another table in the place of a plan's.
    pub(crate) fn replace(&mut self, id: PlanId, table: SlotTable, start_bytes: u64) {
        let planned = match self.active {
            Some(active) if active == id.0 => Some(&mut self.followed),
            _ => self.plans.get_mut(id.0),
        };
        if let Some(planned) = planned {
            *planned = Planned { start_bytes, replay: Replay::new(table) };
        }
    }

    fn get(&self, id: PlanId) -> Option<&Planned> {
        if self.active == Some(id.0) { Some(&self.followed) } else { self.plans.get(id.0) }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Where a plan's bytes lie in the region.
    pub(crate) fn span(&self, id: PlanId) -> Option<Span> {
        let Planned { start_bytes, replay } = self.get(id)?;
        let end_bytes = start_bytes + replay.table().peak_bytes();
        Some(Span { start_bytes: *start_bytes, end_bytes })
    }

    pub(crate) fn table(&self, id: PlanId) -> Option<&SlotTable> {
        self.get(id).map(|planned| planned.replay.table())
    }

    pub(crate) fn deviations(&self, id: PlanId) -> Option<Deviations> {
        self.get(id).map(|planned| planned.replay.deviations())
    }

    /// The active plan's size and what was not as planned, for errors.
    pub(crate) fn facts(&self) -> Option<(u64, Deviations)> {
        let replay = &self.followed.replay;
        self.active.map(|_| (replay.table().peak_bytes(), replay.deviations()))
    }

    /// A root scope opens and follows `plan`.
    pub(crate) fn begin(&mut self, plan: PlanId) {
        self.put_back();
        if let Some(planned) = self.plans.get_mut(plan.0) {
            mem::swap(&mut self.followed, planned);
            self.active = Some(plan.0);
            self.open();
        }
    }

    fn put_back(&mut self) {
        if let Some(active) = self.active.take() {
            mem::swap(&mut self.followed, &mut self.plans[active]);
        }
    }

    /// A scope opens inside.
    pub(crate) fn open(&mut self) {
        if self.is_active() {
            self.followed.replay.open();
        }
    }

    /// The innermost scope closes; `root` says that it is the last.
    pub(crate) fn close(&mut self, root: bool) {
        if self.is_active() {
            self.followed.replay.close();
        }
        if root {
            self.put_back();
        }
    }

    /// The innermost scope ends with the one around it.
    pub(crate) fn merge(&mut self) {
        if self.is_active() {
            self.followed.replay.merge();
        }
    }

    /// The slot and the offset in the region for a request that is just as planned.
    #[inline]
    pub(crate) fn place_as_planned(
        &mut self,
        bytes: u64,
        alignment: Alignment,
    ) -> Option<(u32, u64)> {
        let Planned { start_bytes, replay } = &mut self.followed;
        let (slot, offset) = replay.alloc(bytes, alignment)?;
        Some((slot, *start_bytes + offset))
    }

    /// The slot and the offset in the region for a request, or `None` if the bump must serve it.
    pub(crate) fn place(&mut self, bytes: u64, alignment: Alignment) -> Option<(u32, u64)> {
        self.active?;
        let Planned { start_bytes, replay } = &mut self.followed;
        let placed = replay.alloc(bytes, alignment);
        let (slot, offset) = placed.or_else(|| replay.alloc_off_plan(bytes, alignment))?;
        Some((slot, *start_bytes + offset))
    }

    #[inline]
    pub(crate) fn drop_slot(&mut self, slot: u32) {
        self.followed.replay.drop_slot(slot);
    }

    /// The span in the region of the first slot at or after `from` that was given out in the innermost
    /// scope, and the number after it.
    pub(crate) fn own_span(&self, from: usize) -> Option<(usize, Span)> {
        let Planned { start_bytes, replay } = &self.followed;
        let (next, (start, end)) = replay.own_range(from)?;
        Some((next, Span { start_bytes: start_bytes + start, end_bytes: start_bytes + end }))
    }
}
