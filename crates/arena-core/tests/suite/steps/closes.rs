//! What a close owes is paid, in order, before a byte of it is used again.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arena_core::device::{Call, Device};
use arena_core::{ErrorKind, Placement, Reset};

use super::{
    A256, CAPACITY, ask, assert_call, close, held, late, leave_sevens, next_bytes, on_host, open,
    open_in, open_inner, pass, plain, table,
};
use crate::hooked::{before_each_call, fail_in, no_hook, panic_in, refusal};

#[test]
fn a_close_clears_what_its_scope_used() {
    let steps = on_host(Reset::Keep);
    leave_sevens(&steps, 300);
    let root = open(&steps, Some(Reset::Zero));
    drop(steps.transient::<u8>(200, A256, 1).unwrap());
    close(&steps, root).unwrap();
    let mut expected = [0; 300];
    expected[200..].fill(7);
    assert_eq!(next_bytes(&steps, 300), expected);
}

#[test]
fn an_inner_close_clears_the_slots_that_its_scope_was_given_and_no_other() {
    let (mut steps, zero) = (plain(Reset::Keep), Some(Reset::Zero));
    let plan = steps.add_plan(table(&[1, 0, 2, 0])).unwrap();
    // First counted, then repeating.
    for n in 0..4 {
        steps.select_plan(Some(plan));
        let root = open(&steps, None);
        let mut around = steps.transient::<u8>(256, A256, 1).unwrap();
        around.as_mut_slice().fill(8);
        let inner = open_inner(&steps, zero);
        let mut x = steps.transient::<u8>(256, A256, 2).unwrap();
        x.as_mut_slice().fill(7);
        let innermost = open_in(&steps, 2, None);
        assert_eq!(ask(&steps), 512);
        close(&steps, innermost).unwrap();
        drop(x);
        close(&steps, inner).unwrap();
        let x = steps.transient::<u8>(256, A256, 1).unwrap();
        assert_eq!((x.offset_bytes(), x.as_slice()), (0, &[0; 256][..]), "step {n}");
        assert_eq!((around.offset_bytes(), around.as_slice()), (256, &[8; 256][..]), "step {n}");
        drop((around, x));
        close(&steps, root).unwrap();
    }
    assert_eq!(steps.plan_deviations(plan).unwrap().total(), 0);
}

#[test]
fn bytes_of_a_dropped_kept_buffer_come_back_cleared() {
    let steps = on_host(Reset::Zero);
    steps.set_mark().unwrap();
    let mut kept = steps.persistent::<u8>(256, A256, 0).unwrap();
    kept.as_mut_slice().fill(7);
    drop(kept);
    pass(&steps);
    let all = next_bytes(&steps, CAPACITY as usize);
    assert_eq!(all[CAPACITY as usize - 256..], [0; 256]);
}

#[test]
fn a_clearing_that_fails_or_panics_is_made_up_for_before_the_next_request() {
    for panics in [false, true] {
        let steps = on_host(Reset::Keep);
        let root = open(&steps, None);
        leave_sevens(&steps, 256);
        let inner = open_inner(&steps, Some(Reset::Zero));
        drop(steps.transient::<u8>(256, A256, 2).unwrap());
        if panics {
            panic_in("fill", 1)
        } else {
            fail_in("fill", 1)
        }
        let closed = catch_unwind(AssertUnwindSafe(|| close(&steps, inner)));
        assert_eq!(closed.is_err(), panics);
        assert!(closed.is_err() || closed.is_ok_and(|closed| closed.is_err()));
        no_hook();
        assert_eq!(next_bytes(&steps, 256), [0; 256], "{panics}");
        close(&steps, root).unwrap();
    }
}

#[test]
fn while_a_clearing_keeps_failing_no_request_is_served() {
    let steps = on_host(Reset::Keep);
    let root = open(&steps, None);
    let inner = open_inner(&steps, Some(Reset::Zero));
    drop(steps.transient::<u8>(256, A256, 2).unwrap());
    before_each_call(|call| if call == "fill" { Err(refusal(call)) } else { Ok(()) });
    assert_call(&close(&steps, inner).unwrap_err(), "fill");
    for _ in 0..2 {
        let refused = steps.transient::<u8>(16, A256, 1).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::ClosingFailed { scope: "inner", .. }));
        assert_eq!(steps.stats().used_bytes, 0);
    }
    no_hook();
    close(&steps, root).unwrap();
}

#[test]
fn kept_bytes_whose_clearing_fails_come_back_with_the_next_call() {
    let steps = on_host(Reset::Zero);
    steps.set_mark().unwrap();
    let mut kept = steps.persistent::<u8>(256, A256, 0).unwrap();
    kept.as_mut_slice().fill(7);
    drop(kept);
    let root = open(&steps, None);
    fail_in("fill", 1);
    assert_call(&close(&steps, root).unwrap_err(), "fill");
    no_hook();
    assert_eq!(steps.stats().kept_bytes, 256);
    steps.ready().unwrap();
    assert_eq!(steps.stats().kept_bytes, 0);
    assert_eq!(next_bytes(&steps, CAPACITY as usize)[CAPACITY as usize - 256..], [0; 256]);
}

#[test]
fn bytes_of_a_dropped_kept_buffer_wait_for_the_last_pin() {
    let steps = on_host(Reset::Keep);
    steps.set_mark().unwrap();
    let pins = [steps.pin(), steps.pin()];
    drop(steps.persistent::<u8>(256, A256, 0).unwrap());
    pass(&steps);
    assert_eq!(steps.stats().kept_bytes, 256);
    for pin in pins {
        drop(pin);
        pass(&steps);
    }
    assert_eq!(steps.stats().kept_bytes, 0);
}

// Its last use may be newer than what the close waits for.
#[test]
fn a_kept_buffer_that_is_dropped_during_a_join_comes_back_with_the_next_close() {
    let (steps, _) = late(0, Placement::Bump, Reset::Keep);
    let side = steps.region().device().stream().another();
    let weights = steps.persistent::<u8>(16, A256, 0).unwrap();
    weights.declare_stream(&side).unwrap();
    steps.set_mark().unwrap();
    let kept = steps.persistent::<u8>(256, A256, 0).unwrap();
    let kept = RefCell::new(Some(kept));
    let root = open(&steps, None);
    before_each_call(move |call| {
        if call == "record" {
            drop(kept.take());
        }
        Ok(())
    });
    close(&steps, root).unwrap();
    no_hook();
    assert_eq!(steps.stats().kept_bytes, 256);
    pass(&steps);
    assert_eq!(steps.stats().kept_bytes, 0);
}

#[test]
fn separate_buffers_are_released_with_their_scope_and_before_the_next_call_if_that_panicked() {
    let (steps, counts) = late(0, Placement::Separate, Reset::Keep);
    for panics in [false, true] {
        let root = open(&steps, None);
        for _ in 0..3 {
            drop(steps.transient::<u8>(100, A256, 1).unwrap());
        }
        assert_eq!(held(&counts), 4);
        if panics {
            panic_in("release", 1);
        }
        let closed = catch_unwind(AssertUnwindSafe(|| close(&steps, root)));
        assert_eq!(closed.is_err(), panics);
        no_hook();
        steps.ready().unwrap();
        assert_eq!(held(&counts), 1);
    }
}

#[test]
fn after_an_order_was_lost_nothing_is_cleared_and_no_separate_buffer_released() {
    let (steps, counts) = late(0, Placement::Separate, Reset::Keep);
    let side = steps.region().device().stream().another();
    let root = open(&steps, Some(Reset::Zero));
    let x = steps.transient::<u8>(100, A256, 1).unwrap();
    x.declare_stream(&side).unwrap();
    let seen = side.read(x.address(), 100);
    drop(x);
    before_each_call(|call| match call {
        "record" | "synchronise_stream" | "fill" => Err(refusal(call)),
        _ => Ok(()),
    });
    close(&steps, root).unwrap_err();
    no_hook();
    let fills = counts.calls(Call::Fill);
    for _ in 0..2 {
        let lost = steps.ready().unwrap_err();
        assert!(matches!(lost.kind(), ErrorKind::OrderLost(_)), "{lost}");
    }
    assert_eq!((counts.calls(Call::Fill), held(&counts)), (fills, 2));
    drop(steps);
    assert!(seen.wait().is_some(), "the arena's end has waited");
    assert_eq!((held(&counts), side.fault()), (0, None));
}

#[test]
fn a_wait_that_panicked_is_made_up_for_before_the_bytes_are_used_again() {
    for seed in 0..super::SEEDS {
        let (steps, _) = late(seed, Placement::Bump, Reset::Keep);
        let side = steps.region().device().stream().another();
        let root = open(&steps, None);
        let inner = open_inner(&steps, None);
        let x = steps.transient_from(&[7_u8; 16], A256, 2).unwrap();
        x.declare_stream(&side).unwrap();
        let seen = side.read(x.address(), 16);
        drop(x);
        panic_in("record", 1);
        assert!(catch_unwind(AssertUnwindSafe(|| close(&steps, inner))).is_err());
        no_hook();
        drop(steps.transient_from(&[9_u8; 16], A256, 1).unwrap());
        steps.region().device().synchronise().unwrap();
        assert_eq!(seen.wait(), Some(vec![7; 16]), "seed {seed}");
        close(&steps, root).unwrap();
    }
}
