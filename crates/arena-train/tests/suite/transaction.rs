//! A step is done whole or not at all: whichever call of the device fails, the parameters and the optimizer's state
//! have moved in just the steps that are counted, and the run that goes on is the run that never failed.

use std::sync::atomic::AtomicBool;

use crate::common::in_pool;
use arena_scope::device::{Call, FailSwitch, Failing};
use arena_scope::{Arena, Host, Placement, Reset};
use arena_train::backend::HostBackend;
use arena_train::backend::host::{AdamConfig, SgdConfig};
use arena_train::data::{Dataset, Mnist, Split, Text};
use arena_train::decoder::{Decoder, DecoderConfig};
use arena_train::error::TrainError;
use arena_train::model::Cnn;
use arena_train::network::Network;
use arena_train::optimizer::Optimizer;
use arena_train::planning;
use arena_train::training::{Per, RunConfig, Share, Trainer};
use rstest::rstest;

const STEPS: u64 = 4;

/// An epoch of `STEPS` steps of two images, the last one of one.
pub(crate) fn data(images: usize) -> Mnist {
    let set = |images: usize| Dataset {
        images: (0..images * 784).map(|i| (i * i / 7 % 256) as u8).collect(),
        labels: (0..images).map(|i| (i * 3 % 10) as u8).collect(),
        rows: 28,
        cols: 28,
    };
    Mnist { train: set(images), test: set(2) }
}

/// A run that never failed, up to each of its steps.
#[derive(Debug)]
pub(crate) struct Unbroken {
    /// Parameters and state after so many steps.
    pub(crate) saved: Vec<Vec<u32>>,
    pub(crate) losses: Vec<u32>,
}

pub(crate) fn saved<N: Network>(trainer: &Trainer<N>) -> Vec<u32> {
    let saved = trainer.model().parameters().saved().unwrap();
    saved.iter().flat_map(|(_, view)| view.to_vec().unwrap()).map(f32::to_bits).collect()
}

/// Trains as far as it goes: the bits of the losses that were told, and how it ended.
pub(crate) fn train<N: Network>(
    trainer: &mut Trainer<N>,
    data: &Split<N::Data>,
) -> (Vec<u32>, Result<(), TrainError>) {
    let (stop, mut losses) = (AtomicBool::new(false), Vec::new());
    let first = trainer.step();
    let ended = trainer.train(&data.train, &stop, |report| {
        assert_eq!(
            report.step,
            first + 1 + losses.len() as u64,
            "each loss is told once, in order"
        );
        losses.push(report.loss.to_bits());
    });
    (losses, ended.map(drop))
}

impl Unbroken {
    /// `trainer` builds a run of so many steps.
    pub(crate) fn new<N: Network>(
        data: &Split<N::Data>,
        trainer: impl Fn(u64) -> Trainer<N>,
    ) -> Self {
        let (mut all, mut losses) = (Vec::new(), Vec::new());
        for steps in 0..=STEPS {
            let mut trainer = trainer(steps);
            let (told, ended) = train(&mut trainer, data);
            ended.unwrap();
            all.push(saved(&trainer));
            losses = told;
        }
        Self { saved: all, losses }
    }

    /// A run whose failing call is armed: how it failed. `None` where it did not, and `heal` is to be called before
    /// it goes on. `what` names the failure.
    #[track_caller]
    pub(crate) fn check<N: Network>(
        &self,
        what: &str,
        trainer: &mut Trainer<N>,
        data: &Split<N::Data>,
        heal: impl FnOnce(),
    ) -> Option<TrainError> {
        let (mut losses, ended) = train(trainer, data);
        heal();
        let stats = trainer.arena().stats();
        assert_eq!(
            (stats.used_bytes, stats.kept_bytes),
            (stats.mark_bytes, 0),
            "{what}: at the mark"
        );
        let done = trainer.step();
        let is_as_counted = saved(trainer) == self.saved[done as usize];
        assert!(
            is_as_counted,
            "{what}: the parameters are not those after {done} steps: {ended:?}"
        );
        assert!(losses.len() as u64 <= done, "{what}: a loss of a step that was not done");
        // A host that waits for each loss tells it even if the step's scope fails to close.
        if trainer.config().ahead.is_none() {
            assert_eq!(
                losses.len() as u64,
                done,
                "{what}: each step that was done has told its loss"
            );
        }
        assert_eq!(losses, self.losses[..losses.len()], "{what}");
        let failure = ended.err()?;
        let (rest, ended) = train(trainer, data);
        ended.unwrap_or_else(|error| panic!("{what}: it does not go on: {error}"));
        losses.resize(done as usize, 0); // A loss may be lost with the call that was to fetch it.
        losses.extend(&rest);
        assert_eq!(rest, self.losses[done as usize..], "{what}: the losses of the rest");
        assert!(saved(trainer) == self.saved[STEPS as usize], "{what}: the end is another one");
        Some(failure)
    }
}

type Device = Failing<Host>;

fn trainer<N: Network<Backend = HostBackend<Device>>>(
    config: &RunConfig<N::Sizes>,
    data: &Split<N::Data>,
    (placement, planned): (Placement, bool),
) -> (Trainer<N>, FailSwitch) {
    let device = Device::new(Host::new());
    let (switch, backend) = (device.switch(), HostBackend::of(2));
    let mut run = planning::probe::<N>(&device, &backend, config, data).unwrap();
    if !planned {
        run = run.without_plans();
    }
    let builder = Arena::builder(device).reset(config.reset).placement(placement);
    let arena = run.build_with(builder).unwrap();
    (Trainer::on(arena, backend, config.clone()).unwrap(), switch)
}

const ADAM: Optimizer = Optimizer::Adam(AdamConfig {
    learning_rate: 2e-3,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.0,
});
const SGD: Optimizer = Optimizer::Sgd(SgdConfig { learning_rate: 0.05, momentum: 0.9 });

#[rstest]
#[case::bumped(Placement::Bump, false, Per::Minibatch, ADAM)]
#[case::planned(Placement::Bump, true, Per::Minibatch, ADAM)]
#[case::with_momentum(Placement::Bump, false, Per::Minibatch, SGD)]
#[case::epochs(Placement::Bump, false, Per::Epoch, ADAM)]
#[case::separate(Placement::Separate, false, Per::Minibatch, ADAM)]
#[case::shuffled(Placement::Shuffled { seed: 1 }, false, Per::Minibatch, ADAM)]
fn a_step_happens_whole_or_not_at_all_whichever_call_fails(
    #[case] placement: Placement,
    #[case] planned: bool,
    #[case] per: Per,
    #[case] optimizer: Optimizer,
    #[values(Reset::Keep, Reset::Zero, Reset::Poison)] reset: Reset,
) {
    in_pool(|| {
        let config = config(1, (), (per, reset, optimizer));
        let failures = check::<Cnn<_>>(&config, &data(7), (placement, planned));
        // Each step writes its loss and its hits, and reads its loss; a close may fill.
        assert!(failures >= 3 * STEPS, "{failures} calls failed");
    });
}

#[rstest]
fn a_step_of_several_batches_happens_whole_or_not_at_all_too(
    #[values(false, true)] planned: bool,
    #[values(Reset::Keep, Reset::Zero)] reset: Reset,
) {
    in_pool(|| {
        let config = config(2, (), (Per::Minibatch, reset, ADAM));
        let failures = check::<Cnn<_>>(&config, &data(13), (Placement::Bump, planned));
        // The sums are cleared, each of two batches writes its loss and its hits, and the mean loss is read; the short last
        // step has one batch.
        assert!(failures >= 3 * 6 + 4, "{failures} calls failed");
    });
}

#[rstest]
fn so_does_a_step_of_the_decoder(
    #[values(1, 2)] accumulate: usize,
    #[values(false, true)] planned: bool,
    #[values(Reset::Keep, Reset::Zero)] reset: Reset,
) {
    in_pool(|| {
        let (layers, width, heads) = (1, 4, 2);
        let sizes =
            DecoderConfig { context: 4, layers, width, heads, dropout: 0.1, recompute: true };
        let config = config(accumulate, sizes, (Per::Minibatch, reset, ADAM));
        let text: Vec<u8> = (0..100_u8).map(|at| at.wrapping_mul(31)).collect();
        let data = Text::split(&text, 4, false).unwrap();
        let failures = check::<Decoder<_>>(&config, &data, (Placement::Bump, planned));
        // Tokens and targets are uploaded.
        assert!(failures >= 5 * STEPS, "{failures} calls failed");
    });
}

fn config<S>(
    accumulate: usize,
    network: S,
    (per, reset, optimizer): (Per, Reset, Optimizer),
) -> RunConfig<S> {
    let steps = Some(STEPS);
    let (epochs, batch, seed, ahead) = (2, 2, 1, None);
    RunConfig {
        network,
        epochs,
        batch,
        accumulate,
        share: Share::WHOLE,
        warmup: 0,
        per,
        reset,
        optimizer,
        seed,
        steps,
        ahead,
    }
}

/// Lets each call of the device fail in turn: how many there are.
fn check<N: Network<Backend = HostBackend<Device>>>(
    config: &RunConfig<N::Sizes>,
    data: &Split<N::Data>,
    placed: (Placement, bool),
) -> u64 {
    let of = |steps| {
        let config = RunConfig { steps: Some(steps), ..config.clone() };
        trainer::<N>(&config, data, placed).0
    };
    let unbroken = Unbroken::new(data, of);
    let mut failures = 0;
    for call in Call::ALL {
        for n in 1.. {
            let (mut trainer, switch) = trainer::<N>(config, data, placed);
            switch.fail_nth(call, n);
            let what = format!("{call:?} number {n}");
            let heal = || switch.fail_nth(call, 0);
            match unbroken.check(&what, &mut trainer, data, heal) {
                None => break,
                Some(TrainError::Arena(_)) => failures += 1,
                Some(other) => panic!("{what}: {other}"),
            }
        }
    }
    failures
}
