//! A step is done whole or not at all, on CUDA: whichever call of the driver fails, whether batches are sent ahead
//! and losses read behind or not, and whether a step is replayed as a graph.

use std::num::NonZeroU16;

use crate::cuda_common::backend;
use crate::transaction::{Unbroken, data};
use arena_scope::{Arena, Cuda, Reset};
use arena_train::backend::CudaBackend;
use arena_train::backend::host::AdamConfig;
use arena_train::model::Cnn;
use arena_train::optimizer::Optimizer;
use arena_train::planning;
use arena_train::training::{AheadConfig, Per, RunConfig, Share, Trainer};
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

#[derive(Debug, Clone, Copy)]
struct Case {
    ahead: Option<AheadConfig>,
    planned: bool,
    reset: Reset,
}

const WAITING: Case = Case { ahead: None, planned: false, reset: Reset::Zero };
const SENT_AHEAD: Case = Case { ahead: ahead(false, 1), planned: true, reset: Reset::Zero };
const IN_PAIRS: Case = Case { ahead: ahead(false, 2), planned: false, reset: Reset::Keep };
const A_GRAPH: Case = Case { ahead: ahead(true, 1), planned: false, reset: Reset::Keep };
const A_PLANNED_GRAPH: Case = Case { ahead: ahead(true, 2), planned: true, reset: Reset::Zero };

/// The stand-in computes a step thread by thread, so here only some of the calls fail; the test below tries all.
#[rstest]
#[case::waiting(WAITING, 5)]
#[case::sent_ahead(SENT_AHEAD, 6)]
#[case::losses_in_pairs(IN_PAIRS, 7)]
#[case::a_graph(A_GRAPH, 8)]
#[case::a_planned_graph(A_PLANNED_GRAPH, 9)]
fn a_step_on_a_device_happens_whole_or_not_at_all_when_a_call_fails(
    #[case] case: Case,
    #[case] first: u64,
) {
    check(case, first, 53);
}

#[rstest]
#[ignore = "it takes many minutes"]
fn a_step_on_a_device_happens_whole_or_not_at_all_whichever_call_fails(
    #[values(WAITING, SENT_AHEAD, IN_PAIRS, A_GRAPH, A_PLANNED_GRAPH)] case: Case,
) {
    check(case, 1, 1);
}

/// Lets the driver's call number `first` of a run fail, then a later one of another run by `stride`, to the last.
fn check(case: Case, first: u64, stride: usize) {
    let Case { ahead, planned, reset } = case;
    let standin = Standin::load().unwrap();
    standin.needed_for("failures");
    let data = data(4);
    let config = RunConfig {
        network: (),
        epochs: 2,
        batch: 1,
        accumulate: 1,
        share: Share::WHOLE,
        warmup: 0,
        per: Per::Minibatch,
        reset,
        optimizer: Optimizer::Adam(AdamConfig::default()),
        seed: 1,
        steps: Some(4),
        ahead,
    };
    let of = |steps| -> Trainer<Cnn<CudaBackend>> {
        standin.reset(0);
        standin.set_mode(Mode::Eager);
        let config = RunConfig { steps: Some(steps), ..config.clone() };
        let device = Cuda::new(0).unwrap();
        let backend = backend(&device);
        let mut run = planning::probe::<Cnn<_>>(&device, &backend, &config, &data).unwrap();
        if !planned {
            run = run.without_plans();
        }
        let mut arena = run.build_with(Arena::builder(device).reset(config.reset)).unwrap();
        arena.observe(None);
        Trainer::<Cnn<_>>::on(arena, backend, config).unwrap()
    };
    let unbroken = Unbroken::new(&data, of);
    let (mut failures, mut tried) = (0, 0);
    for n in (first..).step_by(stride) {
        let mut trainer = of(4);
        standin.fail_nth_call(n, NOT_SUPPORTED);
        let mut left = 0;
        let failed = unbroken.check(&format!("call {n}"), &mut trainer, &data, || {
            left = standin.failures_to_come();
            standin.clear_failures();
        });
        failures += u64::from(failed.is_some());
        if left > 0 {
            break; // The run makes fewer calls.
        }
        tried += 1;
    }
    // A graph that is refused is no failure of the step: it runs in the ordinary way.
    println!("{tried} of a run's calls were refused, {failures} times it failed");
    assert!(2 * failures >= tried && failures > 0, "{failures} of {tried}");
}
