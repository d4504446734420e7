//! Which plan a root scope follows: that of its key.

use arena_core::for_scopes::PlanId;

use crate::step_key::{KeyMap, StepKey};

/// The installed plans, by the keys whose steps follow them.
#[derive(Debug, Default)]
pub(crate) struct PlanKeys(KeyMap<Installed>);

/// A loop whose steps never repeat is recorded once in 2¹⁶ times the patience in the end.
const MOST_DOUBLINGS: u32 = 16;

#[derive(Debug, Clone, Copy)]
struct Installed {
    plan: PlanId,
    /// It was installed for another key, whose steps follow it too.
    shared: bool,
    /// The last steps that deviated in a row.
    in_a_row: u32,
    /// How many plans before it did not last: after each, twice as many steps must deviate.
    before: u32,
}

impl PlanKeys {
    /// Steps of this key follow a plan from now on, which may be that of another key.
    pub(crate) fn insert(&mut self, key: StepKey, plan: PlanId, shared: bool) {
        let before = self.0.get(key).map_or(0, |installed| installed.before + 1);
        let installed = Installed { plan, shared, in_a_row: 0, before };
        *self.0.get_or_insert_with(key, || installed) = installed;
    }

    /// A step of this key followed its plan.
    pub(crate) fn note_step(&mut self, key: StepKey, deviated: bool) {
        if let Some(installed) = self.0.get_mut(key) {
            installed.in_a_row = if deviated { installed.in_a_row + 1 } else { 0 };
        }
    }

    /// Whether the next step of this key may be planned anew: so many steps in a row have deviated, or as many
    /// again, and twice as many for each plan of the key that did not last.
    pub(crate) fn wants_another(&self, key: StepKey, patience: u32) -> bool {
        self.0.get(key).is_some_and(|&Installed { in_a_row, before, .. }| {
            let patience = patience.saturating_mul(1 << before.min(MOST_DOUBLINGS));
            in_a_row > 0 && in_a_row.is_multiple_of(patience)
        })
    }

    /// How many of the last steps of this key deviated, in a row.
    pub(crate) fn deviated_in_a_row(&self, key: StepKey) -> u32 {
        self.0.get(key).map_or(0, |installed| installed.in_a_row)
    }

    /// The plan that steps of this key follow.
    pub(crate) fn find(&self, key: StepKey) -> Option<PlanId> {
        self.0.get(key).map(|installed| installed.plan)
    }

    /// The plan that was installed for this key and no other.
    pub(crate) fn own(&self, key: StepKey) -> Option<PlanId> {
        self.0.get(key).filter(|installed| !installed.shared).map(|installed| installed.plan)
    }
}
