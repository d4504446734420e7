//! A training step on a GPU: a product by cuBLAS and two kernels of one's own, on buffers of an arena.
//!
//! The context, the stream, cuBLAS and the kernels are the program's, as cudarc makes them. The arena belongs
//! to the stream. Its buffers are passed to cudarc's calls where a `CudaSlice` would be.
//!
//! cuBLAS allocates its workspace once, outside the arena. `arena_scope::cuda::Blas` is a handle whose workspace
//! is a buffer of the arena.

use anyhow::Result;
use arena_scope::cudarc::cublas::sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
use arena_scope::cudarc::cublas::{CudaBlas, Gemm, GemmConfig};
use arena_scope::cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
use arena_scope::cudarc::nvrtc::compile_ptx;
use arena_scope::{Arena, ByteSize, Cuda, Persistent, Scope};

const KERNELS: &str = r#"
extern "C" __global__ void subtract(float* y, const float* targets, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] -= targets[i];
}

extern "C" __global__ void descend(float* weights, const float* gradient, float rate, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) weights[i] -= rate * gradient[i];
}
"#;

/// Rows of a batch, and the widths of a row and of its targets.
const ROWS: usize = 4;
const INPUTS: usize = 2;
const OUTPUTS: usize = 3;

/// Four rows, and what the weights `[[1, 2, 3], [-1, 0, 1]]` make of them.
const X: [f32; ROWS * INPUTS] = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, -1.0];
const TARGETS: [f32; ROWS * OUTPUTS] =
    [1.0, 2.0, 3.0, -1.0, 0.0, 1.0, 0.0, 2.0, 4.0, 2.0, 2.0, 2.0];

struct Network {
    blas: CudaBlas,
    subtract: CudaFunction,
    descend: CudaFunction,
    weights: Persistent<f32, Cuda>,
}

pub(crate) fn main() -> Result<()> {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let module = context.load_module(compile_ptx(KERNELS)?)?;

    let mut arena = Arena::builder(Cuda::on(stream.clone())?).capacity(ByteSize::kib(4)).build()?;
    let mut network = Network {
        blas: CudaBlas::new(stream)?,
        subtract: module.load_function("subtract")?,
        descend: module.load_function("descend")?,
        weights: arena.persistent_zeroed(INPUTS * OUTPUTS)?,
    };
    arena.mark()?;

    let mut loss = f32::INFINITY;
    for n in 1..=20 {
        loss = arena.scope(|scope| network.step(scope))?;
        println!("step {n}: loss {loss:.1e}");
    }

    let weights = network.weights.view().to_vec()?;
    println!("weights {weights:.3?}");
    assert!(loss < 1e-6, "{loss}");
    for (found, expected) in weights.iter().zip([1.0, 2.0, 3.0, -1.0, 0.0, 1.0]) {
        assert!((found - expected).abs() < 1e-3, "{weights:?}");
    }
    assert_eq!(arena.stats().driver_allocations, 1, "the arena asked for its region alone");
    Ok(())
}

impl Network {
    /// Forward, backward and update. Returns the mean squared error before the update.
    fn step(&mut self, scope: &Scope<'_, '_, Cuda>) -> Result<f32> {
        let stream = scope.device().stream();
        let x = scope.upload(&X)?;
        let targets = scope.upload(&TARGETS)?;

        // y = x * weights. cuBLAS counts along columns, so it is asked for the transpose of both sides.
        let mut y = scope.alloc::<f32>(ROWS * OUTPUTS)?;
        let config = GemmConfig {
            transa: CUBLAS_OP_N,
            transb: CUBLAS_OP_N,
            m: OUTPUTS as i32,
            n: ROWS as i32,
            k: INPUTS as i32,
            alpha: 1.0,
            lda: OUTPUTS as i32,
            ldb: INPUTS as i32,
            beta: 0.0,
            ldc: OUTPUTS as i32,
        };
        // SAFETY: the three matrices have the sizes that the configuration says.
        unsafe { self.blas.gemm(config, &self.weights, &x, &mut y) }?;

        let count = (ROWS * OUTPUTS) as i32;
        let mut launch = stream.launch_builder(&self.subtract);
        launch.arg(&mut y).arg(&targets).arg(&count);
        // SAFETY: the kernel takes these arguments, and both buffers have `count` elements.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }?;

        // gradient = x^T * y * 2 / ROWS
        let mut gradient = scope.alloc::<f32>(INPUTS * OUTPUTS)?;
        let config = GemmConfig {
            transb: CUBLAS_OP_T,
            n: INPUTS as i32,
            k: ROWS as i32,
            alpha: 2.0 / ROWS as f32,
            ..config
        };
        // SAFETY: as above; `x` is read as it lies there, with rows of INPUTS elements.
        unsafe { self.blas.gemm(config, &y, &x, &mut gradient) }?;

        let (count, rate) = ((INPUTS * OUTPUTS) as i32, 0.5_f32);
        let mut launch = stream.launch_builder(&self.descend);
        launch.arg(&mut self.weights).arg(&gradient).arg(&rate).arg(&count);
        // SAFETY: the kernel takes these arguments, and both buffers have `count` elements.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }?;

        // Reading waits for the stream. No buffer is alive after this function.
        let differences = scope.read(y.view())?;
        Ok(differences.iter().map(|d| d * d).sum::<f32>() / ROWS as f32)
    }
}
