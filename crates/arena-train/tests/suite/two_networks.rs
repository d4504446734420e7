//! What holds for both networks that the loop trains: the same bits wherever the buffers lie, just the memory that the
//! probe told, steps of several batches, and runs that go on where they stopped.

use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use crate::common::in_pool;
use crate::training::{DATA as MNIST, config as cnn_config};
use arena_plan::PlannedRun;
use arena_scope::{Arena, Host, Placement, Reset, Stats};
use arena_train::backend::HostBackend;
use arena_train::backend::host::AdamConfig;
use arena_train::data::{Examples, Split, Text};
use arena_train::decoder::{Decoder, DecoderConfig};
use arena_train::model::Cnn;
use arena_train::network::Network;
use arena_train::optimizer::Optimizer;
use arena_train::training::{Evaluation, Per, RunConfig, Share, TRAIN, Trainer};
use arena_train::{checkpoint, planning};
use rstest::rstest;

const THREADS: usize = 2;

pub(crate) const SIZES: DecoderConfig =
    DecoderConfig { context: 32, layers: 2, width: 16, heads: 2, dropout: 0.0, recompute: false };

/// The beginning of a text that does not change.
const TEXT: &[u8] = include_bytes!("../../../../LICENSE-APACHE");

pub(crate) fn text(is_ragged: bool) -> &'static Split<Text> {
    static EQUAL: LazyLock<Split<Text>> =
        LazyLock::new(|| Text::split(&TEXT[..2000], SIZES.context, false).unwrap());
    static RAGGED: LazyLock<Split<Text>> =
        LazyLock::new(|| Text::split(&TEXT[..2000], SIZES.context, true).unwrap());
    if is_ragged { &RAGGED } else { &EQUAL }
}

pub(crate) fn gpt_config(network: DecoderConfig) -> RunConfig<DecoderConfig> {
    let optimizer = Optimizer::Adam(AdamConfig { learning_rate: 3e-3, ..AdamConfig::default() });
    RunConfig {
        network,
        epochs: 2,
        batch: 4,
        accumulate: 1,
        share: Share::WHOLE,
        warmup: 0,
        per: Per::Minibatch,
        reset: Reset::Keep,
        optimizer,
        seed: 1,
        steps: None,
        ahead: None,
    }
}

fn planned<N: Network<Backend = HostBackend>>(
    config: &RunConfig<N::Sizes>,
    data: &Split<N::Data>,
) -> PlannedRun {
    planning::probe::<N>(&Host::new(), &HostBackend::new(THREADS), config, data).unwrap()
}

fn trainer<N: Network<Backend = HostBackend>>(
    config: &RunConfig<N::Sizes>,
    placement: Placement,
    run: &PlannedRun,
) -> Trainer<N> {
    let builder = Arena::builder(Host::new()).reset(config.reset).placement(placement);
    let mut arena = run.build_with(builder).unwrap();
    arena.observe(None);
    Trainer::on(arena, HostBackend::new(THREADS), config.clone()).unwrap()
}

fn bits<N: Network>(model: &N) -> Vec<u32> {
    let saved = model.parameters().saved().unwrap();
    saved.iter().flat_map(|(_, view)| view.to_vec().unwrap()).map(f32::to_bits).collect()
}

#[derive(Debug, PartialEq)]
struct Outcome {
    losses: Vec<u32>,
    parameters: Vec<u32>,
    evaluation: Evaluation,
    sample: Option<String>,
}

/// A whole run with an evaluation and a sample.
fn outcome<N: Network<Backend = HostBackend>>(
    trainer: &mut Trainer<N>,
    data: &Split<N::Data>,
) -> (Outcome, Stats) {
    let (mut losses, stop) = (Vec::new(), AtomicBool::new(false));
    let trained = trainer.train(&data.train, &stop, |report| losses.push(report.loss.to_bits()));
    assert_eq!(trained.unwrap().off_the_mark, 0);
    let evaluation = trainer.evaluate(&data.test).unwrap();
    let sample = N::sample(trainer, data).unwrap();
    assert_eq!(trainer.steady_state().unwrap().divergence, None);
    let outcome = Outcome { losses, parameters: bits(trainer.model()), evaluation, sample };
    (outcome, trainer.arena().stats())
}

/// The run wherever its buffers lie, each in just the memory that the probe told.
fn check_places<N: Network<Backend = HostBackend>>(
    config: &RunConfig<N::Sizes>,
    data: &Split<N::Data>,
) -> Outcome {
    let run = planned::<N>(config, data);
    let mut planned = trainer::<N>(config, Placement::Bump, &run);
    let (expected, stats) = outcome(&mut planned, data);
    assert_eq!(stats.peak_bytes, stats.capacity_bytes, "planned: no byte too many");
    for kind in run.kinds() {
        let step = kind.step.as_ref().unwrap();
        let (peak, live) = (step.plan.peak_bytes(), step.bound.rounded_bytes);
        assert_eq!(peak, live, "{}: the planned peak is the live peak", kind.key.name);
        let deviations = planned.arena().plan_deviations(kind.key).unwrap();
        assert_eq!((deviations.total(), deviations.unfreed), (0, 0), "{deviations}");
    }
    let run = run.without_plans();
    for placement in [Placement::Bump, Placement::Separate, Placement::Shuffled { seed: 2 }] {
        let mut trainer = trainer::<N>(config, placement, &run);
        let (found, stats) = outcome(&mut trainer, data);
        assert_eq!(found, expected, "{placement:?}");
        if matches!(placement, Placement::Bump) {
            assert_eq!(stats.peak_bytes, stats.capacity_bytes, "bumped: no byte too many");
        }
    }
    expected
}

#[rstest]
fn the_cnn_gives_the_same_bits_in_every_place(
    #[values(1, 3)] accumulate: usize,
    #[values(Reset::Keep, Reset::Poison)] reset: Reset,
) {
    in_pool(|| {
        // 300 images: a step of three batches of 37 and one of 300 - 2 * 111 = 78, in three batches too.
        let config = RunConfig { accumulate, reset, steps: Some(4), ..cnn_config(37) };
        check_places::<Cnn<_>>(&config, &MNIST);
    });
}

#[rstest]
#[case::plain(SIZES, 1, false)]
#[case::dropout(DecoderConfig { dropout: 0.1, ..SIZES }, 1, false)]
#[case::several_batches(SIZES, 3, false)]
#[case::made_again(DecoderConfig { recompute: true, dropout: 0.1, ..SIZES }, 2, false)]
#[case::ragged(SIZES, 1, true)]
#[case::everything(DecoderConfig { recompute: true, dropout: 0.1, ..SIZES }, 2, true)]
fn the_decoder_gives_the_same_bits_in_every_place(
    #[case] sizes: DecoderConfig,
    #[case] accumulate: usize,
    #[case] is_ragged: bool,
    #[values(Reset::Keep, Reset::Poison)] reset: Reset,
) {
    in_pool(|| {
        let config = RunConfig { accumulate, reset, ..gpt_config(sizes) };
        let found = check_places::<Decoder<_>>(&config, text(is_ragged));
        assert!(found.sample.is_some_and(|sample| !sample.is_empty()));
        let again = RunConfig {
            network: DecoderConfig { recompute: !sizes.recompute, ..sizes },
            ..config.clone()
        };
        let run = planned::<Decoder<_>>(&again, text(is_ragged));
        let mut trainer = trainer::<Decoder<_>>(&again, Placement::Bump, &run);
        let (other, _) = outcome(&mut trainer, text(is_ragged));
        assert_eq!(other.parameters, found.parameters, "kept or made again");
    });
}

#[test]
fn each_length_of_a_ragged_text_is_a_kind_of_step_with_a_plan_of_its_own() {
    in_pool(|| {
        let data = text(true);
        let run = planned::<Decoder<HostBackend>>(&gpt_config(SIZES), data);
        let lengths = data.train.groups().count();
        assert!(lengths > 1);
        let of_steps = run.kinds().iter().filter(|kind| kind.key.name == TRAIN.name);
        // A whole batch of each length, or a last one, or both.
        assert!((lengths..=2 * lengths).contains(&of_steps.count()));
        assert!(run.kinds().iter().all(|kind| kind.step.is_ok()));
    });
}

/// Bytes of the largest step above the persistent ones, and the latter.
fn memory<N: Network<Backend = HostBackend>>(
    config: &RunConfig<N::Sizes>,
    data: &Split<N::Data>,
) -> (u64, u64) {
    let run = planned::<N>(config, data);
    let persistent_bytes = run.persistent().bytes();
    (run.capacity().bytes() - persistent_bytes, persistent_bytes)
}

fn check_flat<N: Network<Backend = HostBackend>>(
    config: &RunConfig<N::Sizes>,
    data: &Split<N::Data>,
) {
    let of = |accumulate| memory::<N>(&RunConfig { accumulate, ..config.clone() }, data);
    let (one, two, many) = (of(1), of(2), of(7));
    assert_eq!(two, many, "as much for two batches as for seven");
    assert_eq!(one.0, two.0, "a batch in an inner scope needs no more");
    assert!(one.1 < two.1, "the sums are persistent");
}

#[test]
fn the_memory_of_a_step_does_not_grow_with_its_number_of_batches() {
    in_pool(|| {
        check_flat::<Cnn<_>>(&RunConfig { epochs: 1, ..cnn_config(20) }, &MNIST);
        check_flat::<Decoder<_>>(&gpt_config(SIZES), text(false));
    });
}

#[test]
fn recomputing_lowers_the_memory_of_a_step() {
    in_pool(|| {
        let of = |recompute| {
            let sizes = DecoderConfig { recompute, layers: 6, ..SIZES };
            memory::<Decoder<_>>(&gpt_config(sizes), text(false)).0
        };
        let (kept, again) = (of(false), of(true));
        assert!(2 * again < kept, "{again} and {kept}");
    });
}

fn losses<N: Network<Backend = HostBackend>>(
    config: &RunConfig<N::Sizes>,
    data: &Split<N::Data>,
) -> Vec<f32> {
    let run = planned::<N>(config, data);
    let (outcome, _) = outcome(&mut trainer::<N>(config, Placement::Bump, &run), data);
    outcome.losses.into_iter().map(f32::from_bits).collect()
}

fn check_sums<N: Network<Backend = HostBackend>>(
    config: &RunConfig<N::Sizes>,
    data: &Split<N::Data>,
) {
    let parts = RunConfig { accumulate: 4, ..config.clone() };
    let whole = RunConfig { batch: 4 * config.batch, ..config.clone() };
    let (parts, whole) = (losses::<N>(&parts, data), losses::<N>(&whole, data));
    assert_eq!(parts.len(), whole.len());
    for (part, whole) in parts.iter().zip(&whole) {
        assert!((part - whole).abs() < 1e-3 * whole, "{parts:?}\n{whole}");
    }
}

// The last step of an epoch has a short last batch: its share is smaller.
#[test]
fn a_step_of_several_batches_is_that_of_one_large_batch() {
    in_pool(|| {
        check_sums::<Cnn<_>>(&cnn_config(17), &MNIST);
        check_sums::<Decoder<_>>(&RunConfig { batch: 3, ..gpt_config(SIZES) }, text(false));
    });
}

#[rstest]
fn a_decoder_s_run_goes_on_where_it_stopped(#[values(1, 5, 9)] stop_after: u64) {
    in_pool(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.safetensors");
        let data = text(true);
        let sizes = DecoderConfig { dropout: 0.1, ..SIZES };
        let whole = RunConfig { accumulate: 2, ..gpt_config(sizes) };
        let run = planned::<Decoder<_>>(&whole, data);
        let (expected, _) =
            outcome(&mut trainer::<Decoder<_>>(&whole, Placement::Bump, &run), data);

        let first = RunConfig { steps: Some(stop_after), ..whole.clone() };
        let mut trainer_of_first = trainer::<Decoder<_>>(&first, Placement::Bump, &run);
        let (begun, _) = outcome(&mut trainer_of_first, data);
        let identity = data.identity();
        let of = (&first, identity.as_str());
        checkpoint::save(trainer_of_first.model(), of, stop_after, &path).unwrap();
        let mut second = trainer::<Decoder<_>>(&whole, Placement::Bump, &run);
        checkpoint::resume(&mut second, (&data.train, &identity), &path).unwrap();
        let (rest, _) = outcome(&mut second, data);
        assert_eq!([begun.losses, rest.losses].concat(), expected.losses);
        assert_eq!(rest.parameters, expected.parameters);
        assert_eq!(rest.sample, expected.sample);

        let refused = |config: &RunConfig<DecoderConfig>, data: &Split<Text>| {
            let mut other = trainer::<Decoder<_>>(
                config,
                Placement::Bump,
                &planned::<Decoder<_>>(config, data),
            );
            let before = bits(other.model());
            let identity = data.identity();
            let error =
                checkpoint::resume(&mut other, (&data.train, &identity), &path).unwrap_err();
            assert_eq!(bits(other.model()), before);
            error.to_string()
        };
        for (config, data, told) in [
            (RunConfig { accumulate: 1, ..whole.clone() }, data, "has accumulate 2, this one 1"),
            (whole.clone(), text(false), "has data "),
            (
                RunConfig { network: DecoderConfig { heads: 4, ..sizes }, ..whole.clone() },
                data,
                "heads 2, dropout 0.1, this one gpt, context 32, layers 2, width 16, heads 4",
            ),
        ] {
            let found = refused(&config, data);
            assert!(found.contains(told), "{found}");
        }
        let mut cnn = crate::training::trainer(cnn_config(64));
        let identity = MNIST.identity();
        let error = checkpoint::resume(&mut cnn, (&MNIST.train, &identity), &path).unwrap_err();
        assert!(error.to_string().contains("its run has network gpt"), "{error}");
    });
}
