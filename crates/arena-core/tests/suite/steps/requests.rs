//! What a request is given, and what is told with it.

use arena_core::for_scopes::Watch;
use arena_core::{Alignment, ErrorKind, Reset};

use super::{A256, assert_call, close, on_host, open, open_watched};
use crate::hooked::{fail_in, no_hook};

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
        let root = open_watched(&steps, None, Watch::Figures).unwrap();
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
    let inner = super::open_inner(&steps, None);
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
fn a_device_that_does_not_work_any_more_opens_no_scope() {
    let steps = on_host(Reset::Keep);
    fail_in("health", 1);
    assert_call(&open_watched(&steps, None, Watch::Nothing).unwrap_err(), "health");
    no_hook();
    assert_eq!(steps.depth(), 0);
}
