//! Other contexts that read the arena's memory, without saying on which of their streams.
//!
//! cudarc's safe copy to another device (`to.memcpy_dtod(&source, &mut target)`) asks its source for the *source's*
//! stream, and queues the copy on another one. All that can be seen here is that another context is current while
//! one of our buffers is handed over. So that context is noted, and a close waits for all of its work before the
//! bytes are used again.

use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::{CudaStream, sys};

use super::code::{Failure, done};
use super::context::{current, with_handle_current};

/// The contexts that may be reading now.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    noted: Vec<Handle>,
    /// Who waits for this stream waits for them: it is never the arena's own.
    stands_for_them: Option<Arc<CudaStream>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Handle(sys::CUcontext);

// SAFETY: the handle is only compared and passed to the driver, which takes it on any thread.
unsafe impl Send for Handle {}

impl Peers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Notes the current context if it is another one than that of the arena's stream, and then gives the stream that
    /// is to be declared for it.
    pub(super) fn note(
        &self,
        arenas: &Arc<CudaStream>,
    ) -> Result<Option<Arc<CudaStream>>, Failure> {
        let (current, own) = (Handle(current()?), arenas.context());
        if current.0.is_null() || current.0 == own.cu_ctx() {
            return Ok(None);
        }
        let mut state = self.lock();
        let stream = match &state.stands_for_them {
            Some(stream) => Arc::clone(stream),
            None => {
                // The null stream is there already, and nothing is queued on it here.
                let null = own.default_stream();
                let made = if null == *arenas { own.new_stream() } else { Ok(null) };
                let made =
                    made.map_err(|error| Failure::Driver { call: "cuStreamCreate", code: error.0 });
                Arc::clone(state.stands_for_them.insert(made?))
            }
        };
        if !state.noted.contains(&current) {
            state.noted.push(current);
        }
        Ok(Some(stream))
    }

    /// Waits until the noted contexts have done what was queued in them, and forgets them. One that is gone has no
    /// work left.
    pub(super) fn wait(&self) -> Result<(), Failure> {
        let mut state = self.lock();
        while let Some(Handle(context)) = state.noted.last().copied() {
            // SAFETY: the call waits for the current context and has no arguments.
            let wait = || done("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() });
            match with_handle_current(context, wait) {
                Err(failure) if !failure.runs_nothing_more() => return Err(failure),
                _ => state.noted.pop(),
            };
        }
        Ok(())
    }
}
