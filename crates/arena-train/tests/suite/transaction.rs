//! A step is done whole or not at all: whichever call of the device fails, the parameters and the optimizer's state
//! have moved in just the steps that are counted, and the run that goes on is the run that never failed.

use std::sync::atomic::AtomicBool;

use crate::common::in_pool;
use arena_scope::device::{Call, FailSwitch, Failing};
use arena_scope::{Arena, Host, Placement, Reset};
use arena_train::backend::host::{AdamConfig, SgdConfig};
use arena_train::backend::{Backend, HostBackend};
use arena_train::data::{Dataset, Mnist};
use arena_train::error::TrainError;
use arena_train::optimizer::Optimizer;
use arena_train::planning;
use arena_train::training::{Per, RunConfig, Trainer};
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

pub(crate) fn saved<B: Backend>(trainer: &Trainer<B>) -> Vec<u32> {
    let saved = trainer.model().parameters().saved().unwrap();
    saved.iter().flat_map(|(_, view)| view.to_vec().unwrap()).map(f32::to_bits).collect()
}

/// Trains as far as it goes: the bits of the losses that were told, and how it ended.
pub(crate) fn train<B: Backend>(
    trainer: &mut Trainer<B>,
    data: &Mnist,
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
    pub(crate) fn new<B: Backend>(data: &Mnist, trainer: impl Fn(u64) -> Trainer<B>) -> Self {
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
    pub(crate) fn check<B: Backend>(
        &self,
        what: &str,
        trainer: &mut Trainer<B>,
        data: &Mnist,
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

fn trainer(
    config: &RunConfig,
    data: &Mnist,
    (placement, planned): (Placement, bool),
) -> (Trainer<HostBackend<Device>>, FailSwitch) {
    let device = Device::new(Host::new());
    let (switch, backend) = (device.switch(), HostBackend::of(2));
    let mut run = planning::probe(&device, &backend, config, data).unwrap();
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
        let data = data(7);
        let steps = Some(STEPS);
        let config =
            RunConfig { epochs: 2, batch: 2, per, reset, optimizer, seed: 1, steps, ahead: None };
        let of = |steps| {
            let config = RunConfig { steps: Some(steps), ..config.clone() };
            trainer(&config, &data, (placement, planned)).0
        };
        let unbroken = Unbroken::new(&data, of);
        let mut failures = 0;
        for call in Call::ALL {
            for n in 1.. {
                let (mut trainer, switch) = trainer(&config, &data, (placement, planned));
                switch.fail_nth(call, n);
                let what = format!("{call:?} number {n}");
                let heal = || switch.fail_nth(call, 0);
                match unbroken.check(&what, &mut trainer, &data, heal) {
                    None => break,
                    Some(TrainError::Arena(_)) => failures += 1,
                    Some(other) => panic!("{what}: {other}"),
                }
            }
        }
        // Each step writes its loss and its hits, and reads its loss; a close may fill.
        assert!(failures >= 3 * STEPS, "{failures} calls failed");
    });
}
