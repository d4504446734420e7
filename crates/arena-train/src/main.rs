//! The program: see `arena-train --help`.
//!
//! Exit status: 0 when the run did what was asked; 1 when it failed, missed what was expected, or could not write a
//! file; 2 for arguments that make no sense, or a device that is not there; 128 and the signal's number when a signal
//! stopped it. That nobody reads what a run prints changes nothing.

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
#[cfg(feature = "_cuda")]
use arena_collective::CollectiveError;
use arena_plan::files::{self, FileError, tell};
use arena_plan::{EventWriter, Lost};
use arena_scope::{Arena, Cuda, Device, Host, Reset};
#[cfg(feature = "_cuda")]
use arena_train::backend::cuda::{CudaBackend, CudaError};
use arena_train::backend::{DecoderKernels, HostBackend};
use arena_train::cli::{Arguments, DeviceName, ModelName};
use arena_train::data::{Mnist, Split, Text};
use arena_train::decoder::Decoder;
use arena_train::error::TrainError;
use arena_train::heap::CountingAllocator;
use arena_train::launch::{self, Ranks};
use arena_train::model::Cnn;
use arena_train::network::{DeviceOf, Network};
use arena_train::progress::Progress;
use arena_train::saving::Saver;
use arena_train::signals::StopSignal;
use arena_train::summary::{Needs, Step, Summary};
use arena_train::training::{Evaluation, Per, RunConfig, Share, TRAIN, Trained, Trainer};
use arena_train::{checkpoint, heap, planning, processes};
use clap::Parser;
use serde::Serialize;

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
    if let (Some(ranks), None) = (arguments.ranks, launch::launched())
        && arguments.device != DeviceName::Probe
        && ranks.get() > 1
    {
        if let DeviceName::Cuda(first) = arguments.device {
            let timeout = Duration::from_secs(arguments.rank_timeout.get().into());
            let ended = processes::start(ranks, first, timeout);
            return ended.map_or_else(|reason| Ok(not_here(&reason)), |code| Ok(code.into()));
        }
        let threads = arguments.threads.map(NonZeroUsize::get);
        return launch::start(ranks, threads)
            .map_or_else(|reason| Ok(not_here(&reason)), |()| Ok(ExitCode::SUCCESS));
    }
    let stop = StopSignal::listen().context("cannot listen for signals")?;
    match arguments.device {
        DeviceName::Host | DeviceName::Probe => on_the_host(arguments, &stop),
        DeviceName::Cuda(ordinal) => on_cuda(ordinal, arguments, &stop),
    }
}

fn on_the_host(arguments: &Arguments, stop: &StopSignal) -> Result<ExitCode> {
    let threads = arguments.threads();
    // The whole loop runs inside the pool: a join from outside it allocates.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    pool.install(|| {
        let share = arguments.share();
        let ranks = match share.is_part() && arguments.device != DeviceName::Probe {
            true => match Ranks::join(Duration::from_secs(arguments.rank_timeout.get().into())) {
                Ok(ranks) => Some(ranks),
                Err(reason) => return Ok(not_here(&reason)),
            },
            false => None,
        };
        let arguments = &arguments.of_rank(share.rank);
        let backend = HostBackend::new(threads);
        let ended = train_model(arguments, Host::new(), backend, ranks.as_ref(), stop);
        end(ranks, ended)
    })
}

#[cfg(feature = "_cuda")]
fn on_cuda(ordinal: usize, arguments: &Arguments, stop: &StopSignal) -> Result<ExitCode> {
    // Before the data is read: what cannot run is told at once. A rank sees its own device alone.
    let share = arguments.share();
    let device = Cuda::new(if share.is_part() { 0 } else { ordinal });
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
    let ranks = match share.is_part().then(|| on_devices(arguments, share, &device)).transpose() {
        Ok(ranks) => ranks,
        Err(reason) => return Ok(not_here(&reason)),
    };
    let arguments = &arguments.of_rank(share.rank);
    let ended = train_model(arguments, device, backend, ranks.as_ref(), stop);
    end(ranks, ended)
}

#[cfg(all(feature = "_cuda", feature = "nccl"))]
fn on_devices(
    arguments: &Arguments,
    share: Share,
    device: &Cuda,
) -> Result<Ranks<Cuda>, CollectiveError> {
    Ranks::join_on(device, share, Duration::from_secs(arguments.rank_timeout.get().into()))
}

#[cfg(all(feature = "_cuda", not(feature = "nccl")))]
fn on_devices(_: &Arguments, _: Share, _: &Cuda) -> Result<Ranks<Cuda>, CollectiveError> {
    Err(CollectiveError::NoEngine { device: "CUDA", feature: "nccl" })
}

/// Every rank waits for the end of all others, or tells them of its error.
fn end<D: Device>(ranks: Option<Ranks<D>>, ended: Result<ExitCode>) -> Result<ExitCode> {
    let Some(ranks) = ranks else { return ended };
    match ended {
        Ok(code) => {
            ranks.finish();
            Ok(code)
        }
        Err(error) => Err(anyhow::Error::msg(ranks.end(&error))),
    }
}

#[cfg(not(feature = "_cuda"))]
fn on_cuda(ordinal: usize, _arguments: &Arguments, _stop: &StopSignal) -> Result<ExitCode> {
    // The device of a program without the feature is never there.
    Cuda::new(ordinal).map_or_else(|reason| Ok(not_here(&reason)), |_| Ok(ExitCode::SUCCESS))
}

/// Says why what was asked for cannot be had here.
fn not_here(reason: &dyn std::error::Error) -> ExitCode {
    tell(format_args!("arena-train: {reason}"));
    ExitCode::from(2)
}

fn train_model<B: DecoderKernels>(
    arguments: &Arguments,
    device: B::Device,
    backend: B,
    ranks: Option<&Ranks<B::Device>>,
    stop: &StopSignal,
) -> Result<ExitCode> {
    let path = arguments.data();
    match arguments.model {
        ModelName::Cnn => {
            let (data, config) = (Mnist::load(path)?, arguments.config(()));
            train::<Cnn<B>>(arguments, &data, device, backend, ranks, config, stop)
        }
        ModelName::Gpt => {
            let sizes = arguments.decoder.config();
            let data = Text::load(path, sizes.context, arguments.decoder.ragged)?;
            let config = arguments.config(sizes);
            train::<Decoder<B>>(arguments, &data, device, backend, ranks, config, stop)
        }
    }
}

fn train<N: Network>(
    arguments: &Arguments,
    data: &Split<N::Data>,
    device: DeviceOf<N>,
    backend: N::Backend,
    ranks: Option<&Ranks<DeviceOf<N>>>,
    config: RunConfig<N::Sizes>,
    stop: &StopSignal,
) -> Result<ExitCode> {
    let is_first = config.share.rank == 0;
    let mut run = planning::probe::<N>(&device, &backend, &config, data)?;
    if arguments.advice {
        files::print(&run.advice().to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    match arguments.saved_plans() {
        Some(path) if path.exists() => run.load(path)?,
        Some(path) => run.save(path)?,
        None => {}
    }
    let planned = arguments.planned();
    let needs = if planned { run.clone() } else { run.clone().without_plans() };
    let needed = needs.capacity();
    let largest = planning::largest(&run, TRAIN);
    let (key, step) =
        (largest.map_or(TRAIN, |kind| kind.key), largest.and_then(|kind| kind.step.as_ref().ok()));
    if arguments.device == DeviceName::Probe {
        let (capacity_bytes, persistent_bytes) = (needed.bytes(), needs.persistent().bytes());
        let needs =
            Needs { capacity_bytes, persistent_bytes, step: Step::new(step, planned, None, &[]) };
        write_json(arguments, &needs)?;
        files::print(&needs.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    // What could not be written at the end is told before the first step.
    let outputs = [
        (&arguments.json, JSON_BYTES),
        (&arguments.checkpoint, needs.persistent().bytes()),
        (&arguments.events, JSON_BYTES),
    ];
    for (path, bytes) in outputs {
        path.as_ref().map_or(Ok(()), |path| files::check(path, bytes))?;
    }
    if config.per == Per::Epoch {
        tell(format_args!("one scope per epoch needs {} bytes ({needed})", needed.bytes()));
    }
    if config.reset == Reset::Poison && is_first {
        tell(format_args!("poison is active: released memory is filled with NaN"));
    }
    planning::check_memory(&device, needed, &config)?;
    let capacity = planning::choose_capacity(&needs, arguments.capacity, &config)?;
    let builder = Arena::builder(device).capacity(capacity).reset(config.reset);
    let mut arena = builder.placement(arguments.placement()).build()?;
    // Ranks whose addresses differ can say from which request on.
    if arguments.events.is_some() || ranks.is_some() {
        arena.record(Some(heap::own_allocations));
    } else {
        arena.observe(Some(heap::own_allocations));
    }
    if planned {
        run.follow(&mut arena);
    }
    let mut trainer = Trainer::<N>::on(arena, backend, config)?;
    trainer.set_needs(needs);
    if let Some(path) = &arguments.events {
        trainer.set_events(EventWriter::create(path, trainer.arena())?);
    }
    let saved = (&arguments.checkpoint, &arguments.resume);
    let is_told = saved != (&None, &None) || ranks.is_some();
    let identity = is_told.then(|| data.identity());
    if let (Some(path), Some(identity)) = (&arguments.resume, &identity) {
        checkpoint::resume(&mut trainer, (&data.train, identity), path)?;
    }
    if let (Some(ranks), Some(identity)) = (ranks, &identity) {
        let settings = RunConfig { share: Share::WHOLE, ..trainer.config().clone() };
        ranks.agree(Ok([&format!("{settings:?} from step {}", trainer.step()), identity]))?;
        trainer.set_ranks(ranks.engine());
    }
    let mut saver = arguments.checkpoint.clone().zip(identity).map(|(path, identity)| {
        Saver::new(path, arguments.checkpoint_every, trainer.config().clone(), identity)
    });

    let ran = train_and_test(&mut trainer, data, &mut saver, stop);
    let mut events = trainer.take_events();
    if let (Some(events), Err(error)) = (&mut events, &ran) {
        events.failed(error);
    }
    let (trained, evaluation, sample, checkpoint) = ran?;
    let observed = trainer.steady_state().context("the arena is observed")?;
    let late =
        [observed.late_driver_allocations(), observed.heap_allocations_per_step().unwrap_or(0)];
    let late = ranks.map_or(Ok(late), |ranks| ranks.most(late))?;
    if !is_first {
        let is_whole = !trained.interrupted && evaluation.is_some();
        return Ok(if is_whole { ExitCode::SUCCESS } else { stop.status().into() });
    }
    let arena = trainer.arena();
    let (deviations, sites) = (arena.plan_deviations(key), arena.plan_deviation_sites(key));
    let step = Step::new(step, planned, deviations, &sites);
    let mut summary = Summary::new::<N>(&trained, evaluation, arena.stats(), observed, step);
    if ranks.is_some() {
        summary.take_most(late);
    }
    let json = write_json(arguments, &summary);
    let events = events.map_or(Ok(Lost::default()), EventWriter::finish);
    if let Ok(lost) = events
        && lost != Lost::default()
    {
        let Lost { steps, results } = lost;
        tell(format_args!(
            "arena-train: {steps} steps and {results} results are not in the events: \
             they were not recorded, or the disk was too slow"
        ));
    }
    // After the files, which matter more.
    let sample = sample.map_or(String::new(), |text| format!("\nA sample:\n{text}\n"));
    if let Err(error) = files::print(&format!("{summary}{sample}"))
        && !error.is_closed_output()
    {
        tell(format_args!("arena-train: {error}"));
    }
    checkpoint?;
    json?;
    events?;
    if summary.interrupted {
        return Ok(ExitCode::from(stop.status()));
    }
    let mut status = ExitCode::SUCCESS;
    if let (Some(least), Some(found)) = (arguments.expect_accuracy, summary.accuracy)
        && found < least
    {
        tell(format_args!("arena-train: accuracy {found} is below {least}"));
        status = ExitCode::FAILURE;
    }
    if let (Some(most), Some(found)) = (arguments.expect_loss, summary.test_loss)
        && found > most
    {
        tell(format_args!("arena-train: a test loss of {found} is above {most}"));
        status = ExitCode::FAILURE;
    }
    Ok(status)
}

/// More than any summary has.
const JSON_BYTES: u64 = 1 << 16;

/// Writes the file of `--json`, if one is named.
/// What a run gives: of its training and its test, its sample, and whether the last checkpoint was written.
type Ran = (Trained, Option<Evaluation>, Option<String>, Result<(), TrainError>);

fn train_and_test<N: Network>(
    trainer: &mut Trainer<N>,
    data: &Split<N::Data>,
    saver: &mut Option<Saver<N>>,
    stop: &StopSignal,
) -> Result<Ran, TrainError> {
    let is_first = trainer.config().share.rank == 0;
    let mut progress = Progress::new(N::PREDICTIONS);
    let trained = trainer.train_saving(
        &data.train,
        stop.requested(),
        |report| {
            if is_first {
                progress.step(report);
            }
        },
        |model, step| {
            if let Some(saver) = saver {
                saver.after_step(model, step);
            }
        },
    )?;
    progress.finish();
    if let Some(refusal) = &trained.graph_refusal {
        tell(format_args!("arena-train: {refusal}; the steps ran without a graph from there on"));
    }
    // A file that cannot be written does not keep the run's figures back: it is told at the end.
    let checkpoint =
        saver.as_mut().map_or(Ok(()), |saver| saver.save(trainer.model(), trainer.step()));
    let evaluation = trainer.evaluate_until(&data.test, stop.requested())?;
    let sample = if evaluation.is_some() && is_first { N::sample(trainer, data)? } else { None };
    Ok((trained, evaluation, sample, checkpoint))
}

fn write_json(arguments: &Arguments, what: &impl Serialize) -> Result<(), FileError> {
    let write = |path: &Path| {
        files::write(path, |to| {
            serde_json::to_writer_pretty(&mut *to, what)?;
            writeln!(to)
        })
    };
    arguments.json.as_deref().map_or(Ok(()), write)
}
