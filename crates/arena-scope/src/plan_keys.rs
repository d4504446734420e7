//! Which plan a root scope follows: by the name and variant that it opens with.

use arena_core::PlanId;

use crate::reset::ScopeOptions;

/// The installed plans and the keys that they were installed for.
#[derive(Debug, Default)]
pub(crate) struct PlanKeys {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    name: &'static str,
    variant: u64,
    plan: PlanId,
    /// Deviating steps so far, and how many of the last ones in a row.
    deviating_steps: u64,
    in_a_row: u32,
}

impl PlanKeys {
    pub(crate) fn insert(&mut self, options: ScopeOptions, plan: PlanId) {
        let ScopeOptions { name, variant, .. } = options;
        self.entries.push(Entry { name, variant, plan, deviating_steps: 0, in_a_row: 0 });
    }

    /// A plan was replaced: its deviations count from zero again.
    pub(crate) fn replaced(&mut self, plan: PlanId) {
        for entry in self.entries.iter_mut().filter(|entry| entry.plan == plan) {
            (entry.deviating_steps, entry.in_a_row) = (0, 0);
        }
    }

    /// A step followed `plan`, after which it has so many deviating steps in all. Returns how many
    /// in a row these are.
    pub(crate) fn note_step(&mut self, plan: PlanId, deviating_steps: u64) -> u32 {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.plan == plan) else {
            return 0;
        };
        let deviated = deviating_steps > entry.deviating_steps;
        entry.deviating_steps = deviating_steps;
        entry.in_a_row = if deviated { entry.in_a_row + 1 } else { 0 };
        entry.in_a_row
    }

    /// The plan that was installed for just this name and variant.
    pub(crate) fn exact(&self, options: ScopeOptions) -> Option<PlanId> {
        let exact = |entry: &&Entry| entry.name == options.name && entry.variant == options.variant;
        self.entries.iter().find(exact).map(|entry| entry.plan)
    }

    /// The plan to follow: that of the same name and variant, else the last one of the same name.
    /// A short last batch thus keeps the plan of the whole ones, since smaller requests fit.
    pub(crate) fn find(&self, options: ScopeOptions) -> Option<PlanId> {
        let named = |entry: &&Entry| entry.name == options.name;
        let by_name = || self.entries.iter().rfind(named).map(|entry| entry.plan);
        self.exact(options).or_else(by_name)
    }
}
