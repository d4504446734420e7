//! A training step captured as a CUDA graph, with batches that are sent ahead and losses that are read behind.
//!
//! A graph contains only addresses. So what changes from step to step lies in persistent buffers: the batch,
//! the weights and the loss. The step's own buffers are transient; the same requests give the same addresses.

use anyhow::Result;
use arena_scope::cuda::{InputSlots, ResultQueue};
use arena_scope::cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
use arena_scope::cudarc::nvrtc::compile_ptx;
use arena_scope::{Arena, ByteSize, Cuda, Persistent, Scope, StepKey};

const KERNELS: &str = r#"
// A row of a batch has its inputs and, behind them, its target.
extern "C" __global__ void differences(const float* batch, const float* weights, float* y, int rows,
                                       int inputs) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float* x = batch + row * (inputs + 1);
    float sum = -x[inputs];
    for (int i = 0; i < inputs; i++) sum += weights[i] * x[i];
    y[row] = sum;
}

// A thread per weight; the first one also writes the mean squared error.
extern "C" __global__ void descend(const float* batch, const float* y, float* weights, float* loss,
                                   int rows, int inputs, float rate) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= inputs) return;
    float gradient = 0.0f, squares = 0.0f;
    for (int row = 0; row < rows; row++) {
        gradient += y[row] * batch[row * (inputs + 1) + i];
        squares += y[row] * y[row];
    }
    weights[i] -= rate * 2.0f * gradient / rows;
    if (i == 0) *loss = squares / rows;
}
"#;

const TRAIN: StepKey = StepKey::named("train");
const STEPS: usize = 40;
const ROWS: usize = 8;
const INPUTS: usize = 4;
const EXPECTED: [f32; INPUTS] = [1.0, -2.0, 0.5, 3.0];

/// What a step reads and writes besides its own buffers.
struct Network {
    differences: CudaFunction,
    descend: CudaFunction,
    batch: Persistent<f32, Cuda>,
    weights: Persistent<f32, Cuda>,
    loss: Persistent<f32, Cuda>,
}

pub(crate) fn main() -> Result<()> {
    let context = CudaContext::new(0)?;
    let module = context.load_module(compile_ptx(KERNELS)?)?;
    let device = Cuda::on(context.new_stream()?)?;

    let mut arena = Arena::builder(device).capacity(ByteSize::kib(8)).build()?;
    let mut network = Network {
        differences: module.load_function("differences")?,
        descend: module.load_function("descend")?,
        batch: arena.persistent(ROWS * (INPUTS + 1))?,
        weights: arena.persistent_zeroed(INPUTS)?,
        loss: arena.persistent(1)?,
    };
    // While a step reads the batch in one slot, the next batch is copied into the other one.
    let mut slots: InputSlots<f32> = arena.input_slots(2, ROWS * (INPUTS + 1))?;
    let mut results: ResultQueue<f32> = arena.result_queue(2, 1)?;
    arena.mark()?;

    let mut losses = Vec::with_capacity(STEPS);
    let mut graph = None;
    slots.fill(|host| write_batch(0, host))?;
    for n in 0..STEPS {
        if n + 1 < STEPS {
            slots.fill(|host| write_batch(n + 1, host))?;
        }
        network.batch.view_mut().copy_from(slots.next()?)?;
        match &graph {
            // The first step runs as usual, and shows the requests that the captured one must repeat.
            None => {
                arena.scope_with(TRAIN, |scope| network.step(scope))?;
                // The body runs, but the device executes nothing yet.
                graph = Some(arena.capture(TRAIN, |scope| network.step(scope))?);
            }
            Some(graph) => graph.replay(&mut arena)?,
        }
        // The loss of the step before has usually arrived by now, so the host does not wait for this one.
        results.push(network.loss.view())?;
        if n > 0 {
            losses.extend(results.pop()?.expect("one is on its way"));
        }
    }
    while let Some(loss) = results.pop()? {
        losses.extend(loss);
    }

    let weights = network.weights.view().to_vec()?;
    let (first, last) = (losses[0], losses[STEPS - 1]);
    println!("{STEPS} steps: loss {first:.2} to {last:.1e}, weights {weights:.3?}");
    assert_eq!(losses.len(), STEPS);
    assert!(last < 1e-4 * first, "{losses:?}");
    for (found, expected) in weights.iter().zip(EXPECTED) {
        assert!((found - expected).abs() < 0.01, "{weights:?}");
    }
    Ok(())
}

/// Numbers between -1 and 1, and what the expected weights make of them.
fn write_batch(n: usize, host: &mut [f32]) {
    for (row, values) in host.chunks_exact_mut(INPUTS + 1).enumerate() {
        let mut target = 0.0;
        for (i, expected) in EXPECTED.iter().enumerate() {
            let count = ((n * ROWS + row) * INPUTS + i) as u32;
            let x = (count.wrapping_mul(2_654_435_769) >> 8) as f32 / (1 << 23) as f32 - 1.0;
            values[i] = x;
            target += expected * x;
        }
        values[INPUTS] = target;
    }
}

impl Network {
    /// Forward, backward and update. Queues work and waits for nothing, so that it can be captured.
    fn step(&mut self, scope: &Scope<'_, '_, Cuda>) -> Result<()> {
        let stream = scope.device().stream();
        let (rows, inputs, rate) = (ROWS as i32, INPUTS as i32, 0.5_f32);
        let mut y = scope.alloc::<f32>(ROWS)?;

        let mut launch = stream.launch_builder(&self.differences);
        launch.arg(&self.batch).arg(&self.weights).arg(&mut y).arg(&rows).arg(&inputs);
        // SAFETY: the kernel takes these arguments, and the buffers have the sizes that it expects.
        unsafe { launch.launch(LaunchConfig::for_num_elems(rows as u32)) }?;

        let mut launch = stream.launch_builder(&self.descend);
        launch.arg(&self.batch).arg(&y).arg(&mut self.weights).arg(&mut self.loss);
        launch.arg(&rows).arg(&inputs).arg(&rate);
        // SAFETY: as above.
        unsafe { launch.launch(LaunchConfig::for_num_elems(inputs as u32)) }?;
        Ok(())
    }
}
