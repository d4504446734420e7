//! How a request becomes an offset, where it is not the bump alone.
//!
//! The bump is [`zones`](crate::zones). A planned step asks a [`Replay`] first, and falls back on the
//! bump, above the plan, for whatever is not as planned.

#![forbid(unsafe_code)]

mod replay;
mod slots;

#[cfg(test)]
mod replay_tests;

pub use replay::Deviations;
pub(crate) use replay::Replay;
pub use slots::{PlannedSlot, SlotTable, SlotTableError};
