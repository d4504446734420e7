//! The other processes of a run: what they add up in each step, and that all of them do the same at the same addresses.

use std::collections::BTreeMap;
use std::rc::Rc;

use arena_collective::{Collective, RankError, gather};
use arena_scope::record::StepEvent;
use arena_scope::{Arena, Device};

use super::outcome::Evaluation;
use crate::error::TrainError;
use crate::parameters::Parameters;

/// How it stands with a rank: it was asked to stop, its addresses have changed, or it failed.
const STOPS: f32 = 1.0;
const CHANGED: f32 = 2.0;
const FAILED: f32 = 3.0;

/// Requests of a step that are compared when addresses differ.
const MOST_REQUESTS: usize = 1 << 16;

/// The ranks of a run.
#[derive(Debug)]
pub(super) struct Ranks<D: Device> {
    engine: Rc<dyn Collective<D>>,
    /// The mean loss of the last step, and how it stood with each rank.
    report: Vec<f32>,
    /// All-reduces so far.
    came: u64,
    /// The signature of each kind of step that was compared, by the variant of the whole batch and of this rank's part.
    compared: BTreeMap<(u64, u64), u64>,
    /// This rank's addresses have changed since; those of some rank have.
    has_changed: bool,
    compare_again: bool,
}

impl<D: Device> Ranks<D> {
    pub(super) fn new(engine: Rc<dyn Collective<D>>) -> Self {
        Self {
            engine,
            report: Vec::new(),
            came: 0,
            compared: BTreeMap::new(),
            has_changed: false,
            compare_again: false,
        }
    }

    /// All-reduces so far.
    pub(super) const fn came(&self) -> u64 {
        self.came
    }

    /// Adds up the gradients of all ranks. Returns their mean loss, and whether one of them is asked to stop, as this one
    /// `is_asked`. `mine` is how this rank's part went. If it failed on any rank, every rank returns which one, and why.
    pub(super) fn add_up(
        &mut self,
        parameters: &mut Parameters<D>,
        mine: Result<(), TrainError>,
        is_asked: bool,
    ) -> Result<(f32, bool), TrainError> {
        let state = match &mine {
            Err(_) => FAILED,
            Ok(()) if self.has_changed => CHANGED,
            Ok(()) if is_asked => STOPS,
            Ok(()) => 0.0,
        };
        if state > 0.0 {
            parameters.report(self.engine.rank(), state)?;
        }
        parameters.add_up(&*self.engine, &mut self.report)?;
        self.came += 1;
        let (loss, states) = self.report.split_first().unwrap_or((&0.0, &[]));
        let any = |state| states.contains(&state);
        if any(FAILED) {
            return Err(self.told(mine.map_err(|error| error.to_string())));
        }
        self.compare_again = any(CHANGED);
        Ok((*loss, any(STOPS)))
    }

    /// Tells the others, which are in a step, that this rank failed; returns what all of them return.
    pub(super) fn fail(&mut self, parameters: &mut Parameters<D>, error: TrainError) -> TrainError {
        match error {
            // All ranks have met these.
            TrainError::Rank(_) | TrainError::Collective(_) | TrainError::NotFinite { .. } => error,
            _ => self.add_up(parameters, Err(error), false).err().unwrap_or(TrainError::NotAhead),
        }
    }

    /// What every rank returns where one of them failed.
    fn told(&self, mine: Result<(), String>) -> TrainError {
        match gather(&*self.engine, mine.map(|()| [])) {
            Ok(Err(failed)) => failed.into(),
            Ok(Ok::<Vec<[u64; 0]>, _>(_)) => RankError {
                rank: self.engine.rank(),
                cause: "it failed, and did not say why".to_owned(),
            }
            .into(),
            Err(error) => error.into(),
        }
    }

    /// Compares the addresses of the step that closed last with those of the ranks whose part of the batch was of the same
    /// kind: when a kind of step comes for the first time, and when the addresses of a rank have changed. `batch` tells the
    /// kinds of whole batches apart, `part` those of this rank's part.
    pub(super) fn compare(
        &mut self,
        arena: &Arena<D>,
        parameters: &Parameters<D>,
        (batch, part): (u64, u64),
    ) -> Result<(), TrainError> {
        let signature = arena.last_step_signature().map_or(0, |signature| signature.value());
        let before = self.compared.insert((batch, part), signature);
        if before.is_some() && !std::mem::take(&mut self.compare_again) {
            self.has_changed = before != Some(signature);
            return Ok(());
        }
        self.has_changed = false;
        let offset_bytes = parameters.sums_offset_bytes(arena.base_address());
        let mine = [part, signature, offset_bytes];
        let found = gather(&*self.engine, Ok(mine))??;
        let pairs = (0..found.len()).flat_map(|rank| (0..rank).map(move |like| (like, rank)));
        let differs = |&(like, rank): &(usize, usize)| {
            let ([part, signature, offset], [its_part, its_signature, its_offset]) =
                (found[like], found[rank]);
            offset != its_offset || (part == its_part && signature != its_signature)
        };
        let Some((like, rank)) = pairs.into_iter().find(differs) else { return Ok(()) };
        let expected = self.requests_of(arena, like)?;
        let mine = if rank == self.engine.rank() as usize {
            Err(first_difference(like, &expected, &requests(arena)))
        } else {
            Ok(())
        };
        Err(self.told(mine))
    }

    /// The requests of a rank's last step, offset and bytes, if it is recorded.
    fn requests_of(&self, arena: &Arena<D>, rank: usize) -> Result<Vec<[u64; 2]>, TrainError> {
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        let mut requests = if rank == self.engine.rank() { requests(arena) } else { Vec::new() };
        let mut len = (requests.len() as u64).to_le_bytes();
        self.engine.broadcast(&mut len, rank)?;
        let len = usize::try_from(u64::from_le_bytes(len)).unwrap_or(0).min(MOST_REQUESTS);
        requests.resize(len, [0; 2]);
        self.engine.broadcast(bytemuck::cast_slice_mut(&mut requests), rank)?;
        Ok(requests)
    }

    /// What all ranks saw of their parts of an evaluation; `None` if one was asked to stop.
    pub(super) fn evaluation(
        &self,
        mine: Result<Option<Evaluation>, TrainError>,
    ) -> Result<Option<Evaluation>, TrainError> {
        let mine = match mine {
            Ok(Some(seen)) => Ok([seen.hits, seen.predictions, seen.loss_sum.to_bits(), 0]),
            Ok(None) => Ok([0, 0, 0, 1]),
            Err(error) => Err(error.to_string()),
        };
        let parts = gather(&*self.engine, mine)?.map_err(TrainError::Rank)?;
        let mut all = Evaluation::default();
        for [hits, predictions, loss_sum, stopped] in parts {
            if stopped == 1 {
                return Ok(None);
            }
            all.hits += hits;
            all.predictions += predictions;
            all.loss_sum += f64::from_bits(loss_sum);
        }
        Ok(Some(all))
    }
}

fn requests<D: Device>(arena: &Arena<D>) -> Vec<[u64; 2]> {
    let log = arena.last_recorded().unwrap_or_default();
    let requests = log.events().iter().filter_map(|event| match *event {
        StepEvent::Alloc { offset_bytes, bytes, .. } => Some([offset_bytes, bytes]),
        _ => None,
    });
    requests.take(MOST_REQUESTS).collect()
}

fn first_difference(like: usize, expected: &[[u64; 2]], found: &[[u64; 2]]) -> String {
    let request =
        expected.iter().zip(found).take_while(|(expected, found)| expected == found).count();
    let place = |of: &[[u64; 2]]| match of.get(request) {
        Some([offset, bytes]) => format!("{bytes} bytes at offset {offset}"),
        None => "nothing".to_owned(),
    };
    format!(
        "its step has other addresses than that of rank {like}: its request {request}, counted from 0, got {}, where \
         rank {like} got {}",
        place(found),
        place(expected)
    )
}
