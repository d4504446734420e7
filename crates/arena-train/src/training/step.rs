//! One step: its batches, one after the other, and the update.

use arena_scope::Scope;

use super::RunConfig;
use crate::error::TrainError;
use crate::network::{DeviceOf, Network};

/// One step: load, forward, backward, update. Returns the mean loss of its examples.
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
) -> Result<f32, TrainError> {
    let loss = if config.accumulate == 1 {
        let batch = model.load(scope, data, examples)?;
        let loss = model.gradients(scope, *step, batch)?;
        scope.read_one(loss.view())?
    } else {
        accumulate(scope, model, config, data, examples, *step)?
    };
    if !loss.is_finite() {
        return Err(TrainError::NotFinite { step: *step + 1, loss });
    }
    model.update(*step + 1, config.rate_factor(*step, data))?;
    *step += 1;
    Ok(loss)
}

/// The gradients of several batches, each in an inner scope, weighted by their numbers of examples, which are all of
/// one size. Returns the mean loss.
fn accumulate<N: Network>(
    scope: &mut Scope<'_, '_, DeviceOf<N>>,
    model: &mut N,
    config: &RunConfig<N::Sizes>,
    data: &N::Data,
    examples: &[u32],
    step: u64,
) -> Result<f32, TrainError> {
    model.parts_mut().1.clear_sums()?;
    let mut mean = 0.0;
    for (number, batch) in (0..).zip(examples.chunks(config.batch)) {
        let share = batch.len() as f32 / examples.len() as f32;
        let loss = scope.scope(|inner| {
            let loaded = model.load(inner, data, batch)?;
            let number = step * config.accumulate as u64 + number;
            let loss = model.gradients(inner, number, loaded)?;
            let (backend, parameters) = model.parts_mut();
            parameters.add_to_sums(backend, share)?;
            Ok::<_, TrainError>(inner.read_one(loss.view())?)
        })?;
        mean += share * loss;
    }
    Ok(mean)
}
