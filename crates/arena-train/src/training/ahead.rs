//! Steps that the host does not wait for: their batches are sent ahead, their losses are read behind,
//! and a step that repeats itself is captured once and replayed.
//!
//! A graph knows only addresses, so all that differs from step to step lies in persistent buffers:
//! the batch, the loss, the count of steps and the rates that follow from it. Steps that are not
//! replayed (the first two, the short last batch) do the same through the same buffers, so that a run
//! gives the same numbers with a graph and without.
//!
//! The losses of a group of steps are copied to the host when its last step is queued, and are read
//! when that of the next group is: by then they have usually arrived, and the device always has work.

use std::mem;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, Ordering};

use arena_plan::{EventWriter, PlannedRun};
use arena_scope::record::StepSignature;
use arena_scope::{Arena, Persistent, Scope, Stats, StepKey};

use super::{RunConfig, TRAIN, Trainer, options};
use crate::data::EpochOrder;
use crate::error::TrainError;
use crate::feed::Feed;
use crate::heap;
use crate::network::{DeviceOf, Network};

/// How the host runs ahead of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AheadConfig {
    /// Steps whose losses are read together, when as many more are queued.
    pub loss_every: NonZeroU16,
    /// Whether a whole step is captured when it has repeated itself, and replayed from then on.
    pub graph: bool,
}

/// What a step reads and writes besides the network, at addresses that never change.
#[derive(Debug)]
struct Buffers<D: Feed> {
    /// A batch as it was sent.
    input: Persistent<u8, D>,
    loss: Persistent<f32, D>,
    /// Steps done, and the rates of the step that they lead to.
    steps: Persistent<u64, D>,
    rates: Persistent<f32, D>,
}

/// Everything that lets the host run ahead.
#[derive(Debug)]
pub(super) struct Ahead<N: Network> {
    config: AheadConfig,
    graph: Option<<DeviceOf<N> as Feed>::Graph>,
    /// Why no step is captured or replayed any more.
    refusal: Option<String>,
    replays: u64,
    slots: <DeviceOf<N> as Feed>::Slots,
    /// Whether a batch was sent that no step has taken.
    is_sent: bool,
    buffers: Buffers<DeviceOf<N>>,
    /// The losses of the group of steps that is being queued, and each one's predictions.
    losses: Persistent<f32, DeviceOf<N>>,
    predictions: Vec<u64>,
    /// Whether that group is on its way to the host.
    is_pushed: bool,
    /// The losses of whole groups on their way to the host, and the predictions of the older one's steps.
    results: <DeviceOf<N> as Feed>::Results,
    older: Vec<u64>,
    /// The last step whose loss was told.
    told: u64,
    /// Of the last whole step, and whether the one before had the same.
    signature: Option<StepSignature>,
    repeats: bool,
}

impl<N: Network> Ahead<N> {
    pub(super) fn new(
        arena: &Arena<DeviceOf<N>>,
        config: AheadConfig,
        run: &RunConfig<N::Sizes>,
    ) -> Result<Self, TrainError> {
        // The device counts the steps, and knows one schedule and one batch a step.
        if run.warmup > 0 || run.accumulate > 1 {
            return Err(TrainError::NotAhead);
        }
        let (batch_bytes, losses) =
            (run.batch.saturating_mul(N::sent_bytes()), usize::from(config.loss_every.get()));
        let slots = DeviceOf::<N>::slots(arena, batch_bytes)?;
        let buffers = Buffers {
            input: arena.persistent(batch_bytes)?,
            loss: arena.persistent(1)?,
            steps: arena.persistent(1)?,
            rates: arena.persistent(3)?,
        };
        Ok(Self {
            config,
            graph: None,
            refusal: None,
            replays: 0,
            slots,
            is_sent: false,
            buffers,
            losses: arena.persistent(losses)?,
            predictions: Vec::with_capacity(losses),
            is_pushed: false,
            results: DeviceOf::<N>::results(arena, losses)?,
            older: Vec::with_capacity(losses),
            told: 0,
            signature: None,
            repeats: false,
        })
    }

    /// Begins anew after `step` steps: with other data, other steps are to be captured.
    pub(super) fn restart(&mut self, step: u64) -> Result<(), TrainError> {
        // What a failed run left on its way is of no interest.
        DeviceOf::<N>::discard(&mut self.slots)?;
        self.is_sent = false;
        (self.graph, self.refusal, self.replays) = (None, None, 0);
        (self.signature, self.repeats) = (None, false);
        while DeviceOf::<N>::pop(&mut self.results, |_| ())?.is_some() {}
        self.predictions.clear();
        self.older.clear();
        (self.is_pushed, self.told) = (false, step);
        Ok(self.buffers.steps.view_mut().write(&[step])?)
    }

    /// How often a graph was replayed, and why none is any more.
    pub(super) fn replays(&self) -> (u64, Option<String>) {
        (self.replays, self.refusal.clone())
    }

    /// Sends the batch of the next step, unless that was done.
    fn send(&mut self, data: &N::Data, examples: &[u32]) -> Result<(), TrainError> {
        if self.is_sent {
            return Ok(());
        }
        let mut gathered = Ok(());
        DeviceOf::<N>::send(&mut self.slots, |bytes| {
            let len = bytes.len().min(examples.len() * N::sent_bytes());
            gathered = N::send(data, examples, &mut bytes[..len]);
        })?;
        self.is_sent = true;
        gathered
    }

    /// Queues the step of the batch that was sent, counts it in `step` as soon as its update is queued, and keeps
    /// its loss on the device.
    fn step(
        &mut self,
        arena: &mut Arena<DeviceOf<N>>,
        model: &mut N,
        work: Work<'_>,
        step: &mut u64,
    ) -> Result<(), TrainError> {
        let before = *step;
        self.is_sent = false;
        DeviceOf::<N>::take(&mut self.slots, self.buffers.input.view_mut())?;
        let ended = if self.replay(arena, model, work) {
            *step += 1;
            Ok(())
        } else {
            let buffers = &mut self.buffers;
            let options = options(work.run, work.key);
            let ended = arena.scope_with(options, |scope| {
                queue(scope, model, buffers, work)?;
                *step += 1;
                Ok(())
            });
            let signature = arena.last_step_signature();
            self.repeats = work.is_whole && self.signature == signature;
            if work.is_whole {
                self.signature = signature;
            }
            ended
        };
        // Also when only the close failed: the step was done.
        if *step > before {
            let at = self.predictions.len();
            self.losses.view_mut().range(at..=at)?.copy_from(self.buffers.loss.view())?;
            self.predictions.push(work.predictions);
        }
        ended
    }

    /// Replays the step, captured before or now. False where it is to be queued in the ordinary way:
    /// nothing of it is queued then.
    fn replay(&mut self, arena: &mut Arena<DeviceOf<N>>, model: &mut N, work: Work<'_>) -> bool {
        if !self.config.graph || !work.is_whole || self.refusal.is_some() {
            return false;
        }
        if self.graph.is_none() && self.repeats {
            let buffers = &mut self.buffers;
            match DeviceOf::<N>::capture(arena, work.key, |scope| {
                queue(scope, model, buffers, work)
            }) {
                Ok(graph) => self.graph = Some(graph),
                Err(error) => {
                    self.refusal = Some(format!("the step was not captured: {error}"));
                    // What the close of the captured scope left behind has the same cause; a device
                    // that is lost says so again.
                    let _ = arena.check();
                }
            }
        }
        let Some(graph) = &self.graph else { return false };
        match DeviceOf::<N>::replay(graph, arena) {
            Ok(()) => {
                self.replays += 1;
                true
            }
            Err(error) => {
                self.refusal = Some(format!("the captured step was not replayed: {error}"));
                self.graph = None;
                false
            }
        }
    }

    fn is_full(&self) -> bool {
        self.predictions.len() == self.losses.len()
    }

    /// Sends the losses of the group on their way, and tells those of the group before it, which it
    /// waits for; with `all`, of both. After a failure it can be called again: each loss is told once.
    fn read_losses(
        &mut self,
        all: bool,
        mut tell: impl FnMut(u64, f32, u64) -> bool,
    ) -> Result<bool, TrainError> {
        if !self.predictions.is_empty() && !self.is_pushed {
            DeviceOf::<N>::push(&mut self.results, self.losses.view())?;
            self.is_pushed = true;
        }
        let mut is_over = false;
        loop {
            if !self.older.is_empty() {
                let (older, told) = (&self.older, &mut self.told);
                DeviceOf::<N>::pop(&mut self.results, |losses| {
                    for (loss, predictions) in losses.iter().zip(older) {
                        *told += 1;
                        is_over |= tell(*told, *loss, *predictions);
                    }
                })?;
                self.older.clear();
            }
            mem::swap(&mut self.older, &mut self.predictions);
            self.is_pushed = false;
            if self.older.is_empty() || !(all || is_over) {
                return Ok(is_over);
            }
        }
    }
}

/// What was seen of steps beside their losses: see [`Trained`](super::Trained).
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) off_the_mark: u64,
    pub(super) library_allocations_per_step: u64,
}

/// What a step is to do.
#[derive(Debug, Clone, Copy)]
struct Work<'c> {
    run: Option<&'c PlannedRun>,
    key: StepKey,
    examples: usize,
    predictions: u64,
    is_whole: bool,
    steps_in_all: u64,
}

/// One step over the batch in the buffers: nothing in it waits, or reads what the host may change. The update is the
/// last thing that can fail.
fn queue<N: Network>(
    scope: &mut Scope<'_, '_, DeviceOf<N>>,
    model: &mut N,
    buffers: &mut Buffers<DeviceOf<N>>,
    work: Work<'_>,
) -> Result<(), TrainError> {
    let Work { examples, steps_in_all, .. } = work;
    let Buffers { input, loss, steps, rates } = buffers;
    let sent = input.view().range(..examples * N::sent_bytes())?;
    let batch = model.unpack(scope, examples, sent)?;
    // A captured step has no number of its own.
    let mean = model.gradients(scope, 0, batch)?;
    loss.view_mut().copy_from(mean.view())?;
    let (backend, parameters) = model.parts_mut();
    parameters.advance(backend, steps_in_all, steps.view_mut(), rates.view_mut())?;
    parameters.update_scheduled(backend, rates.view())
}

impl<N: Network> Trainer<N> {
    /// The steps of an epoch from the `first` on, ahead of the host. `after_step` is told the steps whose losses were
    /// read, and says whether to stop.
    pub(super) fn epoch_ahead(
        &mut self,
        data: &N::Data,
        (order, first): (&EpochOrder, usize),
        (last_step, stop): (u64, &AtomicBool),
        seen: &mut Seen,
        mut after_step: impl FnMut(u64, f32, u64, Stats) -> bool,
        save: &mut impl FnMut(&N, u64),
    ) -> Result<(), TrainError> {
        let Self { config, arena, model, ahead: Some(ahead), run, events, step, .. } = self else {
            return Ok(());
        };
        let steps_in_all = config.steps_in_all(data);
        // The number of a step's event follows from how many steps were trained before it.
        let (first_step, first_event) = (*step, events.as_ref().map_or(0, EventWriter::steps));
        let mut tell = |events: &mut Option<EventWriter>, step: u64, loss, predictions, stats| {
            if let Some(events) = events {
                events.result(first_event + step - 1 - first_step, loss, predictions);
            }
            after_step(step, loss, predictions, stats)
        };
        let mut batches = order.steps().skip(first).peekable();
        let mut queue_all = || -> Result<(), TrainError> {
            while let Some(examples) = batches.next() {
                let library_before = heap::library_allocations();
                let is_whole = examples.len() == config.batch;
                let key = TRAIN.variant(N::variant(data, examples));
                let work = Work {
                    run: run.as_ref(),
                    key,
                    examples: examples.len(),
                    predictions: N::predictions(data, examples),
                    is_whole,
                    steps_in_all,
                };
                ahead.send(data, examples)?;
                let ended = ahead.step(arena, model, work, step);
                if let Some(events) = events.as_mut() {
                    events.step(arena, key);
                }
                ended?;
                save(model, *step);
                let is_last = *step >= last_step;
                // While the device computes.
                if let Some(next) = batches.peek()
                    && !is_last
                {
                    ahead.send(data, next)?;
                }
                let library = heap::library_allocations() - library_before;
                seen.library_allocations_per_step = seen.library_allocations_per_step.max(library);
                let stats = arena.stats();
                seen.off_the_mark += u64::from(stats.used_bytes != stats.mark_bytes);
                let ends = is_last || batches.peek().is_none() || stop.load(Ordering::Relaxed);
                if (ends || ahead.is_full())
                    && ahead.read_losses(ends, |step, loss, predictions| {
                        tell(events, step, loss, predictions, stats)
                    })?
                {
                    break;
                }
            }
            Ok(())
        };
        let queued = queue_all();
        if queued.is_err() {
            // The steps before were done, and their losses are told if the device still can.
            let stats = arena.stats();
            let _ = ahead.read_losses(true, |step, loss, predictions| {
                tell(events, step, loss, predictions, stats)
            });
        }
        queued
    }
}
