//! The capacity of a recorded run, bumped and planned: it serves, and a byte less does not.

use std::fs;

use arena_plan::{Options, Plan, PlannedRun};
use arena_scope::{Arena, ByteSize, Device, Error, Host, Scope, StepKey};
use rstest::rstest;

/// Programs that keep buffers after the mark in different ways.
#[derive(Debug, Clone, Copy)]
enum Program {
    KeepsNothing,
    KeepsBetweenSteps,
    Promotes,
    ReplacesWhatItKeeps,
    KeepsInOneOfThreeKinds,
    KeepsInInnerScopes,
}

/// Buffers of which a plan puts the third in the place of the first.
fn buffers<D: Device>(scope: &Scope<'_, '_, D>, bytes: usize) -> Result<(), Error> {
    let first = scope.alloc::<u8>(3 * bytes)?;
    let second = scope.alloc::<u8>(bytes)?;
    drop(first);
    let third = scope.alloc_aligned::<u8>(2 * bytes + 7, arena_scope::Alignment::new(64)?)?;
    drop((second, third));
    Ok(())
}

impl Program {
    fn run<D: Device>(self, arena: &mut Arena<D>) -> Result<(), Error> {
        let _weights = arena.persistent::<u8>(777)?;
        let mut kept = Vec::new();
        for round in 0..4 {
            match self {
                Self::KeepsNothing => arena.scope_named("train", |step| buffers(step, 500))?,
                Self::KeepsBetweenSteps => {
                    arena.scope_named("train", |step| buffers(step, 500))?;
                    if round == 2 {
                        kept.remove(0);
                    }
                    kept.push(arena.persistent::<u8>(300 + 10 * round)?);
                }
                Self::Promotes => arena.scope_named("train", |step| {
                    buffers(step, 600)?;
                    let result = step.alloc_zeroed::<u8>(333)?;
                    if round % 2 == 0 {
                        kept.push(step.promote(result.view())?);
                    }
                    drop(result);
                    buffers(step, 100)
                })?,
                Self::ReplacesWhatItKeeps => arena.scope_named("train", |step| {
                    buffers(step, 200)?;
                    kept = vec![step.persistent::<u8>(1000 - 100 * round)?];
                    buffers(step, 300)
                })?,
                Self::KeepsInOneOfThreeKinds => {
                    for (variant, bytes) in [(0, 900), (1, 100), (2, 400)] {
                        let key = StepKey::named("train").variant(variant);
                        arena.scope_with(key, |step| {
                            buffers(step, bytes)?;
                            if variant == 1 {
                                kept.push(step.persistent::<u8>(1500)?);
                            }
                            buffers(step, bytes / 2)
                        })?;
                    }
                }
                Self::KeepsInInnerScopes => arena.scope_named("train", |step| {
                    let outer = step.alloc::<u8>(400)?;
                    step.scope(|inner| {
                        buffers(inner, 500)?;
                        let result = inner.alloc_zeroed::<u8>(100)?;
                        kept.push(inner.promote(result.view())?);
                        arena_scope::Ok(())
                    })?;
                    if round == 1 {
                        kept.clear();
                    }
                    drop(outer);
                    buffers(step, 450)
                })?,
            }
        }
        Ok(())
    }

    fn recorded(self) -> Result<PlannedRun, Error> {
        let mut roomy = Arena::builder(Host::new()).capacity(ByteSize::mib(1)).build()?;
        roomy.record(None);
        self.run(&mut roomy)?;
        Ok(PlannedRun::from_record(&roomy, &Options::default()))
    }
}

/// Whether each step follows its plan to the end.
fn follows(run: &PlannedRun, arena: &Arena) -> bool {
    run.kinds().iter().all(|kind| {
        arena.plan_deviations(kind.key).is_some_and(|deviations| deviations.total() == 0)
    })
}

#[rstest]
fn a_recorded_run_fits_into_its_capacity_and_not_into_a_byte_less(
    #[values(
        Program::KeepsNothing,
        Program::KeepsBetweenSteps,
        Program::Promotes,
        Program::ReplacesWhatItKeeps,
        Program::KeepsInOneOfThreeKinds,
        Program::KeepsInInnerScopes
    )]
    program: Program,
) -> Result<(), Error> {
    let run = program.recorded()?;
    let probed = PlannedRun::probe(&Host::new(), &Options::default(), |arena| program.run(arena))?;
    assert_eq!(run.capacity(), probed.capacity());
    assert_eq!(run.bumped_capacity(), probed.bumped_capacity());
    assert!(run.capacity().bytes() < run.bumped_capacity().bytes(), "{run}");

    let arena_of = |capacity: ByteSize, less: u64| {
        let capacity = ByteSize::bytes_exact(capacity.bytes() - less);
        Arena::builder(Host::new()).capacity(capacity).build()
    };
    program.run(&mut arena_of(run.bumped_capacity(), 0)?)?;
    let refused = program.run(&mut arena_of(run.bumped_capacity(), 1)?).unwrap_err();
    assert!(refused.is_exhausted(), "{refused}");

    let mut planned = run.build(Host::new())?;
    program.run(&mut planned)?;
    assert!(follows(&run, &planned));
    let mut short = arena_of(run.capacity(), 1)?;
    run.follow(&mut short);
    let outcome = program.run(&mut short);
    // A step without room for its plan is bumped, and may get by.
    assert!(outcome.is_err_and(|error| error.is_exhausted()) || !follows(&run, &short));
    Ok(())
}

#[rstest]
fn a_record_of_planned_steps_gives_the_same_capacities(
    #[values(Program::KeepsNothing, Program::KeepsBetweenSteps)] program: Program,
) -> Result<(), Error> {
    let run = program.recorded()?;
    let mut planned = Arena::builder(Host::new()).capacity(ByteSize::mib(1)).build()?;
    planned.record(None);
    run.follow(&mut planned);
    program.run(&mut planned)?;
    let again = PlannedRun::from_record(&planned, &Options::default());
    assert_eq!(again.to_string(), run.to_string());
    Ok(())
}

#[test]
fn steps_that_leave_their_plan_are_sized_by_the_probe_and_after_other_plans_are_loaded()
-> Result<(), Box<dyn std::error::Error>> {
    fn one_run<D: Device>(arena: &mut Arena<D>, sizes: &[usize]) -> Result<(), Error> {
        for &bytes in sizes {
            arena.scope_named("train", |step| buffers(step, bytes))?;
        }
        Ok(())
    }
    let probe = |sizes: &[usize]| {
        PlannedRun::probe(&Host::new(), &Options::default(), |arena| one_run(arena, sizes))
    };
    let (mut run, same) = (probe(&[500, 600])?, probe(&[500, 500])?);
    assert!(run.capacity().bytes() > same.capacity().bytes());
    one_run(&mut run.build(Host::new())?, &[500, 600])?;

    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.json");
    same.save(&path)?;
    let before = run.capacity();
    run.load(&path)?;
    assert_eq!(run.capacity(), before);
    Ok(())
}

#[test]
fn plans_that_are_loaded_have_a_capacity_of_their_own() -> Result<(), Box<dyn std::error::Error>> {
    let json = |plan: &Plan| -> Result<String, Box<dyn std::error::Error>> {
        let mut file = Vec::new();
        plan.save(&mut file)?;
        Ok(String::from_utf8(file)?.trim_end().to_owned())
    };
    let program = Program::KeepsBetweenSteps;
    let run = program.recorded()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.json");
    run.save(&path)?;
    // A plan that is no better than the bump, as if somebody had made it.
    let plan = &run.kinds()[0].step.as_ref().expect("it is planned").plan;
    let bumped = Plan::new(plan.instance().clone(), vec![0, 1536, 2048])?;
    let text = fs::read_to_string(&path)?;
    assert_eq!(text.matches(&json(plan)?).count(), 1);
    fs::write(&path, text.replace(&json(plan)?, &json(&bumped)?))?;

    let mut loaded = run.clone();
    loaded.load(&path)?;
    assert_eq!(loaded.capacity(), run.bumped_capacity());
    let mut arena = loaded.build(Host::new())?;
    program.run(&mut arena)?;
    assert!(follows(&loaded, &arena));
    Ok(())
}

#[test]
fn buffers_that_were_kept_before_the_record_count_as_they_lie() -> Result<(), Error> {
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(64)).build()?;
    arena.mark()?;
    let _kept = arena.persistent::<u8>(300)?; // at a multiple of 256: 212 bytes are above it
    arena.record(None);
    arena.scope_named("train", |step| buffers(step, 500))?;
    let run = PlannedRun::from_record(&arena, &Options::default());
    assert_eq!(run.capacity().bytes(), run.kinds()[0].needed_bytes + 512);
    assert_eq!(run.bumped_capacity().bytes(), run.kinds()[0].bumped_bytes + 512);
    Ok(())
}
