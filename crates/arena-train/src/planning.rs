//! A run's plans, and the capacity that it needs: the run itself on a device without memory.

use std::sync::atomic::AtomicBool;

use arena_plan::{Options, PlannedKind, PlannedRun};
use arena_scope::{Arena, ByteSize, Device, Probe, StepKey};

use crate::backend::ProbeBackend;
use crate::data::Split;
use crate::error::TrainError;
use crate::network::{DeviceOf, Network};
use crate::training::{Per, RunConfig, Trainer};

/// What a run asks of memory, and plans for its steps: its first epoch, with the short last batch, an evaluation and a
/// sample, for their shapes alone. Later epochs ask for the same.
///
/// # Errors
///
/// When the kernels do not serve a shape.
pub fn probe<N: Network>(
    device: &DeviceOf<N>,
    backend: &N::Backend,
    config: &RunConfig<N::Sizes>,
    data: &Split<N::Data>,
) -> Result<PlannedRun, TrainError> {
    let config = RunConfig { epochs: config.epochs.min(1), ..config.clone() };
    // Any capacity will do: a 61-bit one leaves room for the address.
    let any = ByteSize::bytes_exact(1 << 61);
    let mut arena = Arena::builder(Probe::like(device)).capacity(any).build()?;
    arena.record(None);
    let mut trainer = Trainer::<N::Probe<'_>>::on(arena, ProbeBackend::of(backend), config)?;
    trainer.train(&data.train, &AtomicBool::new(false), |_| ())?;
    trainer.evaluate(&data.test)?;
    <N::Probe<'_> as Network>::sample(&mut trainer, data)?;
    Ok(PlannedRun::from_record(trainer.arena(), &Options::default()))
}

/// The kind of step with this name that asks for most: the variant of a step grows with its examples.
#[must_use]
pub fn largest(run: &PlannedRun, name: StepKey) -> Option<&PlannedKind> {
    let kinds = run.kinds().iter().filter(|kind| kind.key.name == name.name);
    kinds.max_by_key(|kind| kind.key.variant)
}

/// The capacity to build the arena with: what is asked for if that is given, or just what the run needs.
///
/// # Errors
///
/// [`TrainError::CapacityTooSmall`] when `wanted` is less than the run needs, before anything is computed.
pub fn choose_capacity(
    run: &PlannedRun,
    wanted: Option<ByteSize>,
    config: &RunConfig<impl Sized>,
) -> Result<ByteSize, TrainError> {
    let (capacity_bytes, needed_bytes) =
        (wanted.unwrap_or(run.capacity()).bytes(), run.capacity().bytes());
    if capacity_bytes < needed_bytes {
        let hint = hint(config);
        return Err(TrainError::CapacityTooSmall { capacity_bytes, needed_bytes, hint });
    }
    Ok(ByteSize::bytes_exact(capacity_bytes))
}

/// Refuses a run that needs more memory than the device has. A host would promise it, and slow down or end the program
/// when it is used.
///
/// # Errors
///
/// [`TrainError::MemoryTooSmall`]. A device that does not tell its memory refuses nothing.
pub fn check_memory<D: Device>(
    device: &D,
    needed: ByteSize,
    config: &RunConfig<impl Sized>,
) -> Result<(), TrainError> {
    match device.memory() {
        Ok(memory) if memory.free_bytes < needed.bytes() => {
            let (free_bytes, needed_bytes) = (memory.free_bytes, needed.bytes());
            Err(TrainError::MemoryTooSmall { free_bytes, needed_bytes, hint: hint(config) })
        }
        _ => Ok(()),
    }
}

const fn hint<S>(config: &RunConfig<S>) -> &'static str {
    match config.per {
        Per::Minibatch => "; or take a smaller batch",
        Per::Epoch => "; or take a scope per minibatch, or fewer steps",
    }
}
