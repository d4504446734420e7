//! Files that describe a step.

pub mod minimalloc;
mod table;
pub mod trace;

use std::fmt;

use thiserror::Error;

use crate::files::shortened;
use crate::instance::{Instance, InstanceError};

/// An instance with the names that its file gives to the buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled {
    /// One name per buffer, in the order of the instance.
    pub labels: Vec<String>,
    /// The buffers.
    pub instance: Instance,
    /// How much earlier the file's times are than the instance's, which begin at 0 where the file has
    /// negative ones; else 0.
    pub earlier: u64,
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
    /// Where the wrong cell begins.
    pub position: Position,
    /// What is wrong there.
    pub problem: Problem,
}

/// What can be wrong with an input file.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// Not UTF-8.
    #[error("the file is not UTF-8 text")]
    NotText,
    /// No header line.
    #[error("the file is empty: a header line is missing")]
    Empty,
    /// The header lacks a column.
    #[error("the header has no column {0:?}")]
    MissingColumn(&'static str),
    /// The header names a column that this format does not have.
    #[error("the header has an unknown column {:?}", shortened(.0))]
    UnknownColumn(String),
    /// The header names a column twice, or under two names.
    #[error("column {:?} appears twice", shortened(.0))]
    DoubleColumn(String),
    /// A row has more or fewer cells than the header.
    #[error("the row has another number of cells than the header: {found} instead of {expected}")]
    CellCount {
        /// Cells of the row.
        found: usize,
        /// Cells of the header.
        expected: usize,
    },
    /// A cell is not a whole number of 64 bits.
    #[error("{:?} is not a whole number from 0 to 18446744073709551615", shortened(.0))]
    NotANumber(String),
    /// A buffer's name is used twice.
    #[error("id {:?} appears twice", shortened(.0))]
    DoubleId(String),
    /// Gaps in lifetimes are not supported.
    #[error("gaps in lifetimes are not supported")]
    Gaps,
    /// Every row must have an offset, and this one has none.
    #[error("this row has no offset")]
    NoOffset,
    /// An op of an unknown kind.
    #[error("unknown op {:?}: expected alloc, free or mark", shortened(.0))]
    UnknownOp(String),
    /// An id is freed that is not allocated.
    #[error("id {:?} is freed, but is not allocated", shortened(.0))]
    NotAllocated(String),
    /// A free states another size than its allocation.
    #[error(
        "the free and the allocation state different sizes: {freed_bytes} and {allocated_bytes} bytes"
    )]
    OtherSize {
        /// Size at the free.
        freed_bytes: u64,
        /// Size at the allocation.
        allocated_bytes: u64,
    },
    /// The step asked for allocates nothing.
    #[error("the trace has no allocation in step {0}")]
    NoSuchStep(u64),
    /// The rows are well-formed, but not a valid instance.
    #[error(transparent)]
    Instance(InstanceError),
}

impl Problem {
    fn at(self, position: Position) -> InputError {
        InputError { position, problem: self }
    }
}

/// Decodes the bytes of a file. The error says where the first byte lies that is not UTF-8.
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
    if is_trace(text) { trace::read(text, step) } else { minimalloc::read(text) }
}

/// Whether the header of a text has a column `op`.
#[must_use]
pub fn is_trace(text: &str) -> bool {
    let header = text.lines().next().unwrap_or("");
    let plain = |name: &str| name.trim_matches([table::BYTE_ORDER_MARK, '"', ' ', '\t']) == "op";
    header.split(',').any(plain)
}
