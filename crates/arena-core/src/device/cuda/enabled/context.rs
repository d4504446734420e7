//! The current context of a thread. Each call makes its device current, whatever device the thread
//! works with, and puts that one back.

use std::ptr;

use cudarc::driver::{CudaContext, sys};

use super::code::{Failure, done};

/// Runs `body` with `context` current. A thread without a current context keeps this one.
pub(crate) fn with_current<R>(
    context: &CudaContext,
    body: impl FnOnce() -> Result<R, Failure>,
) -> Result<R, Failure> {
    with_handle_current(context.cu_ctx(), body)
}

/// [`with_current`] for a context of which only the handle is known; the driver refuses one that is gone.
pub(super) fn with_handle_current<R>(
    own: sys::CUcontext,
    body: impl FnOnce() -> Result<R, Failure>,
) -> Result<R, Failure> {
    let previous = current()?;
    if previous == own {
        return body();
    }
    make_current(own)?;
    let result = body();
    if !previous.is_null() {
        // That this fails says something about the other context, and nothing about the call.
        let _ = make_current(previous);
    }
    result
}

/// The context that is current on this thread, or null.
pub(super) fn current() -> Result<sys::CUcontext, Failure> {
    let mut current = ptr::null_mut();
    // SAFETY: the handle goes into a live variable. The library is there: who calls this has
    // a `CudaContext`, or is about to make one after `presence` has found the library.
    done("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&raw mut current) })?;
    Ok(current)
}

fn make_current(context: sys::CUcontext) -> Result<(), Failure> {
    // SAFETY: the driver checks the handle, which is a context's: that of a live `CudaContext`, or the
    // one that was current on this thread.
    done("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context) })
}

/// Puts the context that was current at [`remember`](Self::remember) back when it is dropped: cudarc's
/// own calls leave theirs.
#[derive(Debug)]
pub(crate) struct Restore(sys::CUcontext);

// SAFETY: the handle is only compared and passed to the driver, which takes it on any thread.
unsafe impl Send for Restore {}

// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Restore {}

impl Restore {
    /// Nothing to put back.
    pub(crate) const fn nothing() -> Self {
        Self(ptr::null_mut())
    }

    /// What is current now is put back later.
    pub(crate) fn remember() -> Self {
        current().map_or(Self::nothing(), Self)
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if !self.0.is_null() && current().is_ok_and(|current| current != self.0) {
            let _ = make_current(self.0);
        }
    }
}
