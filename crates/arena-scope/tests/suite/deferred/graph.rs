//! A step captured once and replayed: what it does, what is refused meanwhile, and when it is stale.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arena_scope::device::Deferred;
use arena_scope::errors::DeviceErrorKind;
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::{
    Alignment, Arena, ByteSize, Device, Error, ErrorKind, Persistent, Reset, Scope, ScopeOptions,
    StepGraph, StepKey,
};

use super::{SEEDS, arena, side_stream};

const TRAIN: StepKey = StepKey::named("train");

/// An arena and a step that copies one persistent buffer to another through a scratch buffer.
struct Loop {
    source: Persistent<u8, Deferred>,
    out: Persistent<u8, Deferred>,
    arena: Arena<Deferred>,
}

impl Loop {
    fn new(seed: u64, reset: Reset) -> Self {
        let arena = arena(seed, reset);
        let source = arena.persistent_from(&[3_u8; 64]).unwrap();
        let out = arena.persistent_from(&[0_u8; 64]).unwrap();
        Self { source, out, arena }
    }

    fn run(&mut self) -> Result<(), Error> {
        let Self { source, out, arena } = self;
        arena.scope_with(TRAIN, |step| copying(step, source, out, 64))
    }

    fn capture(&mut self) -> Result<StepGraph<Deferred>, Error> {
        let Self { source, out, arena } = self;
        arena.capture(TRAIN, |step| copying(step, source, out, 64))
    }

    /// What a replay makes of the output for a new input.
    fn replayed(&mut self, graph: &StepGraph<Deferred>, input: u8) -> Result<Vec<u8>, Error> {
        self.source.view_mut().write(&[input; 64])?;
        graph.replay(&mut self.arena)?;
        self.out.view().to_vec()
    }

    fn is_capturing(&self) -> bool {
        self.arena.device().refuse_in_capture("test").is_err()
    }
}

fn copying(
    step: &Scope<'_, '_, Deferred>,
    source: &Persistent<u8, Deferred>,
    out: &mut Persistent<u8, Deferred>,
    scratch_len: usize,
) -> Result<(), Error> {
    let mut scratch = step.alloc_zeroed::<u8>(scratch_len)?;
    scratch.view_mut().range(..64)?.copy_from(source.view())?;
    out.view_mut().copy_from(scratch.view().range(..64)?)
}

fn kind(error: &Error) -> DeviceErrorKind {
    match error.kind() {
        ErrorKind::Device(error) => error.kind,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_stale(outcome: Result<(), Error>, why: &str) {
    let error = outcome.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::StaleGraph { .. }), "{error}");
    assert!(error.to_string().contains(why), "{error}");
}

#[test]
fn a_graph_is_not_stale_after_steps_of_so_many_kinds_that_others_are_forgotten() {
    let builder = Arena::builder(Deferred::new(0)).capacity(ByteSize::kib(64));
    let arena = builder.step_memory(ByteSize::kib(8)).build().unwrap();
    let source = arena.persistent_from(&[3_u8; 64]).unwrap();
    let out = arena.persistent_from(&[0_u8; 64]).unwrap();
    let mut training = Loop { source, out, arena };
    training.run().unwrap();
    let graph = training.capture().unwrap();
    for _ in 0..2 {
        for other in 1..=100 {
            training.arena.scope_with(TRAIN.variant(other), |_| arena_scope::Ok(())).unwrap();
        }
        assert_eq!(training.replayed(&graph, 7).unwrap(), [7; 64]);
        training.run().unwrap();
    }
    assert!(training.arena.step_memory_bytes() <= 8 << 10);
}

#[test]
fn a_captured_step_runs_at_each_replay_and_not_before() {
    for reset in [Reset::Keep, Reset::Zero, Reset::Poison] {
        let mut training = Loop::new(0, reset);
        training.run().unwrap();
        training.out.view_mut().zero().unwrap();
        let graph = training.capture().unwrap();
        assert_eq!(training.out.view().to_vec().unwrap(), [0; 64], "it was recorded, not run");
        for input in [5, 6] {
            assert_eq!(training.replayed(&graph, input).unwrap(), [input; 64]);
        }
    }
}

#[test]
fn a_replay_clears_no_buffer_of_a_scope_that_came_later() {
    let mut training = Loop::new(0, Reset::Zero);
    training.run().unwrap();
    let graph = training.capture().unwrap();
    for input in 0..10 {
        graph.replay(&mut training.arena).unwrap();
        let Loop { arena, .. } = &mut training;
        let read = arena.scope_named("other", |step| {
            let x = step.upload(&[input; 64])?;
            step.read(x.view())
        });
        assert_eq!(read.unwrap(), [input; 64]);
    }
}

#[test]
fn a_step_is_captured_only_when_it_repeats_the_one_before() {
    let mut training = Loop::new(0, Reset::Keep);
    let refused = training.capture().unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NotCaptured { .. }), "{refused}");
    training.arena.scope(|step| step.alloc::<u8>(17).map(drop)).unwrap();
    let refused = training.capture().unwrap_err();
    assert!(refused.to_string().contains("signature"), "{refused}");
    assert!(!training.is_capturing());
    training.run().unwrap();
    assert!(training.capture().is_ok());
}

// B055
#[test]
fn in_a_capture_what_a_replay_cannot_do_is_refused() {
    let mut arena = arena(0, Reset::Zero);
    arena.scope(|step| step.alloc::<u8>(16).map(drop)).unwrap();
    let captured = arena.capture(ScopeOptions::default(), |step| {
        let mut x = step.alloc::<u8>(16)?;
        let refusals = [
            x.view_mut().write(&[1; 16]).unwrap_err(),
            step.upload(&[1_u8; 4]).map(drop).unwrap_err(),
            step.read(x.view()).map(drop).unwrap_err(),
            step.promote(x.view()).map(drop).unwrap_err(),
            step.persistent::<u8>(4).map(drop).unwrap_err(),
            step.device().synchronise().unwrap_err().into(),
            step.device().obtain(16).map(drop).unwrap_err().into(),
        ];
        for refused in &refusals {
            assert_eq!(kind(refused), DeviceErrorKind::InCapture, "{refused}");
        }
        arena_scope::Ok(())
    });
    captured.unwrap().replay(&mut arena).unwrap();
}

// B056
#[test]
fn a_step_of_another_size_makes_the_graph_stale() {
    let mut training = Loop::new(0, Reset::Keep);
    training.run().unwrap();
    let graph = training.capture().unwrap();
    training.arena.scope_named("test", |step| step.alloc::<u8>(99).map(drop)).unwrap();
    assert_eq!(training.replayed(&graph, 5).unwrap(), [5; 64], "another kind changes nothing");
    let Loop { source, out, arena } = &mut training;
    arena.scope_with(TRAIN, |step| copying(step, source, out, 128)).unwrap();
    training.out.view_mut().zero().unwrap();
    assert_stale(graph.replay(&mut training.arena), "the signature of `train`");
    assert_eq!(training.out.view().to_vec().unwrap(), [0; 64], "nothing was launched");
    training.run().unwrap();
    assert_eq!(training.replayed(&graph, 6).unwrap(), [6; 64]);
}

#[test]
fn a_plan_installed_for_its_step_makes_a_graph_stale() {
    let mut training = Loop::new(0, Reset::Keep);
    training.run().unwrap();
    let graph = training.capture().unwrap();
    let scratch = PlannedSlot { offset_bytes: 256, bytes: 64, alignment: Alignment::DEFAULT };
    training.arena.install_plan(TRAIN, SlotTable::new(&[scratch]).unwrap()).unwrap();
    assert_stale(graph.replay(&mut training.arena), "the signature of `train`");
    training.run().unwrap();
    let planned = training.capture().unwrap();
    assert_ne!(planned.signature(), graph.signature());
    assert_eq!(training.replayed(&planned, 5).unwrap(), [5; 64]);
}

// B056
#[test]
fn a_graph_of_another_arena_is_stale() {
    let mut training = Loop::new(0, Reset::Keep);
    training.run().unwrap();
    let graph = training.capture().unwrap();
    let mut other = Loop::new(0, Reset::Keep);
    other.run().unwrap();
    assert_stale(graph.replay(&mut other.arena), "another arena");
}

#[test]
fn buffers_kept_where_the_step_has_its_own_make_it_stale() {
    let mut training = Loop::new(0, Reset::Keep);
    training.run().unwrap();
    let graph = training.capture().unwrap();
    let above_the_step = training.arena.stats().capacity_bytes - graph.high_water_bytes();
    let kept_len = above_the_step as usize / 256 * 256;
    let kept = training.arena.persistent::<u8>(kept_len).unwrap();
    graph.replay(&mut training.arena).unwrap();
    let mut more = training.arena.persistent::<u8>(64).unwrap();
    more.view_mut().fill_bytes(9).unwrap();
    assert_stale(graph.replay(&mut training.arena), "are kept from");
    assert_eq!(more.view().to_vec().unwrap(), [9; 64]);
    drop(kept);
}

#[test]
fn the_bytes_of_a_dropped_kept_buffer_wait_for_the_graph() {
    let mut training = Loop::new(0, Reset::Keep);
    training.run().unwrap();
    let kept = training.arena.persistent_from(&[5_u8; 256]).unwrap();
    let address = kept.address();
    training.run().unwrap();
    let graph = training.capture().unwrap();
    drop(kept);
    training.run().unwrap();
    let held = training.arena.persistent::<u8>(256).unwrap();
    assert_ne!(held.address(), address, "the graph may still write there");
    drop(graph);
    training.run().unwrap();
    assert_eq!(training.arena.persistent::<u8>(256).unwrap().address(), address);
}

#[test]
fn the_graph_holds_the_region() {
    let mut training = Loop::new(0, Reset::Keep);
    training.run().unwrap();
    let graph = training.capture().unwrap();
    let (stream, address) = (side_stream(&training.arena), training.out.address());
    drop(training);
    assert!(stream.read(address, 64).wait().is_some());
    drop(graph);
    assert!(stream.read(address, 64).wait().is_none());
}

/// A step that hands its buffer to another stream, which writes the result.
fn handed_over(
    step: &Scope<'_, '_, Deferred>,
    side: &arena_scope::device::deferred::Stream,
    source: &Persistent<u8, Deferred>,
    out: &Persistent<u8, Deferred>,
) -> Result<(), Error> {
    let mut x = step.alloc::<u8>(64)?;
    x.view_mut().copy_from(source.view())?;
    step.declare_stream(side)?;
    side.copy(out.address(), x.address(), 64);
    Ok(())
}

#[test]
fn a_stream_declared_in_the_step_is_captured_with_it() {
    for seed in 0..SEEDS {
        let mut training = Loop::new(seed, Reset::Zero);
        let side = side_stream(&training.arena);
        let Loop { source, out, arena } = &mut training;
        arena.scope_with(TRAIN, |step| handed_over(step, &side, source, out)).unwrap();
        let graph = arena.capture(TRAIN, |step| handed_over(step, &side, source, out)).unwrap();
        for input in [5, 6] {
            assert_eq!(training.replayed(&graph, input).unwrap(), [input; 64], "seed {seed}");
        }
    }
}

#[test]
fn a_replay_comes_after_what_a_declared_stream_still_reads() {
    for seed in 0..SEEDS {
        let mut training = Loop::new(seed, Reset::Keep);
        let side = side_stream(&training.arena);
        training.run().unwrap();
        let graph = training.capture().unwrap();
        training.replayed(&graph, 5).unwrap();
        training.out.declare_stream(&side).unwrap();
        let seen = side.read(training.out.address(), 64);
        training.replayed(&graph, 6).unwrap();
        assert_eq!(seen.wait(), Some(vec![5; 64]), "seed {seed}");
    }
}

#[test]
fn a_replay_closes_what_a_forgotten_guard_left_open() {
    let mut training = Loop::new(0, Reset::Keep);
    training.run().unwrap();
    let graph = training.capture().unwrap();
    let mut guard = training.arena.enter().unwrap();
    guard.scope().alloc::<u8>(1000).unwrap();
    std::mem::forget(guard);
    graph.replay(&mut training.arena).unwrap();
    let stats = training.arena.stats();
    assert_eq!(stats.used_bytes, stats.mark_bytes);
}

#[test]
fn a_stream_declared_for_good_is_not_captured() {
    let mut training = Loop::new(0, Reset::Keep);
    training.run().unwrap();
    let side = side_stream(&training.arena);
    training.source.declare_stream(&side).unwrap();
    let refused = training.capture().unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NotCaptured { .. }), "{refused}");
    assert!(!training.is_capturing());
    training.run().unwrap();
}

#[test]
fn an_error_or_a_panic_in_the_body_ends_the_capture() {
    let mut training = Loop::new(0, Reset::Zero);
    training.run().unwrap();
    let error = training.arena.capture(TRAIN, |step| {
        let x = step.alloc::<u8>(16)?;
        step.read(x.view()).map(drop)
    });
    assert_eq!(kind(&error.unwrap_err()), DeviceErrorKind::InCapture);
    assert!(!training.is_capturing());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _ = training.arena.capture(TRAIN, |step| -> Result<(), Error> {
            let _x = step.alloc::<u8>(16)?;
            panic!("on purpose");
        });
    }));
    assert!(panicked.is_err() && !training.is_capturing());
    assert_eq!(training.arena.stats().used_bytes, training.arena.stats().mark_bytes);
    training.run().unwrap();
    assert_eq!(training.out.view().to_vec().unwrap(), [3; 64]);
}
