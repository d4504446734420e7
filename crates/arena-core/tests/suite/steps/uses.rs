//! Where a recorded step used its buffers last: each use counts for the buffer that has the bytes then, and a step
//! that is not recorded leaves no trace.

use arena_core::for_scopes::Watch;
use arena_core::{Host, Placement, RecordedRequest, Reset, StepLog, Transient};
use rstest::rstest;

use super::{A256, OnHost, close, late, on_host, open, open_inner, open_watched, table};
use crate::hooked::{Hooked, fail_in, no_hook};

fn record(steps: &OnHost, step: impl FnOnce(&OnHost)) -> StepLog {
    let root = open_watched(steps, Watch::Record(StepLog::default()));
    step(steps);
    close(steps, root).unwrap();
    steps.take_log().unwrap()
}

/// Before which event each request's buffer was used last.
fn used(log: &StepLog) -> Vec<Option<usize>> {
    let before = |request: &RecordedRequest| request.last_use.map(|last| last.before_event);
    log.requests().iter().map(before).collect()
}

fn request(steps: &OnHost) -> Transient<'_, u8, Hooked<Host>> {
    steps.transient::<u8>(256, A256, steps.depth()).unwrap()
}

#[test]
fn the_last_use_counts_with_the_call_and_with_the_events_before_it() {
    let (mut line, mut first_line) = (0, 0);
    let log = record(&on_host(Reset::Keep), |steps| {
        let a = request(steps); // after the opening
        let _early = a.view();
        let b = request(steps);
        first_line = line!() + 1;
        let view = a.view();
        line = line!() + 1;
        let _ = (b.view(), view.as_slice()); // The view's own use names the call that took it.
        drop(b);
    });
    assert_eq!(used(&log), [Some(3), Some(3)]);
    let lines = log.requests().iter().map(|request| request.last_use.unwrap().call_site.line());
    assert!(lines.eq([first_line, line]));
    let files = log.requests().iter().map(|request| request.call_site.file());
    assert!(files.into_iter().all(|file| file == file!()));
}

#[test]
fn what_a_buffer_is_made_with_is_no_use_of_it() {
    let log = record(&on_host(Reset::Keep), |steps| {
        drop(steps.transient_from(&[1_u8; 10], A256, 1).unwrap());
        drop(steps.transient_zeroed::<u8>(10, A256, 1).unwrap());
        let owned = steps.detach(request(steps), 1).unwrap();
        drop(steps.attach(owned, 1).unwrap());
    });
    assert_eq!(used(&log), [None; 3]);
}

#[test]
fn a_step_that_is_not_recorded_leaves_no_trace() {
    let steps = on_host(Reset::Keep);
    let log = record(&steps, |steps| drop(request(steps)));
    for watch in [None, Some(Watch::Figures), Some(Watch::Nothing)] {
        let root = watch.map_or_else(|| open(&steps, None), |watch| open_watched(&steps, watch));
        assert!(request(&steps).as_slice().len() == 256);
        close(&steps, root).unwrap();
        assert_eq!(steps.take_log(), None);
    }
    let again = record(&steps, |steps| drop(request(steps)));
    assert_eq!((used(&log), used(&again)), (vec![None], vec![None]));
}

#[test]
fn bytes_that_are_used_again_are_those_of_the_newest_request() {
    let log = record(&on_host(Reset::Keep), |steps| {
        let outer = request(steps);
        for len in [200, 600] {
            let inner = open_inner(steps, None);
            let x = steps.transient::<u8>(len, A256, 2).unwrap();
            let y = steps.transient::<u8>(10, A256, 2).unwrap();
            let _ = (x.view().range(len - 1..).unwrap(), y.view());
            drop((x, y));
            close(steps, inner).unwrap();
        }
        let last = steps.transient::<u8>(1000, A256, 1).unwrap();
        let _ = (last.view().range(999..).unwrap().as_slice(), outer.as_slice());
    });
    let events = log.events().len();
    assert_eq!(used(&log)[1..5], [Some(5), Some(5), Some(11), Some(11)]);
    // The root's closing, and the drops of both.
    assert_eq!((used(&log)[0], used(&log)[5]), (Some(events - 3), Some(events - 3)));
}

#[test]
fn a_plan_s_slots_are_told_apart_by_when_they_were_given_out() {
    let mut steps = on_host(Reset::Keep);
    let plan = steps.add_plan(table(&[0, 1, 0, 1])).unwrap();
    steps.select_plan(Some(plan));
    let log = record(&steps, |steps| {
        let a = request(steps);
        let b = request(steps);
        let _ = (a.view(), b.view());
        drop((a, b));
        let c = request(steps);
        let d = request(steps);
        assert_eq!((c.offset_bytes(), d.offset_bytes()), (0, 256));
        let _ = d.view();
    });
    assert_eq!(used(&log), [Some(3), Some(3), None, Some(7)]);
}

#[test]
fn neither_an_empty_buffer_nor_one_that_is_kept_is_taken_for_a_buffer_of_the_step() {
    let steps = on_host(Reset::Keep);
    let weights = steps.persistent_from(&[1_u8; 100], A256).unwrap();
    let log = record(&steps, |steps| {
        let inner = open_inner(steps, None);
        drop(steps.transient::<u8>(3000, A256, 2).unwrap());
        close(steps, inner).unwrap();
        let momentum = steps.persistent::<u8>(256, A256, 1).unwrap(); // has some of these bytes
        let empty = steps.transient::<u8>(0, A256, 1).unwrap();
        let x = request(steps);
        assert_eq!(empty.offset_bytes(), x.offset_bytes());
        let views = (weights.view(), momentum.view(), empty.view());
        let _ = (views.0.as_slice(), views.1.as_slice(), views.2.as_slice());
    });
    assert_eq!(used(&log), [None; 3]);
}

#[test]
fn a_request_that_is_taken_back_leaves_no_trace() {
    let log = record(&on_host(Reset::Keep), |steps| {
        let a = request(steps);
        let _ = a.view();
        fail_in("copy_in", 1);
        steps.transient_from(&[1_u8; 700], A256, 1).unwrap_err();
        no_hook();
        let _ = a.view();
        let b = request(steps);
        let _ = b.view();
    });
    assert_eq!(used(&log), [Some(2), Some(3)]);
    assert_eq!(log.events().len(), 6);
}

#[rstest]
fn a_buffer_is_found_wherever_it_lies(
    #[values(Placement::Bump, Placement::Separate, Placement::Shuffled { seed: 3 })]
    placement: Placement,
) {
    let (steps, _) = late(1, placement, Reset::Keep);
    let root = open_watched(&steps, Watch::Record(StepLog::default()));
    let [a, b, c] = [(); 3].map(|()| steps.transient::<u8>(100, A256, 1).unwrap());
    let _ = (a.view().range(99..).unwrap(), c.view());
    drop((a, b, c));
    close(&steps, root).unwrap();
    assert_eq!(used(&steps.take_log().unwrap()), [Some(4), None, Some(4)]);
}
