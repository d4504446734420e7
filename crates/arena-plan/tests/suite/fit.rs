//! Regions that keep what their plans need: of a recorded run, and beside the running loop.

use std::error::Error;
use std::time::{Duration, Instant};

use arena_plan::{AutoPlan, Options, PlannedRun};
use arena_scope::{Arena, ByteSize, Host, RegionKind, StepKey};

type Outcome = Result<(), Box<dyn Error>>;

const TRAIN: StepKey = StepKey::named("train");
const EVALUATE: StepKey = StepKey::named("evaluate");
const MIB: u64 = 1 << 20;
/// What the host commits at a time.
const PAGE: u64 = 4096;

fn arena() -> Result<Arena<Host>, arena_scope::Error> {
    let builder = Arena::builder(Host::new()).capacity(ByteSize::gib(64));
    builder.region(RegionKind::Virtual).build()
}

/// One step of each kind: bumped in 60 and in 8 MiB, planned in 10 MiB and some bytes, and in 2 MiB.
fn one_round(arena: &mut Arena<Host>) -> Result<(), arena_scope::Error> {
    arena.scope_with(TRAIN, |step| {
        (0..6).try_for_each(|_| step.alloc::<u8>((10 << 20) + 1000).map(drop))
    })?;
    arena.scope_with(EVALUATE, |step| (0..4).try_for_each(|_| step.alloc::<u8>(2 << 20).map(drop)))
}

/// What the plans need, as the region commits it.
fn planned_bytes(arena: &Arena<Host>) -> Result<u64, Box<dyn Error>> {
    let end = arena.plan_span(TRAIN).ok_or("there is no plan")?.end_bytes;
    assert!((10 * MIB..11 * MIB).contains(&end), "{end}");
    Ok(end.next_multiple_of(PAGE))
}

#[test]
fn a_recorded_run_keeps_what_its_plans_need_to_the_commit_step() -> Outcome {
    let mut arena = arena()?;
    let _weights = arena.persistent::<u8>(10_000)?;
    arena.record(None);
    one_round(&mut arena)?;
    assert!(arena.stats().committed_bytes >= 60 * MIB);
    let before = arena.stats().committed_bytes;
    let run = PlannedRun::from_record(&arena, &Options::default());
    let given_bytes = run.fit(&mut arena)?;
    one_round(&mut arena)?;
    assert_eq!(arena.stats().committed_bytes, planned_bytes(&arena)?);
    assert_eq!(given_bytes, before - arena.stats().committed_bytes);
    Ok(())
}

/// Runs rounds until both kinds have a plan.
fn until_planned(arena: &mut Arena<Host>) -> Outcome {
    let begin = Instant::now();
    while arena.plan_span(TRAIN).is_none() || arena.plan_span(EVALUATE).is_none() {
        assert!(begin.elapsed() < Duration::from_secs(60), "no plan became ready");
        one_round(arena)?;
    }
    Ok(())
}

#[test]
fn plans_made_beside_the_loop_end_at_their_bytes_to_the_commit_step() -> Outcome {
    let mut arena = arena()?;
    let weights = arena.persistent_from(&[7_u8; 10_000])?;
    arena.auto_fit(Options::default())?;
    until_planned(&mut arena)?;
    let planned_bytes = planned_bytes(&arena)?;
    for _ in 0..3 {
        one_round(&mut arena)?;
        assert_eq!(arena.stats().committed_bytes, planned_bytes);
    }
    assert_eq!(weights.as_slice(), [7; 10_000]);
    // A later step that needs more gets it.
    arena.scope(|step| step.alloc::<u8>(40 << 20).map(drop))?;
    assert!(arena.stats().committed_bytes >= 40 * MIB);
    Ok(())
}

#[test]
fn auto_plan_alone_gives_nothing_back() -> Outcome {
    let mut arena = arena()?;
    arena.auto_plan(Options::default())?;
    until_planned(&mut arena)?;
    assert!(arena.stats().committed_bytes >= 60 * MIB);
    Ok(())
}
