//! Requests whose contents the device refuses: as if they had not been made, and nothing of them is left in
//! the bytes.

use arena_core::for_scopes::Watch;
use arena_core::{Alignment, Reset, StepLog};

use super::{
    A256, CAPACITY, OnHost, assert_call, close, leave_sevens, next_bytes, on_host, open,
    open_inner, open_watched, table,
};
use crate::hooked::{fail_in, no_hook};

fn refused_upload(steps: &OnHost, len: usize, depth: u32) {
    fail_in("copy_in", 1);
    assert_call(&steps.transient_from(&vec![1_u8; len], A256, depth).unwrap_err(), "copy_in");
    no_hook();
}

#[test]
fn a_refused_upload_is_in_no_figure_no_signature_and_no_log() {
    let steps = on_host(Reset::Keep);
    let step = |refused: bool| {
        let root = open_watched(&steps, Watch::Record(StepLog::default()));
        drop(steps.transient::<u8>(100, A256, 1).unwrap());
        if refused {
            refused_upload(&steps, 50, 1);
            assert_eq!(steps.stats().used_bytes, 100);
        }
        drop(steps.transient::<u8>(30, A256, 1).unwrap());
        close(&steps, root).unwrap();
        (steps.last_step(), steps.take_log().unwrap().events().to_vec())
    };
    assert_eq!(step(true), step(false));
}

#[test]
fn a_refused_upload_leaves_a_planned_step_its_signature_and_its_slots() {
    let mut steps = on_host(Reset::Keep);
    let plan = steps.add_plan(table(&[0, 1, 1])).unwrap();
    let mut step = |refused: Option<usize>, extra: bool| {
        steps.select_plan(Some(plan));
        let root = open(&steps, None);
        let a = steps.transient_from(&[1_u8; 256], A256, 1).unwrap();
        if let Some(len) = refused {
            refused_upload(&steps, len, 1);
        }
        let b = steps.transient_from(&[2_u8; 256], A256, 1).unwrap();
        assert_eq!((a.offset_bytes(), b.offset_bytes()), (0, 256));
        drop(b);
        let c = steps.transient_from(&[3_u8; 256], A256, 1).unwrap();
        assert_eq!(c.offset_bytes(), 256);
        drop((a, c));
        if extra {
            drop(steps.transient::<u8>(100, A256, 1).unwrap());
        }
        close(&steps, root).unwrap();
        steps.last_step().signature.unwrap()
    };
    // First counted, then repeating, some up to a request that the plan does not have. What is refused is
    // the plan's, or is not.
    let (usual, with_extra) = (step(Some(256), false), step(None, true));
    assert_ne!(usual, with_extra);
    for refused in [None, None, Some(256), None, Some(1000), None, Some(256), None] {
        assert_eq!(step(refused, false), usual, "{refused:?}");
        assert_eq!(step(refused, true), with_extra, "{refused:?}");
        assert_eq!(step(None, false), usual, "after {refused:?}");
    }
}

#[test]
fn what_a_refused_upload_may_have_written_is_cleared() {
    let steps = on_host(Reset::Keep);
    leave_sevens(&steps, 256);
    let root = open(&steps, Some(Reset::Zero));
    refused_upload(&steps, 100, 1);
    let mut expected = [0; 256];
    expected[100..].fill(7);
    assert_eq!(next_bytes(&steps, 256), expected);
    close(&steps, root).unwrap();
}

#[test]
fn what_a_refused_upload_may_have_written_is_cleared_as_a_forgotten_scope_asked() {
    let steps = on_host(Reset::Keep);
    leave_sevens(&steps, 256);
    let root = open(&steps, None);
    open_inner(&steps, Some(Reset::Zero));
    refused_upload(&steps, 256, 1);
    assert_eq!(next_bytes(&steps, 256), [0; 256]);
    close(&steps, root).unwrap();
}

#[test]
fn a_refused_kept_buffer_gives_its_bytes_back_and_cleared() {
    let steps = on_host(Reset::Zero);
    let all = CAPACITY as usize;
    leave_sevens(&steps, all);
    fail_in("copy_in", 1);
    assert_call(&steps.persistent_from(&[1_u8; 256], A256).unwrap_err(), "copy_in");
    no_hook();
    assert_eq!(steps.stats().kept_bytes, 0);
    let bytes = steps.transient::<u8>(all, Alignment::ONE, 0).unwrap().as_slice().to_vec();
    assert_eq!((&bytes[..all - 256], &bytes[all - 256..]), (&[7; 3840][..], &[0; 256][..]));
}
