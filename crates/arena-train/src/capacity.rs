//! How large the arena must be: the run itself, on a device without memory.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use arena_plan::{Advice, Options, PlannedRun};
use arena_scope::{Arena, ByteSize, Device, Probe, ScopeOptions, StepKey};

use crate::backend::{Backend, ProbeBackend};
use crate::data::Mnist;
use crate::error::TrainError;
use crate::planning::{self, Plans};
use crate::training::{Per, RunConfig, Trainer};

/// The memory that a run needs, found out on a device without memory.
#[derive(Debug, Clone)]
pub struct Demand {
    /// The smallest capacity for the run.
    pub capacity_bytes: u64,
    /// What of it the parameters, gradients and optimizer state take.
    pub persistent_bytes: u64,
    /// What each kind of its steps takes.
    pub steps: StepNeeds,
    /// Plans for its steps, whether or not it follows them.
    pub plans: Plans,
}

/// What each kind of step takes above the mark, in bytes. None is known by default.
#[derive(Debug, Clone, Default)]
pub struct StepNeeds(Vec<(StepKey, u64)>);

impl StepNeeds {
    /// What an arena observed of its steps.
    fn observed<D: Device>(arena: &Arena<D>) -> Self {
        let mark_bytes = arena.stats().mark_bytes;
        let kinds = arena.observed().map(|seen| seen.kinds).unwrap_or_default();
        Self(kinds.iter().map(|kind| (kind.key, kind.high_water_bytes - mark_bytes)).collect())
    }

    /// A scope for a step of this kind, which opens only if there is room for the step.
    pub(crate) fn options(&self, key: StepKey) -> ScopeOptions {
        let known = self.0.iter().find(|(known, _)| *known == key);
        ScopeOptions::from(key).needs(known.map_or(0, |(_, bytes)| *bytes))
    }
}

/// What a run asks of memory: its first epoch, with the short last batch, and an evaluation, for
/// their shapes alone. Later epochs ask for the same. A run that is `planned` follows the plans, and
/// `saved_plan` is then a file to take the plan of training steps from, or to write it to; without plans it
/// asks for the same under each placement.
///
/// # Errors
///
/// When the kernels do not serve a shape, or the plan's file is of no use.
pub fn demand<B: Backend>(
    device: &B::Device,
    backend: &B,
    config: &RunConfig,
    data: &Mnist,
    planned: bool,
    saved_plan: Option<&Path>,
) -> Result<Demand, TrainError> {
    let config = RunConfig { epochs: config.epochs.min(1), ..config.clone() };
    let bumped = on_probe(device, backend, &config, data, &Plans::default())?;
    let mut plans = planning::solve(bumped.arena())?;
    if let Some(path) = saved_plan.filter(|_| planned) {
        planning::load_or_save(&mut plans, path)?;
    }
    let probed = if planned { on_probe(device, backend, &config, data, &plans)? } else { bumped };
    let arena = probed.arena();
    Ok(Demand {
        capacity_bytes: arena.smallest_capacity_bytes(),
        persistent_bytes: arena.stats().mark_bytes,
        steps: StepNeeds::observed(arena),
        plans,
    })
}

/// Where dropping buffers earlier would lower the peaks of plans for the run's steps.
///
/// # Errors
///
/// When the kernels do not serve a shape.
pub fn advice<B: Backend>(
    device: &B::Device,
    backend: &B,
    config: &RunConfig,
    data: &Mnist,
) -> Result<Advice, TrainError> {
    let config = RunConfig { epochs: config.epochs.min(1), ..config.clone() };
    let bumped = on_probe(device, backend, &config, data, &Plans::default())?;
    Ok(PlannedRun::from_record(bumped.arena(), &Options::default()).advice())
}

type ProbeTrainer<'b, B> = Trainer<ProbeBackend<'b, B>>;

/// The run on a device without memory.
fn on_probe<'b, B: Backend>(
    device: &B::Device,
    backend: &'b B,
    config: &RunConfig,
    data: &Mnist,
    plans: &Plans,
) -> Result<ProbeTrainer<'b, B>, TrainError> {
    // Any capacity will do: a 61-bit one leaves room for the address.
    let capacity = ByteSize::bytes_exact(1 << 61);
    let mut trainer =
        Trainer::new(Probe::like(device), ProbeBackend::of(backend), config.clone(), capacity)?;
    trainer.record();
    trainer.install(plans)?;
    trainer.train(&data.train, &AtomicBool::new(false), |_| ())?;
    trainer.evaluate(&data.test)?;
    Ok(trainer)
}

/// The capacity to build the arena with: what is asked for if that is given, or just what the run
/// needs.
///
/// # Errors
///
/// [`TrainError::CapacityTooSmall`] when `wanted` is less than the run needs, before anything is
/// computed.
pub fn choose(
    demand: &Demand,
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
