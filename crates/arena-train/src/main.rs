//! The program: see `arena-train --help`.
//!
//! Exit status: 0 when the run did what was asked; 1 when it failed, missed `--expect-accuracy`, or could not write a
//! file or its summary; 2 for arguments that make no sense, or a device that is not there.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use arena_plan::files::{self, FileError, tell};
use arena_scope::{Arena, Cuda, Host, Reset};
#[cfg(feature = "_cuda")]
use arena_train::backend::cuda::{CudaBackend, CudaError};
use arena_train::backend::{Backend, HostBackend};
use arena_train::cli::{Arguments, DeviceName};
use arena_train::data::Mnist;
use arena_train::heap::CountingAllocator;
use arena_train::progress::Progress;
use arena_train::summary::{Step, Summary};
use arena_train::training::{Per, TRAIN, Trainer};
use arena_train::{checkpoint, heap, planning};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            if !error.downcast_ref().is_some_and(FileError::is_closed_output) {
                tell(format_args!("arena-train: {error:#}"));
            }
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Err(reason) = arguments.check() {
        return Ok(not_here(&reason));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    ctrlc::set_handler(move || told.store(true, Ordering::Relaxed))
        .context("cannot listen for Ctrl-C")?;
    match arguments.device {
        DeviceName::Host | DeviceName::Probe => on_the_host(arguments, &stop),
        DeviceName::Cuda(ordinal) => on_cuda(ordinal, arguments, &stop),
    }
}

fn on_the_host(arguments: &Arguments, stop: &AtomicBool) -> Result<ExitCode> {
    let data = Mnist::load(&arguments.data)?;
    let threads = arguments.threads();
    // The whole loop runs inside the pool: a join from outside it allocates.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    pool.install(|| train(arguments, &data, Host::new(), HostBackend::new(threads), stop))
}

#[cfg(feature = "_cuda")]
fn on_cuda(ordinal: usize, arguments: &Arguments, stop: &AtomicBool) -> Result<ExitCode> {
    // Before the data is read: what cannot run is told at once.
    let device = Cuda::new(ordinal);
    let device = if arguments.ranges { device.and_then(Cuda::with_ranges) } else { device };
    let device = match device {
        Ok(device) => device,
        Err(reason) => return Ok(not_here(&reason)),
    };
    let backend = match CudaBackend::new(&device) {
        Ok(backend) => backend,
        Err(reason @ CudaError::Library { .. }) => return Ok(not_here(&reason)),
        Err(other) => return Err(other.into()),
    };
    train(arguments, &Mnist::load(&arguments.data)?, device, backend, stop)
}

#[cfg(not(feature = "_cuda"))]
fn on_cuda(ordinal: usize, _arguments: &Arguments, _stop: &AtomicBool) -> Result<ExitCode> {
    // The device of a program without the feature is never there.
    Cuda::new(ordinal).map_or_else(|reason| Ok(not_here(&reason)), |_| Ok(ExitCode::SUCCESS))
}

/// Says why what was asked for cannot be had here.
fn not_here(reason: &dyn std::error::Error) -> ExitCode {
    tell(format_args!("arena-train: {reason}"));
    ExitCode::from(2)
}

fn train<B: Backend>(
    arguments: &Arguments,
    data: &Mnist,
    device: B::Device,
    backend: B,
    stop: &AtomicBool,
) -> Result<ExitCode> {
    let config = arguments.config();
    let mut run = planning::probe(&device, &backend, &config, data)?;
    match arguments.saved_plans() {
        Some(path) if path.exists() => run.load(path)?,
        Some(path) => run.save(path)?,
        None => {}
    }
    let planned = arguments.planned();
    let needs = if planned { run.clone() } else { run.clone().without_plans() };
    let (needed, persistent) = (needs.capacity(), needs.persistent());
    if arguments.device == DeviceName::Probe {
        files::print(&format!(
            "smallest capacity  {} bytes ({needed})\npersistent         {} bytes ({persistent})\n",
            needed.bytes(),
            persistent.bytes()
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    if config.per == Per::Epoch {
        tell(format_args!("one scope per epoch needs {} bytes ({needed})", needed.bytes()));
    }
    if config.reset == Reset::Poison {
        tell(format_args!("poison is active: released memory is filled with NaN"));
    }
    let capacity = planning::choose_capacity(&needs, arguments.capacity, &config)?;
    let builder = Arena::builder(device).capacity(capacity).reset(config.reset);
    let mut arena = builder.placement(arguments.placement()).build()?;
    arena.observe(Some(heap::own_allocations));
    if planned {
        run.follow(&mut arena);
    }
    let mut trainer = Trainer::on(arena, backend, config)?;
    trainer.set_needs(needs);
    if let Some(path) = &arguments.resume {
        checkpoint::resume(&mut trainer, path)?;
    }

    let mut progress = Progress::new();
    let trained = trainer.train(&data.train, stop, |report| progress.step(report))?;
    progress.finish();
    if let Some(refusal) = &trained.graph_refusal {
        tell(format_args!("arena-train: {refusal}; the steps ran without a graph from there on"));
    }
    // A file that cannot be written does not keep the run's figures back: it is told at the end.
    let checkpoint =
        arguments.checkpoint.as_ref().map_or(Ok(()), |to| checkpoint::save(&trainer, to));
    let evaluation = trainer.evaluate(&data.test)?;
    let observed = trainer.steady_state().context("the arena is observed")?;
    let arena = trainer.arena();
    let train = planning::largest(&run, TRAIN);
    let key = train.map_or(TRAIN, |kind| kind.key);
    let (deviations, sites) = (arena.plan_deviations(key), arena.plan_deviation_sites(key));
    let step = train.and_then(|kind| kind.step.as_ref().ok());
    let step = Step::new(step, deviations, &sites);
    let summary = Summary::new(&trained, evaluation, trainer.arena().stats(), observed, step);
    let json = arguments.json.as_ref().map_or(Ok(()), |to| {
        files::write(to, |to| {
            serde_json::to_writer_pretty(&mut *to, &summary)?;
            writeln!(to)
        })
    });
    // After the files: the reader of the output may be gone.
    let printed = files::print(&summary.to_string());
    checkpoint?;
    json?;
    printed?;
    match arguments.expect_accuracy {
        Some(expected) if summary.accuracy < expected => {
            let accuracy = summary.accuracy;
            tell(format_args!("arena-train: accuracy {accuracy} is below {expected}"));
            Ok(ExitCode::FAILURE)
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
