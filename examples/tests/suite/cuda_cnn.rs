//! `cudarc_cnn` on the stand-in: its losses, its gradients, and what a step asks of the driver.

use std::path::Path;

use arena_scope::cuda::SessionSlice;
use program::{Mnist, Options, Param, Trainer, run};

use crate::cnn_reference::{Layer, loss};
use crate::standin;

#[path = "../../cudarc_cnn.rs"]
#[allow(dead_code, reason = "it is a program, of which the tests use a part")]
mod program;

fn options(batch: usize) -> Options {
    // The program may have been built elsewhere.
    let manifest = std::env::var("CARGO_MANIFEST_DIR");
    let manifest = manifest.unwrap_or(env!("CARGO_MANIFEST_DIR").to_owned());
    Options {
        data: Path::new(&manifest).join("../data/mnist"),
        steps: 8,
        batch,
        channels: [4, 8],
        hidden: 32,
        learning_rate: 5e-3,
        test_images: 16,
        seed: 1,
    }
}

/// The losses of eight steps, as bits, with the kernels as NVRTC 12.9.86 compiles them: a change that only moves
/// buffers leaves them as they are.
const LOSSES: [u32; 8] = [
    1_075_717_776,
    1_075_319_786,
    1_077_586_457,
    1_073_949_704,
    1_075_755_276,
    1_074_962_007,
    1_074_124_690,
    1_074_155_674,
];

#[test]
fn the_losses_fall_and_are_the_same_to_the_bit_in_every_order_of_the_device() {
    let Some(standin) = standin() else { return };
    for seed in 1..3 {
        standin.reset(seed);
        let losses = run(&options(8)).unwrap();
        let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
        assert!(mean(&losses[5..]) < 0.9 * mean(&losses[..3]), "{losses:?}");
        // A real cuBLAS rounds its products in its own way.
        if !standin.is_real_driver() {
            let bits: Vec<_> = losses.iter().map(|loss| loss.to_bits()).collect();
            assert_eq!(bits, LOSSES, "seed {seed}: {losses:?}");
        }
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
}

/// Every parameter of the model, in the order of its layers.
fn params(trainer: &Trainer) -> [&Param; 8] {
    let model = &trainer.model;
    let (conv1, conv2, fc1, fc2) = (&model.conv1, &model.conv2, &model.fc1, &model.fc2);
    [
        &conv1.weight,
        &conv1.bias,
        &conv2.weight,
        &conv2.bias,
        &fc1.weight,
        &fc1.bias,
        &fc2.weight,
        &fc2.bias,
    ]
}

/// What a part of each parameter holds.
fn down(trainer: &Trainer, part: impl Fn(&Param) -> &SessionSlice<f32>) -> Vec<Vec<f64>> {
    let read = |param: &Param| {
        let slice = part(param);
        let values = slice.stream().clone_dtoh(slice).unwrap();
        values.into_iter().map(f64::from).collect()
    };
    params(trainer).into_iter().map(read).collect()
}

// Adam's first moment becomes 0.9 m + 0.1 g, which tells the gradient. The second step is taken, because
// the biases are 0 before the first: there the ReLU of a blank pixel has no derivative.
#[test]
fn the_gradients_are_the_central_differences_of_a_reference_in_f64() {
    let Some(_standin) = standin() else { return };
    let options = options(2);
    let data = Mnist::load(&options.data, "train").unwrap();
    let mut trainer = Trainer::new(&options).unwrap();
    let (images, labels) = data.batch(0, options.batch);
    trainer.step(&images, &labels).unwrap();
    let (images, labels) = data.batch(1, options.batch);
    let (values, before) = (down(&trainer, |param| &param.value), down(&trainer, |param| &param.m));
    let told = trainer.step(&images, &labels).unwrap();
    let after = down(&trainer, |param| &param.m);

    let layers = [
        Layer::Conv { size: 28, inputs: 1, outputs: 4 },
        Layer::Conv { size: 14, inputs: 4, outputs: 8 },
        Layer::Linear { inputs: 7 * 7 * 8, outputs: 32, relu: true },
        Layer::Linear { inputs: 32, outputs: 10, relu: false },
    ];
    let expected = loss(&layers, &values, &images, &labels);
    assert!((f64::from(told) - expected).abs() < 1e-5, "{told} instead of {expected}");

    for (index, name) in ["conv1", "conv2", "fc1", "fc2"].iter().flat_map(|n| [n; 2]).enumerate() {
        let (before, after) = (&before[index], &after[index]);
        let gradient: Vec<_> = before.iter().zip(after).map(|(m, n)| (n - 0.9 * m) / 0.1).collect();
        let scale = gradient.iter().fold(0.0_f64, |top, g| top.max(g.abs()));
        assert!(scale > 1e-3, "{name}: the gradient is {scale}");
        let largest = gradient.iter().position(|g| g.abs() == scale).unwrap();
        let some = (0..gradient.len()).step_by(gradient.len().div_ceil(8));
        for at in some.chain([largest]) {
            let difference = |by: f64| {
                let mut moved = values.clone();
                moved[index][at] += by;
                loss(&layers, &moved, &images, &labels)
            };
            let expected = (difference(1e-5) - difference(-1e-5)) / 2e-5;
            let error = (gradient[at] - expected).abs() / scale;
            let found = gradient[at];
            assert!(error < 1e-4, "{name} {index} [{at}]: {found} instead of {expected}");
        }
    }
}

/// Calls that the program made for its buffers before it had an arena: 28, 28, 56 and 56 a step.
const BUFFERS: [&str; 4] =
    ["cuMemAllocAsync", "cuMemFreeAsync", "cuEventCreate", "cuEventDestroy_v2"];

#[test]
fn a_steady_step_learns_its_batch_and_asks_the_driver_for_no_buffer() {
    let Some(standin) = standin() else { return };
    let options = options(8);
    let (images, labels) = Mnist::load(&options.data, "train").unwrap().batch(0, options.batch);
    let mut trainer = Trainer::new(&options).unwrap();
    let first = trainer.step(&images, &labels).unwrap();
    let mut last = first;
    for _ in 0..6 {
        standin.clear_calls();
        last = trainer.step(&images, &labels).unwrap();
        if !standin.is_real_driver() {
            assert_eq!(BUFFERS.map(|name| standin.calls(name)), [0; 4]);
            assert_eq!(
                (standin.calls("cuLaunchKernel"), standin.calls("cublasSgemm_v2")),
                (27, 11)
            );
        }
    }
    assert!(last < 0.2 * first, "{first} to {last}");
}

/// What the driver maps at a time.
const UNIT: u64 = 2 << 20;

#[test]
fn after_a_step_the_region_fits_what_it_needs_though_nobody_knew_it_before() {
    let Some(standin) = standin() else { return };
    let options = options(8);
    let (images, labels) = Mnist::load(&options.data, "train").unwrap().batch(0, options.batch);
    let mut trainer = Trainer::new(&options).unwrap();
    trainer.step(&images, &labels).unwrap();
    trainer.gpu.stream.fit().unwrap();
    let stats = trainer.gpu.stream.stats().unwrap();
    assert_eq!(stats.capacity_bytes, 64 << 30);
    let (below, kept) = (stats.peak_bytes, stats.kept_bytes);
    assert_eq!(stats.committed_bytes, below.next_multiple_of(UNIT) + kept.next_multiple_of(UNIT));
    standin.clear_calls();
    trainer.step(&images, &labels).unwrap();
    assert_eq!(trainer.gpu.stream.stats().unwrap().committed_bytes, stats.committed_bytes);
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuMemCreate"), 0);
    }
    let step = trainer.gpu.stream.enter().unwrap();
    assert!(trainer.gpu.stream.fit().is_err(), "a step is open");
    drop(step);
}
