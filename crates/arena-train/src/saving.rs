//! When a run writes its checkpoint.

use std::path::PathBuf;
use std::time::Instant;

use arena_plan::files::tell;

use crate::checkpoint;
use crate::cli::Every;
use crate::error::TrainError;
use crate::network::Network;
use crate::training::RunConfig;

/// Writes the checkpoint of a run.
#[derive(Debug)]
pub struct Saver<N: Network> {
    path: PathBuf,
    every: Option<Every>,
    config: RunConfig<N::Sizes>,
    /// Which data it is trained on.
    data: String,
    /// The step that the file is of, if this run wrote it.
    saved: Option<u64>,
    /// When it was written, or tried.
    last: Instant,
}

impl<N: Network> Saver<N> {
    /// For a run with this configuration over the data of this identity, which begins now.
    #[must_use]
    pub fn new(
        path: PathBuf,
        every: Option<Every>,
        config: RunConfig<N::Sizes>,
        data: String,
    ) -> Self {
        Self { path, every, config, data, saved: None, last: Instant::now() }
    }

    /// Writes the file if it is time to. What cannot be written is told, and the run goes on.
    pub fn after_step(&mut self, model: &N, step: u64) {
        let is_due = self.every.is_some_and(|every| match every {
            Every::Steps(steps) => step.is_multiple_of(steps.get()),
            Every::Time(time) => self.last.elapsed() >= time,
        });
        if is_due {
            if let Err(error) = self.save(model, step) {
                tell(format_args!("arena-train: {error}; the run goes on"));
            }
            self.last = Instant::now();
        }
    }

    /// Writes the file, unless it is of this step already.
    ///
    /// # Errors
    ///
    /// As for [`checkpoint::save`].
    pub fn save(&mut self, model: &N, step: u64) -> Result<(), TrainError> {
        if self.saved != Some(step) {
            checkpoint::save(model, (&self.config, &self.data), step, &self.path)?;
            self.saved = Some(step);
        }
        Ok(())
    }
}
