//! The examples on CUDA hold what they say, in any order that the device may choose.

use cuda_standin::Standin;

use crate::standin;

#[path = "../../cuda_graph.rs"]
mod graph;

#[path = "../../cuda_step.rs"]
mod step;

fn runs(standin: &Standin, main: fn() -> anyhow::Result<()>) {
    for seed in standin.seeds(10) {
        standin.reset(seed);
        main().unwrap_or_else(|error| panic!("seed {seed}: {error:?}: {}", standin.last_fault()));
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
}

#[test]
fn a_step_of_products_and_kernels_takes_its_buffers_from_the_arena() {
    let Some(standin) = standin() else { return };
    runs(&standin, step::main);
    if !standin.is_real_driver() {
        for name in ["cuMemAllocAsync", "cuMemFreeAsync"] {
            assert_eq!(standin.calls(name), 0, "{name}");
        }
    }
}

#[test]
fn a_captured_step_is_replayed_on_batches_that_are_sent_ahead() {
    let Some(standin) = standin() else { return };
    runs(&standin, graph::main);
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuGraphLaunch"), 39, "every step but the first");
        assert_eq!(standin.calls("cuLaunchKernel"), 4, "the first step, and the capture");
    }
}
