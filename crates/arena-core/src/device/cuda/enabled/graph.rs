//! Graphs: the work of the arena's stream, recorded once and launched often.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};

use super::Cuda;
use super::code::{Failure, done};
use super::context::with_current;
use crate::device::Captures;
use crate::error::DeviceError;

/// A graph that can be launched. The driver takes no two calls on it at a time, so it is not `Sync`,
/// and to keep it simple not `Send` either.
#[derive(Debug)]
pub struct Graph {
    executable: sys::CUgraphExec,
    context: Arc<CudaContext>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A failure cannot be told to anybody here. A launch that is still running goes on to its end.
        let _ = with_current(&self.context, || {
            // SAFETY: the handle is this graph's, which is destroyed once.
            let code = unsafe { sys::cuGraphExecDestroy(self.executable) };
            done("cuGraphExecDestroy", code)
        });
    }
}

/// The recorded graph, from which the one to launch is made.
struct Template(sys::CUgraph);

impl Template {
    /// Ends the capture of a stream.
    fn end(stream: sys::CUstream) -> Result<Self, Failure> {
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is alive, and the handle goes into a live variable.
        done("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(stream, &raw mut graph) })?;
        Ok(Self(graph))
    }

    fn instantiate(&self) -> Result<sys::CUgraphExec, Failure> {
        let mut executable = ptr::null_mut();
        // SAFETY: the graph is alive, and the handle goes into a live variable.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut executable, self.0, 0) };
        done("cuGraphInstantiateWithFlags", code)?;
        Ok(executable)
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        // SAFETY: the handle is this graph's, which is destroyed once; what was instantiated from it is
        // a copy. A failure cannot be told to anybody here.
        let _ = unsafe { sys::cuGraphDestroy(self.0) };
    }
}

// SAFETY: by the duties' numbers. 1: a graph is what the driver captured of the stream and of those that
// joined it by an event. 2: `not_in_capture` refuses each of these calls, and `begin_capture` waits until
// none that passed it is still under way; a copy that a program queues by calls of its own is its own matter.
// 3: the driver orders a launch in its stream, and lets a graph go on when its handle is destroyed. 4: the
// device is not host visible. 5: ending a capture ends it for every stream that joined.
unsafe impl Captures for Cuda {
    type Graph = Graph;

    /// The mode is thread-local: other threads may go on to use the driver.
    fn begin_capture(&self) -> Result<(), DeviceError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.call(|| {
            let mut capturing = self.no_call_is_under_way();
            // SAFETY: the stream is alive.
            let code = unsafe { sys::cuStreamBeginCapture_v2(self.stream().cu_stream(), mode) };
            done("cuStreamBeginCapture", code)?;
            *capturing = Some(std::thread::current().id());
            Ok(())
        })
    }

    fn end_capture(&self) -> Result<Graph, DeviceError> {
        *self.no_call_is_under_way() = None;
        self.call(|| {
            let executable = Template::end(self.stream().cu_stream())?.instantiate()?;
            Ok(Graph { executable, context: Arc::clone(self.context()) })
        })
    }

    fn abandon_capture(&self) {
        *self.no_call_is_under_way() = None;
        // Twice, for the first may fail before it comes to end anything.
        for _ in 0..2 {
            let ended =
                self.call_even_if_lost(|| Template::end(self.stream().cu_stream()).map(drop));
            if ended.is_ok() {
                return;
            }
        }
    }

    unsafe fn launch(&self, graph: &Graph) -> Result<(), DeviceError> {
        self.call(|| {
            let stream = self.stream().cu_stream();
            // SAFETY: graph and stream are alive; the caller says that the graph's addresses are still what
            // they were.
            done("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.executable, stream) })
        })
    }
}
