//! What the benchmarks run: recorded training steps, replayed on this arena and on its peers.
//!
//! Sizes are divided by [`SCALE`], since the largest step asks for 57 GiB in all and the peers need
//! real memory for it; nobody touches the memory, so only the arithmetic is timed.

#[cfg(feature = "_cuda")]
pub mod cuda;
pub mod planned;
pub mod trace;
pub mod workload;

/// What the recorded sizes are divided by.
pub const SCALE: u64 = 64;
