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
}

impl PlanKeys {
    pub(crate) fn insert(&mut self, options: ScopeOptions, plan: PlanId) {
        let ScopeOptions { name, variant, .. } = options;
        self.entries.push(Entry { name, variant, plan });
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
