//! One step: its batches, one after the other, and the update.

use std::sync::atomic::{AtomicBool, Ordering};

use arena_scope::Scope;

use super::RunConfig;
use super::ranks::Ranks;
use crate::error::TrainError;
use crate::network::{DeviceOf, Network};

/// One step: load, forward, backward, update. Returns the mean loss of its examples. The ranks come with whether this one
/// is asked to stop, and where it is left that one of them is.
///
/// The loss is read before the update, which is the last thing that can fail, and is one call: so a step that fails
/// here has moved nothing, and one that moved the parameters is counted.
pub(super) fn train_step<N: Network>(
    scope: &mut Scope<'_, '_, DeviceOf<N>>,
    model: &mut N,
    config: &RunConfig<N::Sizes>,
    data: &N::Data,
    examples: &[u32],
    step: &mut u64,
    ranks: Option<(&mut Ranks<DeviceOf<N>>, &AtomicBool, &AtomicBool)>,
) -> Result<f32, TrainError> {
    let loss = if config.accumulate > 1 || config.share.is_part() {
        let mine = accumulate(scope, model, config, data, examples, *step);
        let parameters = model.parts_mut().1;
        match ranks {
            Some((ranks, asked, stop)) => {
                let is_asked = asked.load(Ordering::Relaxed);
                let (loss, stops) = ranks.add_up(parameters, mine, is_asked)?;
                stop.store(stops, Ordering::Relaxed);
                loss
            }
            None => {
                mine?;
                parameters.summed_loss()?
            }
        }
    } else {
        let batch = model.load(scope, data, examples)?;
        let loss = model.gradients(scope, *step, batch)?;
        scope.read_one(loss.view())?
    };
    if !loss.is_finite() {
        return Err(TrainError::NotFinite { step: *step + 1, loss });
    }
    model.update(*step + 1, config.rate_factor(*step, data))?;
    *step += 1;
    Ok(loss)
}

/// The gradients of this process's part of several batches, each in an inner scope, weighted by their numbers of
/// examples, and their mean loss weighted alike.
fn accumulate<N: Network>(
    scope: &mut Scope<'_, '_, DeviceOf<N>>,
    model: &mut N,
    config: &RunConfig<N::Sizes>,
    data: &N::Data,
    examples: &[u32],
    step: u64,
) -> Result<(), TrainError> {
    model.parts_mut().1.clear_sums()?;
    let (rank, of) = (u64::from(config.share.rank), u64::from(config.share.of));
    for (number, batch) in (0..).zip(examples.chunks(config.batch)) {
        let mine = config.share.part(batch, config.batch);
        if mine.is_empty() {
            continue;
        }
        let weight = mine.len() as f32 / examples.len() as f32;
        scope.scope(|inner| {
            let loaded = model.load(inner, data, mine)?;
            let number = (step * config.accumulate as u64 + number) * of + rank;
            let loss = model.gradients(inner, number, loaded)?;
            let (backend, parameters) = model.parts_mut();
            parameters.add_to_sums(backend, weight, loss.view())
        })?;
    }
    Ok(())
}
