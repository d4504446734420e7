//! What a request is given, and what is told with it.

use std::cell::RefCell;
use std::rc::Rc;

use arena_core::for_scopes::Watch;
use arena_core::{Alignment, ErrorKind, Reset};

use super::{
    A256, OnHost, assert_call, close, leave_sevens, next_bytes, on_host, open, open_inner,
    open_watched, pass, try_open,
};
use crate::hooked::{before_each_call, fail_in, no_hook};

#[test]
fn more_elements_than_a_handle_counts_are_too_many_even_without_a_byte() {
    let steps = on_host(Reset::Keep);
    assert!(steps.transient::<[u8; 0]>((1 << 44) - 1, A256, 0).is_ok());
    let refused = steps.transient::<[u8; 0]>(1 << 44, A256, 0).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::TooBig { .. }), "{refused}");
}

#[test]
fn a_persistent_buffer_has_the_alignment_of_its_type() {
    let steps = on_host(Reset::Keep);
    for _ in ["below the mark", "kept"] {
        let _odd = steps.persistent::<u8>(1, Alignment::ONE, 0).unwrap();
        let aligned = steps.persistent::<u64>(3, Alignment::ONE, 0).unwrap();
        assert_eq!(aligned.address() % 8, 0);
        let _ = steps.set_mark();
    }
}

#[test]
fn an_empty_request_is_not_signed() {
    let steps = on_host(Reset::Keep);
    let signature = |lens: &[usize]| {
        let root = open_watched(&steps, Watch::Figures);
        for &len in lens {
            drop(steps.transient::<u8>(len, A256, 1).unwrap());
        }
        close(&steps, root).unwrap();
        steps.last_step().signature.unwrap()
    };
    assert_eq!(signature(&[100, 0, 50]), signature(&[100, 50]));
    assert_ne!(signature(&[100, 50]), signature(&[100]));
}

#[test]
fn the_failure_of_a_quiet_close_is_told_once_by_the_next_request() {
    let steps = on_host(Reset::Keep);
    let root = open(&steps, None);
    let inner = open_inner(&steps, None);
    steps.quietly(inner, || {
        close(&steps, inner).unwrap();
        Err(ErrorKind::ForeignFrame.into())
    });
    let told = steps.transient::<u8>(100, A256, 1).unwrap_err();
    let ErrorKind::ClosingFailed { scope, depth, cause } = told.kind() else { panic!("{told}") };
    assert_eq!((*scope, *depth), ("inner", 2));
    assert!(matches!(cause.kind(), ErrorKind::ForeignFrame));
    steps.transient::<u8>(100, A256, 1).unwrap();
    close(&steps, root).unwrap();
}

#[test]
fn a_read_tells_what_a_quiet_close_could_not() {
    let steps = on_host(Reset::Keep);
    let weights = steps.persistent_from(&[5_u8; 8], A256).unwrap();
    let root = open(&steps, None);
    steps.quietly(root, || Err(ErrorKind::ForeignFrame.into()));
    let told = weights.view().to_vec().unwrap_err();
    assert!(matches!(told.kind(), ErrorKind::ClosingFailed { .. }), "{told}");
    assert_eq!(weights.view().to_vec().unwrap(), [5; 8]);
}

#[test]
fn a_failure_that_was_kept_between_two_steps_is_told_by_the_next() {
    let steps = on_host(Reset::Keep);
    pass(&steps);
    steps.region().keep_failure(ErrorKind::PlanInUse.into());
    let told = try_open(&steps, None).unwrap_err();
    assert!(matches!(told.kind(), ErrorKind::PlanInUse), "{told}");
    pass(&steps);
}

// Its contract forbids the device to ask for anything.
#[test]
fn a_request_that_a_device_makes_while_a_scope_closes_is_served_after_the_clearing() {
    let steps: &'static OnHost = Box::leak(Box::new(on_host(Reset::Keep)));
    let root = open(steps, None);
    leave_sevens(steps, 64);
    let inner = open_inner(steps, Some(Reset::Zero));
    drop(steps.transient::<u8>(64, A256, 2).unwrap());
    let seen = Rc::new(RefCell::new(Vec::new()));
    let bytes = Rc::clone(&seen);
    before_each_call(move |call| {
        if call == "fill" {
            bytes.borrow_mut().push(next_bytes(steps, 64));
        }
        Ok(())
    });
    close(steps, inner).unwrap();
    no_hook();
    assert_eq!(*seen.borrow(), [[0; 64]]);
    close(steps, root).unwrap();
}

#[test]
fn a_device_that_does_not_work_any_more_opens_no_scope() {
    let steps = on_host(Reset::Keep);
    fail_in("health", 1);
    assert_call(&try_open(&steps, None).unwrap_err(), "health");
    no_hook();
    assert_eq!(steps.depth(), 0);
}
