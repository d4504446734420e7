//! The loop: epochs, steps in scopes, evaluation.

mod ahead;

use std::iter::Skip;
use std::slice::Chunks;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arena_plan::PlannedRun;
use arena_scope::steady::SteadyState;
use arena_scope::{Arena, ByteSize, Reset, Scope, ScopeOptions, Stats, StepKey};

use crate::backend::{Backend, Buffer};
use crate::data::{Dataset, shuffled_order};
use crate::error::TrainError;
use crate::heap;
use crate::model::{Cnn, IMAGE_LEN};
use crate::optimizer::Optimizer;
use ahead::{Ahead, Seen};

pub use ahead::AheadConfig;

/// The key of a training step, to be completed by its number of images.
pub const TRAIN: StepKey = StepKey::named("train");

/// The key of a step of an evaluation, to be completed by its number of images.
pub const EVALUATE: StepKey = StepKey::named("evaluate");

/// The key of an epoch in one scope.
const EPOCH: StepKey = StepKey::named("epoch");

/// What a scope spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Per {
    /// One root scope for each minibatch: the memory of one step.
    Minibatch,
    /// One root scope for each epoch and none inside: the memory of all its steps together, as the
    /// first users of the idea had it.
    Epoch,
}

/// Everything that decides a run's numbers and its memory.
#[derive(Debug, Clone, PartialEq)]
pub struct RunConfig {
    /// Passes over the training images.
    pub epochs: u64,
    /// Images in a step; an epoch's last step may have fewer.
    pub batch: usize,
    /// What a scope spans.
    pub per: Per,
    /// What a scope does with its bytes when it closes.
    pub reset: Reset,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Of the weights and of the order of images.
    pub seed: u64,
    /// Steps after which the run stops early.
    pub steps: Option<u64>,
    /// How the host runs ahead of a CUDA device, with a scope per minibatch; `None` where it waits
    /// for each step's loss before it loads the next batch.
    pub ahead: Option<AheadConfig>,
}

impl RunConfig {
    /// Steps of one epoch over `images` images.
    #[must_use]
    pub const fn steps_per_epoch(&self, images: usize) -> u64 {
        images.div_ceil(self.batch) as u64
    }

    /// Steps of the whole run over `images` images, if it does not stop early.
    #[must_use]
    pub const fn steps_in_all(&self, images: usize) -> u64 {
        self.epochs.saturating_mul(self.steps_per_epoch(images))
    }

    /// Steps after which the run ends.
    #[must_use]
    pub fn last_step(&self, images: usize) -> u64 {
        let all = self.steps_in_all(images);
        self.steps.map_or(all, |steps| steps.min(all))
    }

    /// The learning rate's factor at a step, counted from 0: it falls in a line from 1 to 0 over
    /// all epochs, whether or not the run stops early.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than f32 holds")]
    pub fn rate_factor(&self, step: u64, images: usize) -> f32 {
        let total = self.steps_in_all(images);
        1.0 - step as f32 / total as f32
    }
}

/// The state of a run after a step, for display.
#[derive(Debug, Clone, Copy)]
pub struct StepReport {
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// Steps done in all, those before a resumed checkpoint included.
    pub step: u64,
    /// Steps that the run has if it does not stop early.
    pub steps_in_all: u64,
    /// Mean loss of the step's images.
    pub loss: f32,
    /// Images trained in this process.
    pub images: u64,
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
    /// Mean loss of the last step's images; `None` when no step was done.
    pub final_loss: Option<f32>,
    /// Images trained in this process.
    pub images: u64,
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Images recognised.
    pub hits: u64,
    /// Images looked at.
    pub images: u64,
}

impl Evaluation {
    /// The share that was recognised; 0 without images.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 images")]
    pub fn accuracy(&self) -> f64 {
        self.hits as f64 / self.images.max(1) as f64
    }
}

/// An arena, the network in it, and how far its training has come.
#[derive(Debug)]
pub struct Trainer<B: Backend> {
    config: RunConfig,
    arena: Arena<B::Device>,
    model: Cnn<B>,
    ahead: Option<Ahead<B::Device>>,
    /// What the run's steps need, if that is known.
    run: Option<PlannedRun>,
    /// Steps done.
    step: u64,
}

impl<B: Backend> Trainer<B> {
    /// Builds an arena of this capacity, which is observed, and the network [on](Self::on) it.
    ///
    /// # Errors
    ///
    /// When the device refuses the region; or as for [`on`](Self::on).
    pub fn new(
        device: B::Device,
        backend: B,
        config: RunConfig,
        capacity: ByteSize,
    ) -> Result<Self, TrainError> {
        let builder = Arena::builder(device).capacity(capacity).reset(config.reset);
        let mut arena = builder.build()?;
        arena.observe(Some(heap::own_allocations));
        Self::on(arena, backend, config)
    }

    /// Builds the network in an arena that is empty, and sets the mark above it.
    ///
    /// # Errors
    ///
    /// When the parameters do not fit into it; or [`TrainError::OnlyOnCuda`] when the host is to run ahead of itself.
    pub fn on(
        mut arena: Arena<B::Device>,
        backend: B,
        config: RunConfig,
    ) -> Result<Self, TrainError> {
        let model = Cnn::new(&arena, backend, &config.optimizer, config.seed)?;
        let ahead = match (config.per, config.ahead) {
            (Per::Minibatch, Some(ahead)) => Some(Ahead::new(&arena, ahead, config.batch)?),
            _ => None,
        };
        arena.mark()?;
        Ok(Self { config, arena, model, ahead, run: None, step: 0 })
    }

    /// Refuses steps for which there is no room before their first kernel, from now on: those that the run knows.
    pub fn set_needs(&mut self, run: PlannedRun) {
        self.run = Some(run);
    }

    /// The arena.
    #[must_use]
    pub const fn arena(&self) -> &Arena<B::Device> {
        &self.arena
    }

    /// The arena between two calls of [`train`](Self::train), to give its memory back for a while, or to fit it.
    pub const fn arena_mut(&mut self) -> &mut Arena<B::Device> {
        &mut self.arena
    }

    /// The network.
    #[must_use]
    pub const fn model(&self) -> &Cnn<B> {
        &self.model
    }

    /// The run's configuration.
    #[must_use]
    pub const fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Steps done.
    #[must_use]
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// The network and the number of steps done, to be set to a checkpoint's.
    pub(crate) const fn restore_point(&mut self) -> (&mut Cnn<B>, &mut u64) {
        (&mut self.model, &mut self.step)
    }

    /// What was observed of the root scopes so far.
    #[must_use]
    pub fn steady_state(&self) -> Option<SteadyState> {
        self.arena.observed()
    }

    /// Trains from where the run stands to its end, or until `stop` is set, which is looked at after
    /// each step. `report` is told each step.
    ///
    /// # Errors
    ///
    /// When a step fails. The arena is at the mark then. The parameters have moved in just the steps that
    /// [`step`](Self::step) counts: one that failed before its update is not counted, and one whose scope failed
    /// to close behind the update is. So a later call goes on to the numbers of a run that never failed.
    ///
    /// [`TrainError::NotFinite`] for a loss that is infinite or no number. Where the host waits for each loss, that
    /// step moves nothing.
    pub fn train(
        &mut self,
        data: &Dataset,
        stop: &AtomicBool,
        report: impl FnMut(&StepReport),
    ) -> Result<Trained, TrainError> {
        self.train_saving(data, stop, report, |_, _| ())
    }

    /// [`train`](Self::train), with a look at the network after each step: `save` gets it and the number of steps
    /// done, and may read what a checkpoint keeps.
    ///
    /// # Errors
    ///
    /// As for [`train`](Self::train).
    pub fn train_saving(
        &mut self,
        data: &Dataset,
        stop: &AtomicBool,
        mut report: impl FnMut(&StepReport),
        mut save: impl FnMut(&Cnn<B>, u64),
    ) -> Result<Trained, TrainError> {
        let steps_per_epoch = self.config.steps_per_epoch(data.len());
        let (steps_in_all, last_step) =
            (self.config.steps_in_all(data.len()), self.config.last_step(data.len()));
        let mut order = vec![0; data.len()];
        let mut done = Trained {
            steps: self.step,
            final_loss: None,
            images: 0,
            elapsed: Duration::ZERO,
            off_the_mark: 0,
            library_allocations_per_step: 0,
            replays: 0,
            graph_refusal: None,
            interrupted: self.step < last_step && stop.load(Ordering::Relaxed),
        };
        if let Some(ahead) = &mut self.ahead {
            ahead.restart(self.step)?;
        }
        let mut seen = Seen::default();
        let mut failed = None;
        let start = Instant::now();
        while self.step < last_step && !done.interrupted {
            let epoch = self.step / steps_per_epoch;
            shuffled_order(self.config.seed, epoch, &mut order);
            let first = usize::try_from(self.step % steps_per_epoch).unwrap_or(usize::MAX);
            let batches = order.chunks(self.config.batch).skip(first);
            let mut after_step = |step: u64, loss: f32, images: usize, stats: Stats| {
                if !loss.is_finite() {
                    failed.get_or_insert(TrainError::NotFinite { step, loss });
                }
                done.steps = step;
                done.final_loss = Some(loss);
                done.images += images as u64;
                done.elapsed = start.elapsed();
                let (images, elapsed) = (done.images, done.elapsed);
                let epoch = epoch + 1;
                report(&StepReport { epoch, step, steps_in_all, loss, images, elapsed, stats });
                done.interrupted = step < last_step && stop.load(Ordering::Relaxed);
                step >= last_step || done.interrupted || failed.is_some()
            };
            match self.config.per {
                Per::Minibatch if self.ahead.is_some() => {
                    let end = (last_step, stop);
                    self.epoch_ahead(data, batches, end, &mut seen, after_step, &mut save)?;
                }
                Per::Minibatch => {
                    for indices in batches {
                        let library_before = heap::library_allocations();
                        let (loss, closed) = self.minibatch(data, indices);
                        let library = heap::library_allocations() - library_before;
                        done.library_allocations_per_step =
                            done.library_allocations_per_step.max(library);
                        let stats = self.arena.stats();
                        done.off_the_mark += u64::from(stats.used_bytes != stats.mark_bytes);
                        let images = indices.len();
                        let is_over =
                            loss.is_some_and(|loss| after_step(self.step, loss, images, stats));
                        closed?;
                        save(&self.model, self.step);
                        if is_over {
                            break;
                        }
                    }
                }
                Per::Epoch => {
                    self.epoch(data, batches, after_step, &mut save)?;
                    let stats = self.arena.stats();
                    done.off_the_mark += u64::from(stats.used_bytes != stats.mark_bytes);
                }
            }
            if let Some(failed) = failed.take() {
                return Err(failed);
            }
        }
        done.elapsed = start.elapsed();
        if let Some(ahead) = &self.ahead {
            (done.replays, done.graph_refusal) = ahead.replays();
            done.off_the_mark = seen.off_the_mark;
            done.library_allocations_per_step = seen.library_allocations_per_step;
        }
        Ok(done)
    }

    /// One step in its own root scope: its loss, if the step was done, and how the scope ended.
    fn minibatch(
        &mut self,
        data: &Dataset,
        indices: &[u32],
    ) -> (Option<f32>, Result<(), TrainError>) {
        let Self { config, arena, model, run, step, .. } = self;
        // The short last batch of an epoch is a kind of step of its own.
        let options = options(run.as_ref(), TRAIN.variant(indices.len() as u64));
        let mut done = None;
        let ended = arena.scope_with(options, |scope| {
            done = Some(train_step(scope, model, config, data, indices, step)?);
            Ok(())
        });
        (done, ended)
    }

    /// All the batches in one root scope.
    fn epoch(
        &mut self,
        data: &Dataset,
        batches: Skip<Chunks<'_, u32>>,
        mut after_step: impl FnMut(u64, f32, usize, Stats) -> bool,
        save: &mut impl FnMut(&Cnn<B>, u64),
    ) -> Result<(), TrainError> {
        let Self { config, arena, model, run, step, .. } = self;
        arena.scope_with(options(run.as_ref(), EPOCH), |scope| {
            for indices in batches {
                let loss = train_step(scope, model, config, data, indices, step)?;
                let is_over = after_step(*step, loss, indices.len(), scope.stats());
                save(model, *step);
                if is_over {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Counts the images of a dataset that the network recognises, each batch in a root scope.
    ///
    /// # Errors
    ///
    /// When the arena has no room, or the device refuses.
    pub fn evaluate(&mut self, data: &Dataset) -> Result<Evaluation, TrainError> {
        let whole = self.evaluate_until(data, &AtomicBool::new(false))?;
        Ok(whole.unwrap_or(Evaluation { hits: 0, images: 0 }))
    }

    /// [`evaluate`](Self::evaluate), or `None` if `stop` is set before all images were looked at.
    ///
    /// # Errors
    ///
    /// As for [`evaluate`](Self::evaluate).
    pub fn evaluate_until(
        &mut self,
        data: &Dataset,
        stop: &AtomicBool,
    ) -> Result<Option<Evaluation>, TrainError> {
        let Self { config, arena, model, run, .. } = self;
        let all: Vec<u32> = (0..).take(data.len()).collect();
        let mut hits = 0;
        for indices in all.chunks(config.batch) {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let options = options(run.as_ref(), EVALUATE.variant(indices.len() as u64));
            hits += arena.scope_with(options, |scope| {
                let (images, labels) = load(scope, model, data, indices)?;
                let loss = model.evaluate(scope, images, labels.view())?;
                Ok::<_, TrainError>(u64::from(scope.read_one(loss.hits.view())?))
            })?;
        }
        Ok(Some(Evaluation { hits, images: data.len() as u64 }))
    }
}

/// A scope for a step of this kind. If its need is known, it opens only if there is room for it.
fn options(run: Option<&PlannedRun>, key: StepKey) -> ScopeOptions {
    run.map_or_else(|| key.into(), |run| run.options(key))
}

/// A batch's pixels and labels.
type Batch<'s, B> = (Buffer<'s, B>, Buffer<'s, B, u32>);

/// A batch in the scope's memory.
fn load<'s, B: Backend>(
    scope: &Scope<'s, '_, B::Device>,
    model: &Cnn<B>,
    data: &Dataset,
    indices: &[u32],
) -> Result<Batch<'s, B>, TrainError> {
    let mut images = scope.alloc(indices.len() * IMAGE_LEN)?;
    let mut labels = scope.alloc(indices.len())?;
    let workspace_bytes = model.backend().load_batch_workspace_bytes(data, indices.len());
    let mut workspace = scope.alloc(workspace_bytes)?;
    let (to_images, to_labels) = (images.view_mut(), labels.view_mut());
    model.backend().load_batch(data, indices, to_images, to_labels, workspace.view_mut())?;
    Ok((images, labels))
}

/// One step: load, forward, backward, update. Returns the loss.
///
/// The loss is read before the update, which is the last thing that can fail, and is one call: so a step that fails
/// here has moved nothing, and one that moved the parameters is counted.
fn train_step<B: Backend>(
    scope: &Scope<'_, '_, B::Device>,
    model: &mut Cnn<B>,
    config: &RunConfig,
    data: &Dataset,
    indices: &[u32],
    step: &mut u64,
) -> Result<f32, TrainError> {
    let (images, labels) = load(scope, model, data, indices)?;
    let loss = model.gradients(scope, images, labels)?;
    let loss = scope.read_one(loss.mean.view())?;
    if !loss.is_finite() {
        return Err(TrainError::NotFinite { step: *step + 1, loss });
    }
    model.update(*step + 1, config.rate_factor(*step, data.len()))?;
    *step += 1;
    Ok(loss)
}
