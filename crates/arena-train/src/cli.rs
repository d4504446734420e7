//! The command line.

use std::num::{NonZeroU16, NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use arena_scope::{ByteSize, Placement, Reset};
use clap::{Parser, ValueEnum};

use crate::backend::host::{AdamConfig, SgdConfig};
use crate::decoder::DecoderConfig;
use crate::launch;
use crate::optimizer::Optimizer;
use crate::training::{AheadConfig, Per, RunConfig, Share};

/// Trains a network inside scopes of one arena, and reports whether memory stayed flat: a CNN on MNIST, or a
/// decoder of bytes on text.
#[derive(Debug, Clone, Parser)]
#[command(name = "arena-train", version, max_term_width = 80, after_help = STATUS)]
pub struct Arguments {
    /// The network: `cnn` for images, `gpt` for text
    #[arg(long, value_enum, default_value_t = ModelName::Cnn)]
    pub model: ModelName,
    /// Passes over the training data [default: 2 for cnn, 12 for gpt]
    #[arg(long, value_parser = epochs)]
    pub epochs: Option<u64>,
    /// Images or sequences in a batch [default: 64 for cnn, 8 for gpt]
    #[arg(long, value_parser = batch)]
    pub batch: Option<NonZeroUsize>,
    /// Batches in a step: their gradients are averaged before the parameters move, in the memory of one
    #[arg(long, value_name = "N", default_value = "1", value_parser = batch)]
    pub accumulate: NonZeroUsize,
    /// The network of text
    #[command(flatten)]
    pub decoder: DecoderArguments,
    /// The device: `host`; `cuda:N`, the CUDA device with number N, from 0 (`cuda` is `cuda:0`); or `probe`, which
    /// computes nothing and prints the smallest capacity that the run needs on the host
    #[arg(long, value_parser = device, default_value = "host")]
    pub device: DeviceName,
    /// What a scope spans
    #[arg(long, value_enum, default_value_t = PerName::Minibatch)]
    pub per: PerName,
    /// How the buffers of a step are placed
    #[arg(long, value_enum, default_value_t = PlacementName::Bump)]
    pub placement: PlacementName,
    /// Follow plans, so that a step needs only the bytes that are live at once. With a file: read the plans of all
    /// kinds of step from it, or write them to it if it does not exist
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub plan: Option<Option<PathBuf>>,
    /// Print where dropping a step's buffers earlier would lower the peaks of the plans, and train nothing
    #[arg(long)]
    pub advice: bool,
    /// What a scope does with its bytes when it closes
    #[arg(long, value_enum, default_value_t = ResetName::Keep)]
    pub reset: ResetName,
    /// The optimizer
    #[arg(long, value_enum, default_value_t = OptimizerName::Adam)]
    pub optimizer: OptimizerName,
    /// Learning rate at the start; it falls to 0 over the run [default: 0.002 for adam, 0.004 with gpt, 0.05
    /// for sgd]
    #[arg(long, value_parser = positive_rate)]
    pub lr: Option<f32>,
    /// Share of the weights, times the rate, that adam takes away in each step (AdamW) [default: 0 for cnn, 0.1 for
    /// gpt]
    #[arg(long, value_parser = decay)]
    pub weight_decay: Option<f32>,
    /// Seed of the weights, of the order of examples, of dropout, of the sample, and of the placement `shuffled`
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// For cnn, the directory with the four MNIST files, gzip or plain; for gpt, a text, or a directory of `.md`
    /// documents. The last tenth of a text is not learnt from, but for testing [default: data/mnist or docs]
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Stop after this many steps
    #[arg(long, value_parser = steps)]
    pub steps: Option<u64>,
    /// Bytes of the region, also as KiB, MiB or GiB [default: exactly what the run needs]
    #[arg(long)]
    pub capacity: Option<ByteSize>,
    /// Capture a training step as a graph after it has repeated, and replay it for each whole batch; needs
    /// `--device cuda` and `--per minibatch`
    #[arg(long)]
    pub graph: bool,
    /// Read the losses of this many steps together, after as many more steps are queued; more than 1 needs
    /// `--device cuda` and `--per minibatch`
    #[arg(long, default_value = "1")]
    pub loss_every: NonZeroU16,
    /// Show each scope to profilers as an NVTX range; needs `--device cuda`
    #[arg(long)]
    pub ranges: bool,
    /// Train with N processes on this machine. Each takes its part of each batch: on the host with the feature `mpi`, on
    /// CUDA devices, one for each process, with `nccl`. A program that `mpirun` has started finds the others by itself
    #[arg(long, value_name = "N", value_parser = ranks)]
    pub ranks: Option<NonZeroU32>,
    /// Seconds that a process waits for the others before it ends them all
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = ranks)]
    pub rank_timeout: NonZeroU32,
    /// Number of threads [default: one for each processor]
    #[arg(long, value_parser = threads)]
    pub threads: Option<NonZeroUsize>,
    /// Exit with status 1 if the test accuracy is below this fraction, such as 0.988
    #[arg(long, value_parser = share)]
    pub expect_accuracy: Option<f64>,
    /// Exit with status 1 if the test loss is above so many nats
    #[arg(long, value_parser = loss)]
    pub expect_loss: Option<f64>,
    /// Write the summary to this file, as JSON
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Record each step, and write what happens in it to this file, as JSON Lines: see docs/reading-memory.md
    #[arg(long)]
    pub events: Option<PathBuf>,
    /// Write the state of the run to this file at the end, also after a signal
    #[arg(long)]
    pub checkpoint: Option<PathBuf>,
    /// Write it while the run goes on, too: after so many steps, as `500`, or
    /// minutes, as `10m`
    #[arg(long, value_name = "N", value_parser = every, requires = "checkpoint")]
    pub checkpoint_every: Option<Every>,
    /// Continue from a checkpoint of a run with the same settings and data
    #[arg(long)]
    pub resume: Option<PathBuf>,
}

/// The options of `--model gpt`.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct DecoderArguments {
    /// Bytes of the longest sequence [default: 128]
    #[arg(long, value_parser = size)]
    pub context: Option<NonZeroUsize>,
    /// Blocks [default: 4]
    #[arg(long, value_parser = layers)]
    pub layers: Option<NonZeroUsize>,
    /// Features of a byte; a multiple of the heads [default: 128]
    #[arg(long, value_parser = size)]
    pub width: Option<NonZeroUsize>,
    /// Heads of a block's attention [default: 4]
    #[arg(long, value_parser = size)]
    pub heads: Option<NonZeroUsize>,
    /// Steps at the beginning in which the rate rises [default: 150]
    #[arg(long, value_parser = steps)]
    pub warmup: Option<u64>,
    /// Share of features that is dropped while training [default: 0]
    #[arg(long, value_parser = dropout)]
    pub dropout: Option<f32>,
    /// Keep a block's input alone, and make the rest again in the backward pass
    #[arg(long)]
    pub recompute: bool,
    /// Learn from paragraphs, of many lengths, each length with a plan of its own
    #[arg(long)]
    pub ragged: bool,
}

impl DecoderArguments {
    /// The option that is given, if one is.
    fn given(&self) -> Option<&'static str> {
        let Self { context, layers, width, heads, warmup, dropout, recompute, ragged } = *self;
        let all = [
            ("--context", context.is_some()),
            ("--layers", layers.is_some()),
            ("--width", width.is_some()),
            ("--heads", heads.is_some()),
            ("--warmup", warmup.is_some()),
            ("--dropout", dropout.is_some()),
            ("--recompute", recompute),
            ("--ragged", ragged),
        ];
        all.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }

    /// The sizes.
    #[must_use]
    pub fn config(&self) -> DecoderConfig {
        let size = |given: Option<NonZeroUsize>, or| given.map_or(or, NonZeroUsize::get);
        DecoderConfig {
            context: size(self.context, 128),
            layers: size(self.layers, 4),
            width: size(self.width, 128),
            heads: size(self.heads, 4),
            dropout: self.dropout.unwrap_or(0.0),
            recompute: self.recompute,
        }
    }
}

/// `--model`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModelName {
    /// Two convolutions and two linear layers, on MNIST
    Cnn,
    /// A decoder of bytes, on text
    Gpt,
}

/// What `--help` says at its end.
const STATUS: &str = "\
A first SIGINT (Ctrl-C), SIGTERM or SIGHUP stops the run after its step, with the
checkpoint and the summary so far; a second one ends it at once.

Exit status: 0 when the run did what was asked; 1 when it failed, missed what
was expected, or could not write a file; 2 for arguments that make no sense,
or a device that is not there; 130, 143 or 129 after SIGINT, SIGTERM or SIGHUP.";

/// `--checkpoint-every`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Every {
    /// When the number of steps done is a multiple of this
    Steps(NonZeroU64),
    /// After so much time
    Time(Duration),
}

/// `--device`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// Host memory and processors
    Host,
    /// The CUDA device of this number
    Cuda(usize),
    /// No memory: shapes only
    Probe,
}

fn device(text: &str) -> Result<DeviceName, String> {
    match text {
        "host" => Ok(DeviceName::Host),
        "cuda" => Ok(DeviceName::Cuda(0)),
        "probe" => Ok(DeviceName::Probe),
        _ => {
            let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
            number
                .map(DeviceName::Cuda)
                .ok_or("it is none of host, cuda, cuda:N and probe".to_owned())
        }
    }
}

/// `--per`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PerName {
    /// One scope for each step
    Minibatch,
    /// One scope for each epoch
    Epoch,
}

/// `--placement`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlacementName {
    /// Each buffer above the one before, or where the plan says
    Bump,
    /// Each buffer in a separate allocation between guard zones, to find writes outside a buffer
    Separate,
    /// Each buffer in a separate allocation, for compute-sanitizer
    Unguarded,
    /// Each buffer at a random place in a second allocation, to find results that depend on the place
    Shuffled,
}

/// `--reset`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ResetName {
    /// Leave the bytes as they are
    Keep,
    /// Set them to zero
    Zero,
    /// Set them to NaN
    Poison,
}

/// `--optimizer`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OptimizerName {
    /// Stochastic gradient descent with momentum 0.9
    Sgd,
    /// Adam
    Adam,
}

impl Arguments {
    /// The run that the arguments describe, of a network with these sizes.
    #[must_use]
    pub fn config<S>(&self, network: S) -> RunConfig<S> {
        let is_gpt = self.model == ModelName::Gpt;
        let optimizer = match self.optimizer {
            OptimizerName::Sgd => {
                Optimizer::Sgd(SgdConfig { learning_rate: self.lr.unwrap_or(0.05), momentum: 0.9 })
            }
            OptimizerName::Adam => Optimizer::Adam(AdamConfig {
                learning_rate: self.lr.unwrap_or(if is_gpt { 4e-3 } else { 2e-3 }),
                weight_decay: self.weight_decay.unwrap_or(if is_gpt { 0.1 } else { 0.0 }),

                ..AdamConfig::default()
            }),
        };
        RunConfig {
            network,
            epochs: self.epochs.unwrap_or(if is_gpt { 12 } else { 2 }),
            batch: self.batch.map_or(if is_gpt { 8 } else { 64 }, NonZeroUsize::get),
            accumulate: self.accumulate.get(),
            share: self.share(),
            per: match self.per {
                PerName::Minibatch => Per::Minibatch,
                PerName::Epoch => Per::Epoch,
            },
            reset: match self.reset {
                ResetName::Keep => Reset::Keep,
                ResetName::Zero => Reset::Zero,
                ResetName::Poison => Reset::Poison,
            },
            optimizer,
            warmup: if is_gpt { self.decoder.warmup.unwrap_or(150) } else { 0 },
            seed: self.seed,
            steps: self.steps,
            ahead: self
                .runs_ahead()
                .then_some(AheadConfig { loss_every: self.loss_every, graph: self.graph }),
        }
    }

    /// This process's part of each batch. Without a launcher of MPI it is that of the first of `--ranks`, whose memory
    /// suffices for each.
    #[must_use]
    pub fn share(&self) -> Share {
        let planned = Share { rank: 0, of: self.ranks.map_or(1, NonZeroU32::get) };
        launch::launched().unwrap_or(planned)
    }

    /// The same for a process of this number: the first one writes the files.
    #[must_use]
    pub fn of_rank(&self, rank: u32) -> Self {
        if rank == 0 {
            return self.clone();
        }
        Self { json: None, events: None, checkpoint: None, checkpoint_every: None, ..self.clone() }
    }

    /// Whether the host can run ahead of the device.
    fn runs_ahead(&self) -> bool {
        let on_cuda = matches!(self.device, DeviceName::Cuda(_));
        let one_batch = self.model == ModelName::Cnn && self.accumulate.get() == 1;
        on_cuda && one_batch && !self.share().is_part() && self.per == PerName::Minibatch
    }

    /// Checks that the arguments make sense together.
    ///
    /// # Errors
    ///
    /// [`Misplaced`] for an option without another that it needs.
    pub fn check(&self) -> Result<(), Misplaced> {
        let is_cuda = matches!(self.device, DeviceName::Cuda(_));
        let is_sgd = self.optimizer == OptimizerName::Sgd;
        let ahead = match (self.graph, self.loss_every.get()) {
            (true, _) => Some("--graph"),
            (false, 1) => None,
            (false, _) => Some("--loss-every"),
        };
        let not_here = !is_cuda || self.per != PerName::Minibatch;
        let ranks = self.share().is_part().then_some("--ranks");
        let started = launch::launched().map(|share| share.of);
        let is_other =
            self.ranks.zip(started).is_some_and(|(ranks, started)| ranks.get() != started);
        let others = is_other.then_some("--ranks");
        let (is_gpt, several) = (self.model == ModelName::Gpt, self.accumulate.get() > 1);
        let rules = [
            (self.ranges.then_some("--ranges"), !is_cuda, "--device cuda"),
            (
                self.planned().then_some("--plan"),
                self.placement != PlacementName::Bump,
                "--placement bump",
            ),
            (self.weight_decay.and(Some("--weight-decay")), is_sgd, "--optimizer adam"),
            (self.decoder.given(), !is_gpt, "--model gpt"),
            (ahead, not_here, "--device cuda and --per minibatch"),
            (ahead, is_gpt, "--model cnn"),
            (ahead, several, "--accumulate 1"),
            (ahead, ranks.is_some(), "a run without --ranks"),
            (ranks, self.saved_plans().is_some(), "a run without --ranks, or no file"),
            (others, true, "as many processes as were started"),
            (ranks, self.per != PerName::Minibatch, "--per minibatch"),
        ];
        for (option, is_misplaced, place) in rules {
            if let Some(option) = option
                && is_misplaced
            {
                return Err(Misplaced { option, place });
            }
        }
        Ok(())
    }

    /// Where the data lies.
    #[must_use]
    pub fn data(&self) -> &Path {
        let default = match self.model {
            ModelName::Cnn => "data/mnist",
            ModelName::Gpt => "docs",
        };
        self.data.as_deref().unwrap_or(Path::new(default))
    }

    /// Where a step's buffers lie.
    #[must_use]
    pub const fn placement(&self) -> Placement {
        match self.placement {
            PlacementName::Bump => Placement::Bump,
            PlacementName::Separate => Placement::Separate,
            PlacementName::Unguarded => Placement::Unguarded,
            PlacementName::Shuffled => Placement::Shuffled { seed: self.seed },
        }
    }

    /// Whether steps follow plans.
    #[must_use]
    pub const fn planned(&self) -> bool {
        self.plan.is_some()
    }

    /// The file of the plans, if one is named.
    #[must_use]
    pub fn saved_plans(&self) -> Option<&Path> {
        self.plan.as_ref()?.as_deref()
    }

    /// The number of threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.map_or_else(all, NonZeroUsize::get)
    }
}

/// An option that needs other options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{option} needs {place}")]
pub struct Misplaced {
    /// The option.
    pub option: &'static str,
    /// The options that it needs.
    pub place: &'static str,
}

/// The most epochs, the most examples in a batch, and the most batches in a step: more would be a slip.
const MOST: u64 = 1_000_000;

/// The longest sequences, and the most features, of a decoder; and the most blocks.
const MOST_SIZE: u64 = 65_536;
const MOST_LAYERS: u64 = 1024;

/// A run of the most epochs has fewer.
const MOST_STEPS: u64 = 1_000_000_000_000;

fn ranks(text: &str) -> Result<NonZeroU32, String> {
    Ok(positive(text, MOST)?.try_into().unwrap_or(NonZeroU32::MAX))
}

/// Far more than any machine's processors.
const MOST_THREADS: u64 = 1024;

fn count(text: &str, least: u64, most: u64) -> Result<u64, String> {
    match text.parse() {
        Ok(count) if (least..=most).contains(&count) => Ok(count),
        _ => Err(format!("must be a whole number from {least} to {most}")),
    }
}

fn positive(text: &str, most: u64) -> Result<NonZeroUsize, String> {
    let found = usize::try_from(count(text, 1, most)?).ok();
    found.and_then(NonZeroUsize::new).ok_or_else(|| "is too large here".to_owned())
}

fn epochs(text: &str) -> Result<u64, String> {
    count(text, 0, MOST)
}

fn batch(text: &str) -> Result<NonZeroUsize, String> {
    positive(text, MOST)
}

fn layers(text: &str) -> Result<NonZeroUsize, String> {
    positive(text, MOST_LAYERS)
}

fn size(text: &str) -> Result<NonZeroUsize, String> {
    positive(text, MOST_SIZE)
}

fn steps(text: &str) -> Result<u64, String> {
    count(text, 0, MOST_STEPS)
}

fn threads(text: &str) -> Result<NonZeroUsize, String> {
    positive(text, MOST_THREADS)
}

fn every(text: &str) -> Result<Every, String> {
    let found = match text.strip_suffix('m') {
        Some(minutes) => count(minutes, 1, MOST).map(|n| Every::Time(Duration::from_secs(60 * n))),
        None => count(text, 1, MOST_STEPS)
            .map(|n| Every::Steps(NonZeroU64::new(n).unwrap_or(NonZeroU64::MIN))),
    };
    found.map_err(|_| "must be a number of steps, as 500, or of minutes, as 10m".to_owned())
}

/// A number for which `is_served` holds; `what` says which these are.
fn number<T: FromStr>(
    text: &str,
    what: &str,
    is_served: impl FnOnce(&T) -> bool,
) -> Result<T, String> {
    let found = text.parse().ok().filter(is_served);
    found.ok_or_else(|| format!("must be {what}"))
}

fn positive_rate(text: &str) -> Result<f32, String> {
    number(text, "a number above 0", |rate: &f32| rate.is_finite() && *rate > 0.0)
}

fn decay(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 1000", |decay| (0.0..=1000.0).contains(decay))
}

fn dropout(text: &str) -> Result<f32, String> {
    number(text, "a share, at least 0 and below 1", |share| (0.0..1.0).contains(share))
}

fn share(text: &str) -> Result<f64, String> {
    number(text, "a share between 0 and 1", |share| (0.0..=1.0).contains(share))
}

fn loss(text: &str) -> Result<f64, String> {
    number(text, "a number of nats, at least 0", |nats: &f64| nats.is_finite() && *nats >= 0.0)
}
