//! A step is done whole or not at all, on CUDA: whichever call of the driver fails, whether batches are sent ahead
//! and losses read behind or not, and whether a step is replayed as a graph.

use std::num::NonZeroU16;

use crate::cuda_common::backend;
use crate::transaction::{Unbroken, data};
use arena_scope::{Arena, Cuda, Reset};
use arena_train::backend::CudaBackend;
use arena_train::backend::host::AdamConfig;
use arena_train::optimizer::Optimizer;
use arena_train::planning;
use arena_train::training::{AheadConfig, Per, RunConfig, Trainer};
use cuda_standin::{Mode, Standin};
use rstest::rstest;

/// `CUDA_ERROR_NOT_SUPPORTED`, which leaves the device as it is.
const NOT_SUPPORTED: u32 = 801;

const fn ahead(graph: bool, loss_every: u16) -> Option<AheadConfig> {
    match NonZeroU16::new(loss_every) {
        Some(loss_every) => Some(AheadConfig { loss_every, graph }),
        None => None,
    }
}

/// Of the calls that a run makes, every `stride`-th fails in turn: the stand-in computes each step thread by thread.
#[rstest]
#[case::waiting(None, false, Reset::Keep)]
#[case::waiting_and_zeroed(None, false, Reset::Zero)]
#[case::sent_ahead(ahead(false, 1), false, Reset::Keep)]
#[case::planned_and_sent_ahead(ahead(false, 1), true, Reset::Zero)]
#[case::losses_in_pairs(ahead(false, 2), false, Reset::Poison)]
#[case::a_graph(ahead(true, 1), false, Reset::Keep)]
#[case::a_planned_graph(ahead(true, 2), true, Reset::Zero)]
fn a_step_on_a_device_happens_whole_or_not_at_all_whichever_call_fails(
    #[case] ahead: Option<AheadConfig>,
    #[case] planned: bool,
    #[case] reset: Reset,
) {
    let standin = Standin::load().unwrap();
    standin.needed_for("failures");
    let data = data(4);
    let config = RunConfig {
        epochs: 2,
        batch: 1,
        per: Per::Minibatch,
        reset,
        optimizer: Optimizer::Adam(AdamConfig::default()),
        seed: 1,
        steps: Some(4),
        ahead,
    };
    let of = |steps| -> Trainer<CudaBackend> {
        standin.reset(0);
        standin.set_mode(Mode::Eager);
        let config = RunConfig { steps: Some(steps), ..config.clone() };
        let device = Cuda::new(0).unwrap();
        let backend = backend(&device);
        let mut run = planning::probe(&device, &backend, &config, &data).unwrap();
        if !planned {
            run = run.without_plans();
        }
        let arena = run.build_with(Arena::builder(device).reset(config.reset)).unwrap();
        let mut arena = arena;
        arena.observe(None);
        Trainer::on(arena, backend, config).unwrap()
    };
    let unbroken = Unbroken::new(&data, of);
    let (mut failures, mut tried) = (0, 0);
    for n in 1.. {
        let mut trainer = of(4);
        standin.fail_nth_call(n, NOT_SUPPORTED);
        let mut left = 0;
        let failed = unbroken.check(&format!("call {n}"), &mut trainer, &data, || {
            left = standin.failures_to_come();
            standin.clear_failures();
        });
        failures += u64::from(failed.is_some());
        tried = n;
        if left > 0 {
            break; // The run makes fewer calls.
        }
    }
    println!("{tried} calls, {failures} failures");
    assert!(failures > 40, "{failures} of {tried} calls failed");
}
