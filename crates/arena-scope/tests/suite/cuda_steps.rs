//! A training step's driver calls: how many, and what happens when one of them fails.

use std::sync::Arc;

use crate::cuda::{arena, arena_with, side_stream};
use arena_scope::cudarc::driver::CudaStream;
use arena_scope::errors::DeviceErrorKind;
use arena_scope::{Arena, Cuda, Error, ErrorKind, Persistent, Reset};
use cuda_standin::{Leaks, Standin};
use rstest::rstest;

/// A step with everything in it: upload, clearing, a second stream, a nested scope, a device copy and
/// one declared read.
fn step(
    arena: &mut Arena<Cuda>,
    side: &Arc<CudaStream>,
    weights: &mut Persistent<f32, Cuda>,
) -> Result<f32, Error> {
    arena.scope(|step| {
        let x = step.upload(&[1.0_f32, 2.0])?;
        let mut sum = step.alloc_zeroed::<f32>(2)?;
        step.declare_stream(side)?;
        step.scope(|inner| {
            let mut scratch = inner.alloc::<f32>(2)?;
            scratch.view_mut().copy_from(x.view())?;
            sum.view_mut().copy_from(scratch.view())
        })?;
        step.wait_for_stream(side)?;
        weights.view_mut().copy_from(sum.view())?;
        step.read_one(sum.view().range(1..)?)
    })
}

#[test]
fn after_the_first_step_nothing_is_allocated_and_only_the_declared_read_waits() {
    let standin = Standin::load().unwrap();
    let mut arena = arena_with(Reset::Zero);
    let side = side_stream(&arena);
    let mut weights = arena.persistent_from(&[0.0_f32; 2]).unwrap();
    step(&mut arena, &side, &mut weights).unwrap();
    standin.clear_calls();
    const STEPS: u64 = 5;
    for _ in 0..STEPS {
        assert!((step(&mut arena, &side, &mut weights).unwrap() - 2.0).abs() < f32::EPSILON);
    }
    if !standin.is_real_driver() {
        let allocations = [
            "cuMemAlloc_v2",
            "cuMemAllocAsync",
            "cuMemAllocFromPoolAsync",
            "cuMemFree_v2",
            "cuMemFreeAsync",
            "cuMemHostAlloc",
            "cuMemCreate",
            "cuEventCreate",
            "cuEventDestroy_v2",
            "cuStreamCreate",
        ];
        for name in allocations {
            assert_eq!(standin.calls(name), 0, "{name}");
        }
        assert_eq!(standin.calls("cuStreamSynchronize"), STEPS, "one read a step");
        assert_eq!(standin.calls("cuCtxSynchronize") + standin.calls("cuEventSynchronize"), 0);
        // For the one declared stream: at its declaration, at `wait_for_stream`, and at the two closes.
        assert_eq!(standin.calls("cuEventRecord"), 4 * STEPS, "no event is any buffer's");
        assert_eq!(standin.calls("cuStreamWaitEvent"), 4 * STEPS);
    }
}

#[test]
fn a_step_on_the_arena_s_own_stream_needs_no_event() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    for _ in 0..3 {
        arena.scope(|step| step.upload(&[1.0_f32; 64]).and_then(|x| step.read(x.view()))).unwrap();
    }
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuEventCreate") + standin.calls("cuEventRecord"), 0);
        assert_eq!(standin.calls("cuStreamWaitEvent"), 0);
    }
}

/// The driver's name of a call without the suffix of its version.
fn plain(name: &str) -> String {
    name.trim_end_matches("_v2").to_owned()
}

#[rstest]
fn whichever_call_of_a_step_fails_the_error_names_it_and_the_arena_is_usable(
    #[values(false, true)] it_is_the_first_step: bool,
) {
    let standin = Standin::load().unwrap();
    let mut failed = Vec::new();
    for n in 1.. {
        standin.reset(n);
        let mut arena = arena_with(Reset::Zero);
        let side = side_stream(&arena);
        let mut weights = arena.persistent_from(&[0.0_f32; 2]).unwrap();
        if it_is_the_first_step {
            arena.mark().unwrap();
        } else {
            step(&mut arena, &side, &mut weights).unwrap();
        }
        let held = standin.leaks();
        let mark = arena.stats().mark_bytes;
        standin.clear_calls();
        standin.fail_nth_call(n, 999);
        let outcome = step(&mut arena, &side, &mut weights);
        if standin.failures_to_come() > 0 {
            assert!(outcome.is_ok());
            break;
        }
        let call = standin.call_names()[n as usize - 1].clone();
        // A failure of closing may be told by the next fallible call.
        let error = outcome.err().or_else(|| arena.check().err());
        let error = error.unwrap_or_else(|| panic!("the failure of {call} was swallowed"));
        assert!(error.to_string().contains(&plain(&call)), "{call} failed, told was: {error}");
        assert!(error.to_string().contains("999"), "{error}");
        assert!(!error.is_final(), "{error}");
        assert_eq!(arena.stats().used_bytes, mark, "{call}");

        let _ = arena.check();
        let value = step(&mut arena, &side, &mut weights);
        let value = value.unwrap_or_else(|error| panic!("after {call} failed: {error}"));
        assert!((value - 2.0).abs() < f32::EPSILON, "{call}: {value}");
        assert_eq!(arena.stats().used_bytes, mark);
        let holds = standin.leaks();
        let event = Leaks { events: held.events.max(holds.events), ..held };
        assert_eq!(holds, event, "after {call} failed");
        drop((arena, weights, side));
        assert!(standin.leaks().is_clean(), "{call}: {:?}", standin.leaks());
        failed.push(plain(&call));
    }
    for expected in [
        "cuCtxGetCurrent",
        "cuStreamIsCapturing",
        "cuPointerGetAttributes",
        "cuMemcpyHtoDAsync",
        "cuMemsetD8Async",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuMemcpyAsync",
        "cuMemcpyDtoHAsync",
        "cuStreamSynchronize",
    ] {
        assert!(failed.iter().any(|call| call == expected), "{expected} is not in {failed:?}");
    }
    assert_eq!(failed.iter().any(|call| call == "cuEventCreate"), it_is_the_first_step);
}

#[test]
fn after_a_sticky_error_everything_is_final_and_nothing_leaks() {
    let standin = Standin::load().unwrap();
    for n in 1.. {
        standin.reset(n);
        let mut arena = arena_with(Reset::Zero);
        let side = side_stream(&arena);
        let mut weights = arena.persistent_from(&[0.0_f32; 2]).unwrap();
        standin.fail_nth_call(n, 700);
        let outcome = step(&mut arena, &side, &mut weights);
        if standin.failures_to_come() > 0 {
            assert!(outcome.is_ok());
            assert!(n > 20, "only {n} calls in a step");
            break;
        }
        let mut told = vec![outcome.err().or_else(|| arena.check().err())];
        for _ in 0..2 {
            told.push(step(&mut arena, &side, &mut weights).err());
            told.push(arena.enter().map(drop).err());
            told.push(arena.persistent::<f32>(1).map(drop).err());
        }
        for error in told {
            let error = error.unwrap_or_else(|| panic!("call {n}: a success after the end"));
            assert!(error.is_final(), "call {n}: {error}");
            assert!(error.to_string().contains("700"), "{error}");
        }
        drop((arena, weights, side));
        assert!(standin.leaks().is_clean(), "call {n}: {:?}", standin.leaks());
    }
}

#[test]
fn a_stream_that_cannot_be_recorded_is_waited_for_on_the_host() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let side = side_stream(&arena);
    let told = arena.scope(|step| {
        step.declare_stream(&side)?;
        standin.fail_nth("cuEventRecord", 1, 999);
        standin.clear_calls();
        arena_scope::Ok(())
    });
    assert!(told.unwrap_err().to_string().contains("cuEventRecord"));
    assert_eq!(standin.calls("cuStreamSynchronize"), 1);
    assert!(arena.scope(|_| arena_scope::Ok(())).is_ok());
}

#[test]
fn a_stream_that_cannot_be_waited_for_at_all_closes_the_arena_for_good() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let side = side_stream(&arena);
    arena.mark().unwrap();
    let told = arena.scope(|step| {
        step.declare_stream(&side)?;
        standin.fail_nth("cuEventRecord", 1, 999);
        standin.fail_nth("cuStreamSynchronize", 1, 999);
        arena_scope::Ok(())
    });
    assert!(told.unwrap_err().to_string().contains("cuEventRecord"));
    assert_eq!(arena.stats().used_bytes, 0);
    for _ in 0..2 {
        // No memory either, for it may still be in use.
        for refused in [
            arena.scope(|_| arena_scope::Ok(())),
            arena.enter().map(drop),
            arena.persistent::<u8>(1).map(drop),
        ] {
            let refused = refused.unwrap_err();
            assert!(matches!(refused.kind(), ErrorKind::OrderLost(_)), "{refused}");
            assert!(refused.is_final());
            assert!(refused.to_string().contains("cuStreamSynchronize"), "{refused}");
        }
    }
    standin.clear_calls();
    drop(arena);
    assert_eq!(standin.calls("cuStreamWaitEvent"), 1, "the region's end tries once more");
    drop(side);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

#[test]
fn a_failure_in_a_dropped_guard_is_told_by_the_next_call_and_nothing_panics() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let side = side_stream(&arena);
    let mut guard = arena.enter().unwrap();
    guard.scope().declare_stream(&side).unwrap();
    standin.fail_nth("cuStreamWaitEvent", 1, 999);
    drop(guard);
    let told = arena.enter().map(drop).unwrap_err();
    assert!(told.to_string().contains("cuStreamWaitEvent"), "{told}");
    let ErrorKind::ClosingFailed { scope: "scope", depth: 1, cause } = told.kind() else {
        panic!("{told:?}")
    };
    let ErrorKind::Device(error) = cause.kind() else { panic!("{cause:?}") };
    assert_eq!(error.kind, DeviceErrorKind::Refused);
    assert!(arena.enter().is_ok(), "it is told once");
}
