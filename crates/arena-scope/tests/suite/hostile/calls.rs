//! Each call of the device in turn, as often as a step makes it.

use arena_scope::{Device, Error, ErrorKind, Reset};
use rstest::rstest;

use super::hooked::{ON_PURPOSE, fail_in, no_hook, panic_in};
use super::{Loop, STEP, Way, panics};

/// Runs a step for each call of that name that it makes, in which `hook` then does something, and checks what
/// is left each time. Returns how many there were.
fn for_each(
    call: &'static str,
    reset: Reset,
    hook: fn(&'static str, u64),
    mut run: impl FnMut(&mut Loop, &str) -> bool,
) -> u64 {
    let mut hooked = 0;
    for way in [Way::Bump, Way::Planned, Way::Separate] {
        for first in [true, false] {
            for n in 1.. {
                let mut training = Loop::new(n, way, reset);
                if !first {
                    training.step(1).unwrap();
                }
                hook(call, n);
                let what = format!("{call} {n}, {way:?}, {reset:?}, first step: {first}");
                let found = run(&mut training, &what);
                no_hook();
                if !found {
                    break;
                }
                training.assert_as_before(&what);
                hooked += 1;
            }
        }
    }
    hooked
}

fn nothing_is_left_of_a_panic_in(call: &'static str, reset: Reset) {
    let panicked = for_each(call, reset, panic_in, |training, _| panics(|| training.step(2)));
    assert!(panicked > 0, "{call} is called, and {ON_PURPOSE} it");
}

#[rstest]
fn a_panic_in_a_call_leaves_nothing(
    #[values("copy_in", "copy_within", "new_event", "obtain_guarded", "end_range")]
    call: &'static str,
    #[values(Reset::Keep, Reset::Zero, Reset::Poison)] reset: Reset,
) {
    nothing_is_left_of_a_panic_in(call, reset);
}

// Those that a close makes too: it clears, waits for streams, and checks and releases what was an allocation of its own.
// And the last call of an opening, after which the scope is open, and its cursor above its plan.
#[rstest]
fn a_panic_in_a_call_of_a_close_leaves_nothing(
    #[values("fill", "copy_out", "record", "wait", "release", "begin_range")] call: &'static str,
    #[values(Reset::Keep, Reset::Zero, Reset::Poison)] reset: Reset,
) {
    nothing_is_left_of_a_panic_in(call, reset);
}

#[rstest]
fn a_refused_call_is_told_and_leaves_nothing(
    #[values(
        "copy_in",
        "copy_out",
        "copy_within",
        "new_event",
        "fill",
        "record",
        "wait",
        "release",
        "obtain_guarded"
    )]
    call: &'static str,
    #[values(Reset::Keep, Reset::Zero, Reset::Poison)] reset: Reset,
) {
    let failed = for_each(call, reset, fail_in, |training, what| {
        let outcome = training.step(2);
        // The hook waits for a call that was never made, in a step without a failure.
        let error: Option<Error> = outcome.err().or_else(|| training.arena.check().err());
        no_hook();
        let Some(error) = error else { return false };
        let ErrorKind::Device(refused) = error.kind() else { panic!("{what}: {error:?}") };
        assert_eq!((refused.device.as_str(), refused.call), ("hooked", call), "{what}");
        true
    });
    assert!(failed > 0, "{call} is called");
}

#[rstest]
fn a_panic_in_a_capture_or_a_replay_leaves_nothing(
    #[values("begin_capture", "fill", "end_capture", "launch")] call: &'static str,
) {
    let mut training = Loop::new(0, Way::Bump, Reset::Keep);
    let arena = &mut training.arena;
    arena.scope_with(STEP, |step| step.alloc_zeroed::<u8>(64).map(drop)).unwrap();
    panic_in(call, 1);
    let panicked = panics(|| {
        let graph = arena.capture(STEP, |step| step.alloc_zeroed::<u8>(64).map(drop))?;
        graph.replay(arena)
    });
    assert!(panicked);
    no_hook();
    assert!(arena.device().refuse_in_capture("test").is_ok(), "the capture has ended");
    training.assert_as_before(call);
}
