//! Steps whose requests depend on the length of a sequence, in just the bytes that the longest needs under the
//! bump.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use arena_plan::{AutoPlan, Options, PlannedRun, PlannedStep};
use arena_scope::{Arena, ByteSize, Device, Error, Host, Probe, Scope, StepKey, Transient};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use rstest::rstest;

const HIDDEN: usize = 16;
const BATCH: usize = 2;
const LONGEST: usize = 512;

fn key(length: usize) -> StepKey {
    StepKey::named("train").variant(length as u64)
}

/// What an LSTM asks for: how many requests there are depends on the length, and so does one size.
fn step<'s, D: Device>(
    scope: &Scope<'s, '_, D>,
    length: usize,
    see: impl Fn(&Transient<'s, f32, D>),
) -> Result<(), Error> {
    let one = BATCH * HIDDEN;
    let alloc = |len: usize| scope.alloc::<f32>(len).inspect(&see);
    let input = alloc(length * one)?;
    let mut cells = Vec::new();
    for _ in 0..length {
        let before_gates = alloc(4 * one)?;
        let gates = alloc(4 * one)?;
        drop(before_gates);
        cells.push((gates, alloc(one)?, alloc(one)?));
    }
    let mut carried = (alloc(one)?, alloc(one)?);
    while let Some(cell) = cells.pop() {
        let gradient = alloc(4 * one)?;
        carried = (alloc(one)?, alloc(one)?);
        drop((cell, gradient));
    }
    drop((input, carried));
    Ok(())
}

fn run<D: Device>(arena: &mut Arena<D>, length: usize) -> Result<(), Error> {
    arena.scope_with(key(length), |scope| step(scope, length, |_| ()))
}

fn probe() -> Result<Arena<Probe>, Error> {
    Arena::builder(Probe::like(&Host::new())).capacity(ByteSize::gib(64)).build()
}

/// What the bump needs for the longest.
fn bumped() -> Result<Arena<Host>, Error> {
    let mut probe = probe()?;
    run(&mut probe, LONGEST)?;
    let capacity = ByteSize::bytes_exact(probe.smallest_capacity_bytes());
    Arena::builder(Host::new()).capacity(capacity).build()
}

fn lengths() -> impl Iterator<Item = usize> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    (0..1000).map(move |_| random.random_range(1..=LONGEST))
}

/// Where each buffer of a step lies, in the order of requests.
type Places = Vec<u64>;

/// [`step`], and where its buffers lie.
fn placed<D: Device>(arena: &mut Arena<D>, length: usize) -> Result<Places, Error> {
    arena.scope_with(key(length), |scope| {
        let places = RefCell::new(Vec::new());
        step(scope, length, |buffer| places.borrow_mut().push(buffer.offset_bytes()))?;
        arena_scope::Ok(places.into_inner())
    })
}

#[rstest]
fn all_lengths_lie_in_the_bytes_of_the_longest_each_at_its_own_addresses(
    #[values(false, true)] on_demand: bool,
) -> Result<(), Error> {
    let (device, options) = (Host::new(), Options::default());
    let known = if on_demand { LONGEST..=LONGEST } else { 1..=LONGEST };
    let run = PlannedRun::probe(&device, &options, |arena| {
        known.clone().try_for_each(|length| run(arena, length))
    })?;
    let longest = run.kinds().last().and_then(|kind| kind.step.as_ref().ok()).expect("planned");
    let (region, live) = (run.capacity().bytes(), longest.bound.rounded_bytes);
    assert!(region * 10 <= live * 11, "{region} bytes for all, {live} live at once in the longest");

    let mut arena = run.build(device)?;
    if on_demand {
        let step = |arena: &mut Arena<Probe>, key: StepKey| self::run(arena, key.variant as usize);
        run.on_demand(&mut arena, &options, step);
    }
    drop(run); // The arena has what it needs.
    let mut seen = HashMap::new();
    for length in (1..=LONGEST).chain(lengths()) {
        let places = placed(&mut arena, length)?;
        let first = seen.entry(length).or_insert_with(|| places.clone());
        assert_eq!(*first, places, "{length}");
        assert!(arena.step_memory_bytes() <= 128 << 20);
    }
    let unplanned = |length| arena.plan_deviations(key(length)).map(|seen| seen.unplanned());
    assert!((1..=LONGEST).all(|length| unplanned(length) == Some(0)));
    assert!(arena.observed().expect("planned steps are observed").is_stable());
    Ok(())
}

#[test]
fn no_length_fails_while_the_arena_plans_by_itself() -> Result<(), Box<dyn std::error::Error>> {
    let mut arena = bumped()?;
    arena.auto_plan(Options::default())?;
    for length in lengths() {
        run(&mut arena, length)?;
    }
    Ok(())
}

#[rstest]
fn no_length_fails_beside_plans_for_others(
    #[values(&[40], &[3, 200, 512])] planned: &[usize],
) -> Result<(), Box<dyn std::error::Error>> {
    let (mut arena, mut probe) = (bumped()?, probe()?);
    probe.record(None);
    for &length in planned {
        run(&mut probe, length)?;
        let log = probe.recorded(key(length)).expect("it was recorded");
        let step = PlannedStep::solve(&log, &Options::default())?;
        arena.install_plan(key(length), step.slots()?)?;
    }
    for length in lengths() {
        run(&mut arena, length)?;
    }
    for &length in planned {
        let deviations = arena.plan_deviations(key(length)).expect("it was installed");
        assert_eq!(deviations.total(), 0, "{length}: {deviations}");
    }
    Ok(())
}

#[test]
fn a_length_that_grows_under_one_plan_or_another_is_served_like_before()
-> Result<(), Box<dyn std::error::Error>> {
    let capacity = ByteSize::bytes_exact(3 * 512 * 256);
    let mut arena = Arena::builder(Host::new()).capacity(capacity).build()?;
    arena.auto_plan(Options::default())?;
    for n in 0..80 {
        let len = if n < 40 { 400 } else { 512 };
        arena.scope_with(key(len), |scope| {
            let a = scope.alloc::<f32>(len * 64)?;
            let b = scope.alloc::<f32>(len * 64)?;
            drop(a);
            let c = scope.alloc::<f32>(len * 64)?;
            drop((b, c));
            arena_scope::Ok(())
        })?;
        std::thread::sleep(Duration::from_millis(2));
    }
    for len in [400, 512] {
        assert!(arena.plan_span(key(len)).is_some(), "both are planned in the end");
    }
    Ok(())
}

#[test]
fn steps_of_one_key_that_never_repeat_are_served_and_take_no_more_plans_than_the_patience_allows()
-> Result<(), Box<dyn std::error::Error>> {
    let mut arena = bumped()?;
    arena.auto_plan(Options::default())?;
    for length in lengths() {
        arena.scope_named("any", |scope| step(scope, length, |_| ()))?;
    }
    Ok(())
}
