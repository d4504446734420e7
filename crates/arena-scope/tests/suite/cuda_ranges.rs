//! Each scope is a range on a profiler's timeline, if that is asked for. On the stand-ins for the driver
//! and for NVTX.

use crate::heap;

use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arena_scope::device::{Counting, Failing, Limited};
use arena_scope::{Arena, ByteSize, Cuda, Device, Error, Reset, Scope, ScopeOptions};
use cuda_standin::Standin;
use nvtx_standin::{Call, Recorder};
use rstest::rstest;

type Outcome = Result<(), Error>;

fn on<D: Device>(device: D) -> Arena<D> {
    Arena::builder(device).capacity(ByteSize::kib(64)).reset(Reset::Zero).build().unwrap()
}

fn standins() -> (Standin, Recorder) {
    let standin = Standin::load().unwrap();
    standin.needed_for("what NVTX was told");
    (standin, Recorder::load().unwrap())
}

fn with_ranges() -> Cuda {
    Cuda::new(0).unwrap().with_ranges().unwrap()
}

/// Ranges as `name(ranges inside)`, or a panic where one is not ended, or not inside the one around it.
#[track_caller]
fn shown(recorder: &Recorder) -> String {
    let (mut text, mut open) = (String::new(), Vec::new());
    for call in recorder.calls() {
        match call {
            Call::Begin { id, name } => {
                open.push(id);
                text.extend([&name, "("]);
            }
            Call::End { id } => {
                assert_eq!(open.pop(), Some(id), "in {text}");
                text.push(')');
            }
        }
    }
    assert!(open.is_empty(), "{text} is not ended");
    text
}

fn step<D: Device>(step: &mut Scope<'_, '_, D>) -> Outcome {
    step.alloc::<f32>(10)?;
    step.scope_named("forward", |forward| {
        forward.alloc::<f32>(10)?;
        forward.enter()?.close()
    })?;
    step.scope_named("backward", |backward| backward.alloc::<f32>(10).map(drop))
}

fn fails<D: Device>(step: &mut Scope<'_, '_, D>) -> Outcome {
    step.scope_named("forward", |forward| forward.alloc::<f32>(1 << 30).map(drop))?;
    step.scope_named("backward", |_| Ok(()))
}

fn panics<D: Device>(step: &mut Scope<'_, '_, D>) -> Outcome {
    step.scope_named("forward", |_| panic!("told to"))
}

fn forgets_inside<D: Device>(step: &mut Scope<'_, '_, D>) -> Outcome {
    let mut outer = step.enter_with(ScopeOptions::named("outer"))?;
    forget(outer.scope().enter_with(ScopeOptions::named("inner"))?);
    forget(outer);
    step.scope_named("next", |_| arena_scope::Ok(()))?;
    forget(step.enter_with(ScopeOptions::named("last"))?);
    Ok(())
}

#[rstest]
#[case::nested(step, "train(forward(scope())backward())")]
#[case::a_question_mark(fails, "train(forward())")]
#[case::a_panic(panics, "train(forward())")]
#[case::forgotten_guards(forgets_inside, "train(outer(inner())next()last())")]
fn ranges_are_balanced_nested_and_named_as_the_scopes(
    #[case] body: fn(&mut Scope<'_, '_, Cuda>) -> Outcome,
    #[case] expected: &str,
) {
    let (_standin, recorder) = standins();
    let mut arena = on(with_ranges());
    for _ in 0..2 {
        recorder.clear();
        // An error and a panic end it like any other.
        let _ = catch_unwind(AssertUnwindSafe(|| arena.scope_named("train", body)));
        assert_eq!(shown(&recorder), expected);
    }
}

#[test]
fn a_forgotten_root_ends_when_the_next_one_opens_or_with_the_arena() {
    let (_standin, recorder) = standins();
    let mut arena = on(with_ranges());
    let leave_open = |arena: &mut Arena<Cuda>, name| {
        let mut guard = arena.enter_with(ScopeOptions::named(name)).unwrap();
        forget(guard.scope().enter().unwrap());
        forget(guard);
    };
    leave_open(&mut arena, "first");
    leave_open(&mut arena, "second");
    assert_eq!(recorder.calls().len(), 2 + 2 + 2);
    drop(arena);
    assert_eq!(shown(&recorder), "first(scope())second(scope())");
}

#[test]
fn a_scope_that_is_refused_has_no_range() {
    let (standin, recorder) = standins();
    let mut arena = on(with_ranges());
    standin.fail_nth("cuMemsetD8Async", 1, 1);
    let mut guard = arena.enter_with(ScopeOptions::named("train")).unwrap();
    guard.scope().alloc::<f32>(10).unwrap();
    drop(guard);
    let told = arena.scope_named("refused", step).unwrap_err().to_string();
    assert!(told.contains("cuMemsetD8Async"), "{told}");
    assert_eq!(shown(&recorder), "train()");
}

#[test]
fn without_being_asked_for_there_is_no_call() {
    let (_standin, recorder) = standins();
    on(Cuda::new(0).unwrap()).scope_named("train", step).unwrap();
    assert_eq!(recorder.calls(), []);
}

#[test]
fn wrapped_devices_pass_ranges_on() {
    let (_standin, recorder) = standins();
    let wrapped = Counting::new(Failing::new(Limited::new(with_ranges(), ByteSize::mib(1))));
    on(wrapped).scope_named("train", step).unwrap();
    assert_eq!(shown(&recorder), "train(forward(scope())backward())");
}

// Promise 9.
#[test]
fn a_step_whose_names_are_known_allocates_nothing_on_the_heap() {
    let (_standin, recorder) = standins();
    let mut arena = on(with_ranges());
    for n in 1..=5 {
        let before = heap::allocations();
        arena.scope_named("train", step).unwrap();
        let allocations = heap::allocations() - before;
        assert!(n < 3 || allocations == 0, "{allocations} in step {n}");
    }
    assert_eq!(recorder.calls().len(), 5 * 4 * 2);
}
