//! The results of the interface's functions.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

/// An `ncclResult_t` that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u32);

impl Status {
    pub(crate) const UNHANDLED_CUDA_ERROR: Self = Self(1);
    pub(crate) const SYSTEM_ERROR: Self = Self(2);
    pub(crate) const INVALID_ARGUMENT: Self = Self(4);
    pub(crate) const INVALID_USAGE: Self = Self(5);
    pub(crate) const REMOTE_ERROR: Self = Self(6);
    pub(crate) const IN_PROGRESS: Self = Self(7);
}

/// Success, or why not.
pub(crate) type Outcome = Result<(), Status>;

/// The number that a function returns.
pub(crate) fn code(outcome: Outcome) -> u32 {
    outcome.err().map_or(0, |status| status.0)
}

thread_local! {
    /// What the last refusal on this thread was about.
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Keeps a text for `ncclGetLastError`, and gives the status.
pub(crate) fn refused(status: Status, why: impl Into<Vec<u8>>) -> Status {
    LAST_ERROR.set(CString::new(why).unwrap_or_default());
    status
}

/// A text of this thread, until its next refusal. As in the real library the communicator does not matter.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_comm: u64) -> *const c_char {
    LAST_ERROR.with_borrow(|text| text.as_ptr())
}

fn describe(status: u32) -> &'static CStr {
    match status {
        0 => c"no error",
        1 => c"unhandled cuda error",
        2 => c"unhandled system error",
        3 => c"internal error",
        4 => c"invalid argument",
        5 => c"invalid usage",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        _ => c"unknown result code",
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(status: u32) -> *const c_char {
    describe(status).as_ptr()
}
