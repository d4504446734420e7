//! From the third step on a training step on a device allocates nothing: not on the device, and not
//! on the host's heap. It waits for the device once, to read its loss. So too where batches are sent ahead,
//! and then it waits for the loss of the step before it, unless that has arrived.

use std::num::NonZeroU16;
use std::sync::atomic::AtomicBool;

use arena_scope::{Cuda, Reset};
use arena_train::backend::host::AdamConfig;
use arena_train::data::{Dataset, Mnist};
use arena_train::model::Cnn;
use arena_train::optimizer::Optimizer;
use arena_train::planning;
use arena_train::training::{AheadConfig, Per, RunConfig, Share, Trainer};
use cuda_standin::Standin;

/// Driver calls that allocate, or make something that has to be released.
const MAKES: [&str; 8] = [
    "cuMemAlloc_v2",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemHostAlloc",
    "cuMemCreate",
    "cuEventCreate",
    "cuStreamCreate",
    "cuModuleLoadData",
];

/// Driver calls that wait.
const WAITS: [&str; 3] = ["cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"];

#[test]
fn a_steady_step_makes_nothing_and_waits_once() {
    let _alone = crate::alone();
    let images = 20;
    let pixels = (0..images * 784).map(|i| (i * 31 % 256) as u8).collect();
    let labels = (0..images).map(|i| (i % 10) as u8).collect();
    let set = Dataset { images: pixels, labels, rows: 28, cols: 28 };
    let data = Mnist { train: set.clone(), test: set };
    let standin = Standin::load().unwrap();
    let one = AheadConfig { loss_every: NonZeroU16::MIN, graph: false };
    for ahead in [None, Some(one)] {
        standin.reset(0);
        let config = RunConfig {
            network: (),
            epochs: 1,
            batch: 4,
            accumulate: 1,
            share: Share::WHOLE,
            warmup: 0,
            per: Per::Minibatch,
            reset: Reset::Keep,
            optimizer: Optimizer::Adam(AdamConfig::default()),
            seed: 1,
            steps: None,
            ahead,
        };
        let device = Cuda::new(0).unwrap();
        let backend = crate::cuda_common::backend(&device);
        let run = planning::probe::<Cnn<_>>(&device, &backend, &config, &data).unwrap();
        let capacity = run.bumped_capacity();
        let mut trainer = Trainer::<Cnn<_>>::new(device, backend, config, capacity).unwrap();

        if !standin.is_real_driver() {
            assert_eq!(
                standin.calls("cublasSetWorkspace_v2"),
                1,
                "cuBLAS works in the arena's memory"
            );
        }

        let counts = |names: &[&str]| names.iter().map(|name| standin.calls(name)).sum::<u64>();
        let mut seen = Vec::with_capacity(8);
        trainer
            .train(&data.train, &AtomicBool::new(false), |_| {
                if standin.is_real_driver() {
                    return;
                }
                seen.push((counts(&MAKES), counts(&WAITS), standin.calls("cuLaunchKernel")));
            })
            .unwrap();
        let steady = trainer.steady_state().unwrap();
        assert_eq!(steady.heap_allocations_per_step(), Some(0), "{steady:?}");
        if standin.is_real_driver() {
            continue; // Nobody has counted.
        }
        let [_, first, rest @ ..] = seen.as_slice() else { panic!("{seen:?}") };
        assert_eq!(rest.len(), 3);
        // Ahead, a loss is read when one step more is queued, and the last two together.
        let rest = if ahead.is_some() { &rest[..2] } else { rest };
        let mut before = *first;
        for now in rest {
            assert_eq!(now.0 - before.0, 0, "nothing is made");
            let waits = now.1 - before.1;
            assert!(waits == 1 || (waits == 0 && ahead.is_some()), "{waits}: the loss is read");
            assert!(now.2 > before.2, "kernels are counted");
            before = *now;
        }
    }
}
