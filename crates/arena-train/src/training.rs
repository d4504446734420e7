//! The loop: epochs, steps in scopes, evaluation.

mod ahead;
mod config;
mod outcome;
mod ranks;
mod step;

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arena_collective::Collective;
use arena_plan::{EventWriter, PlannedRun};
use arena_scope::steady::SteadyState;
use arena_scope::{Arena, ByteSize, Scope, ScopeOptions, Stats, StepKey};

use crate::data::{EpochOrder, Examples};
use crate::error::TrainError;
use crate::heap;
use crate::network::{DeviceOf, Network};
use ahead::{Ahead, Seen};
use ranks::Ranks;
use step::train_step;

pub use ahead::AheadConfig;
pub use config::{Per, RunConfig, Share};
pub use outcome::{Evaluation, StepReport, Trained};

/// The key of a training step, to be completed by its [variant](Network::variant).
pub const TRAIN: StepKey = StepKey::named("train");

/// The key of a step of an evaluation, to be completed by its [variant](Network::variant).
pub const EVALUATE: StepKey = StepKey::named("evaluate");

/// The key of an epoch in one scope.
const EPOCH: StepKey = StepKey::named("epoch");

/// An arena, the network in it, and how far its training has come.
#[derive(Debug)]
pub struct Trainer<N: Network> {
    config: RunConfig<N::Sizes>,
    arena: Arena<DeviceOf<N>>,
    model: N,
    ahead: Option<Ahead<N>>,
    /// What the run's steps need, if that is known.
    run: Option<PlannedRun>,
    /// Where each root scope is told.
    events: Option<EventWriter>,
    /// The other processes of the run, if there are any and they were joined.
    ranks: Option<Ranks<DeviceOf<N>>>,
    /// Steps done.
    step: u64,
}

impl<N: Network> Trainer<N> {
    /// Builds an arena of this capacity, which is observed, and the network [on](Self::on) it.
    ///
    /// # Errors
    ///
    /// When the device refuses the region; or as for [`on`](Self::on).
    pub fn new(
        device: DeviceOf<N>,
        backend: N::Backend,
        config: RunConfig<N::Sizes>,
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
        mut arena: Arena<DeviceOf<N>>,
        backend: N::Backend,
        config: RunConfig<N::Sizes>,
    ) -> Result<Self, TrainError> {
        if config.share.is_part() && (config.per == Per::Epoch || config.ahead.is_some()) {
            return Err(TrainError::NotAhead);
        }
        let model = N::new(&arena, backend, &config)?;
        let ahead = match (config.per, config.ahead) {
            (Per::Minibatch, Some(ahead)) => Some(Ahead::new(&arena, ahead, &config)?),
            _ => None,
        };
        arena.mark()?;
        Ok(Self { config, arena, model, ahead, run: None, events: None, ranks: None, step: 0 })
    }

    /// Refuses steps for which there is no room before their first kernel, from now on: those that the run knows.
    pub fn set_needs(&mut self, run: PlannedRun) {
        self.run = Some(run);
    }

    /// Tells each root scope from now on. The arena has to be [recorded](Arena::record).
    pub fn set_events(&mut self, events: EventWriter) {
        self.events = Some(events);
    }

    /// Joins the other processes, each of which takes its [share](RunConfig::share) of each batch.
    pub fn set_ranks(&mut self, engine: Rc<dyn Collective<DeviceOf<N>>>) {
        self.ranks = Some(Ranks::new(engine));
    }

    /// Takes back what tells them.
    pub const fn take_events(&mut self) -> Option<EventWriter> {
        self.events.take()
    }

    /// The arena.
    #[must_use]
    pub const fn arena(&self) -> &Arena<DeviceOf<N>> {
        &self.arena
    }

    /// The arena between two calls of [`train`](Self::train), to give its memory back for a while, or to fit it.
    pub const fn arena_mut(&mut self) -> &mut Arena<DeviceOf<N>> {
        &mut self.arena
    }

    /// The network.
    #[must_use]
    pub const fn model(&self) -> &N {
        &self.model
    }

    /// The run's configuration.
    #[must_use]
    pub const fn config(&self) -> &RunConfig<N::Sizes> {
        &self.config
    }

    /// Steps done.
    #[must_use]
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// The network and the number of steps done, to be set to a checkpoint's.
    pub(crate) const fn restore_point(&mut self) -> (&mut N, &mut u64) {
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
        data: &N::Data,
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
        data: &N::Data,
        stop: &AtomicBool,
        mut report: impl FnMut(&StepReport),
        mut save: impl FnMut(&N, u64),
    ) -> Result<Trained, TrainError> {
        // Ranks stop when all of them have heard of it.
        let (asked, all_know) = (stop, AtomicBool::new(false));
        let stop = if self.ranks.is_some() { &all_know } else { asked };
        let steps_per_epoch = self.config.steps_per_epoch(data);
        let (steps_in_all, last_step) =
            (self.config.steps_in_all(data), self.config.last_step(data));
        let mut order = EpochOrder::default();
        let mut done = Trained {
            steps: self.step,
            final_loss: None,
            predictions: 0,
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
            order.shuffle(data, self.config.step_len(), self.config.seed, epoch);
            let first = usize::try_from(self.step % steps_per_epoch).unwrap_or(usize::MAX);
            let mut after_step = |step: u64, loss: f32, predictions: u64, stats: Stats| {
                if !loss.is_finite() {
                    failed.get_or_insert(TrainError::NotFinite { step, loss });
                }
                done.steps = step;
                done.final_loss = Some(loss);
                done.predictions += predictions;
                done.elapsed = start.elapsed();
                let (predictions, elapsed) = (done.predictions, done.elapsed);
                let epoch = epoch + 1;
                report(&StepReport {
                    epoch,
                    step,
                    steps_in_all,
                    loss,
                    predictions,
                    elapsed,
                    stats,
                });
                done.interrupted = step < last_step && stop.load(Ordering::Relaxed);
                step >= last_step || done.interrupted || failed.is_some()
            };
            match self.config.per {
                Per::Minibatch if self.ahead.is_some() => {
                    let end = (last_step, stop);
                    self.epoch_ahead(data, (&order, first), end, &mut seen, after_step, &mut save)?;
                }
                Per::Minibatch => {
                    for examples in order.steps().skip(first) {
                        let library_before = heap::library_allocations();
                        let key = self.key(data, examples);
                        let (loss, closed) = self.minibatch(data, examples, (asked, stop));
                        let library = heap::library_allocations() - library_before;
                        done.library_allocations_per_step =
                            done.library_allocations_per_step.max(library);
                        let stats = self.arena.stats();
                        done.off_the_mark += u64::from(stats.used_bytes != stats.mark_bytes);
                        let predictions = N::predictions(data, examples);
                        if let Some(events) = &mut self.events {
                            let step = events.step(&self.arena, key);
                            loss.into_iter()
                                .for_each(|loss| events.result(step, loss, predictions));
                        }
                        let is_over = loss
                            .is_some_and(|loss| after_step(self.step, loss, predictions, stats));
                        closed?;
                        save(&self.model, self.step);
                        if is_over {
                            break;
                        }
                    }
                }
                Per::Epoch => {
                    let ended = self.epoch(data, (&order, first), after_step, &mut save);
                    if let Some(events) = &mut self.events {
                        events.step(&self.arena, EPOCH);
                    }
                    ended?;
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
        data: &N::Data,
        examples: &[u32],
        (asked, stop): (&AtomicBool, &AtomicBool),
    ) -> (Option<f32>, Result<(), TrainError>) {
        let key = self.key(data, examples);
        let Self { config, arena, model, run, step, ranks, .. } = self;
        let came = ranks.as_ref().map_or(0, Ranks::came);
        let mut done = None;
        let mut ended = arena.scope_with(options(run.as_ref(), key), |scope| {
            let ranks = ranks.as_mut().map(|ranks| (ranks, asked, stop));
            done = Some(train_step(scope, model, config, data, examples, step, ranks)?);
            Ok(())
        });
        if let Some(ranks) = ranks {
            let parameters = model.parts_mut().1;
            ended = match ended {
                Ok(()) => {
                    let whole = N::variant(data, examples);
                    ranks.compare(arena, parameters, (whole, key.variant))
                }
                // The others wait in this step, or in the next one.
                Err(error) if ranks.came() == came || done.is_some() => {
                    Err(ranks.fail(parameters, error))
                }
                failed => failed,
            };
        }
        (done, ended)
    }

    /// The kind of a training step over these examples, of which this process may take a part. The short last batch of an
    /// epoch is a kind of its own.
    fn key(&self, data: &N::Data, examples: &[u32]) -> StepKey {
        let RunConfig { share, batch, .. } = self.config;
        let mine = if share.is_part() { share.part(examples, batch) } else { examples };
        TRAIN.variant(if mine.is_empty() { 0 } else { N::variant(data, mine) })
    }

    /// The steps of an epoch from the `first` on, in one root scope.
    fn epoch(
        &mut self,
        data: &N::Data,
        (order, first): (&EpochOrder, usize),
        mut after_step: impl FnMut(u64, f32, u64, Stats) -> bool,
        save: &mut impl FnMut(&N, u64),
    ) -> Result<(), TrainError> {
        let Self { config, arena, model, run, step, .. } = self;
        arena.scope_with(options(run.as_ref(), EPOCH), |scope| {
            for examples in order.steps().skip(first) {
                let loss = train_step(scope, model, config, data, examples, step, None)?;
                let is_over =
                    after_step(*step, loss, N::predictions(data, examples), scope.stats());
                save(model, *step);
                if is_over {
                    break;
                }
            }
            Ok(())
        })
    }

    /// What the network predicts rightly, and its loss, each batch in a root scope.
    ///
    /// # Errors
    ///
    /// When the arena has no room, or the device refuses.
    pub fn evaluate(&mut self, data: &N::Data) -> Result<Evaluation, TrainError> {
        let whole = self.evaluate_until(data, &AtomicBool::new(false))?;
        Ok(whole.unwrap_or_default())
    }

    /// [`evaluate`](Self::evaluate), or `None` if `stop` is set before all examples were looked at.
    ///
    /// # Errors
    ///
    /// As for [`evaluate`](Self::evaluate).
    pub fn evaluate_until(
        &mut self,
        data: &N::Data,
        stop: &AtomicBool,
    ) -> Result<Option<Evaluation>, TrainError> {
        let mine = self.evaluate_share(data, stop);
        match &self.ranks {
            Some(ranks) => ranks.evaluation(mine),
            None => mine,
        }
    }

    /// This process's part of an evaluation.
    fn evaluate_share(
        &mut self,
        data: &N::Data,
        stop: &AtomicBool,
    ) -> Result<Option<Evaluation>, TrainError> {
        let Self { config, arena, model, run, events, .. } = self;
        let (rank, of) = (config.share.rank as usize, config.share.of as usize);
        let mut number = 0;
        let all: Vec<u32> = (0..).take(data.len()).collect();
        let (mut seen, mut rest) = (Evaluation::default(), all.as_slice());
        for group in data.groups() {
            let (examples, behind) = rest.split_at(group);
            rest = behind;
            for examples in examples.chunks(config.batch) {
                number += 1;
                if (number - 1) % of != rank {
                    continue;
                }
                if stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                let key = EVALUATE.variant(N::variant(data, examples));
                let ended = arena.scope_with(options(run.as_ref(), key), |scope| {
                    let batch = model.load(scope, data, examples)?;
                    let loss = model.evaluate(scope, batch)?;
                    let hits = scope.read_one(loss.hits.view())?;
                    Ok::<_, TrainError>((hits, scope.read_one(loss.mean.view())?))
                });
                if let Some(events) = events {
                    events.step(arena, key);
                }
                let (hits, loss) = ended?;
                let predictions = N::predictions(data, examples);
                seen.hits += u64::from(hits);
                seen.predictions += predictions;
                seen.loss_sum += f64::from(loss) * predictions as f64;
            }
        }
        Ok(Some(seen))
    }

    /// Something that the network makes in a step of this kind.
    pub(crate) fn scope_of_kind<R>(
        &mut self,
        key: StepKey,
        body: impl for<'s, 'a> FnOnce(&mut Scope<'s, 'a, DeviceOf<N>>, &N) -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        let Self { arena, model, run, events, .. } = self;
        let made = arena.scope_with(options(run.as_ref(), key), |scope| body(scope, model));
        if let Some(events) = events {
            events.step(arena, key);
        }
        made
    }
}

/// A scope for a step of this kind. If its need is known, it opens only if there is room for it.
fn options(run: Option<&PlannedRun>, key: StepKey) -> ScopeOptions {
    run.map_or_else(|| key.into(), |run| run.options(key))
}
