//! The kernels in a captured graph: nothing in them forbids it, and the device counts the steps.

use crate::common::random;
use crate::cuda_common::{Bench, assert_near};
use arena_train::backend::cuda::StepCounter;
use arena_train::backend::host::{AdamConfig, LinearShape};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

const SHAPE: LinearShape = LinearShape { batch: 3, in_features: 40, out_features: 7 };

/// The gradients of a linear layer, and Adam with them: captured once and replayed, against the
/// same steps queued one by one with the step's number passed by value.
#[test]
fn a_replayed_update_counts_its_steps_on_the_device() {
    let (steps, total) = (4, 9);
    let adam = AdamConfig { learning_rate: 0.01, ..AdamConfig::default() };
    let mut bench = Bench::new();
    bench.work_in_an_arena();
    let kernels = &bench.kernels;
    let (x, dy) =
        (bench.up(&random(1, SHAPE.input_len())), bench.up(&random(2, SHAPE.output_len())));
    let len = SHAPE.weight_len();
    let mut gradients = [bench.stale(len), bench.stale(SHAPE.out_features)];
    let zeros = vec![0.0; len];
    let mut by_value = [&random(3, len), &zeros, &zeros].map(|values| bench.up(values));
    let mut replayed = by_value.clone();

    let [dw, db] = &mut gradients;
    for step in 1..=steps {
        let (dw_out, db_out) = (bench.output(dw), bench.output(db));
        kernels
            .linear_weight_gradient(&SHAPE, bench.input(&x), bench.input(&dy), dw_out, db_out)
            .unwrap();
        let factor = 1.0 - (step - 1) as f32 / total as f32;
        let config = AdamConfig { learning_rate: adam.learning_rate * factor, ..adam };
        let [p, m, v] = by_value.each_mut().map(|buffer| bench.output(buffer));
        kernels.adam_step(&config, step, p, bench.input(dw), [m, v]).unwrap();
    }

    let mut counter = bench.up(&[0_u64]);
    let mut rates = bench.stale::<f32>(3);
    bench.stream.synchronize().unwrap();
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    bench.stream.begin_capture(mode).unwrap();
    let (dw_out, db_out) = (bench.output(dw), bench.output(db));
    kernels
        .linear_weight_gradient(&SHAPE, bench.input(&x), bench.input(&dy), dw_out, db_out)
        .unwrap();
    let at = StepCounter { steps: bench.output(&mut counter), rates: bench.output(&mut rates) };
    kernels.advance_adam(&adam, total, at).unwrap();
    let [p, m, v] = replayed.each_mut().map(|buffer| bench.output(buffer));
    kernels.adam_scheduled(&adam, bench.input(&rates), p, bench.input(dw), [m, v]).unwrap();
    let graph = bench.stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();

    bench.standin.clear_calls();
    for _ in 0..steps {
        graph.launch().unwrap();
    }
    assert_eq!(bench.down(&counter), [steps]);
    if !bench.standin.is_real_driver() {
        assert_eq!(bench.standin.calls("cuLaunchKernel"), 0, "only the graph was launched");
    }
    for (found, expected) in replayed.iter().zip(&by_value) {
        assert_near("replayed", &bench.down(found), &bench.down(expected), 1e-6);
    }
}
