//! Events, and how streams wait.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, sys};

use super::code::{Failure, done};
use super::context::with_current;

/// A point in a stream. It keeps its context alive.
#[derive(Debug)]
pub struct Event {
    handle: sys::CUevent,
    context: Arc<CudaContext>,
}

// SAFETY: the driver's calls on an event may come from any thread, and from several at a time.
unsafe impl Send for Event {}

// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that keeps no time, which is the cheaper kind. The context is current.
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self, Failure> {
        let mut handle = ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the handle goes into a live variable.
        done("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut handle, flags) })?;
        Ok(Self { handle, context: Arc::clone(context) })
    }

    pub(crate) fn handle(&self) -> sys::CUevent {
        self.handle
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // A failure cannot be told to anybody here; a driver that has gone has taken the event along.
        let _ = with_current(&self.context, || {
            // SAFETY: the handle is this event's, which is destroyed once. Waits that were queued for
            // it stay in force.
            done("cuEventDestroy", unsafe { sys::cuEventDestroy_v2(self.handle) })
        });
    }
}

/// Lets `event` stand for what is queued on `stream` now.
pub(super) fn record(event: &Event, stream: &CudaStream) -> Result<(), Failure> {
    // SAFETY: event and stream are alive; the driver refuses those of different contexts.
    done("cuEventRecord", unsafe { sys::cuEventRecord(event.handle(), stream.cu_stream()) })
}

/// Makes what is queued on `stream` from now on wait for `event`.
pub(super) fn wait(stream: &CudaStream, event: &Event) -> Result<(), Failure> {
    // SAFETY: event and stream are alive; an event may be destroyed while a wait for it is queued.
    let code = unsafe { sys::cuStreamWaitEvent(stream.cu_stream(), event.handle(), 0) };
    done("cuStreamWaitEvent", code)
}

/// Waits on the host for what is queued on `stream`.
pub(super) fn synchronise(stream: &CudaStream) -> Result<(), Failure> {
    // SAFETY: the stream is alive.
    done("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream.cu_stream()) })
}
