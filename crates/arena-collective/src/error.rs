//! What can go wrong between ranks.

use std::time::Duration;

/// Why a call of all ranks failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// The program was built without the engine.
    #[error(
        "ranks on {device} need the feature `{feature}`, with which this program was not built"
    )]
    NoEngine {
        /// Where the ranks compute.
        device: &'static str,
        /// The feature of the engine.
        feature: &'static str,
    },
    /// The engine did not start.
    #[error("{engine} did not start: {reason}")]
    NotStarted {
        /// The engine.
        engine: &'static str,
        /// Why not.
        reason: String,
    },
    /// Not all ranks came together in time: some hang, or have ended.
    #[error(
        "rank {rank} of {size} waited {} s for {call}, number {number}{}",
        waited.as_secs_f32(),
        missing(missing_ranks)
    )]
    TimedOut {
        /// This rank.
        rank: u32,
        /// How many there are.
        size: u32,
        /// What it waited for.
        call: &'static str,
        /// The number of this call among all of this rank, from 1 on.
        number: u64,
        /// How long.
        waited: Duration,
        /// The ranks that did not say that they wait as well.
        missing_ranks: Vec<u32>,
    },
    /// Two operands of one call have different lengths.
    #[error("an all-reduce from {from} elements into {into}")]
    Lengths {
        /// Elements to add up.
        from: u64,
        /// Elements for the sums.
        into: u64,
    },
    /// The engine refused.
    #[error("{call}: {reason}")]
    Refused {
        /// The call.
        call: &'static str,
        /// What the engine says.
        reason: String,
    },
}

impl CollectiveError {
    /// Refuses operands of different lengths.
    pub(crate) const fn check_lengths(from: usize, into: usize) -> Result<(), Self> {
        if from == into {
            return Ok(());
        }
        Err(Self::Lengths { from: from as u64, into: into as u64 })
    }

    /// Refuses a root that is not the number of a rank.
    pub(crate) fn check_root(root: u32, size: u32) -> Result<(), Self> {
        if root < size {
            return Ok(());
        }
        let reason = format!("there is no rank {root} among {size}");
        Err(Self::Refused { call: "broadcast", reason })
    }
}

fn missing(ranks: &[u32]) -> String {
    match ranks {
        [] => String::new(),
        [rank] => format!(": rank {rank} did not come"),
        ranks => format!(": ranks {ranks:?} did not come"),
    }
}

/// A rank that failed, as every rank is told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank}: {cause}")]
pub struct RankError {
    /// The rank.
    pub rank: u32,
    /// What it said.
    pub cause: String,
}
