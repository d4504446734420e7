//! The plans of a run, handed out when their keys come.

use std::collections::HashMap;
use std::fmt;

use arena_scope::StepKey;
use arena_scope::plan::{Planner, SlotTable};

/// A planner that has the plans of a run, and a way to make others.
pub(crate) struct RunPlanner<F> {
    plans: HashMap<StepKey, SlotTable>,
    make: F,
}

impl<F: FnMut(StepKey) -> Option<SlotTable> + Send> RunPlanner<F> {
    pub(crate) const fn new(plans: HashMap<StepKey, SlotTable>, make: F) -> Self {
        Self { plans, make }
    }
}

impl<F: FnMut(StepKey) -> Option<SlotTable> + Send> Planner for RunPlanner<F> {
    fn plan_for(&mut self, key: StepKey) -> Option<SlotTable> {
        self.plans.get(&key).cloned().or_else(|| (self.make)(key))
    }
}

impl<F> fmt::Debug for RunPlanner<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunPlanner").field("plans", &self.plans.len()).finish_non_exhaustive()
    }
}
