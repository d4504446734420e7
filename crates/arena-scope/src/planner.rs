//! Who makes plans while the loop runs: told what was recorded, asked for what is ready.

use std::fmt;

use arena_core::{SlotTable, StepLog};

use crate::step_key::StepKey;

/// Makes plans of recorded steps. `arena-plan` has one that solves on a thread of its own.
///
/// Both methods are called between steps, from the thread that opens and closes root scopes, and
/// should return at once.
pub trait Planner: fmt::Debug + Send {
    /// A step of this kind was recorded: the first one, or one that deviated from its plan after many in a
    /// row had done so, and is worth another.
    fn recorded(&mut self, key: StepKey, log: &StepLog);

    /// The next plan that has become ready, and the kind of step that it is for.
    fn ready(&mut self) -> Option<(StepKey, SlotTable)>;
}

/// A planner, and what it is told and when.
#[derive(Debug)]
pub(crate) struct Planning {
    pub(crate) planner: Box<dyn Planner>,
    /// Deviating steps in a row after which a step is recorded anew.
    pub(crate) patience: u32,
}
