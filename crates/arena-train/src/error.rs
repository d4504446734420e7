//! What can stop a training run.

use std::path::PathBuf;

use arena_collective::{CollectiveError, RankError};
use arena_scope::ByteSize;
use arena_scope::errors::DeviceError;

use crate::backend::host::KernelError;
use crate::data::{BatchError, IdxError, TextError};

/// Why a run did not start or did not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The arena refused a request, or its device a call.
    #[error(transparent)]
    Arena(#[from] arena_scope::Error),
    /// A kernel refused its operands.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The CUDA kernels are not there, or their device refused them.
    #[cfg(feature = "_cuda")]
    #[error(transparent)]
    Cuda(#[from] crate::backend::cuda::CudaError),
    /// A batch could not be filled.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The data could not be read.
    #[error(transparent)]
    Data(#[from] IdxError),
    /// The text could not be read.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A checkpoint could not be read or written.
    #[error(transparent)]
    File(#[from] arena_plan::files::FileError),
    /// The capacity is too small for what the run will ask for; nothing was computed.
    #[error(
        "a capacity of {capacity_bytes} bytes is too small: this run needs {needed_bytes} bytes \
         ({}), {} more{hint}",
        ByteSize::bytes_exact(*needed_bytes),
        needed_bytes - capacity_bytes
    )]
    CapacityTooSmall {
        /// The capacity that was given.
        capacity_bytes: u64,
        /// The smallest that serves.
        needed_bytes: u64,
        /// What would help.
        hint: &'static str,
    },
    /// The device has less memory than the run will ask for; nothing was computed.
    #[error(
        "this run needs {needed_bytes} bytes ({}), and the device has {} free{hint}",
        ByteSize::bytes_exact(*needed_bytes),
        ByteSize::bytes_exact(*free_bytes)
    )]
    MemoryTooSmall {
        /// What is free.
        free_bytes: u64,
        /// What is needed.
        needed_bytes: u64,
        /// What would help.
        hint: &'static str,
    },
    /// The device does not let the host run ahead of it.
    #[error("{what} needs a CUDA device")]
    OnlyOnCuda {
        /// What was asked for.
        what: &'static str,
    },
    /// The steps cannot be queued ahead: the network's batches are not sent, or the run has a warm-up or several batches
    /// in a step.
    #[error("the steps of this run cannot be queued ahead of the device")]
    NotAhead,
    /// Training went astray: from here on there would be no numbers.
    #[error("the loss of step {step} is {loss}: the run cannot go on; a lower --lr may help")]
    NotFinite {
        /// The step, counted from 1.
        step: u64,
        /// Its loss.
        loss: f32,
    },
    /// Sizes that make no decoder.
    #[error("no decoder has these sizes: {reason}")]
    Decoder {
        /// Which rule they break.
        reason: &'static str,
    },
    /// The ranks of the run could not come together.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A rank of the run failed.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// A checkpoint is damaged or belongs to another run.
    #[error("checkpoint {}: {reason}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl From<DeviceError> for TrainError {
    fn from(error: DeviceError) -> Self {
        Self::Arena(error.into())
    }
}
