//! Checkpoints: a safetensors file with the parameters, the optimizer's state, and where the run
//! stands, so that a resumed run continues as if it had not stopped.
//!
//! The file's metadata says what run it is of: the settings that decide its numbers, and the data. It also holds a
//! checksum of the file, so that one damaged bit is found.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::Path;

use arena_plan::files::{self, shortened};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::backend::host::AdamConfig;
use crate::error::TrainError;
use crate::network::Network;
use crate::optimizer::Optimizer;
use crate::training::{RunConfig, Trainer};

const FORMAT: &str = "watermark-arena mnist 2";

/// Written before there were checksums, and before the data was named. It is still read.
const FORMAT_1: &str = "watermark-arena mnist 1";

/// Before the checksum's hexadecimal digits in a file.
const CHECKSUM: &[u8] = b"\"checksum\":\"";

/// What stands for the checksum while it is computed.
const NO_CHECKSUM: &str = "00000000";

/// A setting that must be the same for a run to be continued.
struct Setting {
    name: &'static str,
    value: String,
    /// The value in files that do not name it, for they are older.
    before: Option<&'static str>,
}

fn settings<N: Network>(config: &RunConfig<N::Sizes>) -> Vec<Setting> {
    let optimizer = match config.optimizer {
        Optimizer::Sgd(config) => format!("sgd, momentum {}", config.momentum),
        Optimizer::Adam(AdamConfig { beta1, beta2, epsilon, weight_decay, .. }) => {
            let adam = format!("adam, {beta1} {beta2} {epsilon}");
            // As files name it that are older than the decay.
            if weight_decay == 0.0 { adam } else { format!("{adam}, decay {weight_decay}") }
        }
    };
    let always = [
        ("seed", config.seed.to_string()),
        ("batch", config.batch.to_string()),
        ("epochs", config.epochs.to_string()),
        ("optimizer", optimizer),
        ("lr", config.optimizer.learning_rate().to_string()),
    ];
    let later = [
        ("network", N::describe(&config.network), "cnn"),
        ("accumulate", config.accumulate.to_string(), "1"),
        ("ranks", config.share.of.to_string(), "1"),
        ("warmup", config.warmup.to_string(), "0"),
    ];
    // First of all what decides most.
    let later = later.map(|(name, value, before)| Setting { name, value, before: Some(before) });
    let always = always.map(|(name, value)| Setting { name, value, before: None });
    later.into_iter().chain(always).collect()
}

/// Writes where a run stands after `step` steps to `path`, whole or not at all: see [`files::write`](files::write()).
///
/// # Errors
///
/// [`TrainError::Checkpoint`] when a value is infinite or no number; when the device refuses a copy, or the file cannot
/// be written. The file is as it was before.
pub fn save<N: Network>(
    model: &N,
    (config, data): (&RunConfig<N::Sizes>, &str),
    step: u64,
    path: &Path,
) -> Result<(), TrainError> {
    let mut tensors = Vec::new();
    for (name, view) in model.parameters().saved()? {
        let values = view.to_vec()?;
        check_finite(&name, &values).map_err(failed(path))?;
        tensors.push((name, values));
    }
    let settings = settings::<N>(config).into_iter();
    let mut metadata: HashMap<String, String> =
        settings.map(|setting| (setting.name.to_owned(), setting.value)).collect();
    let more = [
        ("format", FORMAT.to_owned()),
        ("checksum", NO_CHECKSUM.to_owned()),
        ("data", data.to_owned()),
        ("step", step.to_string()),
    ];
    metadata.extend(more.map(|(name, value)| (name.to_owned(), value)));

    files::write(path, |to| {
        let views = tensors
            .iter()
            .map(|(name, values)| {
                let bytes = bytemuck::cast_slice(values);
                Ok((name, TensorView::new(Dtype::F32, vec![values.len()], bytes)?))
            })
            .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
            .map_err(io::Error::other)?;
        let mut file = safetensors::serialize(views, Some(metadata)).map_err(io::Error::other)?;
        if let Some(place) = checksum_place(&file) {
            let checksum = checksum(&file, place.clone());
            file[place].copy_from_slice(checksum.as_bytes());
        }
        to.write_all(&file)
    })?;
    Ok(())
}

/// Where the digits of a file's checksum lie, in its header.
fn checksum_place(file: &[u8]) -> Option<Range<usize>> {
    let (len, behind) = file.split_first_chunk::<8>()?;
    let header = behind.get(..usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
    let at = header.windows(CHECKSUM.len()).position(|bytes| bytes == CHECKSUM)?;
    let start = len.len() + at + CHECKSUM.len();
    let place = start..start + NO_CHECKSUM.len();
    file.get(place.clone()).map(|_| place)
}

/// The checksum of a file, as if it had none yet.
fn checksum(file: &[u8], place: Range<usize>) -> String {
    let mut hasher = crc32fast::Hasher::new();
    for part in [&file[..place.start], NO_CHECKSUM.as_bytes(), &file[place.end..]] {
        hasher.update(part);
    }
    format!("{:08x}", hasher.finalize())
}

fn check_finite(name: &str, values: &[f32]) -> Result<(), String> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(format!("{name} is {} at index {at}", values[at])),
        None => Ok(()),
    }
}

fn failed(path: &Path) -> impl Fn(String) -> TrainError {
    move |reason| {
        // It may quote the file.
        let reason = shortened(&reason).into_owned();
        TrainError::Checkpoint { path: path.to_owned(), reason }
    }
}

/// Sets a fresh run over `data` to where the checkpoint's run stood.
///
/// # Errors
///
/// [`TrainError::File`] when the file cannot be read, and [`TrainError::Checkpoint`] when it is not a checkpoint, is
/// damaged, holds a value that is infinite or no number, is of a run over other data or with another seed, batch,
/// number of epochs, optimizer or rate, or stands behind this run's end; the trainer is unchanged then. Or the
/// device's refusal of a copy.
pub fn resume<N: Network>(
    trainer: &mut Trainer<N>,
    (train, identity): (&N::Data, &str),
    path: &Path,
) -> Result<(), TrainError> {
    let failed = failed(path);
    let bytes = files::read(path)?;
    let (_, header) =
        SafeTensors::read_metadata(&bytes).map_err(|error| failed(error.to_string()))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| failed(error.to_string()))?;
    let metadata = header.metadata().clone().unwrap_or_default();
    let entry = |name: &str| {
        metadata.get(name).ok_or_else(|| failed(format!("it does not say its {name}")))
    };
    let config = trainer.config();
    let mut settings = settings::<N>(config);
    match entry("format")?.as_str() {
        FORMAT => {
            let place = checksum_place(&bytes);
            let found = place.map(|place| checksum(&bytes, place));
            if found.as_ref() != Some(entry("checksum")?) {
                return Err(failed("it is damaged: its checksum is another one".to_owned()));
            }
            settings.push(Setting { name: "data", value: identity.to_owned(), before: None });
        }
        FORMAT_1 => {}
        other => return Err(failed(format!("its format is `{other}`, not `{FORMAT}`"))),
    }
    for Setting { name, value, before } in settings {
        let theirs = match (metadata.get(name), before) {
            (None, Some(before)) => before,
            _ => entry(name)?,
        };
        if theirs != value {
            let reason = format!("its run has {name} {theirs}, this one {value}");
            return Err(failed(reason));
        }
    }
    let step = entry("step")?.parse().map_err(|_| failed("its step is no number".to_owned()))?;
    let last = config.last_step(train);
    if step > last {
        return Err(failed(format!("it stands after step {step}, and this run ends at {last}")));
    }

    // Everything is read and checked before the first value is written.
    let read = |name: &str, len: usize| {
        let tensor = tensors.tensor(name).map_err(|error| failed(error.to_string()))?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != [len] {
            let (dtype, shape) = (tensor.dtype(), tensor.shape());
            return Err(failed(format!("{name} is {dtype:?} {shape:?}, not F32 [{len}]")));
        }
        // The file's bytes may lie at any address.
        let values = bytemuck::allocation::pod_collect_to_vec::<u8, f32>(tensor.data());
        check_finite(name, &values).map_err(&failed)?;
        Ok(values)
    };
    let (model, steps_done) = trainer.restore_point();
    let mut loaded = Vec::new();
    for (name, view) in model.parameters().saved()? {
        loaded.push(read(&name, view.len())?);
    }
    for ((_, mut view), values) in model.parts_mut().1.saved_mut().into_iter().zip(&loaded) {
        view.write(values)?;
    }
    *steps_done = step;
    Ok(())
}
