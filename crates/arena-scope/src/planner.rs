//! The interface of a planner that works while the loop runs.

use std::fmt;

use arena_core::{SlotTable, StepLog};

use crate::step_key::StepKey;

/// Makes plans while the loop runs. `arena-plan` has one that solves recorded steps on a separate thread, and one that
/// has the plans of a whole program.
///
/// The arena calls the methods between steps, on the thread that opens and closes root scopes. They should return at
/// once; a method that takes longer delays the step.
pub trait Planner: fmt::Debug + Send {
    /// The plan for steps of this key, which have none. It is asked before the first step of the key, and again when
    /// the arena has forgotten the key to stay within its [budget](crate::ArenaBuilder::step_memory). The default has
    /// none.
    fn plan_for(&mut self, key: StepKey) -> Option<SlotTable> {
        let _ = key;
        None
    }

    /// A step of this kind was recorded: one without a plan, or one that deviated from its plan after several
    /// consecutive steps had deviated too, and so needs a new plan. The arena keeps no copy.
    /// Returns whether the planner has taken it. If so, no other step of the kind is recorded before a plan for it is
    /// [ready](Self::ready); if not, the next step without a plan is recorded too. The default takes each record and
    /// makes nothing of it.
    fn recorded(&mut self, key: StepKey, log: &StepLog) -> bool {
        let _ = (key, log);
        true
    }

    /// The next plan that has become ready, and the kind of step that it is for. It is asked before each root scope,
    /// until it has none. The default never has one.
    fn ready(&mut self) -> Option<(StepKey, SlotTable)> {
        None
    }

    /// Whether the arena gives back what its steps do not need, as [`Arena::fit`](crate::Arena::fit) does, each time
    /// that plans became [ready](Self::ready). The default does not.
    fn fits(&self) -> bool {
        false
    }
}

/// A planner, and when it is told.
#[derive(Debug)]
pub(crate) struct Planning {
    pub(crate) planner: Box<dyn Planner>,
    /// Deviating steps in a row after which a step is recorded anew.
    pub(crate) patience: u32,
}
