//! Steps that the host does not wait for: the same numbers with a graph and without, and what a step
//! costs in driver calls.

use std::num::NonZeroU16;
use std::sync::atomic::AtomicBool;

use crate::common::in_pool;
use crate::cuda_common::{assert_near, backend, bits};
use arena_scope::{Arena, Cuda, Host, Placement, Reset};
use arena_train::backend::HostBackend;
use arena_train::backend::host::{AdamConfig, SgdConfig};
use arena_train::data::{Dataset, Mnist};
use arena_train::error::TrainError;
use arena_train::model::Cnn;
use arena_train::optimizer::Optimizer;
use arena_train::training::{
    AheadConfig, EVALUATE, Evaluation, Per, RunConfig, Share, TRAIN, Trained, Trainer,
};
use arena_train::{heap, planning};
use cuda_standin::{Mode, Standin};
use rstest::rstest;

/// An epoch is three whole steps and a short one, which the stand-in interprets thread by thread.
const IMAGES: usize = 7;
const BATCH: usize = 2;

/// `CUDA_ERROR_NOT_SUPPORTED`, which leaves the device as it is.
const NOT_SUPPORTED: u32 = 801;

fn set(images: usize) -> Dataset {
    let pixels = (0..images * 784).map(|i| (i * i / 7 % 256) as u8).collect();
    let labels = (0..images).map(|i| (i * 3 % 10) as u8).collect();
    Dataset { images: pixels, labels, rows: 28, cols: 28 }
}

fn data() -> Mnist {
    Mnist { train: set(IMAGES), test: set(3) }
}

fn ahead(graph: bool, loss_every: u16) -> Option<AheadConfig> {
    Some(AheadConfig { loss_every: NonZeroU16::new(loss_every).unwrap(), graph })
}

fn config(optimizer: Optimizer, reset: Reset, ahead: Option<AheadConfig>) -> RunConfig {
    let per = Per::Minibatch;
    RunConfig {
        network: (),
        epochs: 2,
        batch: BATCH,
        accumulate: 1,
        share: Share::WHOLE,
        warmup: 0,
        per,
        reset,
        optimizer,
        seed: 1,
        steps: Some(7),
        ahead,
    }
}

fn adam() -> Optimizer {
    Optimizer::Adam(AdamConfig::default())
}

fn trainer(config: &RunConfig) -> Trainer<Cnn<arena_train::backend::CudaBackend>> {
    placed(config, Placement::Bump, false)
}

/// As the program builds it.
fn placed(
    config: &RunConfig,
    placement: Placement,
    planned: bool,
) -> Trainer<Cnn<arena_train::backend::CudaBackend>> {
    let device = Cuda::new(0).unwrap();
    let backend = backend(&device);
    let mut run = planning::probe::<Cnn<_>>(&device, &backend, config, &data()).unwrap();
    if !planned {
        run = run.without_plans();
    }
    let builder = Arena::builder(device).reset(config.reset).placement(placement);
    let mut arena = run.build_with(builder).unwrap();
    arena.observe(Some(heap::own_allocations));
    Trainer::<Cnn<_>>::on(arena, backend, config.clone()).unwrap()
}

#[derive(Debug)]
struct Run {
    trained: Trained,
    losses: Vec<f32>,
    evaluation: Evaluation,
    parameters: Vec<Vec<u32>>,
}

/// Trains and evaluates.
fn run(config: &RunConfig) -> Run {
    let mut trainer = trainer(config);
    finish(&mut trainer)
}

fn finish(trainer: &mut Trainer<Cnn<arena_train::backend::CudaBackend>>) -> Run {
    let (stop, mut losses, mut steps) = (AtomicBool::new(false), Vec::new(), Vec::new());
    let first = trainer.step();
    let trained = trainer
        .train(&data().train, &stop, |report| {
            losses.push(report.loss);
            steps.push(report.step);
        })
        .unwrap();
    assert_eq!(steps, (first + 1..=trained.steps).collect::<Vec<_>>(), "each step is told once");
    let evaluation = trainer.evaluate(&data().test).unwrap();
    let parameters = trainer.model().parameters().saved().unwrap();
    let parameters = parameters.iter().map(|(_, view)| bits(&view.to_vec().unwrap())).collect();
    let stats = trainer.arena().stats();
    assert_eq!(stats.peak_bytes, stats.capacity_bytes, "just what the probe said");
    assert_eq!(stats.used_bytes, stats.mark_bytes);
    Run { trained, losses, evaluation, parameters }
}

#[track_caller]
fn assert_same(found: &Run, expected: &Run) {
    assert_eq!(bits(&found.losses), bits(&expected.losses), "losses");
    assert_eq!(found.evaluation, expected.evaluation);
    assert!(found.parameters == expected.parameters, "parameters");
}

#[rstest]
#[case::adam(adam(), Reset::Keep)]
#[case::sgd(Optimizer::Sgd(SgdConfig { learning_rate: 0.05, momentum: 0.9 }), Reset::Poison)]
fn a_run_with_a_graph_is_the_run_without_to_the_bit(
    #[case] optimizer: Optimizer,
    #[case] reset: Reset,
) {
    let standin = Standin::load().unwrap();
    let plain = run(&config(optimizer, reset, ahead(false, 1)));
    assert_eq!((plain.trained.replays, plain.losses.len()), (0, 7));
    standin.reset(1);
    let replayed = run(&config(optimizer, reset, ahead(true, 1)));
    // Steps 3, 5, 6 and 7; step 4 is short.
    assert_eq!((replayed.trained.replays, &replayed.trained.graph_refusal), (4, &None));
    assert_same(&replayed, &plain);
    standin.reset(2);
    let seldom = run(&config(optimizer, reset, ahead(true, 3)));
    assert_same(&seldom, &plain);

    let on_host = in_pool(|| {
        let (config, backend) = (config(optimizer, reset, None), HostBackend::new(2));
        let run = planning::probe::<Cnn<_>>(&Host::new(), &backend, &config, &data()).unwrap();
        let capacity = run.bumped_capacity();
        let mut trainer = Trainer::<Cnn<_>>::new(Host::new(), backend, config, capacity).unwrap();
        let mut losses = Vec::new();
        let stop = AtomicBool::new(false);
        trainer.train(&data().train, &stop, |report| losses.push(report.loss)).unwrap();
        losses
    });
    assert_near("losses", &plain.losses, &on_host, 1e-4);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

/// Under a plan a whole step repeats its addresses as well, so that it is captured. What is short, and
/// an evaluation in between, follow plans of their own and leave the graph as it is.
#[test]
fn a_planned_run_with_a_graph_is_the_run_without_to_the_bit() {
    let standin = Standin::load().unwrap();
    let reset = Reset::Poison;
    let bumped = run(&config(adam(), reset, ahead(false, 1)));
    let whole = |graph| {
        standin.reset(1);
        finish(&mut placed(&config(adam(), reset, ahead(graph, 1)), Placement::Bump, true))
    };
    let (plain, replayed) = (whole(false), whole(true));
    assert_same(&plain, &bumped);
    assert_same(&replayed, &plain);
    assert_eq!((replayed.trained.replays, &replayed.trained.graph_refusal), (4, &None));

    // Stopped in the second epoch, evaluated, and gone on with.
    standin.reset(2);
    let mut trainer = placed(&config(adam(), reset, ahead(true, 1)), Placement::Bump, true);
    let (stop, mut losses) = (AtomicBool::new(false), Vec::new());
    let stopped = trainer
        .train(&data().train, &stop, |report| {
            losses.push(report.loss);
            // When the loss of step 5 is read, step 6 is queued.
            if report.step == 5 {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        })
        .unwrap();
    assert_eq!((stopped.steps, stopped.replays, &stopped.graph_refusal), (6, 3, &None));
    trainer.evaluate(&data().test).unwrap();
    let mut rest = finish(&mut trainer);
    assert_eq!((rest.trained.graph_refusal.as_ref(), rest.losses.len()), (None, 1));
    losses.append(&mut rest.losses);
    rest.losses = losses;
    assert_same(&rest, &bumped);
    let kinds = trainer.arena().observed().unwrap().kinds;
    for name in [TRAIN.name, EVALUATE.name] {
        let mut seen = 0;
        for kind in kinds.iter().filter(|kind| kind.key.name == name) {
            let deviations = trainer.arena().plan_deviations(kind.key).unwrap();
            assert_eq!((deviations.total(), deviations.unfreed), (0, 0), "{deviations}");
            seen += 1;
        }
        assert!(seen > 0, "steps `{name}` are planned");
    }
    drop(trainer);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

/// Each buffer would be an allocation inside the capture, which no replay could repeat.
#[test]
fn a_graph_of_buffers_with_allocations_of_their_own_is_refused_and_the_steps_go_on() {
    let standin = Standin::load().unwrap();
    let plain = run(&config(adam(), Reset::Keep, ahead(false, 1)));
    standin.reset(1);
    let with_a_graph = config(adam(), Reset::Keep, ahead(true, 1));
    let mut trainer = placed(&with_a_graph, Placement::Separate, false);
    let found = finish(&mut trainer);
    let refusal = found.trained.graph_refusal.as_ref().unwrap();
    assert!(refusal.contains("not captured") && refusal.contains("cuMemAlloc"), "{refusal}");
    assert_eq!(found.trained.replays, 0);
    assert_same(&found, &plain);
    drop(trainer);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

/// A run that goes on after a stop counts the device's steps from there, and captures its step anew.
#[test]
fn a_run_that_was_stopped_goes_on_as_if_it_had_not() {
    let _standin = Standin::load().unwrap();
    let whole = run(&config(adam(), Reset::Keep, ahead(true, 1)));
    let mut trainer = trainer(&config(adam(), Reset::Keep, ahead(true, 2)));
    let (stop, mut losses) = (AtomicBool::new(false), Vec::new());
    let stopped = trainer
        .train(&data().train, &stop, |report| {
            losses.push(report.loss);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        })
        .unwrap();
    // Told of step 1 when the next group was queued, whose losses are told as well.
    assert_eq!((stopped.interrupted, stopped.steps), (true, 4));
    assert_eq!(losses.len(), 4, "each step that was done is told");
    let mut rest = finish(&mut trainer);
    losses.append(&mut rest.losses);
    rest.losses = losses;
    assert_same(&rest, &whole);
}

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

#[rstest]
#[case::each_loss(1)]
#[case::two_losses_at_once(2)]
fn a_replayed_step_is_one_launch_and_waits_for_nothing_that_has_arrived(#[case] loss_every: u16) {
    let standin = Standin::load().unwrap();
    // At once, so that a wait for the host memory of a slot would be the loop's own.
    standin.set_mode(Mode::Eager);
    let config = RunConfig { epochs: 5, ..config(adam(), Reset::Keep, ahead(true, loss_every)) };
    let mut trainer = trainer(&RunConfig { batch: 1, ..config });
    let counts = |names: &[&str]| names.iter().map(|name| standin.calls(name)).sum::<u64>();
    let mut seen = Vec::new();
    let trained = trainer
        .train(&data().train, &AtomicBool::new(false), |report| {
            if standin.is_real_driver() {
                return;
            }
            let (graphs, kernels) =
                (standin.calls("cuGraphLaunch"), standin.calls("cuLaunchKernel"));
            let gemms = standin.calls("cublasSgemm_v2");
            let (makes, waits) = (counts(&MAKES), counts(&WAITS));
            seen.push((report.step, [graphs, kernels + gemms, makes, waits]));
        })
        .unwrap();
    assert_eq!((trained.steps, trained.replays), (7, 5));
    if standin.is_real_driver() {
        return; // Nobody has counted.
    }
    let at = |step: u64| -> [u64; 4] { seen.iter().find(|(seen, _)| *seen == step).unwrap().1 };
    // Told when a group more is queued: two steps lie between.
    let (before, after) = (at(2), at(4));
    let found: [u64; 4] = std::array::from_fn(|n| after[n] - before[n]);
    assert_eq!(found, [2, 0, 0, 0], "launches, kernels, makes, waits");
    let readings = 7_u64.div_ceil(u64::from(loss_every));
    assert_eq!(standin.calls("cuMemcpyDtoHAsync_v2"), readings, "one copy for a group");

    // Each launch is followed by the copy of the next batch, before anything waits or is launched.
    let names = standin.call_names();
    let after_launches = names.split(|name| name == "cuGraphLaunch").skip(1);
    let copies: Vec<bool> = after_launches
        .map(|calls| {
            let until = calls.iter().take_while(|name| !WAITS.contains(&name.as_str()));
            until.into_iter().any(|name| name == "cuMemcpyHtoDAsync_v2")
        })
        .collect();
    assert_eq!(copies, [true, true, true, true, false], "no batch comes after the last");
}

#[test]
fn the_device_has_the_next_step_queued_while_the_host_reads_a_loss() {
    let standin = Standin::load().unwrap();
    let config = RunConfig { steps: Some(4), ..config(adam(), Reset::Keep, ahead(false, 1)) };
    let mut trainer = trainer(&config);
    let mut queued = Vec::new();
    trainer
        .train(&data().train, &AtomicBool::new(false), |_| queued.push(standin.queued()))
        .unwrap();
    // A step is more than ten kernels; the last one is read when there is no other.
    let [first, second, third, last] = queued[..] else { panic!("{queued:?}") };
    assert!(first.min(second).min(third) > 10 && last < 10, "{queued:?}");
}

#[rstest]
#[case::begin("cuStreamBeginCapture_v2", "not captured")]
#[case::end("cuStreamEndCapture", "not captured")]
#[case::instantiate("cuGraphInstantiateWithFlags", "not captured")]
#[case::launch("cuGraphLaunch", "not replayed")]
fn a_refused_graph_leaves_ordinary_steps(#[case] call: &str, #[case] what: &str) {
    let standin = Standin::load().unwrap();
    standin.needed_for("failures");
    let plain = run(&config(adam(), Reset::Zero, ahead(false, 2)));
    standin.reset(0);
    let config = config(adam(), Reset::Zero, ahead(true, 2));
    let mut trainer = trainer(&config);
    standin.fail_nth(call, 1, NOT_SUPPORTED);
    let found = finish(&mut trainer);
    assert_eq!(standin.failures_to_come(), 0, "the call was made");
    assert_eq!(found.trained.replays, 0);
    let refusal = found.trained.graph_refusal.as_ref().unwrap();
    assert!(refusal.contains(what) && refusal.contains(call.trim_end_matches("_v2")), "{refusal}");
    assert_same(&found, &plain);
    drop(trainer);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

/// What the close of the captured scope leaves behind does not fail the ordinary step.
#[test]
fn a_step_that_fails_while_it_is_captured_runs_in_the_ordinary_way() {
    let standin = Standin::load().unwrap();
    standin.needed_for("failures");
    let plain = run(&config(adam(), Reset::Zero, ahead(false, 1)));
    standin.reset(0);
    let mut trainer = trainer(&config(adam(), Reset::Zero, ahead(true, 1)));
    let mut losses = Vec::new();
    let trained = trainer
        .train(&data().train, &AtomicBool::new(false), |report| {
            losses.push(report.loss);
            // The loss of the first step is read when the second is queued.
            if report.step == 1 {
                standin.fail_nth("cuLaunchKernel", 1, NOT_SUPPORTED);
                standin.fail_nth("cuMemsetD8Async", 1, NOT_SUPPORTED);
            }
        })
        .unwrap();
    assert_eq!((standin.failures_to_come(), trained.replays), (0, 0));
    let refusal = trained.graph_refusal.unwrap();
    assert!(refusal.contains("not captured") && refusal.contains("load_batch"), "{refusal}");
    assert_eq!(bits(&losses), bits(&plain.losses));
}

/// What a failed step left on its way to the host is not taken for losses of the steps after it.
#[test]
fn after_a_step_that_failed_the_run_goes_on_from_there() {
    let standin = Standin::load().unwrap();
    standin.needed_for("failures");
    let plain = run(&config(adam(), Reset::Keep, ahead(false, 1)));
    standin.reset(0);
    let mut trainer = trainer(&config(adam(), Reset::Keep, ahead(false, 1)));
    let stop = AtomicBool::new(false);
    let failed = trainer.train(&data().train, &stop, |report| {
        if report.step == 1 {
            standin.fail_nth("cuLaunchKernel", 1, NOT_SUPPORTED);
        }
    });
    assert!(failed.unwrap_err().to_string().contains("load_batch"));
    let done = trainer.step() as usize;
    assert_eq!(done, 2, "the step is not counted");
    let rest = finish(&mut trainer);
    assert_eq!(bits(&rest.losses), bits(&plain.losses[done..]));
    assert!(rest.parameters == plain.parameters);
}

#[rstest]
fn a_step_that_fails_loses_no_loss_of_those_before(#[values(1, 3)] loss_every: u16) {
    let standin = Standin::load().unwrap();
    let mut trainer = trainer(&config(adam(), Reset::Keep, ahead(false, loss_every)));
    let (mut told, stop) = (Vec::new(), AtomicBool::new(false));
    standin.fail_nth("cuLaunchKernel", 70, NOT_SUPPORTED); // in the third step
    let failed = trainer.train(&data().train, &stop, |report| told.push(report.step));
    let failed = failed.map(drop).unwrap_err().to_string();
    assert!(failed.contains("CUDA error 801"), "{failed}");
    assert!(trainer.step() > 1, "it failed too early to tell");
    assert_eq!(told, (1..=trainer.step()).collect::<Vec<_>>());
}

#[test]
fn the_host_does_not_run_ahead_of_itself() {
    let config = config(adam(), Reset::Keep, ahead(false, 1));
    let backend = HostBackend::new(1);
    let capacity = arena_scope::ByteSize::mib(64);
    let refused = Trainer::<Cnn<_>>::new(Host::new(), backend, config, capacity).unwrap_err();
    assert!(matches!(refused, TrainError::OnlyOnCuda { .. }), "{refused}");
}
