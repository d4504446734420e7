//! Out of memory says which of four causes it is, and which calls hold the memory: from the text alone.

use arena_scope::errors::{Cause, Exhausted, Repeats};
use arena_scope::{Arena, ByteSize, Error, Host, Persistent, Scope, Transient};
use rstest::rstest;

fn arena(kib: u64) -> Arena {
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(kib)).build().unwrap();
    arena.mark().unwrap();
    arena.record(None);
    arena
}

fn facts(error: &Error) -> &Exhausted {
    error.as_exhausted().unwrap_or_else(|| panic!("{error}"))
}

/// This file's line of a call, as texts name it.
fn at(line: u32) -> String {
    format!("{}:{line}:", file!())
}

/// The lines of a text that begin with a word.
fn lines<'t>(text: &'t str, word: &str) -> Vec<&'t str> {
    let found = text.lines().filter_map(|line| line.trim_start().strip_prefix(word));
    found.map(str::trim_start).collect()
}

#[track_caller]
fn assert_line(text: &str, word: &str, parts: &[&str]) {
    let found = lines(text, word);
    let has_all = |line: &&str| parts.iter().all(|part| line.contains(part));
    assert!(found.iter().any(has_all), "no line `{word}` has {parts:?} in:\n{text}");
}

#[rstest]
#[case::larger_than_the_arena(1 << 30)]
#[case::most_of_an_empty_step(60 << 10)]
fn a_runaway_request_is_told_by_itself(#[case] asked: usize) {
    let mut arena = arena(64);
    let error = arena
        .scope_named("train", |step| {
            let _small = step.alloc::<u8>(8 << 10)?;
            step.alloc::<u8>(asked).map(drop) // the fault
        })
        .unwrap_err();
    assert_eq!(facts(&error).cause(), Cause::RunawayRequest);
    let text = error.to_string();
    assert_line(&text, "asked at", &[&at(line!() - 5)]);
    assert_line(&text, "cause", &["this one request"]);
    assert!(
        text.starts_with(&format!("out of arena memory: {asked} bytes were asked for")),
        "{text}"
    );
}

/// The line of both calls of [`step`].
const STEP_LINE: u32 = line!() + 4;

/// Two buffers of a step, which a program holds longer than it should.
fn step<'s>(scope: &Scope<'s, '_>) -> Result<[Transient<'s, u8>; 2], Error> {
    Ok([scope.alloc(1 << 10)?, scope.alloc(3 << 10)?]) // the two calls
}

#[test]
fn a_reset_that_never_came_is_told_with_the_calls_that_hold_the_memory() {
    let mut arena = arena(64);
    let error = arena
        .scope_named("epoch", |epoch| {
            let mut held = Vec::new();
            for _ in 0..100 {
                held.push(step(epoch)?);
            }
            arena_scope::Ok(())
        })
        .unwrap_err();
    let Cause::NoReset(Repeats { requests: 2, times, .. }) = facts(&error).cause() else {
        panic!("{error}")
    };
    assert_eq!(times, 17, "16 times four KiB fit");
    let line = at(STEP_LINE);
    let text = error.to_string();
    assert_line(&text, "in scope", &["`epoch` (depth 1)"]);
    assert_line(&text, "step", &["32 requests since its root scope opened", "0 resets before"]);
    // Those that hold most come first.
    let [most, second] = lines(&text, "holds")[..] else { panic!("{text}") };
    assert!(most.starts_with("49152 bytes in 16 buffers") && most.contains(&line), "{text}");
    assert!(second.starts_with("16384 bytes in 16 buffers") && second.contains(&line), "{text}");
    assert_line(&text, "cause", &["no reset: the same 2 requests came 17 times"]);
}

#[test]
fn a_step_that_is_too_big_is_not_taken_for_a_loop_without_resets() {
    let mut arena = arena(64);
    let error = arena
        .scope_named("train", |train| {
            let _images = train.alloc::<u8>(5000)?;
            let mut layers = Vec::new();
            for _ in 0..100 {
                layers.push(step(train)?);
            }
            arena_scope::Ok(())
        })
        .unwrap_err();
    assert_eq!(facts(&error).cause(), Cause::StepTooBig);
    let text = error.to_string();
    assert_line(&text, "cause", &["the step needs more than there is"]);
    assert_line(&text, "step", &[&format!("the largest 5000 bytes at {}", at(line!() - 11))]);
}

#[test]
fn a_loop_that_drops_its_buffers_lacks_the_reset_as_well_and_holds_nothing() {
    let mut arena = arena(64);
    let error = arena
        .scope_named("train", |train| {
            for _ in 0..100 {
                step(train)?;
            }
            arena_scope::Ok(())
        })
        .unwrap_err();
    assert!(lines(&error.to_string(), "holds").is_empty(), "{error}");
    let told = facts(&error).cause();
    assert!(matches!(told, Cause::NoReset(Repeats { requests: 2, times: 17, .. })), "{error}");
}

#[test]
fn what_a_closed_scope_had_holds_nothing_even_where_its_handle_was_leaked() {
    let mut arena = arena(64);
    let error = arena
        .scope_named("train", |train| {
            let _x = train.alloc::<u8>(20 << 10)?;
            train.scope_named("layer", |layer| layer.alloc::<u8>(9 << 10).map(std::mem::forget))?;
            train.alloc::<u8>(50 << 10).map(drop)
        })
        .unwrap_err();
    let text = error.to_string();
    let [held] = lines(&text, "holds")[..] else { panic!("{text}") };
    assert!(held.starts_with("20480 bytes in 1 buffer of"), "{text}");
}

#[test]
fn a_promote_per_step_is_told_with_its_call_and_the_number_of_steps() {
    let mut arena = arena(64);
    let mut history: Vec<Persistent<u8>> = Vec::new();
    let error = (0..100)
        .find_map(|_| {
            let ended = arena.scope_named("train", |train| {
                let loss = train.alloc_zeroed::<u8>(4 << 10)?;
                history.push(train.promote(loss.view())?); // the fault
                train.alloc::<u8>(16 << 10).map(drop)
            });
            ended.err()
        })
        .unwrap();
    assert_eq!(facts(&error).cause(), Cause::KeptBytes);
    let text = error.to_string();
    let bytes = history.len() * (4 << 10);
    let held = format!("{bytes} bytes in {} buffers", history.len());
    let steps = format!("made in {} steps", history.len());
    assert_line(&text, "kept", &[&held, &at(line!() - 11), &steps]);
    assert_line(&text, "cause", &["kept bytes"]);
}

#[test]
fn kept_buffers_that_leak_are_told_with_their_call() {
    let mut arena = arena(64);
    let mut leaked: Vec<_> = (0..13).map(|_| arena.persistent::<u8>(4 << 10).unwrap()).collect();
    let line = at(line!() - 1);
    drop(leaked.pop());
    arena.scope(|_| arena_scope::Ok(())).unwrap(); // Its bytes come back with a close.
    let error =
        arena.scope_named("train", |train| train.alloc::<u8>(20 << 10).map(drop)).unwrap_err();
    assert_eq!(facts(&error).cause(), Cause::KeptBytes);
    let text = error.to_string();
    assert_line(&text, "kept", &["49152 bytes in 12 buffers", &line]);
    assert!(!text.contains("made in"), "one step: {text}");
    drop(leaked);
    arena.scope(|_| arena_scope::Ok(())).unwrap();
    arena.scope(|train| train.alloc::<u8>(20 << 10).map(drop)).unwrap();
}

#[test]
fn without_a_record_the_text_says_how_to_get_one_and_the_path_is_known() {
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build().unwrap();
    let error = arena
        .scope_named("run", |run| {
            run.scope_named("step", |step| step.scope(|inner| inner.alloc::<u8>(5 << 10).map(drop)))
        })
        .unwrap_err();
    let text = error.to_string();
    assert_line(&text, "in scope", &["`run` > `step` > `scope` (depth 3)"]);
    assert_line(&text, "holds", &["not recorded: `arena.record(None)`"]);
    assert_line(&text, "enough", &["a capacity of 5120 bytes (5.00 KiB)"]);
    assert_eq!(facts(&error).scope.as_ref().unwrap().path, ["run", "step", "scope"]);
}
