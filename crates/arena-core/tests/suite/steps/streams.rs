//! Streams beside the arena's own, under every order that a device may choose.

use arena_core::device::Device;
use arena_core::device::deferred::{Reading, Stream};
use arena_core::{ErrorKind, Placement, Reset};
use rstest::rstest;

use super::{A256, Late, SEEDS, assert_call, close, late, open, open_inner, pass, table, try_open};
use crate::hooked::{before_each_call, fail_in, no_hook, refusal};

fn bumped(seed: u64, reset: Reset) -> (Late, Stream) {
    let (steps, _) = late(seed, Placement::Bump, reset);
    let side = steps.region().device().stream().another();
    (steps, side)
}

/// A buffer of sevens in the innermost scope, which the side stream reads when it will.
fn read_late(steps: &Late, side: &Stream) -> Reading {
    let x = steps.transient_from(&[7_u8; 16], A256, steps.depth()).unwrap();
    steps.region().device().synchronise().unwrap();
    side.read(x.address(), 16)
}

/// Puts nines where the last root scope had its buffers.
fn reuse(steps: &Late) {
    let root = open(steps, None);
    drop(steps.transient_from(&[9_u8; 16], A256, 1).unwrap());
    close(steps, root).unwrap();
    steps.region().device().synchronise().unwrap();
}

#[rstest]
fn a_close_waits_for_the_declared_streams_before_it_clears(
    #[values(Reset::Keep, Reset::Zero)] reset: Reset,
) {
    for seed in 0..SEEDS {
        let (steps, side) = bumped(seed, reset);
        let root = open(&steps, None);
        let seen = read_late(&steps, &side);
        steps.region().declare(&side, 1).unwrap();
        close(&steps, root).unwrap();
        reuse(&steps);
        assert_eq!(seen.wait(), Some(vec![7; 16]), "seed {seed}");
    }
}

#[test]
fn of_two_declarations_the_outer_scope_s_outlasts_the_inner_one() {
    for seed in 0..SEEDS {
        let (steps, side) = bumped(seed, Reset::Keep);
        let root = open(&steps, None);
        steps.region().declare(&side, 1).unwrap();
        let inner = open_inner(&steps, None);
        steps.region().declare(&side, 2).unwrap();
        close(&steps, inner).unwrap();
        let seen = read_late(&steps, &side);
        close(&steps, root).unwrap();
        reuse(&steps);
        assert_eq!(seen.wait(), Some(vec![7; 16]), "seed {seed}");
    }
}

#[test]
fn a_scope_s_declarations_end_with_it_and_those_for_good_stay() {
    let (steps, side) = bumped(0, Reset::Keep);
    let declared = || steps.region().find_declared(|stream| *stream == side).is_some();
    let root = open(&steps, None);
    steps.region().declare(&side, 1).unwrap();
    let inner = open_inner(&steps, None);
    close(&steps, inner).unwrap();
    assert!(declared());
    close(&steps, root).unwrap();
    assert!(!declared());
    steps.region().declare(&side, 0).unwrap();
    pass(&steps);
    assert!(declared());
}

#[test]
fn a_stream_finds_what_was_written_before_it_was_declared() {
    for seed in 0..SEEDS {
        let (steps, side) = bumped(seed, Reset::Keep);
        let x = steps.persistent_from(&[7_u8; 16], A256).unwrap();
        x.declare_stream(&side).unwrap();
        assert_eq!(side.read(x.address(), 16).wait(), Some(vec![7; 16]), "seed {seed}");
    }
}

#[test]
fn the_region_s_end_waits_for_the_streams_that_use_it() {
    for seed in 0..SEEDS {
        let (steps, side) = bumped(seed, Reset::Keep);
        let x = steps.persistent_from(&[7_u8; 16], A256).unwrap();
        x.declare_stream(&side).unwrap();
        let seen = side.read(x.address(), 16);
        drop((steps, x));
        assert_eq!((seen.wait(), side.fault()), (Some(vec![7; 16]), None), "seed {seed}");
    }
}

#[test]
fn where_the_device_cannot_wait_for_a_stream_the_host_does() {
    for seed in 0..SEEDS {
        let (steps, side) = bumped(seed, Reset::Keep);
        let root = open(&steps, None);
        let seen = read_late(&steps, &side);
        steps.region().declare(&side, 1).unwrap();
        fail_in("wait", 1);
        assert_call(&close(&steps, root).unwrap_err(), "wait");
        no_hook();
        reuse(&steps);
        assert_eq!(seen.wait(), Some(vec![7; 16]), "seed {seed}");
    }
}

#[test]
fn a_stream_that_nobody_could_wait_for_is_the_end_of_the_arena() {
    let (steps, side) = bumped(0, Reset::Keep);
    let root = open(&steps, None);
    let seen = read_late(&steps, &side);
    steps.region().declare(&side, 1).unwrap();
    before_each_call(|call| match call {
        "record" | "synchronise_stream" => Err(refusal(call)),
        _ => Ok(()),
    });
    assert_call(&close(&steps, root).unwrap_err(), "record");
    no_hook();
    for _ in 0..2 {
        let refused = try_open(&steps, None);
        assert!(matches!(refused.unwrap_err().kind(), ErrorKind::OrderLost(_)));
    }
    drop(steps);
    assert_eq!((seen.wait(), side.fault()), (Some(vec![7; 16]), None), "its end tries once more");
}

// A step is counted first, and repeats from the third on.
#[test]
fn a_planned_drop_frees_nothing_while_another_stream_may_use_the_scope_s_bytes() {
    for declared_from in [0, 3] {
        let (mut steps, side) = bumped(0, Reset::Keep);
        let plan = steps.add_plan(table(&[0, 0])).unwrap();
        for n in 0..5 {
            steps.select_plan(Some(plan));
            let root = open(&steps, None);
            let a = steps.transient::<u8>(256, A256, 1).unwrap();
            let declares = n >= declared_from;
            if declares {
                a.declare_stream(&side).unwrap();
            }
            drop(a);
            let b = steps.transient::<u8>(256, A256, 1).unwrap();
            assert_eq!(b.offset_bytes() == 0, !declares, "step {n}");
            drop(b);
            close(&steps, root).unwrap();
        }
    }
}
