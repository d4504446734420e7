//! Reuse is ordered on the device: a stream that was declared has ended its work before the memory is used
//! again, in any order that a device may choose; one that was not declared loses it.

use arena_scope::device::Deferred;
use arena_scope::device::deferred::{Reading, Stream};
use arena_scope::{Arena, Device, Error, ErrorKind, Placement, Reset, Scope, Transient};
use rstest::rstest;

use super::{SEEDS, arena, side_stream};

const X: [u8; 16] = [7; 16];

/// How the step tells of the side stream, and lets it read `x`.
type Step = fn(&mut Scope<'_, '_, Deferred>, &Stream) -> Result<Reading, Error>;

/// `x`, written: the test is about the other stream alone.
fn upload<'s>(step: &Scope<'s, '_, Deferred>) -> Result<Transient<'s, u8, Deferred>, Error> {
    let x = step.upload(&X)?;
    step.device().synchronise()?;
    Ok(x)
}

fn undeclared(step: &mut Scope<'_, '_, Deferred>, side: &Stream) -> Result<Reading, Error> {
    Ok(side.read(upload(step)?.address(), 16))
}

fn the_scope_declares(step: &mut Scope<'_, '_, Deferred>, side: &Stream) -> Result<Reading, Error> {
    step.declare_stream(side)?;
    undeclared(step, side)
}

fn the_buffer_declares(
    step: &mut Scope<'_, '_, Deferred>,
    side: &Stream,
) -> Result<Reading, Error> {
    let x = upload(step)?;
    x.declare_stream(side)?;
    Ok(side.read(x.address(), 16))
}

fn a_view_declares(step: &mut Scope<'_, '_, Deferred>, side: &Stream) -> Result<Reading, Error> {
    let x = upload(step)?;
    x.view().declare_stream(side)?;
    Ok(side.read(x.address(), 16))
}

fn an_inner_scope_declares(
    step: &mut Scope<'_, '_, Deferred>,
    side: &Stream,
) -> Result<Reading, Error> {
    step.scope(|inner| the_scope_declares(inner, side))
}

fn a_forgotten_guard_declared(
    step: &mut Scope<'_, '_, Deferred>,
    side: &Stream,
) -> Result<Reading, Error> {
    let mut guard = step.enter()?;
    let reading = the_scope_declares(&mut guard.scope(), side)?;
    std::mem::forget(guard);
    Ok(reading)
}

fn another_thread_declares(
    step: &mut Scope<'_, '_, Deferred>,
    side: &Stream,
) -> Result<Reading, Error> {
    let x = upload(step)?;
    std::thread::scope(|threads| threads.spawn(|| x.declare_stream(side)).join().unwrap())?;
    Ok(side.read(x.address(), 16))
}

/// Declared in the outer scope, which uses the stream after an inner scope, that declared it as well, has
/// closed.
fn both_scopes_declare(
    step: &mut Scope<'_, '_, Deferred>,
    side: &Stream,
) -> Result<Reading, Error> {
    step.declare_stream(side)?;
    let x = upload(step)?;
    step.scope(|inner| inner.declare_stream(side))?;
    Ok(side.read(x.address(), 16))
}

/// The same, declared by a buffer of the outer scope.
fn a_buffer_and_an_inner_scope_declare(
    step: &mut Scope<'_, '_, Deferred>,
    side: &Stream,
) -> Result<Reading, Error> {
    let x = upload(step)?;
    step.scope(|inner| {
        inner.declare_stream(side)?;
        x.declare_stream(side)
    })?;
    Ok(side.read(x.address(), 16))
}

/// Whether a side stream, which still reads `x` when the step ends, sees it although the next step puts
/// something else there.
fn reader_is_intact(step: Step, seed: u64, reset: Reset) -> bool {
    let mut arena = arena(seed, reset);
    let side = side_stream(&arena);
    let seen = arena.scope(|scope| step(scope, &side)).unwrap();
    reuse(&mut arena);
    seen.wait().unwrap() == X
}

fn reuse(arena: &mut Arena<Deferred>) {
    let reused = arena.scope(|step| {
        let y = step.upload(&[9_u8; 16])?;
        assert_eq!(y.offset_bytes(), 0, "the address of `x`");
        arena_scope::Ok(())
    });
    reused.unwrap();
    arena.device().synchronise().unwrap();
}

// B050: what goes wrong.
#[test]
fn without_a_declaration_corruption_shows_within_100_seeds() {
    let corrupt = (0..SEEDS).filter(|seed| !reader_is_intact(undeclared, *seed, Reset::Keep));
    let corrupt = corrupt.count();
    assert!((20..=80).contains(&corrupt), "{corrupt} of {SEEDS} seeds");
}

// B050
#[rstest]
#[case::scope(the_scope_declares)]
#[case::buffer(the_buffer_declares)]
#[case::view(a_view_declares)]
#[case::inner_scope(an_inner_scope_declares)]
#[case::forgotten_guard(a_forgotten_guard_declared)]
#[case::another_thread(another_thread_declares)]
#[case::both_scopes(both_scopes_declare)]
#[case::a_buffer_and_an_inner_scope(a_buffer_and_an_inner_scope_declare)]
fn a_declared_stream_is_intact_in_any_order(
    #[case] step: Step,
    // With `Zero` the close itself overwrites: it clears after the wait.
    #[values(Reset::Keep, Reset::Zero)] reset: Reset,
) {
    for seed in 0..SEEDS {
        assert!(reader_is_intact(step, seed, reset), "seed {seed}");
    }
}

/// With the order, `read` is right for every seed; without, it reads too early for some.
fn right_only_when_ordered(read: fn(seed: u64, ordered: bool) -> bool) {
    let early = (0..SEEDS).filter(|seed| {
        assert!(read(*seed, true), "seed {seed}");
        !read(*seed, false)
    });
    let early = early.count();
    assert!(early > 20, "without, {early} of {SEEDS} seeds read too early");
}

/// A stream that reads what the arena's stream wrote just before.
fn writer_is_seen(seed: u64, declares: bool) -> bool {
    let mut arena = arena(seed, Reset::Keep);
    let side = side_stream(&arena);
    let seen = arena.scope(|step| {
        let x = step.upload(&X)?;
        if declares {
            x.declare_stream(&side)?;
        }
        arena_scope::Ok(side.read(x.address(), 16))
    });
    seen.unwrap().wait().unwrap() == X
}

#[test]
fn a_declared_stream_finds_what_was_written_before() {
    right_only_when_ordered(writer_is_seen);
}

/// A side stream writes a result that the step reads.
fn result_is_read(seed: u64, waits: bool) -> bool {
    let mut arena = arena(seed, Reset::Keep);
    let side = side_stream(&arena);
    let read = arena.scope(|step| {
        let x = step.upload(&[0_u8; 16])?;
        x.declare_stream(&side)?;
        side.fill(x.address(), 16, 7);
        if waits {
            step.wait_for_stream(&side)?;
        }
        step.read(x.view())
    });
    read.unwrap() == X
}

// B051
#[test]
fn a_joined_stream_s_result_is_there() {
    right_only_when_ordered(result_is_read);
}

// B052
#[test]
fn the_region_lives_until_a_stream_that_a_step_declared_has_ended() {
    for seed in 0..SEEDS {
        let mut arena = arena(seed, Reset::Keep);
        let side = side_stream(&arena);
        let seen = arena.scope(|step| the_buffer_declares(step, &side)).unwrap();
        drop(arena);
        assert_eq!(seen.wait(), Some(X.to_vec()), "seed {seed}");
        assert_eq!(side.fault(), None);
    }
}

#[test]
fn the_last_persistent_buffer_waits_for_the_stream_that_uses_it() {
    for seed in 0..SEEDS {
        let arena = arena(seed, Reset::Keep);
        let side = side_stream(&arena);
        let weights = arena.persistent_from(&X).unwrap();
        drop(arena);
        weights.declare_stream(&side).unwrap();
        let seen = side.read(weights.address(), 16);
        drop(weights);
        assert_eq!(seen.wait(), Some(X.to_vec()), "seed {seed}: {:?}", side.fault());
    }
}

#[test]
fn a_persistent_buffer_s_declaration_outlasts_every_close() {
    for seed in 0..SEEDS {
        let mut arena = arena(seed, Reset::Keep);
        arena.mark().unwrap();
        let side = side_stream(&arena);
        let kept = arena.persistent_from(&X).unwrap();
        let address = kept.address();
        kept.declare_stream(&side).unwrap();
        for _ in 0..2 {
            arena.scope(|_| arena_scope::Ok(())).unwrap();
        }
        let seen = side.read(address, 16);
        drop(kept);
        arena.scope(|_| arena_scope::Ok(())).unwrap();
        let again = arena.persistent_from(&[9_u8; 16]).unwrap();
        assert_eq!(again.address(), address, "its bytes are given out again");
        arena.device().synchronise().unwrap();
        assert_eq!(seen.wait(), Some(X.to_vec()), "seed {seed}");
    }
}

// Each buffer is an allocation of its own, which goes back at the close.
#[test]
fn a_separate_buffer_is_released_after_the_stream_that_was_declared() {
    for seed in 0..SEEDS {
        let builder = Arena::builder(Deferred::new(seed)).capacity(arena_scope::ByteSize::kib(64));
        let mut arena = builder.placement(Placement::Separate).build().unwrap();
        let side = side_stream(&arena);
        let seen = arena.scope(|step| the_buffer_declares(step, &side)).unwrap();
        assert_eq!(seen.wait(), Some(X.to_vec()), "seed {seed}: {:?}", side.fault());
    }
}

#[test]
fn a_scope_s_declaration_ends_with_it_and_the_arena_s_own_stream_needs_none() {
    let mut arena = arena(0, Reset::Keep);
    let side = side_stream(&arena);
    let declared =
        |arena: &Arena<Deferred>| arena.steps().region().find_declared(|_| true).is_some();
    let step = arena.scope(|step| {
        step.declare_stream(&step.device().stream().clone())?;
        step.scope(|inner| inner.declare_stream(&side))
    });
    step.unwrap();
    assert!(!declared(&arena));
    arena.scope(|step| step.declare_stream(&side)).unwrap();
    assert!(!declared(&arena));
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let side = side_stream(&arena(0, Reset::Keep));
    let refused = arena(0, Reset::Keep).scope(|step| step.declare_stream(&side)).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::WrongDevice { .. }), "{refused}");
}
