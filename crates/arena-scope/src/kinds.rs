//! What an arena remembers of each kind of step: its figures, its record and its plan, within a budget of host memory.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use arena_core::StepSignature;
use arena_core::for_scopes::PlanId;

use crate::observer::Watched;
use crate::step_key::StepKey;

/// A loop whose steps never repeat is recorded once in 2¹⁶ times the patience in the end.
const MOST_DOUBLINGS: u32 = 16;

/// One kind of step.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) key: StepKey,
    /// Which root scope used it last, by number.
    used: u64,
    pub(crate) plan: Option<Installed>,
    /// The host memory of its own plan.
    pub(crate) plan_bytes: u64,
    /// The program gave its plan, or shared it, and could not be asked for it again.
    pub(crate) is_held: bool,
    /// The planner was asked for a plan.
    pub(crate) was_asked: bool,
    /// The planner has taken a record, and no plan has come since.
    pub(crate) is_taken: bool,
    pub(crate) watched: Watched,
    pub(crate) captured: Captured,
}

/// The plan that steps of a kind follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Installed {
    pub(crate) plan: PlanId,
    /// It was installed for another key, whose steps follow it too.
    pub(crate) shared: bool,
    /// The last steps that deviated in a row.
    in_a_row: u32,
    /// How many plans before it did not last: after each, twice as many steps must deviate.
    before: u32,
}

impl Installed {
    /// A step followed it.
    pub(crate) fn note_step(&mut self, deviated: bool) {
        self.in_a_row = if deviated { self.in_a_row + 1 } else { 0 };
    }

    /// Whether the last step deviated.
    pub(crate) fn has_deviated(&self) -> bool {
        self.in_a_row > 0
    }

    /// Whether the next step may be planned anew: so many steps in a row have deviated, or as many again, and twice
    /// as many for each plan of the key that did not last.
    pub(crate) fn wants_another(&self, patience: u32) -> bool {
        let patience = patience.saturating_mul(1 << self.before.min(MOST_DOUBLINGS));
        self.has_deviated() && self.in_a_row.is_multiple_of(patience)
    }
}

/// Whether steps of a kind were captured as a graph.
#[derive(Debug, Default)]
pub(crate) struct Captured {
    /// The signature of the last step; `None` if none was captured, or if what was captured is stale.
    pub(crate) latest: Option<StepSignature>,
    /// The graphs that live.
    graphs: Weak<()>,
}

impl Captured {
    /// A step of this signature was captured. The graph holds what this returns.
    pub(crate) fn add(&mut self, signature: StepSignature) -> Arc<()> {
        self.latest = Some(signature);
        let graphs = self.graphs.upgrade().unwrap_or_default();
        self.graphs = Arc::downgrade(&graphs);
        graphs
    }

    /// A root scope of the kind closed.
    pub(crate) fn note(&mut self, signature: StepSignature) {
        self.latest = self.latest.map(|_| signature);
    }
}

impl Kind {
    fn new(key: StepKey) -> Self {
        Self {
            key,
            used: 0,
            plan: None,
            plan_bytes: 0,
            is_held: false,
            was_asked: false,
            is_taken: false,
            watched: Watched::new(key),
            captured: Captured::default(),
        }
    }

    /// Its steps follow a plan from now on, which may be that of another key. What was captured of them is stale, and
    /// other addresses are to be expected.
    pub(crate) fn follow(&mut self, plan: PlanId, shared: bool) {
        let before = self.plan.map_or(0, |installed| installed.before + 1);
        self.plan = Some(Installed { plan, shared, in_a_row: 0, before });
        self.is_taken = false;
        self.captured.latest = None;
        self.watched.expect_other_addresses();
    }

    /// The plan that was installed for this key and no other.
    pub(crate) fn own_plan(&self) -> Option<PlanId> {
        self.plan.filter(|installed| !installed.shared).map(|installed| installed.plan)
    }

    /// Whether it cannot be forgotten: a program could not have its plan again, or a graph would become stale.
    pub(crate) fn stays(&self) -> bool {
        self.is_held || self.captured.graphs.strong_count() > 0
    }

    /// Its host memory. Both lists of kinds may have as much room again.
    fn bytes(&self) -> u64 {
        const LISTED: usize = 2 * (size_of::<Kind>() + size_of::<(StepKey, usize)>());
        LISTED as u64 + self.plan_bytes + self.watched.host_bytes()
    }
}

/// The kinds of step that an arena remembers.
#[derive(Debug)]
pub(crate) struct Kinds {
    kinds: Vec<Kind>,
    index: HashMap<StepKey, usize>,
    /// A loop asks for the same key again and again, so the one that was found last is tried first.
    last: Cell<usize>,
    /// Root scopes so far.
    clock: u64,
    bytes: u64,
    budget_bytes: u64,
}

impl Kinds {
    /// Room for the kinds of a usual loop, so that a second kind allocates nothing in a step.
    pub(crate) fn new(budget_bytes: u64) -> Self {
        let (kinds, index) = (Vec::with_capacity(16), HashMap::with_capacity(16));
        Self { kinds, index, last: Cell::new(0), clock: 0, bytes: 0, budget_bytes }
    }

    fn position(&self, key: StepKey) -> Option<usize> {
        let last = self.last.get();
        if self.kinds.get(last).is_some_and(|kind| kind.key == key) {
            return Some(last);
        }
        let found = self.index.get(&key).copied()?;
        self.last.set(found);
        Some(found)
    }

    pub(crate) fn get(&self, key: StepKey) -> Option<&Kind> {
        self.position(key).map(|at| &self.kinds[at])
    }

    /// For changes that take no memory; see [`change`](Self::change).
    pub(crate) fn get_mut(&mut self, key: StepKey) -> Option<&mut Kind> {
        self.position(key).map(|at| &mut self.kinds[at])
    }

    /// The kind of this key, which is used now.
    pub(crate) fn open(&mut self, key: StepKey) -> &mut Kind {
        let at = self.position(key).unwrap_or_else(|| {
            let (at, kind) = (self.kinds.len(), Kind::new(key));
            self.bytes += kind.bytes();
            self.index.insert(key, at);
            self.kinds.push(kind);
            self.last.set(at);
            at
        });
        self.clock += 1;
        self.kinds[at].used = self.clock;
        &mut self.kinds[at]
    }

    /// Changes the memory of a kind.
    pub(crate) fn change<R>(
        &mut self,
        key: StepKey,
        change: impl FnOnce(&mut Kind) -> R,
    ) -> Option<R> {
        let at = self.position(key)?;
        let kind = &mut self.kinds[at];
        let before = kind.bytes();
        let result = change(kind);
        self.bytes = self.bytes + kind.bytes() - before;
        Some(result)
    }

    pub(crate) fn remove(&mut self, key: StepKey) -> Option<Kind> {
        let at = self.index.remove(&key)?;
        let kind = self.kinds.swap_remove(at);
        self.bytes -= kind.bytes();
        if let Some(moved) = self.kinds.get(at) {
            self.index.insert(moved.key, at);
        }
        Some(kind)
    }

    /// Forgets what was observed of them.
    pub(crate) fn stop_watching(&mut self) {
        for kind in &mut self.kinds {
            self.bytes -= kind.watched.host_bytes();
            kind.watched = Watched::new(kind.key);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Kind> {
        self.kinds.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Kind> {
        self.kinds.iter_mut()
    }

    // --- the budget -------------------------------------------------------------------------------

    /// The host memory of all kinds.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether they take more than the budget.
    pub(crate) fn is_too_large(&self) -> bool {
        self.bytes > self.budget_bytes
    }

    /// Whether an eighth of the budget is free, so that not each step has to make room.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes <= self.budget_bytes - self.budget_bytes / 8
    }

    /// The keys of all kinds but the one that was used last; the least recently used first.
    pub(crate) fn oldest_first(&self) -> Vec<StepKey> {
        let mut kinds: Vec<_> = self.kinds.iter().map(|kind| (kind.used, kind.key)).collect();
        kinds.sort_unstable_by_key(|&(used, _)| used);
        kinds.pop();
        kinds.into_iter().map(|(_, key)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> StepKey {
        StepKey::named(if n.is_multiple_of(2) { "a" } else { "b" }).variant(n)
    }

    #[test]
    fn each_key_has_its_own_kind_also_after_others_were_removed() {
        let mut kinds = Kinds::new(0);
        for n in (0..100).rev().chain(0..100) {
            kinds.open(key(n)).plan_bytes += n;
        }
        for n in (0..100).step_by(3) {
            assert_eq!(kinds.remove(key(n)).map(|kind| kind.key), Some(key(n)));
        }
        for n in 0..100 {
            let bytes = kinds.get(key(n)).map(|kind| kind.plan_bytes);
            assert_eq!(bytes, (!n.is_multiple_of(3)).then_some(2 * n), "{n}");
        }
        assert!(kinds.get(StepKey::named("a").variant(1)).is_none());
    }

    #[test]
    fn the_bytes_are_those_of_the_kinds_that_are_there() {
        let mut kinds = Kinds::new(0);
        for n in 0..10 {
            kinds.open(key(n));
            kinds.change(key(n), |kind| kind.plan_bytes = 1000 * n);
        }
        kinds.change(key(3), |kind| kind.plan_bytes = 7);
        kinds.remove(key(4));
        let sum: u64 = kinds.iter().map(Kind::bytes).sum();
        assert_eq!(kinds.bytes(), sum);
    }

    #[test]
    fn the_oldest_is_the_one_that_was_opened_longest_ago() {
        let mut kinds = Kinds::new(0);
        for n in [5, 1, 2, 3, 1, 5] {
            kinds.open(key(n));
        }
        assert_eq!(kinds.oldest_first(), [2, 3, 1].map(key)); // without 5
    }
}
