//! One panic each, where the arena calls what is not its own: the device, a program's heap counter, a
//! planner.

use std::cell::Cell;

use arena_scope::plan::{Planner, SlotTable};
use arena_scope::record::StepLog;
use arena_scope::{Device, Error, Reset, StepKey};
use rstest::rstest;

use super::hooked::{no_hook, panic_in};
use super::{Loop, STEP, Way, panics};

thread_local! {
    /// The callback that panics next, and after how many calls of it.
    static PANICS: Cell<Option<(&'static str, u64)>> = const { Cell::new(None) };
}

fn callback(name: &'static str) {
    match PANICS.get() {
        Some((panics, 0)) if panics == name => {
            PANICS.set(None);
            panic!("told to panic in {name}");
        }
        Some((panics, n)) if panics == name => PANICS.set(Some((panics, n - 1))),
        _ => {}
    }
}

/// A step of 1,000 bytes and no more.
fn plain_step(training: &mut Loop) -> Result<(), Error> {
    training.arena.scope_with(STEP, |step| step.alloc::<u8>(1000).map(drop))
}

#[rstest]
fn ten_steps_whose_clearing_panics_leave_the_cursor_at_the_mark(
    #[values(Way::Bump, Way::Planned, Way::Separate)] way: Way,
) {
    let mut training = Loop::new(0, way, Reset::Zero);
    let before = training.arena.stats();
    for n in 0..10 {
        // Under `Separate` the first two fills are not the close's.
        panic_in("fill", if matches!(way, Way::Separate) { 3 } else { 1 });
        assert!(panics(|| plain_step(&mut training)), "{n}");
        let used_bytes = training.arena.stats().used_bytes;
        assert_eq!(used_bytes, before.mark_bytes, "after {} steps", n + 1);
    }
    training.assert_as_before("ten steps");
}

#[rstest]
fn a_panic_in_a_join_does_not_forget_the_declared_streams(
    #[values("record", "wait")] call: &'static str,
    #[values(false, true)] in_an_inner_close: bool,
) {
    for seed in 0..50 {
        let mut training = Loop::new(seed, Way::Bump, Reset::Keep);
        let Loop { arena, side, .. } = &mut training;
        let mut seen = None;
        let panicked = panics(|| {
            arena.scope(|step| {
                let x = step.upload(&[7_u8; 16])?;
                x.declare_stream(side)?;
                seen = Some(side.read(x.address(), 16));
                panic_in(call, 1);
                if in_an_inner_close {
                    let inner = panics(|| step.scope(|inner| inner.alloc::<u8>(16).map(drop)));
                    assert!(inner, "the inner close has panicked");
                    seen = Some(side.read(x.address(), 16));
                }
                arena_scope::Ok(())
            })
        });
        assert_eq!(panicked, !in_an_inner_close);
        no_hook();
        let _ = arena.check();
        arena.scope(|step| step.upload(&[9_u8; 16]).map(drop)).unwrap();
        arena.device().synchronise().unwrap();
        let seen = seen.unwrap().wait();
        assert_eq!(seen, Some(vec![7; 16]), "seed {seed}: the stream has read before the reuse");
        training.assert_as_before(call);
    }
}

#[rstest]
fn a_panic_in_the_heap_counter_of_an_observer_leaves_nothing(
    #[values(0, 1, 2, 3)] n: u64,
    #[values(Way::Bump, Way::Planned, Way::Separate)] way: Way,
) {
    let mut training = Loop::new(0, way, Reset::Zero);
    training.arena.observe(Some(|| {
        callback("heap counter");
        0
    }));
    PANICS.set(Some(("heap counter", n)));
    let mut panicked = 0;
    for _ in 0..3 {
        panicked += u32::from(panics(|| training.step(1)));
    }
    assert_eq!(panicked, 1);
    training.assert_as_before("heap counter");
}

#[derive(Debug)]
struct Panicking;

impl Planner for Panicking {
    fn plan_for(&mut self, _key: StepKey) -> Option<SlotTable> {
        callback("plan_for");
        None
    }

    fn recorded(&mut self, _key: StepKey, _log: &StepLog) -> bool {
        callback("recorded");
        true
    }

    fn ready(&mut self) -> Option<(StepKey, SlotTable)> {
        callback("ready");
        None
    }
}

#[rstest]
fn a_panic_in_a_planner_leaves_nothing(
    #[values("plan_for", "recorded", "ready")] name: &'static str,
    #[values(Reset::Keep, Reset::Zero)] reset: Reset,
) {
    let mut training = Loop::new(0, Way::Bump, reset);
    training.arena.set_planner(Box::new(Panicking), 1);
    PANICS.set(Some((name, 0)));
    assert!(panics(|| training.step(1)), "{name} is called in the first step");
    training.assert_as_before(name);
}
