//! What a run tells: each step, the whole training, an evaluation.

use std::time::Duration;

use arena_scope::Stats;

/// The state of a run after a step, for display.
#[derive(Debug, Clone, Copy)]
pub struct StepReport {
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// Steps done in all, those before a resumed checkpoint included.
    pub step: u64,
    /// Steps that the run has if it does not stop early.
    pub steps_in_all: u64,
    /// Mean loss of the step's predictions.
    pub loss: f32,
    /// Predictions learnt from in this process: images, or bytes of text.
    pub predictions: u64,
    /// Time of training in this process.
    pub elapsed: Duration,
    /// The figures of the arena.
    pub stats: Stats,
}

/// The result of training.
#[derive(Debug, Clone)]
pub struct Trained {
    /// Steps done in all, those before a resumed checkpoint included.
    pub steps: u64,
    /// Mean loss of the last step's predictions; `None` when no step was done.
    pub final_loss: Option<f32>,
    /// Predictions learnt from in this process: images, or bytes of text.
    pub predictions: u64,
    /// Time that took.
    pub elapsed: Duration,
    /// Root scopes after which the cursor was not back at the mark.
    pub off_the_mark: u64,
    /// The most heap allocations of linear-algebra libraries in one step.
    pub library_allocations_per_step: u64,
    /// Steps that were replayed from a graph.
    pub replays: u64,
    /// Why a graph that was asked for was not captured, or not replayed to the end; the steps ran in
    /// the ordinary way then.
    pub graph_refusal: Option<String>,
    /// Whether it was stopped from outside.
    pub interrupted: bool,
}

/// The result of an evaluation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Evaluation {
    /// Predictions that were right: images recognised, or bytes that followed.
    pub hits: u64,
    /// Predictions made.
    pub predictions: u64,
    /// Sum of their losses, in nats.
    pub loss_sum: f64,
}

impl Evaluation {
    /// The share that was right; 0 without predictions.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 predictions")]
    pub fn accuracy(&self) -> f64 {
        self.hits as f64 / self.predictions.max(1) as f64
    }

    /// The mean loss in nats; 0 without predictions.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 predictions")]
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.predictions.max(1) as f64
    }
}
