//! The interface of a planner that works while the loop runs.

use std::fmt;

use arena_core::{SlotTable, StepLog};

use crate::step_key::{KeyMap, StepKey};

/// Makes plans from recorded steps. `arena-plan` has one that solves on a separate thread.
///
/// The arena calls both methods between steps, on the thread that opens and closes root scopes. They should
/// return at once.
pub trait Planner: fmt::Debug + Send {
    /// A step of this kind was recorded: the first one, or one that deviated from its plan after several
    /// consecutive steps had deviated too, and so needs a new plan.
    /// Returns whether the planner has taken it. If not, the next step without a plan is recorded too.
    fn recorded(&mut self, key: StepKey, log: &StepLog) -> bool;

    /// The next plan that has become ready, and the kind of step that it is for.
    fn ready(&mut self) -> Option<(StepKey, SlotTable)>;
}

/// A planner, and what it is told and when.
#[derive(Debug)]
pub(crate) struct Planning {
    pub(crate) planner: Box<dyn Planner>,
    /// Deviating steps in a row after which a step is recorded anew.
    pub(crate) patience: u32,
    /// The kinds of which the planner has taken a step.
    pub(crate) taken: KeyMap<()>,
}
