//! On the host.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use crate::common::in_pool;
use arena_scope::{Host, Reset};
use arena_train::backend::HostBackend;
use arena_train::backend::host::AdamConfig;
use arena_train::data::{Mnist, Split, Text};
use arena_train::decoder::{Decoder, DecoderConfig};
use arena_train::heap::own_allocations;
use arena_train::model::Cnn;
use arena_train::network::Network;
use arena_train::optimizer::Optimizer;
use arena_train::training::{Per, RunConfig, Share, Trainer};
use arena_train::{heap, planning};

// One test for all: what the harness allocates when a test ends would count in the next one.
#[test]
fn a_steady_step_allocates_on_the_heap_only_inside_the_matrix_library() {
    let _alone = crate::alone();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/mnist");
    let images = Mnist::load(&folder).expect("the data is in the repository");
    for accumulate in [1, 2] {
        in_pool(|| check::<Cnn<_>>(&config((), 64, accumulate), &images));
    }
    let (context, layers, width, heads) = (32, 2, 32, 2);
    let text: Vec<u8> = (0..4000_usize).map(|at| (at * at / 7) as u8).collect();
    let text = Text::split(&text, context, false).unwrap();
    for (accumulate, recompute, dropout) in [(1, false, 0.0), (2, false, 0.0), (2, true, 0.1)] {
        let sizes = DecoderConfig { context, layers, width, heads, dropout, recompute };
        in_pool(|| check::<Decoder<_>>(&config(sizes, 4, accumulate), &text));
    }
}

fn config<S>(network: S, batch: usize, accumulate: usize) -> RunConfig<S> {
    RunConfig {
        network,
        epochs: 1,
        batch,
        accumulate,
        share: Share::WHOLE,
        warmup: 0,
        per: Per::Minibatch,
        reset: Reset::Keep,
        optimizer: Optimizer::Adam(AdamConfig::default()),
        seed: 1,
        steps: Some(8),
        ahead: None,
    }
}

fn check<N: Network<Backend = HostBackend>>(config: &RunConfig<N::Sizes>, data: &Split<N::Data>) {
    let backend = HostBackend::new(2);
    let run = planning::probe::<N>(&Host::new(), &backend, config, data).unwrap();
    let mut arena = run.build(Host::new()).unwrap();
    arena.observe(Some(own_allocations));
    let mut trainer = Trainer::<N>::on(arena, backend, config.clone()).unwrap();
    let before = (own_allocations(), heap::library_allocations());
    trainer.train(&data.train, &AtomicBool::new(false), |_| ()).unwrap();
    trainer.evaluate(&data.test).unwrap();
    N::sample(&mut trainer, data).unwrap();
    let seen = trainer.steady_state().unwrap();
    assert_eq!(seen.heap_allocations_per_step(), Some(0), "{config:?}: {seen:?}");
    // The counters count at all: the loop's own order of examples is on the heap.
    assert!(own_allocations() > before.0);
    assert!(heap::library_allocations() > before.1);
}
