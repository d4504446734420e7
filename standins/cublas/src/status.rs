//! The results of the interface's functions.

use std::ffi::{CStr, c_char};

/// A `cublasStatus_t` that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub(crate) u32);

impl Status {
    /// There is no such handle, or no driver.
    pub const NOT_INITIALIZED: Self = Self(1);
    /// The driver has no memory.
    pub const ALLOC_FAILED: Self = Self(3);
    /// An argument that cannot be.
    pub const INVALID_VALUE: Self = Self(7);
    /// The driver refuses, or the context is broken.
    pub const EXECUTION_FAILED: Self = Self(13);
    /// What the stand-in does not know.
    pub const NOT_SUPPORTED: Self = Self(15);
}

/// Success, or why not.
pub type Outcome = Result<(), Status>;

/// The number that a function returns.
pub fn code(outcome: Outcome) -> u32 {
    outcome.err().map_or(0, |status| status.0)
}

fn describe(status: u32) -> (&'static CStr, &'static CStr) {
    match status {
        0 => (c"CUBLAS_STATUS_SUCCESS", c"success"),
        1 => (c"CUBLAS_STATUS_NOT_INITIALIZED", c"the library was not initialized"),
        3 => (c"CUBLAS_STATUS_ALLOC_FAILED", c"the resource allocation failed"),
        7 => (c"CUBLAS_STATUS_INVALID_VALUE", c"an invalid value was passed"),
        8 => (c"CUBLAS_STATUS_ARCH_MISMATCH", c"the device lacks a required feature"),
        11 => (c"CUBLAS_STATUS_MAPPING_ERROR", c"an access to GPU memory space failed"),
        13 => (c"CUBLAS_STATUS_EXECUTION_FAILED", c"the GPU program failed to execute"),
        14 => (c"CUBLAS_STATUS_INTERNAL_ERROR", c"an internal operation failed"),
        15 => (c"CUBLAS_STATUS_NOT_SUPPORTED", c"the functionality is not supported"),
        _ => (c"CUBLAS_STATUS_UNKNOWN", c"unknown status"),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusName(status: u32) -> *const c_char {
    describe(status).0.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusString(status: u32) -> *const c_char {
    describe(status).1.as_ptr()
}
