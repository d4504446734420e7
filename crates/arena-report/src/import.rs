//! Files of several kinds, as recordings.

mod events;
mod history;
mod snapshot;
mod tables;

use std::path::{Path, PathBuf};

use arena_plan::PlanError;
use arena_plan::files::{self, FileError};
use arena_plan::formats::InputError;
use thiserror::Error;

use crate::model::Recording;
use crate::pickle::PickleError;

/// Why a file cannot be reported on. In one line, with the file, and the line or the byte.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A table or a trace is wrong.
    #[error("{}:{}:{}: {}", .0.display(), .1.position.line, .1.position.column, .1.problem)]
    Text(PathBuf, InputError),
    /// A line of events is wrong.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// A plan is damaged.
    #[error("{}: {cause}", path.display())]
    Plan {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: Box<PlanError>,
    },
    /// A snapshot is damaged, or no snapshot.
    #[error("{}: {cause}", path.display())]
    Snapshot {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: PickleError,
    },
    /// It has no step with a buffer.
    #[error("{}: it has no allocation", .0.display())]
    Empty(PathBuf),
}

/// Reads a file of any kind that is known; the standard input if the path is `-`.
///
/// # Errors
///
/// [`ImportError`].
pub fn read(path: &Path) -> Result<Recording, ImportError> {
    parse(path, &files::read(path)?)
}

/// Reads the bytes of a file, whose kind they tell. The path is for its errors.
///
/// ```
/// use std::path::Path;
///
/// let table = b"id,lower,upper,size\na,0,2,100\nb,1,3,50\n";
/// let recording = arena_report::parse(Path::new("step.csv"), table)?;
/// assert_eq!(recording.steps[0].buffers.len(), 2);
/// let wrong = arena_report::parse(Path::new("step.csv"), b"id,lower,upper,size\na,0,x,100\n");
/// assert!(wrong.unwrap_err().to_string().starts_with("step.csv:2:5: "));
/// # Ok::<(), arena_report::ImportError>(())
/// ```
///
/// # Errors
///
/// [`ImportError`], except for a file that cannot be read.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Recording, ImportError> {
    let name = || path.to_owned();
    let recording = match bytes.trim_ascii_start() {
        // No text begins with this byte.
        [0x80, ..] => {
            snapshot::read(bytes).map_err(|cause| ImportError::Snapshot { path: name(), cause })?
        }
        text @ [b'{', ..] if events::is_begin(text) => events::read(bytes).map_err(|wrong| {
            ImportError::Line { path: name(), line: wrong.line, problem: wrong.problem }
        })?,
        [b'{', ..] => tables::plans(bytes)
            .map_err(|cause| ImportError::Plan { path: name(), cause: Box::new(cause) })?,
        _ => tables::read(bytes).map_err(|error| ImportError::Text(name(), error))?,
    };
    let is_empty =
        recording.steps.iter().all(|step| step.buffers.is_empty() && step.through_bytes == 0);
    if is_empty { Err(ImportError::Empty(name())) } else { Ok(recording) }
}
