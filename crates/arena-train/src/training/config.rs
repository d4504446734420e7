//! What decides a run.

use arena_scope::Reset;

use super::AheadConfig;
use crate::data::Examples;
use crate::optimizer::Optimizer;

/// What a scope spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Per {
    /// One root scope for each minibatch: the memory of one step.
    Minibatch,
    /// One root scope for each epoch and none inside: the memory of all its steps together, as the
    /// first users of the idea had it.
    Epoch,
}

/// The part of each batch that one of several processes takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The process's number, from 0 on.
    pub rank: u32,
    /// The number of processes, from 1 on.
    pub of: u32,
}

impl Share {
    /// All of it: the only process.
    pub const WHOLE: Self = Self { rank: 0, of: 1 };

    /// Whether there are other processes.
    #[must_use]
    pub const fn is_part(self) -> bool {
        self.of > 1
    }

    /// This process's examples of a batch that has `batch` of them, or fewer. Every process has as many, but for the last
    /// ones, so that they are those of one process with smaller batches.
    #[must_use]
    pub fn part(self, examples: &[u32], batch: usize) -> &[u32] {
        let len = batch.div_ceil(self.of as usize).max(1);
        examples.chunks(len).nth(self.rank as usize).unwrap_or(&[])
    }
}

/// Everything that decides a run's numbers and its memory. `S` is what there is to choose of the network.
#[derive(Debug, Clone, PartialEq)]
pub struct RunConfig<S = ()> {
    /// The network's sizes.
    pub network: S,
    /// Passes over the training examples.
    pub epochs: u64,
    /// Examples in a batch; the last one of an epoch may have fewer.
    pub batch: usize,
    /// Batches in a step, from 1 on: their gradients are averaged before the parameters move.
    pub accumulate: usize,
    /// What a scope spans.
    pub per: Per,
    /// What a scope does with its bytes when it closes.
    pub reset: Reset,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// This process's part of each batch.
    pub share: Share,
    /// Steps at the beginning in which the learning rate rises to where it falls from.
    pub warmup: u64,
    /// Of the weights and of the order of examples.
    pub seed: u64,
    /// Steps after which the run stops early.
    pub steps: Option<u64>,
    /// How the host runs ahead of a CUDA device, with a scope per minibatch; `None` where it waits
    /// for each step's loss before it loads the next batch.
    pub ahead: Option<AheadConfig>,
}

impl<S> RunConfig<S> {
    /// One epoch of batches of one example, by one process that waits for each step, with a scope for each.
    #[must_use]
    pub const fn new(network: S, optimizer: Optimizer, seed: u64) -> Self {
        Self {
            network,
            epochs: 1,
            batch: 1,
            accumulate: 1,
            per: Per::Minibatch,
            reset: Reset::Keep,
            optimizer,
            share: Share::WHOLE,
            warmup: 0,
            seed,
            steps: None,
            ahead: None,
        }
    }

    /// The most examples of a step.
    #[must_use]
    pub const fn step_len(&self) -> usize {
        self.batch.saturating_mul(self.accumulate)
    }

    /// Steps of one epoch over this data.
    #[must_use]
    pub fn steps_per_epoch(&self, data: &impl Examples) -> u64 {
        data.steps(self.step_len())
    }

    /// Steps of the whole run over this data, if it does not stop early.
    #[must_use]
    pub fn steps_in_all(&self, data: &impl Examples) -> u64 {
        self.epochs.saturating_mul(self.steps_per_epoch(data))
    }

    /// Steps after which the run ends.
    #[must_use]
    pub fn last_step(&self, data: &impl Examples) -> u64 {
        let all = self.steps_in_all(data);
        self.steps.map_or(all, |steps| steps.min(all))
    }

    /// The learning rate's factor at a step, counted from 0: it falls in a line from 1 to 0 over
    /// all epochs, whether or not the run stops early. While the warm-up lasts, it is multiplied by the share of it that
    /// has been done.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than f32 holds")]
    pub fn rate_factor(&self, step: u64, data: &impl Examples) -> f32 {
        let total = self.steps_in_all(data);
        let falling = 1.0 - step as f32 / total as f32;
        if step < self.warmup {
            falling * ((step + 1) as f32 / self.warmup as f32)
        } else {
            falling
        }
    }
}
