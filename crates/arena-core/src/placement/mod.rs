//! How a request becomes an offset, where it is not the bump alone.
//!
//! The bump is [`zones`](crate::zones). A planned step asks a [`Replay`] first, and falls back on the
//! bump, above the plan, for whatever is not as planned.

#![forbid(unsafe_code)]

mod chosen;
mod counters;
mod deviations;
mod plans;
mod replay;
mod script;
mod shuffled;
mod sites;
mod slots;

#[cfg(test)]
mod replay_tests;

pub use chosen::Placement;
pub use deviations::Deviations;
pub use plans::PlanId;
pub(crate) use plans::{Planned, Plans};
pub(crate) use shuffled::Shuffled;
pub use sites::{DeviationKind, DeviationSite};
pub use slots::{PlannedSlot, SlotTable, SlotTableError};
