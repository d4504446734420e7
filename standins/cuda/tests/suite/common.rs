//! Loading and launching for the kernel tests.

use cuda_standin::Standin;
use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, LaunchConfig};
use cudarc::nvrtc::Ptx;
use std::sync::Arc;

/// A device with a module loaded.
pub(crate) struct Bench {
    pub(crate) stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
    /// Last, so that it is given up only after the context.
    pub(crate) standin: Standin,
}

impl Bench {
    /// The stand-in with the module of a PTX text.
    pub(crate) fn new(ptx: &str) -> Self {
        let standin = Standin::load().unwrap();
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let module = context
            .load_module(Ptx::from_src(ptx))
            .unwrap_or_else(|e| panic!("{:?}: {}", e.0 as u32, standin.last_fault()));
        Self { stream, module, standin }
    }

    /// A kernel by name.
    pub(crate) fn kernel(&self, name: &str) -> CudaFunction {
        self.module.load_function(name).unwrap()
    }

    /// Waits, and shows what the device met if it did not end well.
    pub(crate) fn finish(&self) {
        self.stream.synchronize().unwrap_or_else(|_| panic!("{}", self.standin.last_fault()));
    }
}

/// Enough blocks of 64 threads for `n` elements.
pub(crate) fn flat(n: usize) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (n.div_ceil(64) as u32, 1, 1),
        block_dim: (64, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// So many blocks of so many threads.
pub(crate) fn shape(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// Numbers between -1 and 1 that look random and are the same each time.
pub(crate) fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// Whether two lists agree within a relative error (absolute below 1).
#[track_caller]
pub(crate) fn assert_close(found: &[f32], wanted: &[f32], tolerance: f32) {
    assert_eq!(found.len(), wanted.len());
    for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
        let off = (f - w).abs();
        assert!(f == w || off <= tolerance * w.abs().max(1.0), "element {i}: {f} instead of {w}");
    }
}

/// Launches a kernel on the bench's stream: `launch!(bench, "name", config, args...)`.
#[macro_export]
macro_rules! launch {
    ($bench:expr, $name:expr, $config:expr, $($arg:expr),* $(,)?) => {{
        let kernel = $bench.kernel($name);
        let mut builder = $bench.stream.launch_builder(&kernel);
        $(cudarc::driver::PushKernelArg::arg(&mut builder, $arg);)*
        let config = $config;
        // SAFETY: the arguments are those of the kernel, and the stand-in checks every access.
        unsafe { builder.launch(config) }.unwrap();
    }};
}
