//! Which plan a root scope follows: by its key.

use arena_core::for_scopes::PlanId;

use crate::step_key::{KeyMap, StepKey};

/// The installed plans, by the keys that they were installed for.
#[derive(Debug, Default)]
pub(crate) struct PlanKeys(KeyMap<Installed>);

#[derive(Debug)]
struct Installed {
    plan: PlanId,
    /// Deviating steps so far, and how many of the last ones in a row.
    deviating_steps: u64,
    in_a_row: u32,
}

impl PlanKeys {
    pub(crate) fn insert(&mut self, key: StepKey, plan: PlanId) {
        self.0.get_or_insert_with(key, || Installed { plan, deviating_steps: 0, in_a_row: 0 });
    }

    /// The plan of a key was replaced: its deviations count from zero again.
    pub(crate) fn replaced(&mut self, key: StepKey) {
        if let Some(installed) = self.0.get_mut(key) {
            (installed.deviating_steps, installed.in_a_row) = (0, 0);
        }
    }

    /// A step followed the plan of `key`, after which that has so many deviating steps in all.
    pub(crate) fn note_step(&mut self, key: StepKey, deviating_steps: u64) {
        if let Some(installed) = self.0.get_mut(key) {
            let deviated = deviating_steps > installed.deviating_steps;
            installed.deviating_steps = deviating_steps;
            installed.in_a_row = if deviated { installed.in_a_row + 1 } else { 0 };
        }
    }

    /// How many of the last steps that followed the plan of `key` deviated, in a row.
    pub(crate) fn deviated_in_a_row(&self, key: StepKey) -> u32 {
        self.0.get(key).map_or(0, |installed| installed.in_a_row)
    }

    /// The plan that was installed for just this key.
    pub(crate) fn exact(&self, key: StepKey) -> Option<PlanId> {
        self.0.get(key).map(|installed| installed.plan)
    }

    /// The key whose plan a step is to follow: its own, else the last one of the same name that has a plan.
    /// A short last batch thus keeps the plan of the whole ones, since smaller requests fit.
    pub(crate) fn find(&self, key: StepKey) -> Option<(StepKey, PlanId)> {
        if let Some(plan) = self.exact(key) {
            return Some((key, plan));
        }
        let (key, installed) = self.0.iter().rfind(|(other, _)| other.name == key.name)?;
        Some((key, installed.plan))
    }
}
