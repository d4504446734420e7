//! A scope that says what it needs is refused before it opens, or has that much.

use arena_scope::device::{Call, Counting};
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::{Alignment, Arena, Device, Error, Host, Probe, ScopeOptions, StepKey};

use crate::common::{KIB, Outcome, arena, host};

on_every_device!(
    a_root_scope_opens_with_exactly_what_it_needs_and_not_with_a_byte_less,
    an_inner_scope_opens_with_exactly_what_it_needs_and_not_with_a_byte_less,
    a_refused_scope_sets_no_mark,
    the_options_of_an_arena_ask_for_what_its_plan_or_its_first_step_of_the_key_took,
);

const STEP: StepKey = StepKey::named("step");
const MARK_BYTES: u64 = 1000;

/// Where a plan begins, and the first buffer of a bump.
const START_BYTES: u64 = 1024;

fn needs(key: impl Into<ScopeOptions>, bytes: u64) -> ScopeOptions {
    key.into().needs(bytes)
}

/// 64 KiB with something persistent below the mark and above.
fn filled<D: Device>(device: D) -> Result<(Arena<D>, impl Sized), Error> {
    let mut arena = arena(device, 64 * KIB)?;
    let weights = arena.persistent::<u8>(1000)?;
    arena.mark()?;
    let kept = arena.persistent::<u8>(300)?;
    Ok((arena, (weights, kept)))
}

/// Lets steps follow a plan of one slot from now on.
fn plan<D: Device>(arena: &mut Arena<D>) -> Outcome {
    let slot = PlannedSlot { offset_bytes: 0, bytes: 4096, alignment: Alignment::DEFAULT };
    arena.install_plan(STEP, SlotTable::new(&[slot]).expect("one slot"))
}

fn floor_bytes<D: Device>(arena: &Arena<D>) -> u64 {
    let stats = arena.stats();
    stats.capacity_bytes - stats.kept_bytes
}

/// That the scope `name` at `depth` was refused for one byte.
fn assert_refused(error: &Error, asked_bytes: u64, name: &str, depth: u32) {
    let full = error.as_exhausted().unwrap_or_else(|| panic!("{error}"));
    assert_eq!((full.asked_bytes, full.missing_bytes), (asked_bytes, 1), "{error}");
    assert_eq!((full.capacity_bytes, full.mark_bytes), (64 * KIB, MARK_BYTES));
    assert_eq!(full.capacity_bytes, full.used_bytes + full.free_bytes + full.kept_bytes);
    let scope = full.scope.as_ref().expect("a scope asked");
    assert_eq!((scope.name, scope.depth), (name, depth));
}

// The mark is not aligned, which a need counts: it is a cursor less a mark, as a probe tells it.
fn a_root_scope_opens_with_exactly_what_it_needs_and_not_with_a_byte_less<D: Device>(
    device: D,
) -> Outcome {
    let device = Counting::new(device);
    let counts = device.counts();
    let (mut arena, _held) = filled(device)?;
    let room_bytes = floor_bytes(&arena) - MARK_BYTES;
    for planned in [false, true] {
        if planned {
            plan(&mut arena)?;
        }
        let before = (arena.stats(), arena.generation(), counts.calls(Call::Fill));
        for asked_bytes in [room_bytes + 1, u64::MAX] {
            let refused = arena.scope_with(needs(STEP, asked_bytes), |_| -> Result<(), Error> {
                unreachable!("it was not to open")
            });
            let error = refused.unwrap_err();
            let full = error.as_exhausted().unwrap_or_else(|| panic!("{error}"));
            assert_eq!(full.missing_bytes, asked_bytes - room_bytes);
            assert!(arena.enter_with(needs(STEP, asked_bytes)).is_err());
            assert_eq!(before, (arena.stats(), arena.generation(), counts.calls(Call::Fill)));
        }
        let error = arena.enter_with(needs(STEP, room_bytes + 1)).map(drop).unwrap_err();
        assert_refused(&error, room_bytes + 1, "step", 1);
        arena.scope_with(needs(STEP, room_bytes), |step| {
            step.alloc_aligned::<u8>(4096, Alignment::DEFAULT)?;
            let rest = step.stats().free_bytes;
            step.alloc_aligned::<u8>(usize::try_from(rest).unwrap_or(0), Alignment::ONE)?;
            arena_scope::Ok(())
        })?;
    }
    Ok(())
}

fn an_inner_scope_opens_with_exactly_what_it_needs_and_not_with_a_byte_less<D: Device>(
    device: D,
) -> Outcome {
    let (mut arena, _held) = filled(device)?;
    for planned in [false, true] {
        if planned {
            plan(&mut arena)?;
        }
        // A plan's bytes serve the scopes inside its step as well.
        let start_bytes = if planned { START_BYTES } else { START_BYTES + 256 };
        let room_bytes = floor_bytes(&arena) - start_bytes;
        arena.scope_with(STEP, |step| {
            let _first = step.alloc::<u8>(256)?;
            let before = (step.stats(), step.depth());
            let inner = ScopeOptions::named("inner");
            let refused = step.scope_with(needs(inner, room_bytes + 1), |_| -> Result<(), Error> {
                unreachable!("it was not to open")
            });
            assert_refused(&refused.unwrap_err(), room_bytes + 1, "inner", 2);
            assert!(step.enter_with(needs(inner, room_bytes + 1)).is_err());
            assert_eq!(before, (step.stats(), step.depth()));
            step.scope_with(needs(inner, room_bytes), |inner| {
                assert_eq!(inner.depth(), 2);
                arena_scope::Ok(())
            })
        })?;
    }
    Ok(())
}

fn a_refused_scope_sets_no_mark<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 64 * KIB)?;
    assert!(arena.enter_with(needs(STEP, 64 * KIB + 1)).is_err());
    let weights = arena.persistent::<u8>(1000)?;
    arena.mark()?;
    assert_eq!(weights.len(), 1000);
    Ok(())
}

#[test]
fn the_high_water_of_a_probed_step_is_what_it_needs_and_serves_it_exactly() -> Outcome {
    fn step<D: Device>(arena: &mut Arena<D>, options: ScopeOptions) -> Outcome {
        arena.scope_with(options, |step| {
            let _a = step.alloc::<f32>(100)?;
            step.alloc::<u8>(3).map(drop)
        })
    }
    let (mut probe, _held) = filled(Probe::like(&Host::new()))?;
    step(&mut probe, STEP.into())?;
    let needed_bytes = probe.last_step_high_water_bytes() - MARK_BYTES;

    let mut exact = host(MARK_BYTES + needed_bytes)?;
    let _weights = exact.persistent::<u8>(1000)?;
    step(&mut exact, needs(STEP, needed_bytes))?;
    let mut short = host(MARK_BYTES + needed_bytes - 1)?;
    let _weights = short.persistent::<u8>(1000)?;
    let error = step(&mut short, needs(STEP, needed_bytes)).unwrap_err();
    assert_eq!(error.as_exhausted().map(|full| full.missing_bytes), Some(1), "{error}");
    assert_eq!(short.resets(), 0, "no scope was opened");
    Ok(())
}

#[test]
fn the_probe_counts_what_a_scope_says_that_it_needs() -> Outcome {
    let mut probe = arena(Probe::like(&Host::new()), 64 * KIB)?;
    let _weights = probe.persistent::<u8>(1000)?;
    probe.scope_with(needs(STEP, 5000), |step| step.alloc::<u8>(10).map(drop))?;
    assert_eq!(probe.smallest_capacity_bytes(), 6000);
    Ok(())
}

// They come back with the close of the scope in which they were dropped.
#[test]
fn kept_bytes_that_came_back_are_room_again() -> Outcome {
    let (mut arena, _held) = filled(Host::new())?;
    let room_bytes = floor_bytes(&arena) - MARK_BYTES;
    let kept = arena.persistent::<u8>(300)?;
    assert!(arena.enter_with(needs(STEP, room_bytes)).is_err());
    arena.scope(|_| {
        drop(kept);
        arena_scope::Ok(())
    })?;
    arena.scope_with(needs(STEP, room_bytes), |_| arena_scope::Ok(()))
}

fn the_options_of_an_arena_ask_for_what_its_plan_or_its_first_step_of_the_key_took<D: Device>(
    device: D,
) -> Outcome {
    let (mut arena, _held) = filled(device)?;
    assert_eq!(arena.options(STEP), STEP.into(), "nothing is known of it");
    arena.observe(None);
    for bytes in [5000, 7000] {
        arena.scope_with(STEP, |step| step.alloc::<u8>(bytes).map(drop))?;
    }
    assert_eq!(arena.options(STEP), needs(STEP, START_BYTES - MARK_BYTES + 5000));
    assert_eq!(arena.options(STEP.variant(1)), STEP.variant(1).into());
    plan(&mut arena)?;
    assert_eq!(arena.options(STEP), needs(STEP, START_BYTES - MARK_BYTES + 4096));

    let room_bytes = floor_bytes(&arena) - START_BYTES;
    let _taken = arena.persistent::<u8>(usize::try_from(room_bytes - 4000).expect("64 KiB"))?;
    let options = arena.options(STEP);
    let refused = arena.scope_with(options, |_| -> Outcome { panic!("it does not begin") });
    assert!(refused.is_err_and(|error| error.is_exhausted()));
    arena.scope_with(STEP, |step| step.alloc::<u8>(3000).map(drop)) // It is bumped, and fits.
}
