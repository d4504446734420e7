//! The loop in the arena: memory as told beforehand, the same numbers whatever is done to released
//! memory, and a run that continues where it stopped.

use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use crate::common::in_pool;
use arena_plan::PlannedRun;
use arena_scope::device::Limited;
use arena_scope::{Arena, ByteSize, Host, Placement, Reset, Scope, ScopeOptions, Transient};
use arena_train::backend::host::{AdamConfig, SgdConfig};
use arena_train::backend::{Backend, HostBackend};
use arena_train::data::{Dataset, Mnist};
use arena_train::error::TrainError;
use arena_train::model::{Cnn, IMAGE_LEN};
use arena_train::network::Network;
use arena_train::optimizer::Optimizer;
use arena_train::training::{EVALUATE, Per, RunConfig, Share, TRAIN, Trained, Trainer};
use arena_train::{heap, planning};
use rstest::rstest;

pub(crate) const THREADS: usize = 2;

/// The first 300 training images and 100 test images: enough for short last batches of every size.
pub(crate) static DATA: LazyLock<Mnist> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/mnist");
    let mut data = Mnist::load(&folder).expect("the data is in the repository");
    let cut = |set: &mut Dataset, images: usize| {
        set.images.truncate(images * IMAGE_LEN);
        set.labels.truncate(images);
    };
    cut(&mut data.train, 300);
    cut(&mut data.test, 100);
    data
});

pub(crate) const ADAM: Optimizer = Optimizer::Adam(AdamConfig {
    learning_rate: 2e-3,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.0,
});
pub(crate) const SGD: Optimizer = Optimizer::Sgd(SgdConfig { learning_rate: 0.05, momentum: 0.9 });

pub(crate) fn config(batch: usize) -> RunConfig {
    RunConfig {
        network: (),
        epochs: 2,
        batch,
        accumulate: 1,
        share: Share::WHOLE,
        warmup: 0,
        per: Per::Minibatch,
        reset: Reset::Keep,
        optimizer: ADAM,
        seed: 1,
        steps: None,
        ahead: None,
    }
}

pub(crate) fn needed(config: &RunConfig) -> PlannedRun {
    planned(config).without_plans()
}

pub(crate) fn planned(config: &RunConfig) -> PlannedRun {
    planning::probe::<Cnn<_>>(&Host::new(), &HostBackend::new(THREADS), config, &DATA).unwrap()
}

pub(crate) fn trainer(config: RunConfig) -> Trainer<Cnn<HostBackend>> {
    let run = needed(&config);
    trainer_with(config, Placement::Bump, run)
}

/// A trainer with just the capacity that its run needs.
pub(crate) fn trainer_with(
    config: RunConfig,
    placement: Placement,
    run: PlannedRun,
) -> Trainer<Cnn<HostBackend>> {
    let builder = Arena::builder(Host::new()).reset(config.reset).placement(placement);
    let mut arena = run.build_with(builder).unwrap();
    arena.observe(Some(heap::own_allocations));
    let mut trainer = Trainer::<Cnn<_>>::on(arena, HostBackend::new(THREADS), config).unwrap();
    trainer.set_needs(run);
    trainer
}

pub(crate) fn train(trainer: &mut Trainer<Cnn<HostBackend>>) -> (Vec<u32>, Trained) {
    let mut losses = Vec::new();
    let stop = AtomicBool::new(false);
    let trained = trainer.train(&DATA.train, &stop, |report| losses.push(report.loss.to_bits()));
    (losses, trained.unwrap())
}

pub(crate) fn bits<B: Backend>(model: &Cnn<B>) -> Vec<u32> {
    let saved = model.parameters().saved().unwrap();
    saved.iter().flat_map(|(_, view)| view.to_vec().unwrap()).map(f32::to_bits).collect()
}

// B030
#[rstest]
fn the_probe_tells_the_real_peak_to_the_byte(#[values(1, 37, 64, 128)] batch: usize) {
    in_pool(|| {
        // A short epoch at batch 1: 300 steps say no more than 20.
        let steps = (batch == 1).then_some(20);
        let config = RunConfig { epochs: 1, steps, ..config(batch) };
        let needed = needed(&config);
        let mut trainer = trainer(config.clone());
        let needed_bytes = needed.capacity().bytes();
        assert_eq!(trainer.arena().stats().capacity_bytes, needed_bytes);
        train(&mut trainer);
        trainer.evaluate(&DATA.test).unwrap();
        let stats = trainer.arena().stats();
        assert_eq!(stats.peak_bytes, needed_bytes, "the real peak");
        assert_eq!(stats.mark_bytes, needed.persistent().bytes());
        assert_eq!((stats.used_bytes, stats.kept_bytes), (stats.mark_bytes, 0));

        let one_less = ByteSize::bytes_exact(needed_bytes - 1);
        let refused = planning::choose_capacity(&needed, Some(one_less), &config).unwrap_err();
        assert!(matches!(refused, TrainError::CapacityTooSmall { .. }));
        assert!(refused.to_string().contains("1 more; or take a smaller batch"), "{refused}");
    });
}

#[test]
fn one_byte_less_than_the_probe_says_does_not_serve() {
    in_pool(|| {
        let config = RunConfig { steps: Some(1), ..config(64) };
        let capacity = ByteSize::bytes_exact(needed(&config).capacity().bytes() - 1);
        let mut trainer =
            Trainer::<Cnn<_>>::new(Host::new(), HostBackend::new(THREADS), config, capacity)
                .unwrap();
        let stop = AtomicBool::new(false);
        let error = trainer.train(&DATA.train, &stop, |_| ()).unwrap_err();
        let TrainError::Arena(error) = error else { panic!("{error}") };
        let exhausted = error.as_exhausted().expect("it does not fit");
        assert_eq!(exhausted.missing_bytes, 1);
        assert_eq!(exhausted.scope.as_ref().unwrap().name, "train");
    });
}

#[test]
fn a_batch_of_128_in_the_arena_of_64_asks_for_nothing_before_it_is_refused() {
    in_pool(|| {
        let config = RunConfig { steps: Some(1), ..config(128) };
        let capacity = needed(&RunConfig { batch: 64, ..config.clone() }).capacity();
        let run = needed(&config);
        let backend = HostBackend::new(THREADS);
        let mut trainer = Trainer::<Cnn<_>>::new(Host::new(), backend, config, capacity).unwrap();
        trainer.set_needs(run);
        let mark_bytes = trainer.arena().stats().mark_bytes;
        let stop = AtomicBool::new(false);
        let error = trainer.train(&DATA.train, &stop, |_| ()).unwrap_err();
        let TrainError::Arena(error) = error else { panic!("{error}") };
        let exhausted = error.as_exhausted().expect("it does not fit");
        assert_eq!(exhausted.scope.as_ref().unwrap().name, "train");
        assert_eq!(trainer.arena().stats().peak_bytes, mark_bytes, "no request was served");
        assert_eq!(trainer.arena().resets(), 0, "no scope was opened");
        trainer.evaluate(&DATA.test).unwrap(); // It keeps nothing for a backward pass, and fits.
    });
}

// B078
#[rstest]
fn released_memory_is_never_read_so_zero_and_poison_change_no_bit(
    #[values(Reset::Zero, Reset::Poison)] reset: Reset,
    #[values(ADAM, SGD)] optimizer: Optimizer,
) {
    in_pool(|| {
        let run = |reset| {
            let twenty = RunConfig { epochs: 3, steps: Some(20), ..config(37) };
            let mut trainer = trainer(RunConfig { reset, optimizer, ..twenty });
            let (losses, _) = train(&mut trainer);
            assert_eq!(losses.len(), 20);
            let evaluation = trainer.evaluate(&DATA.test).unwrap();
            (losses, bits(trainer.model()), evaluation)
        };
        assert_eq!(run(reset), run(Reset::Keep));
    });
}

#[test]
fn a_run_repeats_to_the_bit() {
    in_pool(|| {
        let run = || {
            let mut trainer = trainer(config(64));
            (train(&mut trainer).0, bits(trainer.model()))
        };
        assert_eq!(run(), run());
    });
}

#[test]
fn every_step_returns_to_the_mark_and_repeats_the_addresses_of_its_kind() {
    in_pool(|| {
        let mut trainer = trainer(config(64));
        let (_, trained) = train(&mut trainer);
        assert_eq!((trained.steps, trained.off_the_mark), (10, 0));
        trainer.evaluate(&DATA.test).unwrap();
        let seen = trainer.steady_state().unwrap();
        seen.check().unwrap();
        // 300 = 4 x 64 + 44, and 100 = 64 + 36: the short last batch is a kind of its own.
        let kinds: Vec<_> =
            seen.kinds.iter().map(|k| (k.key.name, k.key.variant, k.steps)).collect();
        let expected =
            [("train", 64, 8), ("train", 44, 2), ("evaluate", 64, 1), ("evaluate", 36, 1)];
        assert_eq!(kinds, expected);
        assert_eq!(trainer.arena().resets(), 12);
    });
}

#[test]
fn the_loss_falls_and_the_images_are_learnt() {
    in_pool(|| {
        let mut trainer = trainer(RunConfig { epochs: 12, ..config(64) });
        let (losses, _) = train(&mut trainer);
        let (first, last) = (f32::from_bits(losses[0]), f32::from_bits(losses[losses.len() - 1]));
        assert!(first > 2.0 && last < 0.1, "from {first} to {last}");
        let seen = trainer.evaluate(&DATA.train).unwrap();
        assert!(seen.accuracy() > 0.98, "{seen:?}");
    });
}

#[test]
fn a_loss_that_is_no_number_is_an_error_and_moves_nothing() {
    in_pool(|| {
        let optimizer = Optimizer::Sgd(SgdConfig { learning_rate: 1e30, momentum: 0.9 });
        let mut trainer = trainer(RunConfig { optimizer, ..config(64) });
        let stop = AtomicBool::new(false);
        let error = trainer.train(&DATA.train, &stop, |_| ()).unwrap_err();
        let TrainError::NotFinite { step, loss } = error else { panic!("{error}") };
        assert!(!loss.is_finite());
        assert_eq!(trainer.step(), step - 1);
        let moved = bits(trainer.model());
        assert!(trainer.train(&DATA.train, &stop, |_| ()).is_err());
        assert_eq!(bits(trainer.model()), moved);
    });
}

#[test]
fn a_run_that_needs_more_than_the_device_has_is_refused() {
    let needed = needed(&config(64)).capacity();
    for (limit, fits) in [(needed, true), (ByteSize::bytes_exact(needed.bytes() - 1), false)] {
        let device = Limited::new(Host::new(), limit);
        let checked = planning::check_memory(&device, needed, &config(64));
        match checked {
            Ok(()) => assert!(fits),
            Err(error) => {
                assert!(!fits && matches!(error, TrainError::MemoryTooSmall { .. }), "{error}");
                assert!(error.to_string().ends_with("or take a smaller batch"), "{error}");
            }
        }
    }
}

/// A batch of the first `images` images in the scope's memory.
type Batch<'s> = (Transient<'s, f32>, Transient<'s, u32>);

fn batch<'s>(
    scope: &Scope<'s, '_>,
    model: &Cnn<HostBackend>,
    images: u32,
) -> Result<Batch<'s>, TrainError> {
    let indices: Vec<u32> = (0..images).collect();
    let mut pixels = scope.alloc(indices.len() * IMAGE_LEN)?;
    let mut labels = scope.alloc(indices.len())?;
    let (to_pixels, to_labels) = (pixels.view_mut(), labels.view_mut());
    let mut none = scope.alloc(0)?;
    model.backend().load_batch(&DATA.train, &indices, to_pixels, to_labels, none.view_mut())?;
    Ok((pixels, labels))
}

fn one_step(
    arena: &mut Arena,
    model: &mut Cnn<HostBackend>,
    images: u32,
) -> Result<f32, TrainError> {
    arena.scope_with(ScopeOptions::named("train").variant(images.into()), |scope| {
        let (pixels, labels) = batch(scope, model, images)?;
        let loss = model.gradients(scope, pixels, labels)?;
        let loss = scope.read_one(loss.mean.view())?;
        model.update(1, 1.0)?;
        Ok(loss)
    })
}

// B038
#[test]
fn after_a_step_that_ran_out_of_memory_a_smaller_batch_gives_the_bits_of_a_clean_run() {
    in_pool(|| {
        let enough_for_64 = needed(&config(64)).capacity();
        let build = || {
            let arena = Arena::builder(Host::new()).capacity(enough_for_64).build().unwrap();
            let model =
                Cnn::new(&arena, HostBackend::new(THREADS), &RunConfig::new((), ADAM, 1)).unwrap();
            (arena, model)
        };
        let (mut arena, mut model) = build();
        let untouched = bits(&model);
        let error = one_step(&mut arena, &mut model, 128).unwrap_err();
        assert!(matches!(&error, TrainError::Arena(error) if error.is_exhausted()), "{error}");
        assert_eq!(arena.stats().used_bytes, arena.stats().mark_bytes);
        assert_eq!(bits(&model), untouched, "a step that failed half-way updates nothing");
        let retried = one_step(&mut arena, &mut model, 64).unwrap();

        let (mut clean_arena, mut clean_model) = build();
        let clean = one_step(&mut clean_arena, &mut clean_model, 64).unwrap();
        assert_eq!(retried.to_bits(), clean.to_bits());
        assert_eq!(bits(&model), bits(&clean_model));
    });
}

#[test]
fn a_scope_per_epoch_needs_the_sum_of_its_steps_and_gives_the_same_numbers() {
    in_pool(|| {
        let minibatch = RunConfig { steps: Some(5), ..config(64) };
        let epoch = RunConfig { per: Per::Epoch, ..minibatch.clone() };
        let transient = |run: PlannedRun| run.capacity().bytes() - run.persistent().bytes();
        let (one_step, whole_epoch) = (transient(needed(&minibatch)), transient(needed(&epoch)));
        assert!(whole_epoch > 4 * one_step, "{whole_epoch} bytes for 5 steps of {one_step}");

        let (mut a, mut b) = (trainer(minibatch), trainer(epoch.clone()));
        assert_eq!(train(&mut a).0, train(&mut b).0);
        assert_eq!(bits(a.model()), bits(b.model()));
        assert_eq!(b.arena().stats().peak_bytes, needed(&epoch).capacity().bytes());

        let too_small = Some(needed(&config(64)).capacity());
        let refused = planning::choose_capacity(&needed(&epoch), too_small, &epoch).unwrap_err();
        assert!(refused.to_string().contains("take a scope per minibatch"), "{refused}");
    });
}

#[rstest]
fn planned_steps_give_the_bits_of_bumped_ones_in_the_bytes_that_are_live_at_once(
    #[values(37, 64)] batch: usize,
) {
    in_pool(|| {
        let config = config(batch);
        let outcome_of = |run: PlannedRun| {
            let mut trainer = trainer_with(config.clone(), Placement::Bump, run);
            let (losses, _) = train(&mut trainer);
            let evaluation = trainer.evaluate(&DATA.test).unwrap();
            let outcome = (losses, bits(trainer.model()), evaluation);
            (outcome, trainer.arena().stats(), trainer)
        };
        let run = planned(&config);
        let (bumped_outcome, bump_stats, _) = outcome_of(run.clone().without_plans());
        let (planned_outcome, plan_stats, trainer) = outcome_of(run.clone());
        assert_eq!(planned_outcome, bumped_outcome);
        assert_eq!(plan_stats.peak_bytes, plan_stats.capacity_bytes, "no byte too many");
        assert_eq!(bump_stats.capacity_bytes, run.bumped_capacity().bytes());
        let (plan_peak, bump_peak) =
            (plan_stats.peak_transient_bytes(), bump_stats.peak_transient_bytes());
        assert!(plan_peak * 10 <= bump_peak * 6, "{plan_peak} of {bump_peak}");

        let largest = [TRAIN, EVALUATE].map(|name| planning::largest(&run, name).unwrap());
        let variants = largest.map(|kind| kind.key.variant);
        assert_eq!(variants, [batch as u64, batch as u64], "whole batches");
        assert_eq!(run.kinds().len(), 4, "and a short one of each");
        for kind in run.kinds() {
            let step = kind.step.as_ref().unwrap();
            assert_eq!(step.plan.peak_bytes(), step.bound.rounded_bytes, "the plan is optimal");
            // The short last batch follows a plan of its own.
            let deviations = trainer.arena().plan_deviations(kind.key).unwrap();
            let counts = (deviations.total(), deviations.smaller_by_design, deviations.unfreed);
            assert_eq!(counts, (0, 0, 0), "{deviations}");
        }
        trainer.steady_state().unwrap().check().unwrap();

        let one_less = ByteSize::bytes_exact(run.capacity().bytes() - 1);
        let told = planning::choose_capacity(&run, Some(one_less), &config).unwrap_err();
        assert!(told.to_string().contains(", 1 more"), "{told}");
        let mut short = Arena::builder(Host::new()).capacity(one_less).build().unwrap();
        run.follow(&mut short);
        let backend = HostBackend::new(THREADS);
        let mut short = Trainer::<Cnn<_>>::on(short, backend, config.clone()).unwrap();
        short.set_needs(run);
        let told = short.train(&DATA.train, &AtomicBool::new(false), |_| ()).unwrap_err();
        assert!(matches!(told, TrainError::Arena(error) if error.is_exhausted()));
        assert_eq!(short.arena().resets(), 0, "no step began");
    });
}

#[test]
fn a_run_without_epochs_or_with_a_scope_for_each_is_planned_too() {
    in_pool(|| {
        let none = RunConfig { epochs: 0, ..config(64) };
        assert_eq!(planned(&none).kinds().len(), 2, "the evaluation");
        let epoch = RunConfig { per: Per::Epoch, epochs: 1, ..config(64) };
        let run = planned(&epoch);
        assert!(run.capacity().bytes() * 2 < run.bumped_capacity().bytes(), "{run}");
        let (mut bumped, mut follows) =
            (trainer(epoch.clone()), trainer_with(epoch, Placement::Bump, run));
        assert_eq!(train(&mut bumped).0, train(&mut follows).0);
    });
}

// B076
#[rstest]
fn elsewhere_than_the_bump_puts_them_buffers_give_the_same_losses_to_the_bit(
    #[values(
        Placement::Separate,
        Placement::Unguarded,
        Placement::Shuffled { seed: 1 },
        Placement::Shuffled { seed: 2 }
    )]
    placement: Placement,
    #[values(Reset::Keep, Reset::Poison)] reset: Reset,
) {
    in_pool(|| {
        let config = RunConfig { reset, steps: Some(6), ..config(64) };
        let run = |placement| {
            let mut trainer = trainer_with(config.clone(), placement, needed(&config));
            let losses = train(&mut trainer).0;
            let stats = trainer.arena().stats();
            let signature = trainer.arena().last_step_signature();
            assert_eq!(trainer.arena().observed().and_then(|seen| seen.divergence), None);
            (losses, bits(trainer.model()), stats.peak_bytes, signature, stats.driver_allocations)
        };
        let (losses, weights, peak_bytes, signature, _) = run(Placement::Bump);
        let alone = run(placement);
        assert_eq!((alone.0, alone.1, alone.2, alone.3), (losses, weights, peak_bytes, signature));
        match placement {
            Placement::Shuffled { .. } => {
                assert_eq!(alone.4, 2, "the second one is there from the start")
            }
            _ => assert!(alone.4 > 6 * 10, "each buffer of each step is an allocation"),
        }
    });
}
