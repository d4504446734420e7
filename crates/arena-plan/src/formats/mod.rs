//! Files that describe a step.

pub mod minimalloc;
mod table;
pub mod trace;

use std::fmt;

use thiserror::Error;

use crate::instance::{Instance, InstanceError};

/// An instance with the names that its file gives to the buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled {
    /// One name per buffer, in the order of the instance.
    pub labels: Vec<String>,
    /// The buffers.
    pub instance: Instance,
}

/// A place in a text, both counted from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The character in the line.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// What is wrong with an input file, and where.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{position}: {problem}")]
pub struct InputError {
    /// Where the cell at fault begins.
    pub position: Position,
    /// What is wrong there.
    pub problem: Problem,
}

/// What can be wrong with an input file.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// Not UTF-8.
    #[error("not UTF-8 text")]
    NotText,
    /// No header line.
    #[error("the file is empty: a header line is missing")]
    Empty,
    /// The header lacks a column.
    #[error("the header has no column {0:?}")]
    MissingColumn(&'static str),
    /// The header names a column that this format does not have.
    #[error("unknown column {0:?}")]
    UnknownColumn(String),
    /// The header names a column twice, or under two names.
    #[error("column {0:?} is there twice")]
    DoubleColumn(String),
    /// A row has more or fewer cells than the header.
    #[error("{found} cells, but the header has {expected}")]
    CellCount {
        /// Cells of the row.
        found: usize,
        /// Cells of the header.
        expected: usize,
    },
    /// A cell is no whole number of 64 bits.
    #[error("{0:?} is not a whole number from 0 to 18446744073709551615")]
    NotANumber(String),
    /// A buffer's name is used twice.
    #[error("id {0:?} is there twice")]
    DoubleId(String),
    /// Gaps in lifetimes are not supported.
    #[error("gaps in lifetimes are not supported")]
    Gaps,
    /// Some rows have an offset and others have none, where all must have one.
    #[error("this row has no offset")]
    NoOffset,
    /// An op of an unknown kind.
    #[error("unknown op {0:?}: expected alloc, free or mark")]
    UnknownOp(String),
    /// An id is freed that is not allocated.
    #[error("id {0:?} is freed, but is not allocated")]
    NotAllocated(String),
    /// A free states another size than its allocation.
    #[error("{freed_bytes} bytes are freed, but {allocated_bytes} were allocated")]
    OtherSize {
        /// Size at the free.
        freed_bytes: u64,
        /// Size at the allocation.
        allocated_bytes: u64,
    },
    /// The step asked for allocates nothing.
    #[error("no allocation in step {0}")]
    NoSuchStep(u64),
    /// The rows are well-formed, but no instance.
    #[error(transparent)]
    Instance(InstanceError),
}

impl Problem {
    fn at(self, position: Position) -> InputError {
        InputError { position, problem: self }
    }
}

/// Decodes a file's bytes; the error says where the first stray byte is.
///
/// # Errors
///
/// [`Problem::NotText`].
pub fn text(bytes: &[u8]) -> Result<&str, InputError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()) + 1;
        Problem::NotText.at(Position { line, column })
    })
}

/// Reads an instance in whichever of the two formats the header names: a column `op` means a trace
/// of allocations. `step` picks one step of a trace and is ignored otherwise.
///
/// # Errors
///
/// The first [`InputError`] in the file.
pub fn read(text: &str, step: Option<u64>) -> Result<Labelled, InputError> {
    let header = text.lines().next().unwrap_or("");
    if header.split(',').any(|name| name.trim() == "op") {
        trace::read(text, step)
    } else {
        minimalloc::read(text)
    }
}
