//! Plans for the run's steps: recorded on a probe, solved before anything runs.

use std::path::Path;

use arena_plan::{Options, Plan, PlannedStep, files};
use arena_scope::{Arena, Device, StepKey};

use crate::error::TrainError;
use crate::training::{EVALUATE, TRAIN};

/// The plans of a run; `None` for a kind of step that it does not make.
#[derive(Debug, Clone, Default)]
pub struct Plans {
    /// For training steps.
    pub train: Option<NamedPlan>,
    /// For steps of an evaluation.
    pub evaluate: Option<NamedPlan>,
}

/// A plan for steps of one name.
#[derive(Debug, Clone)]
pub struct NamedPlan {
    /// The key of the largest of them, for which it was made.
    pub key: StepKey,
    /// The plan.
    pub step: PlannedStep,
    /// The keys of others that its slots serve: of the short last batch of an epoch.
    pub shared: Vec<StepKey>,
}

/// Plans what an arena recorded of the largest steps of each kind.
///
/// # Errors
///
/// When a record is no instance that can be planned.
pub fn solve<D: Device>(arena: &Arena<D>) -> Result<Plans, TrainError> {
    Ok(Plans { train: largest(arena, TRAIN)?, evaluate: largest(arena, EVALUATE)? })
}

/// The plan for whole batches, or for the short one where the dataset is smaller than a batch: the variant of a step
/// is its number of images.
fn largest<D: Device>(arena: &Arena<D>, name: StepKey) -> Result<Option<NamedPlan>, TrainError> {
    let kinds = arena.observed().map(|seen| seen.kinds).unwrap_or_default();
    let mut keys: Vec<_> = kinds.iter().map(|kind| kind.key).collect();
    keys.retain(|key| key.name == name.name);
    keys.sort_by_key(|key| key.variant);
    let Some(key) = keys.pop() else { return Ok(None) };
    let Some(log) = arena.recorded(key) else { return Ok(None) };
    let step = PlannedStep::solve(&log, &Options::default())?;
    let slots = step.slots()?;
    keys.retain(|&key| arena.recorded(key).is_some_and(|log| slots.serves(&log)));
    Ok(Some(NamedPlan { key, step, shared: keys }))
}

/// Puts a saved plan for training steps in the place of the solved one, or saves that if there is no
/// such file yet.
///
/// # Errors
///
/// [`TrainError::File`] when the file cannot be read or written; [`TrainError::Plan`] when it is damaged, or its plan
/// is for another program or alignment.
pub fn load_or_save(plans: &mut Plans, path: &Path) -> Result<(), TrainError> {
    let failed = |reason: String| TrainError::Plan { path: path.to_owned(), reason };
    let Some(NamedPlan { step: train, .. }) = &mut plans.train else { return Ok(()) };
    if path.exists() {
        let file = files::read(path)?;
        let plan = Plan::load(&file[..]).map_err(|error| failed(error.to_string()))?;
        let instance = train.plan.instance().clone();
        plan.check_for(&instance).map_err(|error| failed(error.to_string()))?;
        *train = PlannedStep::loaded(instance, plan);
        return Ok(());
    }
    Ok(files::write(path, |to| Ok(train.plan.save(to)?))?)
}
