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
    Ok([scope.alloc(3 << 10)?, scope.alloc(1 << 10)?]) // the two calls
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
    assert_line(&text, "holds", &["49152 bytes in 16 buffers", &line]);
    assert_line(&text, "holds", &["16384 bytes in 16 buffers", &line]);
    assert_line(&text, "cause", &["no reset: the same 2 requests came 17 times"]);
}

#[test]
fn a_step_that_is_too_big_is_not_taken_for_a_loop_without_resets() {
    let mut arena = arena(64);
    let error = arena
        .scope_named("train", |train| {
            let _images = train.alloc::<u8>(100)?;
            let mut layers = Vec::new();
            for _ in 0..100 {
                layers.push(step(train)?);
            }
            arena_scope::Ok(())
        })
        .unwrap_err();
    assert_eq!(facts(&error).cause(), Cause::StepTooBig);
    assert_line(&error.to_string(), "cause", &["the step needs more than there is"]);
}

#[test]
fn a_loop_whose_buffers_are_dropped_again_holds_nothing() {
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
    let leaked: Vec<_> = (0..12).map(|_| arena.persistent::<u8>(4 << 10).unwrap()).collect();
    let line = at(line!() - 1);
    let given_back = arena.persistent::<u8>(4 << 10).unwrap();
    drop(given_back);
    let error =
        arena.scope_named("train", |train| train.alloc::<u8>(20 << 10).map(drop)).unwrap_err();
    assert_eq!(facts(&error).cause(), Cause::KeptBytes);
    let text = error.to_string();
    assert_line(&text, "kept", &["49152 bytes in 12 buffers", &line]);
    assert!(!text.contains("made in"), "one step: {text}");
    drop(leaked);
    arena.scope(|_| arena_scope::Ok(())).unwrap(); // A close gives their bytes back.
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
