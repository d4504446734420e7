//! Steps that follow a plan: slots instead of the bump, as long as they do what was planned.
//!
//! A planned step is *repeating* while it does just what an earlier step did ([`Script`](script)), and
//! *counted* from where it differs ([`Counters`](counters)). Whatever the plan does not serve, the bump
//! serves above it.

#![forbid(unsafe_code)]

mod as_bumped;
mod counters;
mod deviations;
mod plans;
mod replay;
mod script;
mod serves;
mod sites;
mod slots;
mod table;

#[cfg(test)]
mod replay_tests;

pub use deviations::Deviations;
pub use plans::PlanId;
pub(crate) use plans::Plans;
pub(crate) use replay::Replay;
pub use sites::{DeviationKind, DeviationSite};
pub use table::{PlannedSlot, SlotTable, SlotTableError};
