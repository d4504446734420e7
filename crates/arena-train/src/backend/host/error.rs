//! What is wrong with a call, found before anything is written.

use thiserror::Error;

/// Why a kernel refused a call. Nothing has been written when one is returned.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A slice does not have the length that the shape asks for.
    #[error("{operand} has a length of {found}, but the shape needs {expected}")]
    Length {
        /// Which argument.
        operand: &'static str,
        /// Elements that the shape asks for.
        expected: usize,
        /// Elements found.
        found: usize,
    },
    /// A workspace is shorter than its `..._workspace_len` says.
    #[error("the workspace has a length of {found}, but {needed} is needed")]
    Workspace {
        /// Elements needed.
        needed: usize,
        /// Elements found.
        found: usize,
    },
    /// A shape that these kernels do not serve.
    #[error("unsupported shape: {reason}")]
    Shape {
        /// Which rule it breaks.
        reason: &'static str,
    },
    /// A product of the shape's sizes does not fit the address space.
    #[error("the shape's element count overflows")]
    Overflow,
    /// A label that is not one of the classes.
    #[error("label {label} at index {index} is not a class: labels are below {classes}")]
    Label {
        /// Position in the batch.
        index: usize,
        /// The label found.
        label: u32,
        /// Number of classes.
        classes: usize,
    },
}

/// `Ok` if the operand has just the length that the shape asks for.
pub(super) fn check_len(
    operand: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), KernelError> {
    if found == expected { Ok(()) } else { Err(KernelError::Length { operand, expected, found }) }
}

/// `Ok` if the workspace is long enough.
pub(super) fn check_workspace(found: usize, needed: usize) -> Result<(), KernelError> {
    if found >= needed { Ok(()) } else { Err(KernelError::Workspace { needed, found }) }
}
