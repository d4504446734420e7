//! On the host.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use arena_scope::{Host, Reset};
use arena_train::backend::HostBackend;
use arena_train::backend::host::AdamConfig;
use arena_train::data::Mnist;
use arena_train::heap::own_allocations;
use arena_train::model::Cnn;
use arena_train::optimizer::Optimizer;
use arena_train::training::{Per, RunConfig, Trainer};
use arena_train::{heap, planning};

#[test]
fn a_steady_step_allocates_on_the_heap_only_inside_the_matrix_library() {
    let _alone = crate::alone();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/mnist");
    let data = Mnist::load(&folder).expect("the data is in the repository");
    let config = RunConfig {
        network: (),
        epochs: 1,
        batch: 64,
        accumulate: 1,
        per: Per::Minibatch,
        reset: Reset::Keep,
        optimizer: Optimizer::Adam(AdamConfig::default()),
        seed: 1,
        steps: Some(8),
        ahead: None,
    };
    crate::common::in_pool(|| {
        let backend = HostBackend::new(2);
        let run = planning::probe::<Cnn<_>>(&Host::new(), &backend, &config, &data).unwrap();
        let mut arena = run.build(Host::new()).unwrap();
        arena.observe(Some(own_allocations));
        let mut trainer = Trainer::<Cnn<_>>::on(arena, backend, config.clone()).unwrap();
        let before = own_allocations();
        let stop = AtomicBool::new(false);
        trainer.train(&data.train, &stop, |_| ()).unwrap();
        let seen = trainer.steady_state().unwrap();
        assert_eq!(seen.heap_allocations_per_step(), Some(0), "{seen:?}");
        // The counters count at all: the loop's own order of images is on the heap.
        assert!(own_allocations() > before);
        assert!(heap::library_allocations() > 0);
    });
}
