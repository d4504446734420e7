//! Checkpoints: a safetensors file with the parameters, the optimizer's state, and where the run
//! stands, so that a resumed run continues as if it had not stopped.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use arena_plan::files::{self, shortened};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::backend::Backend;
use crate::error::TrainError;
use crate::optimizer::Optimizer;
use crate::training::{RunConfig, Trainer};

const FORMAT: &str = "watermark-arena mnist 1";

/// What must be the same for a run to be continued, by name.
fn identity(config: &RunConfig) -> [(&'static str, String); 5] {
    let optimizer = match config.optimizer {
        Optimizer::Sgd(config) => format!("sgd, momentum {}", config.momentum),
        Optimizer::Adam(config) => {
            format!("adam, {} {} {}", config.beta1, config.beta2, config.epsilon)
        }
    };
    [
        ("seed", config.seed.to_string()),
        ("batch", config.batch.to_string()),
        ("epochs", config.epochs.to_string()),
        ("optimizer", optimizer),
        ("lr", config.optimizer.learning_rate().to_string()),
    ]
}

/// Writes the run's state to `path`, whole or not at all: see [`files::write`](files::write()).
///
/// # Errors
///
/// When the device refuses a copy, or the file cannot be written.
pub fn save<B: Backend>(trainer: &Trainer<B>, path: &Path) -> Result<(), TrainError> {
    let tensors = trainer.model().parameters().saved()?;
    let tensors = tensors.into_iter().map(|(name, view)| Ok((name, view.to_vec()?)));
    let tensors = tensors.collect::<Result<Vec<_>, TrainError>>()?;
    let mut metadata: HashMap<String, String> =
        identity(trainer.config()).map(|(name, value)| (name.to_owned(), value)).into();
    metadata.insert("format".to_owned(), FORMAT.to_owned());
    metadata.insert("step".to_owned(), trainer.step().to_string());

    files::write(path, |to| {
        let views = tensors
            .iter()
            .map(|(name, values)| {
                let bytes = bytemuck::cast_slice(values);
                Ok((name, TensorView::new(Dtype::F32, vec![values.len()], bytes)?))
            })
            .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
            .map_err(io::Error::other)?;
        let file = safetensors::serialize(views, Some(metadata)).map_err(io::Error::other)?;
        to.write_all(&file)
    })?;
    Ok(())
}

/// Sets a fresh run to where the checkpoint's run stood.
///
/// # Errors
///
/// [`TrainError::File`] when the file cannot be read, and [`TrainError::Checkpoint`] when it is not a checkpoint, or
/// is of a run with another seed, batch, number of epochs, optimizer or rate; the trainer is unchanged then. Or the
/// device's refusal of a copy.
pub fn resume<B: Backend>(trainer: &mut Trainer<B>, path: &Path) -> Result<(), TrainError> {
    let failed = |reason: String| {
        // It may quote the file.
        let reason = shortened(&reason).into_owned();
        TrainError::Checkpoint { path: path.to_owned(), reason }
    };
    let bytes = files::read(path)?;
    let (_, header) =
        SafeTensors::read_metadata(&bytes).map_err(|error| failed(error.to_string()))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| failed(error.to_string()))?;
    let metadata = header.metadata().clone().unwrap_or_default();
    let entry = |name: &str| {
        metadata.get(name).ok_or_else(|| failed(format!("it does not say its {name}")))
    };
    if entry("format")? != FORMAT {
        return Err(failed(format!("its format is `{}`, not `{FORMAT}`", entry("format")?)));
    }
    for (name, ours) in identity(trainer.config()) {
        let theirs = entry(name)?;
        if *theirs != ours {
            let reason = format!("its run has {name} {theirs}, this one {ours}");
            return Err(failed(reason));
        }
    }
    let step = entry("step")?.parse().map_err(|_| failed("its step is no number".to_owned()))?;

    // Everything is read and checked before the first value is written.
    let read = |name: &str, len: usize| {
        let tensor = tensors.tensor(name).map_err(|error| failed(error.to_string()))?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != [len] {
            let (dtype, shape) = (tensor.dtype(), tensor.shape());
            return Err(failed(format!("{name} is {dtype:?} {shape:?}, not F32 [{len}]")));
        }
        // The file's bytes may lie at any address.
        Ok(bytemuck::allocation::pod_collect_to_vec::<u8, f32>(tensor.data()))
    };
    let (model, steps_done) = trainer.restore_point();
    let mut loaded = Vec::new();
    for (name, view) in model.parameters().saved()? {
        loaded.push(read(&name, view.len())?);
    }
    for ((_, mut view), values) in model.parameters_mut().saved_mut().into_iter().zip(&loaded) {
        view.write(values)?;
    }
    *steps_done = step;
    Ok(())
}
