//! How large the arena must be: the run itself, on a device without memory.

use std::sync::atomic::AtomicBool;

use arena_scope::{ByteSize, Probe};

use crate::backend::{Backend, ProbeBackend};
use crate::data::Mnist;
use crate::error::TrainError;
use crate::training::{Per, RunConfig, Trainer};

/// What a run asks of memory, learnt without any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// The smallest capacity that serves the run.
    pub capacity_bytes: u64,
    /// What of it the parameters, gradients and optimizer state take.
    pub persistent_bytes: u64,
}

/// What a run asks of memory: its first epoch, with the short last batch, and an evaluation, for
/// their shapes alone. Later epochs ask for the same.
///
/// # Errors
///
/// When the kernels do not serve a shape.
pub fn demand<B: Backend>(
    device: &B::Device,
    backend: &B,
    config: &RunConfig,
    data: &Mnist,
) -> Result<Demand, TrainError> {
    let config = RunConfig { epochs: config.epochs.min(1), ..config.clone() };
    // Any capacity will do on a device without memory: a 61-bit one leaves room for the address.
    let capacity = ByteSize::bytes_exact(1 << 61);
    let mut trainer =
        Trainer::new(Probe::like(device), ProbeBackend::of(backend), config, capacity)?;
    trainer.train(&data.train, &AtomicBool::new(false), |_| ())?;
    trainer.evaluate(&data.test)?;
    let arena = trainer.arena();
    Ok(Demand {
        capacity_bytes: arena.smallest_capacity_bytes(),
        persistent_bytes: arena.stats().mark_bytes,
    })
}

/// The capacity to build the arena with: what is asked for if that is given, or just what the run
/// needs.
///
/// # Errors
///
/// [`TrainError::CapacityTooSmall`] when `wanted` is less than the run needs, before anything is
/// computed.
pub fn choose(
    demand: Demand,
    wanted: Option<ByteSize>,
    config: &RunConfig,
) -> Result<ByteSize, TrainError> {
    let needed_bytes = demand.capacity_bytes;
    let capacity_bytes = wanted.map_or(needed_bytes, ByteSize::bytes);
    if capacity_bytes < needed_bytes {
        let hint = match config.per {
            Per::Minibatch => "; or take a smaller batch",
            Per::Epoch => "; or take a scope per minibatch, or fewer steps",
        };
        return Err(TrainError::CapacityTooSmall { capacity_bytes, needed_bytes, hint });
    }
    Ok(ByteSize::bytes_exact(capacity_bytes))
}
