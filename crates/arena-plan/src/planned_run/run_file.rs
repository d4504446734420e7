//! The plans of a run in one file.

use std::path::{Path, PathBuf};

use arena_scope::StepKey;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{PlannedKind, PlannedRun};
use crate::files::{self, FileError};
use crate::plan::{Plan, PlanError};
use crate::record::PlannedStep;

impl PlannedRun {
    /// Writes all plans to one file, whole or not at all.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), RunFileError> {
        let planned =
            self.kinds.iter().filter_map(|kind| Some((kind.key, kind.step.as_ref().ok()?)));
        let kinds = planned.map(|(key, step)| {
            let mut plan = Vec::new();
            step.plan.save(&mut plan)?;
            let plan = serde_json::from_slice(&plan)?;
            Ok(KindInFile { name: key.name.to_owned(), variant: key.variant, plan })
        });
        let kinds = kinds.collect::<Result<Vec<_>, PlanError>>();
        let kinds = kinds.map_err(|cause| RunFileError::plan(path, None, cause))?;
        let file = RunFile { format: FORMAT.to_owned(), version: VERSION, kinds };
        Ok(files::write(path, |to| {
            serde_json::to_writer(&mut *to, &file)?;
            writeln!(to)
        })?)
    }

    /// Takes the plans of a file instead of its own: such as ones that a longer search has found.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, is damaged, or is for another program: the error names the kind of step and the
    /// first buffer that differs. Nothing is changed then.
    pub fn load(&mut self, path: &Path) -> Result<(), RunFileError> {
        let file = RunFile::read(&files::read(path)?);
        let file = file.map_err(|cause| RunFileError::plan(path, None, cause))?;
        let mut kinds = self.kinds.clone();
        for kind in &mut kinds {
            let Ok(step) = &kind.step else { continue };
            let same = |in_file: &&KindInFile| {
                (in_file.name.as_str(), in_file.variant) == (kind.key.name, kind.key.variant)
            };
            let Some(in_file) = file.kinds.iter().find(same) else {
                return Err(RunFileError::Missing { path: path.to_owned(), key: kind.key });
            };
            let instance = step.plan.instance().clone();
            let plan = Plan::load(in_file.plan.get().as_bytes());
            let plan = plan.and_then(|plan| plan.check_for(&instance).map(|()| plan));
            let plan = plan.map_err(|cause| RunFileError::plan(path, Some(kind.key), cause))?;
            let step = Ok(PlannedStep::loaded(instance, plan));
            let log = std::mem::take(&mut kind.log);
            *kind = PlannedKind::new(kind.key, log, step, kind.bumped_bytes, self.persistent_bytes);
        }
        self.kinds = kinds;
        self.size();
        Ok(())
    }
}

const FORMAT: &str = "arena-plan run";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunFile {
    format: String,
    version: u32,
    kinds: Vec<KindInFile>,
}

/// What each file with plans begins with.
#[derive(Deserialize)]
struct Head {
    format: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KindInFile {
    name: String,
    variant: u64,
    plan: Box<RawValue>,
}

impl RunFile {
    fn read(file: &[u8]) -> Result<Self, PlanError> {
        let file: Self = serde_json::from_slice(file)?;
        if (file.format.as_str(), file.version) != (FORMAT, VERSION) {
            return Err(PlanError::Format { format: file.format, version: file.version });
        }
        Ok(file)
    }
}

/// The plans of a file that [`PlannedRun::save`] has written, each with its key as `name:variant`. A file of
/// [`Plan::save`] has one plan, and its key is empty.
///
/// ```
/// use arena_plan::{Options, PlannedRun, saved_plans};
/// use arena_scope::Host;
///
/// let run = PlannedRun::probe(&Host::new(), &Options::default(), |arena| {
///     arena.scope_named("train", |step| step.alloc::<f32>(128).map(drop))
/// })?;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("run.json");
/// run.save(&path)?;
/// let plans = saved_plans(&std::fs::read(&path)?)?;
/// assert_eq!((plans[0].0.as_str(), plans[0].1.peak_bytes()), ("train:0", 512));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// As for [`Plan::load`].
pub fn saved_plans(file: &[u8]) -> Result<Vec<(String, Plan)>, PlanError> {
    let is_run = serde_json::from_slice(file).is_ok_and(|head: Head| head.format == FORMAT);
    if !is_run {
        return Ok(vec![(String::new(), Plan::load(file)?)]);
    }
    let kinds = RunFile::read(file)?.kinds.into_iter();
    let plans = kinds.map(|KindInFile { name, variant, plan }| {
        Ok((format!("{name}:{variant}"), Plan::load(plan.get().as_bytes())?))
    });
    plans.collect()
}

/// Why the plans of a run could not be saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunFileError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is damaged, or a plan in it is for another program.
    #[error("{}: {}{cause}", path.display(), of(*key))]
    Plan {
        /// The file.
        path: PathBuf,
        /// The kind of step, if one is known.
        key: Option<StepKey>,
        /// What is wrong.
        cause: Box<PlanError>,
    },
    /// The file has no plan for a kind of step that the program makes.
    #[error("{}: no plan for steps {key}: the file is of another program", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The kind of step.
        key: StepKey,
    },
}

impl RunFileError {
    fn plan(path: &Path, key: Option<StepKey>, cause: PlanError) -> Self {
        Self::Plan { path: path.to_owned(), key, cause: Box::new(cause) }
    }
}

fn of(key: Option<StepKey>) -> String {
    key.map_or_else(String::new, |key| format!("steps {key}: "))
}
