//! A program, planned as a whole: what it then needs, to the byte.

use std::fs;

use arena_plan::{Options, PlannedRun, RunFileError};
use arena_scope::{Arena, ByteSize, Device, Error, Host, Persistent, Reset, Scope, StepKey};
use rstest::rstest;

const LENGTHS: [usize; 4] = [50, 7, 120, 64];

fn key(length: usize) -> StepKey {
    StepKey::named("train").variant(length as u64)
}

/// A program of a few steps: weights, momentum that is born in the first step, and sequences of several lengths.
struct Program<D: Device> {
    weights: Option<Persistent<f32, D>>,
    momentum: Option<Persistent<f32, D>>,
    keeps: bool,
}

impl<D: Device> Program<D> {
    const fn new(keeps: bool) -> Self {
        Self { weights: None, momentum: None, keeps }
    }

    fn run(&mut self, arena: &mut Arena<D>, lengths: &[usize]) -> Result<(), Error> {
        if self.weights.is_none() {
            self.weights = Some(arena.persistent_zeroed(1000)?);
        }
        for &length in lengths {
            arena.scope_with(key(length), |scope| self.step(scope, length))?;
        }
        Ok(())
    }

    fn step(&mut self, scope: &mut Scope<'_, '_, D>, length: usize) -> Result<(), Error> {
        let mut states = vec![scope.alloc_zeroed::<f32>(64)?];
        for _ in 0..length {
            let scratch = scope.alloc::<f32>(300)?;
            states.push(scope.alloc_zeroed::<f32>(64)?);
            drop(scratch);
        }
        while let Some(state) = states.pop() {
            let gradient = scope.alloc::<f32>(64)?;
            drop((state, gradient));
        }
        if self.keeps && self.momentum.is_none() {
            self.momentum = Some(scope.persistent(1000)?);
        }
        Ok(())
    }
}

fn planned(keeps: bool, lengths: &[usize]) -> Result<PlannedRun, Error> {
    PlannedRun::probe(&Host::new(), &Options::default(), |arena| {
        Program::new(keeps).run(arena, lengths)
    })
}

#[rstest]
fn a_planned_run_fits_into_its_capacity_and_not_into_a_byte_less(
    #[values(false, true)] keeps: bool,
) -> Result<(), Error> {
    let run = planned(keeps, &LENGTHS)?;
    let mut arena = run.build(Host::new())?;
    let mut program = Program::new(keeps);
    for _ in 0..3 {
        program.run(&mut arena, &LENGTHS)?;
    }
    let stats = arena.stats();
    assert_eq!(stats.peak_bytes + stats.kept_bytes, stats.capacity_bytes);
    for length in LENGTHS {
        let deviations = arena.plan_deviations(key(length)).expect("each kind is planned");
        assert_eq!(deviations.unplanned(), 0, "{length}");
    }
    arena.observed().expect("it is observed").check().expect("each length repeats its addresses");

    let one_less = ByteSize::bytes_exact(run.capacity().bytes() - 1);
    let mut short = Arena::builder(Host::new()).capacity(one_less).build()?;
    run.follow(&mut short);
    assert!(Program::new(keeps).run(&mut short, &LENGTHS).unwrap_err().is_exhausted());
    Ok(())
}

#[test]
fn the_bumped_capacity_is_what_the_bump_needs() -> Result<(), Error> {
    let run = planned(true, &LENGTHS)?;
    let bumped = |bytes| {
        let capacity = ByteSize::bytes_exact(bytes);
        let mut arena = Arena::builder(Host::new()).capacity(capacity).build()?;
        Program::new(true).run(&mut arena, &LENGTHS)
    };
    bumped(run.bumped_capacity().bytes())?;
    assert!(bumped(run.bumped_capacity().bytes() - 1).unwrap_err().is_exhausted());
    assert!(run.capacity().bytes() * 4 < run.bumped_capacity().bytes(), "{run}");
    Ok(())
}

// Its host code asks for a slice, so no probe can run it.
#[test]
fn a_record_of_a_run_on_any_device_is_planned_to_the_same_bytes() -> Result<(), Error> {
    let mut roomy = Arena::builder(Host::new()).capacity(ByteSize::mib(4)).build()?;
    roomy.record(None);
    Program::new(false).run(&mut roomy, &LENGTHS)?;
    let recorded = PlannedRun::from_record(&roomy, &Options::default());
    let probed = planned(false, &LENGTHS)?;
    assert_eq!(recorded.capacity(), probed.capacity());
    assert_eq!(recorded.bumped_capacity(), probed.bumped_capacity());
    Program::new(false).run(&mut recorded.build(Host::new())?, &LENGTHS)
}

#[test]
fn records_that_the_arena_forgot_are_told() -> Result<(), Error> {
    let builder = Arena::builder(Host::new()).capacity(ByteSize::mib(4));
    let mut small = builder.step_memory(ByteSize::kib(16)).build()?;
    small.record(None);
    Program::new(false).run(&mut small, &LENGTHS)?;
    let run = PlannedRun::from_record(&small, &Options::default());
    let forgotten = LENGTHS.len() - run.kinds().len();
    assert!(forgotten > 0);
    let told = format!("records that the arena forgot: {forgotten}; give it more `step_memory`");
    assert!(run.to_string().contains(&told), "{run}");
    Ok(())
}

#[test]
fn all_lengths_share_a_region_that_is_hardly_larger_than_the_longest_needs() -> Result<(), Error> {
    let lengths: Vec<usize> = (1..=64).collect();
    let run = planned(false, &lengths)?;
    let longest = planned(false, &[64])?;
    let (all, one) = (run.capacity().bytes(), longest.capacity().bytes());
    assert!(all * 10 <= one * 11, "{all} for all, {one} for the longest");
    let mut arena = run.build(Host::new())?;
    let mut program = Program::new(false);
    for _ in 0..3 {
        program.run(&mut arena, &lengths)?;
    }
    let seen = arena.observed().expect("it is observed");
    assert_eq!((seen.kinds.len(), seen.is_stable()), (64, true));
    Ok(())
}

#[test]
fn a_step_says_what_it_needs() -> Result<(), Error> {
    let run = planned(false, &LENGTHS)?;
    let short = ByteSize::bytes_exact(run.capacity().bytes() - 1);
    let mut arena = Arena::builder(Host::new()).capacity(short).build()?;
    run.follow(&mut arena);
    let _weights = arena.persistent_zeroed::<f32>(1000)?;
    arena.scope_with(run.options(key(7)), |_| arena_scope::Ok(()))?;
    let refused = arena.scope_with(run.options(key(120)), |_| -> Result<(), Error> {
        panic!("it does not begin")
    });
    assert!(refused.unwrap_err().is_exhausted());
    arena.scope_with(run.options("unknown"), |_| arena_scope::Ok(()))
}

#[test]
fn settings_other_than_the_capacity_are_the_builder_s() -> Result<(), Error> {
    let run = planned(false, &[7])?;
    let builder = Arena::builder(Host::new()).reset(Reset::Poison);
    let mut arena = run.build_with(builder)?;
    let _weights = arena.persistent_zeroed::<f32>(1000)?;
    arena.scope_with(key(7), |step| {
        assert!(step.alloc::<f32>(64)?.as_slice()[0].is_nan());
        arena_scope::Ok(())
    })
}

#[test]
fn it_says_what_it_found() -> Result<(), Error> {
    let run = planned(false, &[1])?;
    // State, scratch, state; then two gradients, each beside what it is the gradient of.
    let expected = "`train` (1): requests 5, sum 2304 bytes, live at once 1792, planned 1792, optimal\n\
                    persistent 4000 bytes\n\
                    capacity 5888 bytes (5.75 KiB) planned, 6400 (6.25 KiB) bumped\n";
    assert_eq!(run.to_string(), expected);
    Ok(())
}

#[test]
fn saved_plans_are_taken_and_those_of_another_program_are_refused_with_what_differs()
-> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.plans");
    let run = planned(false, &LENGTHS)?;
    run.save(&path)?;
    let mut same = planned(false, &LENGTHS)?;
    same.load(&path)?;
    assert_eq!(same.to_string(), run.to_string());
    Program::new(false).run(&mut same.build(Host::new())?, &LENGTHS)?;

    let told = |run: &mut PlannedRun| run.load(&path).unwrap_err().to_string();
    let mut more = planned(false, &[7, 8])?;
    let before = more.to_string();
    assert!(
        told(&mut more).ends_with("no plan for steps `train` (8): the file is of another program")
    );
    assert_eq!(more.to_string(), before, "nothing is changed");

    let text = fs::read_to_string(&path)?;
    fs::write(&path, text.replace("\"variant\":120", "\"variant\":8"))?;
    let told_of_lengths = told(&mut planned(false, &[7, 8])?);
    assert!(
        told_of_lengths.contains("steps `train` (8): the plan is for another program"),
        "{told_of_lengths}"
    );

    fs::write(&path, text.replace("arena-plan run", "arena-plan"))?;
    assert!(told(&mut planned(false, &[7])?).contains("format"));
    fs::write(&path, &text[..text.len() / 2])?;
    assert!(matches!(planned(false, &[7])?.load(&path), Err(RunFileError::Plan { .. })));
    assert!(matches!(
        planned(false, &[7])?.load(&folder.path().join("none")),
        Err(RunFileError::File(_))
    ));
    Ok(())
}
