//! The arena's step, captured once and replayed.

use std::fmt;

use anyhow::{Context, Result};
use arena_scope::Cuda;
use arena_scope::cudarc::driver::{CudaGraph, sys};

use super::allocators::{Clock, DeviceAllocator, Watermark, told};
use super::requests::Requests;

/// One step in a graph. The same requests get the same addresses in every step, which is why a replay
/// needs neither the allocator nor the host's part of the launches.
pub struct Graph {
    graph: CudaGraph,
    /// Its region is what the graph writes to.
    watermark: Watermark,
}

impl Graph {
    /// Runs the step once and captures it.
    ///
    /// # Errors
    ///
    /// When the arena or the driver refuses.
    pub fn new(device: Cuda, requests: &Requests) -> Result<Self> {
        let mut watermark = Watermark::new(device, requests)?;
        watermark.step(requests, &mut Clock::new(false))?;
        let stream = watermark.stream().clone();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(told("cuStreamBeginCapture"))?;
        let queued = watermark.queue(requests, &mut Clock::new(false));
        // Ended before anything is told: a stream that is left capturing is of no use to anybody.
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let ended = stream.end_capture(flags).map_err(told("cuStreamEndCapture"));
        queued?;
        Ok(Self { graph: ended?.context("the step queued nothing")?, watermark })
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("watermark", &self.watermark).finish_non_exhaustive()
    }
}

impl DeviceAllocator for Graph {
    fn name(&self) -> &'static str {
        "this arena, graph replay"
    }

    fn step(&mut self, _requests: &Requests, _clock: &mut Clock) -> Result<()> {
        self.graph.launch().map_err(told("cuGraphLaunch"))?;
        self.watermark.stream().synchronize().map_err(told("cuStreamSynchronize"))
    }
}
