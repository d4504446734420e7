//! The loop on CUDA with the decoder, and with steps of several batches: the numbers of the host.

use std::sync::atomic::AtomicBool;

use crate::common::in_pool;
use crate::cuda_common::{assert_near, backend, bits};
use crate::transaction::data as images;
use arena_scope::{Arena, Cuda, Host, Reset};
use arena_train::backend::host::AdamConfig;
use arena_train::backend::{CudaBackend, HostBackend};
use arena_train::data::{Split, Text};
use arena_train::decoder::{Decoder, DecoderConfig};
use arena_train::model::Cnn;
use arena_train::network::{DeviceOf, Network};
use arena_train::optimizer::Optimizer;
use arena_train::planning;
use arena_train::training::{Per, RunConfig, Share, Trainer};
use cuda_standin::Standin;
use rstest::rstest;

/// Small: the stand-in computes a step thread by thread.
const SIZES: DecoderConfig =
    DecoderConfig { context: 8, layers: 1, width: 8, heads: 2, dropout: 0.2, recompute: false };

fn config<S>(network: S, accumulate: usize) -> RunConfig<S> {
    RunConfig {
        network,
        epochs: 2,
        batch: 2,
        accumulate,
        share: Share::WHOLE,
        warmup: 0,
        per: Per::Minibatch,
        reset: Reset::Poison,
        optimizer: Optimizer::Adam(AdamConfig { weight_decay: 0.1, ..AdamConfig::default() }),
        seed: 1,
        steps: Some(3),
        ahead: None,
    }
}

#[derive(Debug)]
struct Run {
    losses: Vec<f32>,
    parameters: Vec<f32>,
    test_loss: f64,
    sample: Option<String>,
}

/// A run in just the memory that the probe told, with plans or without.
fn run<N: Network>(
    device: DeviceOf<N>,
    backend: N::Backend,
    config: &RunConfig<N::Sizes>,
    data: &Split<N::Data>,
    planned: bool,
) -> Run {
    let mut needs = planning::probe::<N>(&device, &backend, config, data).unwrap();
    if !planned {
        needs = needs.without_plans();
    }
    let mut arena = needs.build_with(Arena::builder(device).reset(config.reset)).unwrap();
    arena.observe(None);
    let mut trainer = Trainer::<N>::on(arena, backend, config.clone()).unwrap();
    let mut losses = Vec::new();
    let stop = AtomicBool::new(false);
    let trained = trainer.train(&data.train, &stop, |report| losses.push(report.loss)).unwrap();
    assert_eq!((trained.steps, trained.off_the_mark), (3, 0));
    let test_loss = trainer.evaluate(&data.test).unwrap().loss();
    let sample = N::sample(&mut trainer, data).unwrap();
    let stats = trainer.arena().stats();
    assert_eq!(stats.peak_bytes, stats.capacity_bytes, "just what the probe said");
    let saved = trainer.model().parameters().saved().unwrap();
    let parameters = saved.iter().flat_map(|(_, view)| view.to_vec().unwrap()).collect();
    Run { losses, parameters, test_loss, sample }
}

fn on_cuda<N: Network<Backend = CudaBackend>>(
    standin: &Standin,
    config: &RunConfig<N::Sizes>,
    data: &Split<N::Data>,
    planned: bool,
) -> Run {
    standin.reset(1);
    let device = Cuda::new(0).unwrap();
    let backend = backend(&device);
    run::<N>(device, backend, config, data, planned)
}

fn on_host<N: Network<Backend = HostBackend>>(
    config: &RunConfig<N::Sizes>,
    data: &Split<N::Data>,
) -> Run {
    run::<N>(Host::new(), HostBackend::new(2), config, data, false)
}

#[track_caller]
fn check(on_cuda: [Run; 2], on_host: &Run) {
    let [bumped, planned] = on_cuda;
    assert_eq!(bits(&planned.losses), bits(&bumped.losses));
    assert_eq!(bits(&planned.parameters), bits(&bumped.parameters));
    assert_eq!(planned.sample, bumped.sample);
    assert_near("losses", &bumped.losses, &on_host.losses, 1e-4);
    assert_near("parameters", &bumped.parameters, &on_host.parameters, 1e-2);
    assert!((bumped.test_loss - on_host.test_loss).abs() < 1e-3, "{bumped:?}");
}

#[rstest]
#[case::plain(1, SIZES)]
#[case::several_batches_made_again(2, DecoderConfig { recompute: true, ..SIZES })]
fn a_decoder_learns_on_the_device_as_on_the_host(
    #[case] accumulate: usize,
    #[case] sizes: DecoderConfig,
) {
    let text: Vec<u8> = (0..300_usize).map(|at| (at * at / 5) as u8).collect();
    let data = Text::split(&text, sizes.context, true).unwrap();
    let config = config(sizes, accumulate);
    let standin = Standin::load().unwrap();
    let on_cuda =
        [false, true].map(|planned| on_cuda::<Decoder<_>>(&standin, &config, &data, planned));
    check(on_cuda, &in_pool(|| on_host::<Decoder<_>>(&config, &data)));
}

#[test]
fn so_does_the_cnn_with_several_batches_in_a_step() {
    let (config, data) = (config((), 2), images(7));
    let standin = Standin::load().unwrap();
    let on_cuda = [false, true].map(|planned| on_cuda::<Cnn<_>>(&standin, &config, &data, planned));
    check(on_cuda, &in_pool(|| on_host::<Cnn<_>>(&config, &data)));
}
