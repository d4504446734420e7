//! The command line.

use std::num::{NonZeroU16, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use arena_scope::{ByteSize, Placement, Reset};
use clap::{Parser, ValueEnum};

use crate::backend::host::{AdamConfig, SgdConfig};
use crate::optimizer::Optimizer;
use crate::training::{AheadConfig, Per, RunConfig};

/// Trains a CNN on MNIST inside scopes of one arena, and reports whether memory stayed flat.
#[derive(Debug, Clone, Parser)]
#[command(name = "arena-train", version, max_term_width = 80, after_help = STATUS)]
pub struct Arguments {
    /// Passes over the training images
    #[arg(long, default_value_t = 2, value_parser = epochs)]
    pub epochs: u64,
    /// Images in a step
    #[arg(long, default_value = "64", value_parser = batch)]
    pub batch: NonZeroUsize,
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
    /// Learning rate at the start; it falls to 0 over the run [default: 0.002 for adam, 0.05 for sgd]
    #[arg(long, value_parser = positive_rate)]
    pub lr: Option<f32>,
    /// Seed of the weights, of the order of images, and of the placement `shuffled`
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Directory with the four MNIST files, gzip or plain
    #[arg(long, default_value = "data/mnist")]
    pub data: PathBuf,
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
    /// Number of threads [default: one for each processor]
    #[arg(long, value_parser = threads)]
    pub threads: Option<NonZeroUsize>,
    /// Exit with status 1 if the test accuracy is below this fraction, such as 0.988
    #[arg(long, value_parser = share)]
    pub expect_accuracy: Option<f64>,
    /// Write the summary to this file, as JSON
    #[arg(long)]
    pub json: Option<PathBuf>,
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

/// What `--help` says at its end.
const STATUS: &str = "\
A first SIGINT (Ctrl-C), SIGTERM or SIGHUP stops the run after its step, with the
checkpoint and the summary so far; a second one ends it at once.

Exit status: 0 when the run did what was asked; 1 when it failed, missed
--expect-accuracy, or could not write a file; 2 for arguments that make no sense,
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
    /// The run that the arguments describe.
    #[must_use]
    pub fn config(&self) -> RunConfig {
        let optimizer = match self.optimizer {
            OptimizerName::Sgd => {
                Optimizer::Sgd(SgdConfig { learning_rate: self.lr.unwrap_or(0.05), momentum: 0.9 })
            }
            OptimizerName::Adam => Optimizer::Adam(AdamConfig {
                learning_rate: self.lr.unwrap_or(2e-3),
                ..AdamConfig::default()
            }),
        };
        RunConfig {
            epochs: self.epochs,
            batch: self.batch.get(),
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
            seed: self.seed,
            steps: self.steps,
            ahead: self
                .runs_ahead()
                .then_some(AheadConfig { loss_every: self.loss_every, graph: self.graph }),
        }
    }

    fn runs_ahead(&self) -> bool {
        matches!(self.device, DeviceName::Cuda(_)) && self.per == PerName::Minibatch
    }

    /// Checks that the arguments make sense together.
    ///
    /// # Errors
    ///
    /// [`Misplaced`] for an option that needs a CUDA device, or a scope for each minibatch, without these; and
    /// for a plan under a placement that follows none.
    pub fn check(&self) -> Result<(), Misplaced> {
        if self.ranges && !matches!(self.device, DeviceName::Cuda(_)) {
            return Err(Misplaced { option: "--ranges", place: "--device cuda" });
        }
        if self.planned() && self.placement != PlacementName::Bump {
            return Err(Misplaced { option: "--plan", place: "--placement bump" });
        }
        let option = match (self.graph, self.loss_every.get()) {
            (true, _) => "--graph",
            (false, 1) => return Ok(()),
            (false, _) => "--loss-every",
        };
        let place = "--device cuda and --per minibatch";
        if self.runs_ahead() { Ok(()) } else { Err(Misplaced { option, place }) }
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

/// The most epochs, and the most images in a step: more would be a slip.
const MOST: u64 = 1_000_000;

/// A run of the most epochs has fewer.
const MOST_STEPS: u64 = 1_000_000_000_000;

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

fn positive_rate(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("must be a number above 0".to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("must be a share between 0 and 1".to_owned()),
    }
}
