//! Steps recorded from an arena, planned, and replayed by it.

use std::error::Error;

use arena_plan::{AutoPlan, Options, PlannedStep, lower_bound, trace_of};
use arena_scope::plan::{DeviationKind, PlannedSlot, SlotTable};
use arena_scope::record::StepLog;
use arena_scope::{
    Alignment, Arena, ByteSize, Host, Probe, Reset, Scope, ScopeOptions, StepKey, Transient,
};
use rstest::rstest;

type Outcome = Result<(), Box<dyn Error>>;

const STEP: StepKey = StepKey::named("step");

/// A step with early drops, an inner scope, a buffer dropped inside it, and an empty request. Returns
/// the addresses in order of the requests, as offsets from the base.
fn step<D: arena_scope::Device>(
    scope: &mut Scope<'_, '_, D>,
    scale: usize,
) -> Result<Vec<u64>, arena_scope::Error> {
    let mut seen = Vec::new();
    let a = note(&mut seen, scope.alloc::<f32>(1000 * scale)?);
    let b = note(&mut seen, scope.alloc::<f32>(500 * scale)?);
    drop(a);
    let c = note(&mut seen, scope.alloc::<f32>(900 * scale)?);
    let empty = scope.alloc::<f32>(0)?;
    scope.scope(|inner| {
        let d = note(&mut seen, inner.alloc::<u8>(700 * scale)?);
        drop(b);
        let e = note(&mut seen, inner.alloc::<f32>(400 * scale)?);
        drop((d, e));
        arena_scope::Ok(())
    })?;
    let f = note(&mut seen, scope.alloc_aligned::<f32>(450 * scale, Alignment::new(1024)?)?);
    drop((c, empty, f));
    Ok(seen)
}

fn note<'s, T: arena_scope::Pod, D: arena_scope::Device>(
    seen: &mut Vec<u64>,
    buffer: Transient<'s, T, D>,
) -> Transient<'s, T, D> {
    seen.push(buffer.offset_bytes());
    buffer
}

/// The first recording runs on a probe: no memory at all.
fn recorded() -> Result<StepLog, Box<dyn Error>> {
    let mut probe = Arena::builder(Probe::new()).capacity(ByteSize::gib(1)).build()?;
    probe.record(None);
    probe.scope_with(STEP, |scope| step(scope, 1))?;
    Ok(probe.recorded(STEP).ok_or("nothing was recorded")?)
}

fn planned_arena(reset: Reset, extra_bytes: u64) -> Result<Arena, Box<dyn Error>> {
    let planned = PlannedStep::solve(&recorded()?, &Options::default())?;
    let slots = planned.slots()?;
    let capacity = ByteSize::bytes_exact(1024 + slots.peak_bytes() + extra_bytes);
    let mut arena = Arena::builder(Host::new()).capacity(capacity).reset(reset).build()?;
    arena.persistent_from(&[7_u8; 1024])?;
    arena.install_plan(STEP, slots)?;
    Ok(arena)
}

#[test]
fn a_recording_learns_lifetimes_from_drops_and_scopes() -> Outcome {
    let instance = trace_of(&recorded()?).instance()?;
    assert_eq!(instance.buffers().len(), 6, "the empty request leaves no trace");
    // Live at once at most: a and b; or b, c and d; each rounded up to its alignment.
    let expected = 2048 + 3840 + 768;
    assert_eq!(lower_bound(&instance).rounded_bytes, expected);
    let planned = PlannedStep::solve(&recorded()?, &Options::default())?;
    assert_eq!(planned.plan.peak_bytes(), expected);
    assert!(planned.sum_bytes > 2 * expected - 1000, "{}", planned.sum_bytes);
    Ok(())
}

#[test]
fn replayed_steps_fit_the_planned_bytes_and_get_the_same_addresses_from_the_first_on() -> Outcome {
    let mut arena = planned_arena(Reset::Keep, 0)?;
    let first = arena.scope_with(STEP, |scope| step(scope, 1))?;
    let signature = arena.last_step_signature();
    for _ in 0..100 {
        assert_eq!(arena.scope_with(STEP, |scope| step(scope, 1))?, first);
        assert_eq!(arena.last_step_signature(), signature);
        assert_eq!(arena.stats().used_bytes, 1024);
    }
    let deviations = arena.plan_deviations(STEP).ok_or("no plan")?;
    assert_eq!((deviations.total(), deviations.smaller, deviations.unfreed), (0, 0, 0));
    assert_eq!(arena.last_step_high_water_bytes(), arena.stats().capacity_bytes);
    Ok(())
}

#[test]
fn a_plan_that_does_not_fit_is_refused_and_nothing_is_changed() -> Outcome {
    let slots = PlannedStep::solve(&recorded()?, &Options::default())?.slots()?;
    let one_less = ByteSize::bytes_exact(slots.peak_bytes() - 1);
    let mut arena = Arena::builder(Host::new()).capacity(one_less).build()?;
    assert!(arena.install_plan(STEP, slots).unwrap_err().is_exhausted());
    assert!(arena.plan_deviations(STEP).is_none());
    arena.scope_with(STEP, |scope| scope.alloc::<u8>(100).map(drop))?;
    Ok(())
}

#[test]
fn another_variant_of_the_name_is_bumped_from_the_mark_unless_it_shares_the_plan() -> Outcome {
    let mut arena = planned_arena(Reset::Keep, 0)?;
    let short = STEP.variant(1);
    let offset = |arena: &mut Arena| {
        arena.scope_with(short, |scope| {
            drop(scope.alloc::<f32>(10)?);
            arena_scope::Ok(scope.alloc::<u8>(64)?.offset_bytes())
        })
    };
    assert_eq!(offset(&mut arena)?, 1024 + 256, "above the first, right above the mark");
    assert!(!arena.share_plan(short, "another"));
    assert!(arena.share_plan(short, STEP));
    offset(&mut arena)?;
    let deviations = arena.plan_deviations(short).ok_or("no plan")?;
    assert_eq!((deviations.smaller_by_design, deviations.smaller), (2, 0));
    assert_eq!((deviations.missing, deviations.unplanned()), (4, 4));
    Ok(())
}

#[test]
fn a_plan_serves_the_steps_that_ask_for_less_in_the_same_order() -> Outcome {
    let slots = PlannedStep::solve(&recorded()?, &Options::default())?.slots()?;
    assert!(slots.serves(&recorded()?));
    let mut probe = Arena::builder(Probe::new()).capacity(ByteSize::gib(1)).build()?;
    probe.record(None);
    let half: fn(&mut Scope<'_, '_, Probe>) -> Result<(), arena_scope::Error> = |scope| {
        let a = scope.alloc::<f32>(500)?;
        let b = scope.alloc::<f32>(250)?;
        drop(a);
        let c = scope.alloc::<f32>(450)?;
        scope.scope(|inner| {
            let d = inner.alloc::<u8>(350)?;
            drop(b);
            drop((inner.alloc::<f32>(200)?, d));
            arena_scope::Ok(())
        })?;
        drop((scope.alloc_aligned::<f32>(225, Alignment::new(1024)?)?, c));
        Ok(())
    };
    let late: fn(&mut Scope<'_, '_, Probe>) -> Result<(), arena_scope::Error> = |scope| {
        let kept = [scope.alloc::<f32>(500)?, scope.alloc::<f32>(250)?, scope.alloc::<f32>(450)?];
        drop(kept); // The third had to wait for the first.
        Ok(())
    };
    let larger: fn(&mut Scope<'_, '_, Probe>) -> Result<(), arena_scope::Error> =
        |scope| scope.alloc::<f32>(1001).map(drop);
    for (n, (step, serves)) in
        [(half, true), (late, false), (larger, false)].into_iter().enumerate()
    {
        let key = STEP.variant(n as u64 + 1);
        probe.scope_with(key, step)?;
        let log = probe.recorded(key).ok_or("nothing was recorded")?;
        assert_eq!(slots.serves(&log), serves, "{n}");
    }
    Ok(())
}

#[test]
fn what_is_larger_than_planned_is_bumped_above_the_plan_or_an_error_that_names_it() -> Outcome {
    // Eight times the sizes: nothing fits any slot, all is bumped.
    let mut roomy = planned_arena(Reset::Keep, 1 << 20)?;
    let plan_end = 1 << 20;
    let seen = roomy.scope_with(STEP, |scope| step(scope, 8))?;
    let above = roomy.stats().capacity_bytes - plan_end;
    assert!(seen.iter().all(|&offset| offset >= above), "{seen:?}");
    assert_eq!(roomy.plan_deviations(STEP).ok_or("no plan")?.steps, 1);
    // The next whole step is as planned again.
    let before = roomy.plan_deviations(STEP);
    roomy.scope_with(STEP, |scope| step(scope, 1))?;
    assert_eq!(roomy.plan_deviations(STEP), before);

    let mut tight = planned_arena(Reset::Keep, 0)?;
    let error = tight.scope_with(STEP, |scope| step(scope, 8)).unwrap_err();
    let facts = error.as_exhausted().ok_or("another error")?.plan.ok_or("the plan is not named")?;
    assert_eq!(facts.deviations.larger, 1);
    let request = facts.last.ok_or("the deviation is not named")?;
    assert_eq!((request.kind, request.count), (DeviationKind::Larger, 1));
    assert!(error.to_string().contains("\n  plan "), "{error}");
    // The call in `step` that asked, both as the request and as the deviation.
    let called = format!("{}:", file!());
    assert_eq!(error.to_string().matches(&called).count(), 2, "{error}");
    assert_eq!(tight.stats().used_bytes, 1024);
    tight.scope_with(STEP, |scope| step(scope, 1))?;
    Ok(())
}

/// `Zero` and `Poison` cover what was used, and never a live buffer.
#[rstest]
fn clearing_under_a_plan_touches_dead_bytes_alone(
    #[values(Reset::Zero, Reset::Poison)] reset: Reset,
) -> Outcome {
    let mut arena = planned_arena(Reset::Keep, 0)?;
    let byte = if reset == Reset::Zero { 0 } else { 0xff };
    arena.scope_with(ScopeOptions::from(STEP).reset(reset), |scope| {
        let a = scope.alloc::<f32>(1000)?;
        let mut b = scope.alloc::<f32>(500)?;
        drop(a);
        let mut c = scope.alloc::<f32>(900)?;
        b.view_mut().write(&[1.0; 500])?;
        c.view_mut().write(&[2.0; 900])?;
        let mut inner_bytes = None;
        scope.scope_with(ScopeOptions::named("inner").reset(reset), |inner| {
            let mut d = inner.alloc::<u8>(700)?;
            d.view_mut().fill_bytes(3)?;
            inner_bytes = Some(d.address());
            arena_scope::Ok(())
        })?;
        assert!(b.as_slice().iter().all(|value| *value == 1.0), "b is alive");
        assert!(c.as_slice().iter().all(|value| *value == 2.0), "c is alive");
        arena_scope::Ok(())
    })?;
    // After the root's close a later scope finds everything cleared.
    arena.scope_named("look", |scope| {
        let free = usize::try_from(scope.stats().free_bytes).expect("64 bits");
        let all = scope.alloc_aligned::<u8>(free, Alignment::ONE)?;
        assert!(all.as_slice().iter().all(|found| *found == byte));
        arena_scope::Ok(())
    })?;
    Ok(())
}

#[test]
fn promote_panics_and_question_marks_keep_their_promises_under_a_plan() -> Outcome {
    let mut arena = planned_arena(Reset::Keep, 4096)?;
    let kept = arena.scope_with(STEP, |scope| {
        let mut a = scope.alloc::<f32>(1000)?;
        a.view_mut().write(&[4.0; 1000])?;
        scope.promote(a.view().range(..10)?)
    })?;
    assert_eq!(kept.as_slice(), [4.0; 10]);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        arena.scope_with(STEP, |scope| -> Result<(), arena_scope::Error> {
            let _a = scope.alloc::<f32>(1000)?;
            panic!("in the middle of a planned step");
        })
    }));
    let told = panicked.unwrap_err();
    assert_eq!(told.downcast_ref(), Some(&"in the middle of a planned step"));
    let before = arena.plan_deviations(STEP);
    arena.scope_with(STEP, |scope| step(scope, 1))?;
    assert_eq!(arena.plan_deviations(STEP), before, "the next whole step is as planned");
    assert_eq!(kept.as_slice(), [4.0; 10]);
    Ok(())
}

#[test]
fn a_forgotten_inner_guard_keeps_its_bytes_until_the_scope_around_it_closes() -> Outcome {
    let mut arena = planned_arena(Reset::Keep, 1 << 16)?;
    let mut guard = arena.enter_with(STEP)?;
    let mut scope = guard.scope();
    let a = scope.alloc::<f32>(1000)?;
    let b = scope.alloc::<f32>(500)?;
    drop(a);
    let c = scope.alloc::<f32>(900)?;
    std::mem::forget(scope.enter()?);
    // Requests of the outer scope after a forgotten guard, then another inner scope.
    let mut d = scope.alloc::<u8>(700)?;
    d.view_mut().fill_bytes(9)?;
    scope.scope(|inner| {
        let mut e = inner.alloc::<f32>(400)?;
        e.view_mut().fill_bytes(1)?;
        arena_scope::Ok(())
    })?;
    let mut f = scope.alloc::<f32>(450)?;
    f.view_mut().fill_bytes(2)?;
    assert!(d.as_slice().iter().all(|byte| *byte == 9), "d is alive and untouched");
    drop((b, c, d, f));
    guard.close()?;
    assert_eq!(arena.stats().used_bytes, 1024);
    let before = arena.plan_deviations(STEP);
    arena.scope_with(STEP, |scope| step(scope, 1))?;
    assert_eq!(arena.plan_deviations(STEP), before, "the next whole step is as planned");
    Ok(())
}

/// Runs whole steps until the plan for them has become ready, within a bounded number of tries.
fn until_planned(arena: &mut Arena, scale: usize, peak_bytes: u64) -> Outcome {
    for _ in 0..20_000 {
        arena.scope_with(STEP, |scope| step(scope, scale))?;
        if arena.plan_span(STEP).is_some_and(|span| span.len_bytes() == peak_bytes) {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
    Err("no plan became ready".into())
}

/// What a plan takes that yields to the bump.
fn yielding_bytes(log: &StepLog) -> Result<u64, Box<dyn Error>> {
    let planned = PlannedStep::solve(log, &Options::default())?;
    let slots = planned.yielding_slots(log)?;
    assert!(slots.yields() && slots.peak_bytes() <= planned.plan.peak_bytes() * 11 / 10);
    Ok(slots.peak_bytes())
}

#[test]
fn auto_plan_records_solves_beside_the_steps_and_replays_from_then_on() -> Outcome {
    let peak = yielding_bytes(&recorded()?)?;
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::mib(1)).build()?;
    arena.auto_plan(Options::default())?;
    let bumped = arena.scope_with(STEP, |scope| step(scope, 1))?;
    until_planned(&mut arena, 1, peak)?;
    let planned = arena.scope_with(STEP, |scope| step(scope, 1))?;
    assert_ne!(planned, bumped);
    assert_eq!(arena.scope_with(STEP, |scope| step(scope, 1))?, planned);
    assert_eq!(arena.last_step_high_water_bytes(), peak);
    assert_eq!(arena.plan_deviations(STEP).ok_or("no plan")?.total(), 0);
    // Switching to a plan is no instability: it happens between root scopes and is expected.
    arena.observed().ok_or("not observed")?.check()?;
    Ok(())
}

#[test]
fn steps_that_keep_deviating_are_recorded_and_planned_anew() -> Outcome {
    let peak = yielding_bytes(&recorded()?)?;
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::mib(4)).build()?;
    arena.auto_plan(Options::default())?;
    until_planned(&mut arena, 1, peak)?;
    // From now on the steps are eight times as large: bumped at first.
    arena.scope_with(STEP, |scope| step(scope, 8))?;
    assert!(arena.plan_deviations(STEP).ok_or("no plan")?.larger > 0);
    let mut probe = Arena::builder(Probe::new()).capacity(ByteSize::gib(1)).build()?;
    probe.record(None);
    probe.scope_with(STEP, |scope| step(scope, 8))?;
    let log = probe.recorded(STEP).ok_or("nothing was recorded")?;
    until_planned(&mut arena, 8, yielding_bytes(&log)?)?;
    arena.scope_with(STEP, |scope| step(scope, 8))?;
    assert_eq!(arena.plan_deviations(STEP).ok_or("no plan")?.total(), 0);
    Ok(())
}

/// Each way to deviate, as one step after a plan of four equal buffers that take turns, and the call that
/// is told.
#[rstest]
#[case::smaller(DeviationKind::Smaller, |scope: &mut Scope<'_, '_>| {
    (scope.alloc::<u8>(200).map(drop), line!())
})]
#[case::larger(DeviationKind::Larger, |scope: &mut Scope<'_, '_>| {
    (scope.alloc::<u8>(400).map(drop), line!())
})]
#[case::extra(DeviationKind::Extra, |scope: &mut Scope<'_, '_>| {
    for bytes in [300, 310, 320, 330] {
        scope.alloc::<u8>(bytes).unwrap();
    }
    (scope.alloc::<u8>(1).map(drop), line!())
})]
#[case::missing(DeviationKind::Missing, |scope: &mut Scope<'_, '_>| {
    (scope.alloc::<u8>(330).map(drop), line!())
})]
#[case::late(DeviationKind::Late, |scope: &mut Scope<'_, '_>| {
    let _late = scope.alloc::<u8>(300).unwrap();
    (scope.alloc_zeroed::<u8>(310).map(drop), line!())
})]
fn a_deviation_is_named_at_its_call(
    #[case] kind: DeviationKind,
    #[case] deviating: fn(&mut Scope<'_, '_>) -> (Result<(), arena_scope::Error>, u32),
) -> Outcome {
    let slot = |bytes| PlannedSlot { offset_bytes: 0, bytes, alignment: Alignment::DEFAULT };
    let table = SlotTable::new(&[300, 310, 320, 330].map(slot))?;
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(8)).build()?;
    arena.install_plan(STEP, table)?;
    for times in 1..=3 {
        let line = arena.scope_with(STEP, |scope| {
            let (done, line) = deviating(scope);
            done.map(|()| line)
        })?;
        let sites = arena.plan_deviation_sites(STEP);
        let named = sites.iter().find(|site| site.kind == kind).ok_or("it is not named")?;
        assert_eq!((named.call_site.file(), named.call_site.line()), (file!(), line));
        assert_eq!(named.count, times);
        let told = format!(" at {}:{line}:", file!());
        let named = named.to_string();
        assert!(named.contains(&told) && named.ends_with(&format!("(times: {times})")), "{named}");
    }
    Ok(())
}
