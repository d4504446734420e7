//! Placements for hunting bugs: each transient buffer an allocation of its own, or anywhere in a second
//! one.

mod separate;
mod shuffled;

pub(crate) use separate::Separate;
use shuffled::Shuffled;
