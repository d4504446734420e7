//! The network on the stand-in driver, through the arena: the same losses and gradients as on the
//! host, and the whole loop.

use std::num::NonZeroU16;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::in_pool;
use crate::cuda_common::{assert_near, backend, bits};
use arena_plan::PlannedRun;
use arena_scope::{Arena, ByteSize, Cuda, Device, Host, Keep, RegionKind, Reset, ScopeOptions};
use arena_train::backend::host::{AdamConfig, SgdConfig};
use arena_train::backend::{Backend, CudaBackend, HostBackend};
use arena_train::data::{Dataset, Mnist};
use arena_train::error::TrainError;
use arena_train::model::{Cnn, IMAGE_LEN};
use arena_train::network::Network;
use arena_train::optimizer::Optimizer;
use arena_train::planning;
use arena_train::training::{AheadConfig, Per, RunConfig, Share, Trained, Trainer};
use cuda_standin::{Mode, Standin};
use cudarc::driver::CudaContext;
use rstest::rstest;

/// Few images, for the stand-in interprets each thread; a short last batch of training and of test.
static DATA: LazyLock<Mnist> = LazyLock::new(|| {
    // Asked when it runs as well, for a test that was built on another machine.
    let manifest = std::env::var("CARGO_MANIFEST_DIR");
    let manifest = manifest.as_deref().unwrap_or(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(manifest).join("../../data/mnist");
    let mut data = Mnist::load(&folder).expect("the data is in the repository");
    let cut = |set: &mut Dataset, images: usize| {
        set.images.truncate(images * IMAGE_LEN);
        set.labels.truncate(images);
    };
    cut(&mut data.train, 14);
    cut(&mut data.test, 5);
    data
});

const ADAM: Optimizer = Optimizer::Adam(AdamConfig {
    learning_rate: 2e-3,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.0,
});
const SGD: Optimizer = Optimizer::Sgd(SgdConfig { learning_rate: 0.05, momentum: 0.9 });

/// The loss of each of three steps, and the gradients of all parameters.
type Steps = Vec<(f32, Vec<Vec<f32>>)>;

fn three_steps<B: Backend>(device: B::Device, backend: B, optimizer: &Optimizer) -> Steps {
    let run = || -> Result<Steps, TrainError> {
        let mut arena = Arena::builder(device).capacity(ByteSize::mib(64)).build()?;
        let mut model = Cnn::new(&arena, backend, &RunConfig::new((), *optimizer, 1))?;
        arena.mark()?;
        let mut steps = Vec::new();
        for (step, indices) in [[3, 0, 7, 2], [11, 4, 1, 9], [5, 13, 6, 8]].iter().enumerate() {
            let loss = arena.scope_with(ScopeOptions::named("train"), |scope| {
                let mut images = scope.alloc(indices.len() * IMAGE_LEN)?;
                let mut labels = scope.alloc(indices.len())?;
                let backend = model.backend();
                let bytes = backend.load_batch_workspace_bytes(&DATA.train, indices.len());
                let mut bytes = scope.alloc(bytes)?;
                let (x, y) = (images.view_mut(), labels.view_mut());
                backend.load_batch(&DATA.train, indices, x, y, bytes.view_mut())?;
                let loss = model.gradients(scope, images, labels)?;
                model.update(step as u64 + 1, 1.0)?;
                Ok::<_, TrainError>(scope.read_one(loss.mean.view())?)
            })?;
            let parameters = model.parameters();
            let gradients =
                parameters.parts().map(|(part, _)| Ok(parameters.gradient(part)?.to_vec()?));
            steps.push((loss, gradients.collect::<Result<_, TrainError>>()?));
        }
        Ok(steps)
    };
    run().unwrap()
}

#[rstest]
#[case::sgd(SGD)]
#[case::adam(ADAM)]
fn three_steps_give_the_hosts_losses_and_gradients(#[case] optimizer: Optimizer) {
    let expected = in_pool(|| three_steps(Host::new(), HostBackend::new(2), &optimizer));
    let standin = Standin::load().unwrap();
    let mut first: Option<Vec<u32>> = None;
    for seed in standin.seeds(2) {
        standin.reset(seed);
        let device = Cuda::new(0).unwrap();
        let backend = backend(&device);
        let found = three_steps(device, backend, &optimizer);
        for (step, ((loss, gradients), (expected_loss, expected))) in
            found.iter().zip(&expected).enumerate()
        {
            assert_near(&format!("loss of step {step}"), &[*loss], &[*expected_loss], 1e-4);
            for (tensor, (found, expected)) in gradients.iter().zip(expected).enumerate() {
                let what = format!("gradient {tensor} of step {step}");
                assert_near(&what, found, expected, 1e-4);
            }
        }
        let all = found.iter().flat_map(|(loss, gradients)| {
            bits(&[*loss]).into_iter().chain(gradients.iter().flat_map(|values| bits(values)))
        });
        let all: Vec<u32> = all.collect();
        assert!(*first.get_or_insert_with(|| all.clone()) == all, "another order, other bits");
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
}

fn config(per: Per, reset: Reset) -> RunConfig {
    RunConfig {
        network: (),
        epochs: 2,
        batch: 4,
        accumulate: 1,
        share: Share::WHOLE,
        warmup: 0,
        per,
        reset,
        optimizer: ADAM,
        seed: 1,
        steps: Some(6),
        ahead: None,
    }
}

/// Trains and evaluates: what training says, each loss, and the hits.
fn train<B: Backend>(device: B::Device, backend: B, config: RunConfig) -> (Trained, Vec<f32>, u64) {
    let run = planning::probe::<Cnn<_>>(&device, &backend, &config, &DATA).unwrap();
    let capacity = run.bumped_capacity();
    let mut trainer = Trainer::<Cnn<_>>::new(device, backend, config, capacity).unwrap();
    let (stop, mut losses) = (AtomicBool::new(false), Vec::new());
    let trained = trainer.train(&DATA.train, &stop, |report| losses.push(report.loss)).unwrap();
    let evaluation = trainer.evaluate(&DATA.test).unwrap();
    let stats = trainer.arena().stats();
    assert_eq!(stats.peak_bytes, stats.capacity_bytes, "just what the probe said");
    assert_eq!(stats.used_bytes, stats.mark_bytes);
    (trained, losses, evaluation.hits)
}

#[rstest]
#[case::steps(Per::Minibatch, Reset::Keep, Mode::Deferred)]
#[case::epochs(Per::Epoch, Reset::Keep, Mode::Deferred)]
#[case::poisoned(Per::Minibatch, Reset::Poison, Mode::Deferred)]
#[case::zeroed(Per::Minibatch, Reset::Zero, Mode::Eager)]
fn the_loop_trains_and_evaluates_as_on_the_host(
    #[case] per: Per,
    #[case] reset: Reset,
    #[case] mode: Mode,
) {
    let config = config(per, reset);
    let (_, expected, expected_hits) =
        in_pool(|| train(Host::new(), HostBackend::new(2), config.clone()));
    let standin = Standin::load().unwrap();
    standin.set_mode(mode);
    let device = Cuda::new(0).unwrap();
    let backend = backend(&device);
    let (trained, losses, hits) = train(device, backend, config);
    assert_eq!((trained.steps, trained.off_the_mark), (6, 0));
    assert_near("losses", &losses, &expected, 1e-4);
    assert_eq!(hits, expected_hits);
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuMemAlloc_v2"), 1, "the region");
    }
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

/// Another device is current on the thread, as where a program works with both.
#[rstest]
#[case::the_second_of_two(2, 1)]
#[case::the_third_of_four(4, 2)]
fn a_run_on_another_device_is_that_on_the_first_to_the_bit(
    #[case] devices: u32,
    #[case] ordinal: usize,
) {
    let standin = Standin::load().unwrap();
    let losses = [0, ordinal].map(|ordinal| {
        standin.reset(0);
        assert!(standin.set_devices(devices));
        let other = CudaContext::new((ordinal + 1) % devices as usize).unwrap();
        let device = Cuda::new(ordinal).unwrap();
        assert_eq!(device.context().ordinal(), ordinal);
        let backend = backend(&device);
        let config = RunConfig { steps: Some(3), ..config(Per::Minibatch, Reset::Keep) };
        other.bind_to_thread().unwrap();
        let (_, losses, _) = train(device, backend, config);
        drop(other);
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
        losses
    });
    assert_eq!(losses[0].len(), 3);
    assert_eq!(bits(&losses[0]), bits(&losses[1]));
}

/// Free bytes of the device.
fn free(trainer: &Trainer<Cnn<CudaBackend>>) -> u64 {
    trainer.arena().device().memory().unwrap().free_bytes
}

// All memory of the region is given away between two steps, whose addresses and graphs stay.
#[rstest]
#[case::waiting(None)]
#[case::ahead_with_a_graph(Some(AheadConfig { loss_every: NonZeroU16::MIN, graph: true }))]
fn a_run_that_is_paused_every_second_step_is_that_of_one_that_is_not_to_the_bit(
    #[case] ahead: Option<AheadConfig>,
) {
    let standin = Standin::load().unwrap();
    let losses = [false, true].map(|pauses| {
        standin.reset(0);
        let device = Cuda::new(0).unwrap();
        let backend = backend(&device);
        let config = RunConfig { ahead, ..config(Per::Minibatch, Reset::Keep) };
        let builder = Arena::builder(device).capacity(ByteSize::gib(1));
        let arena = builder.region(RegionKind::Virtual).build().unwrap();
        let mut trainer = Trainer::<Cnn<_>>::on(arena, backend, config).unwrap();
        let mut losses = Vec::new();
        loop {
            let stop = AtomicBool::new(false);
            let trained = trainer
                .train(&DATA.train, &stop, |report| {
                    losses.push(report.loss);
                    stop.store(pauses && report.step % 2 == 0, Ordering::Relaxed);
                })
                .unwrap();
            if trained.steps == 6 {
                break;
            }
            let before = free(&trainer);
            let given = trainer.arena_mut().pause(Keep::Persistent).unwrap();
            assert_eq!(
                (free(&trainer) - before, trainer.arena().stats().committed_bytes),
                (given, 0)
            );
            assert!(given > 0);
            trainer.arena_mut().resume().unwrap();
        }
        let hits = trainer.evaluate(&DATA.test).unwrap().hits;
        drop(trainer);
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
        (bits(&losses), hits)
    });
    assert_eq!(losses[0].0.len(), 6);
    assert_eq!(losses[0], losses[1]);
}

/// Steps of 4 images in an arena for steps of 2.
#[rstest]
fn a_step_without_room_is_refused_before_its_first_kernel(
    #[values(Per::Minibatch, Per::Epoch)] per: Per,
) {
    let standin = Standin::load().unwrap();
    let device = Cuda::new(0).unwrap();
    let backend = backend(&device);
    let needed = |config: &RunConfig| {
        planning::probe::<Cnn<_>>(&device, &backend, config, &DATA).unwrap().without_plans()
    };
    let config = RunConfig { steps: Some(2), ..config(per, Reset::Keep) };
    let run = needed(&config);
    let smaller = RunConfig { batch: 2, ..config.clone() };
    let capacity = needed(&smaller).capacity();

    let mut trainer = Trainer::<Cnn<_>>::new(device, backend, config, capacity).unwrap();
    let mut launches = |needs: Option<PlannedRun>| {
        if let Some(run) = needs {
            trainer.set_needs(run);
        }
        standin.clear_calls();
        let error = trainer.train(&DATA.train, &AtomicBool::new(false), |_| ()).unwrap_err();
        assert!(matches!(&error, TrainError::Arena(full) if full.is_exhausted()), "{error}");
        if standin.is_real_driver() { None } else { Some(standin.calls("cuLaunchKernel")) }
    };
    assert_ne!(launches(None), Some(0), "a need that nobody knows is not refused");
    assert_eq!(launches(Some(run)).unwrap_or(0), 0);
}

/// A backend for one arena does not touch the buffers of another stream's.
#[test]
fn buffers_of_another_stream_are_refused() {
    let _standin = Standin::load().unwrap();
    let (device, other) = (Cuda::new(0).unwrap(), Cuda::new(0).unwrap());
    assert!(device.stream() != other.stream());
    let backend: CudaBackend = backend(&other);
    let arena = Arena::builder(device).capacity(ByteSize::mib(1)).build().unwrap();
    let mut p = arena.persistent_zeroed::<f32>(4).unwrap();
    let (g, mut v) = (arena.persistent_zeroed(4).unwrap(), arena.persistent_zeroed(4).unwrap());
    let config = SgdConfig { learning_rate: 0.1, momentum: 0.9 };
    let refused = backend.sgd_step(&config, p.view_mut(), g.view(), v.view_mut()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the buffer's arena belongs to another stream than the kernels"
    );
}
