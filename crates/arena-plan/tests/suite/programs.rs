//! Random programs on an arena that follows the plan of one run of theirs. Whatever another run does
//! otherwise, no two live buffers overlap and each keeps what was written into it; and a run like the
//! first has no deviation.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use arena_plan::{Options, PlannedStep};
use arena_scope::plan::SlotTable;
use arena_scope::{
    Alignment, Arena, ByteSize, Error, ErrorKind, Host, Reset, Scope, ScopeOptions, StepKey,
    Transient,
};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

const PROGRAMS: u64 = 120;
const STEPS: u64 = 40;
const STEP: StepKey = StepKey::named("step");
const RESETS: [Reset; 3] = [Reset::Keep, Reset::Zero, Reset::Poison];

/// What a program throws when it panics on purpose.
struct OnPurpose;

/// How a run differs from the one that was planned.
#[derive(Debug, Clone, Copy, Default)]
struct Deviating {
    /// So many choices in a thousand are made anew; handles are leaked at times.
    per_mille: u32,
    /// It leaves by an error or a panic at times.
    leaves: bool,
    /// Its root guard is forgotten.
    forgets_root: bool,
}

/// One run: its choices, and what it has alive.
struct Run {
    program: ChaCha8Rng,
    noise: ChaCha8Rng,
    deviating: Deviating,
    /// Addresses in use, each with the depth of its scope. A leaked handle's stay until that closes.
    live: Vec<(Range<u64>, u32)>,
    value: u8,
    operations: u32,
}

impl Run {
    fn new(program: u64, noise: u64, deviating: Deviating) -> Self {
        Self {
            program: ChaCha8Rng::seed_from_u64(program),
            noise: ChaCha8Rng::seed_from_u64(noise),
            deviating,
            live: Vec::new(),
            value: 0,
            operations: 0,
        }
    }

    fn choose(&mut self, choices: u32) -> u32 {
        let planned = self.program.random_range(0..choices);
        let Deviating { per_mille, .. } = self.deviating;
        let deviates = per_mille > 0 && self.noise.random_range(0..1000) < per_mille;
        if deviates { self.noise.random_range(0..choices) } else { planned }
    }

    fn leaks(&mut self) -> bool {
        self.deviating.per_mille > 0 && self.noise.random_range(0..40) == 0
    }

    fn may_leave(&mut self) -> Result<(), Error> {
        if self.deviating.leaves {
            match self.noise.random_range(0..120) {
                0 => return Err(ErrorKind::NoChoice { what: "on purpose" }.into()),
                1 => resume_unwind(Box::new(OnPurpose)), // It calls no hook.
                _ => {}
            }
        }
        Ok(())
    }

    fn born(&mut self, range: Range<u64>, depth: u32) {
        let overlaps =
            |(other, _): &&(Range<u64>, u32)| range.start < other.end && other.start < range.end;
        assert_eq!(self.live.iter().find(overlaps), None, "{range:?} overlaps");
        self.live.push((range, depth));
    }

    fn closed(&mut self, depth: u32) {
        self.live.retain(|(_, own)| *own < depth);
    }
}

/// A buffer and the byte that it is full of. Two types of elements, for the same bytes.
enum Held<'s> {
    Bytes(Transient<'s, u8>, u8),
    Words(Transient<'s, u32>, u8),
}

impl Held<'_> {
    fn range(&self) -> Range<u64> {
        let (start, bytes) = match self {
            Self::Bytes(buffer, _) => (buffer.address(), buffer.len()),
            Self::Words(buffer, _) => (buffer.address(), 4 * buffer.len()),
        };
        start..start + bytes as u64
    }

    fn fill(&mut self) {
        match self {
            Self::Bytes(buffer, value) => buffer.as_mut_slice().fill(*value),
            Self::Words(buffer, value) => {
                buffer.as_mut_slice().fill(u32::from_ne_bytes([*value; 4]));
            }
        }
    }

    fn check(&self) {
        let intact = match self {
            Self::Bytes(buffer, value) => buffer.as_slice().iter().all(|byte| byte == value),
            Self::Words(buffer, value) => {
                let word = u32::from_ne_bytes([*value; 4]);
                buffer.as_slice().iter().all(|found| *found == word)
            }
        };
        assert!(intact, "somebody wrote into {:?}", self.range());
    }
}

/// The buffers of a scope and of those around it: an inner scope may drop an outer one's.
trait Buffers {
    fn drop_one(&mut self, run: &mut Run);
    fn check(&self);
}

struct Chain<'a, 's> {
    own: &'a mut Vec<Held<'s>>,
    outer: Option<&'a mut dyn Buffers>,
}

impl Buffers for Chain<'_, '_> {
    fn drop_one(&mut self, run: &mut Run) {
        if run.choose(4) == 0
            && let Some(outer) = &mut self.outer
        {
            return outer.drop_one(run);
        }
        let at = run.choose(1 << 16) as usize;
        if !self.own.is_empty() {
            drop_or_leak(self.own.remove(at % self.own.len()), run);
        }
    }

    fn check(&self) {
        self.own.iter().for_each(Held::check);
        if let Some(outer) = &self.outer {
            outer.check();
        }
    }
}

fn drop_or_leak(held: Held<'_>, run: &mut Run) {
    held.check();
    if run.leaks() {
        std::mem::forget(held);
    } else {
        let range = held.range();
        run.live.retain(|(other, _)| *other != range);
        drop(held);
    }
}

fn ask<'s>(scope: &Scope<'s, '_>, run: &mut Run) -> Result<Held<'s>, Error> {
    let words = 1 + run.choose(200) as usize;
    let kind = run.choose(4);
    let alignment = Alignment::new(1 << run.choose(10))?;
    run.value = run.value.wrapping_add(1);
    let value = run.value;
    let mut held = match kind {
        0 => Held::Bytes(scope.alloc_aligned(4 * words, alignment)?, value),
        1 => Held::Words(scope.alloc_aligned(words, alignment)?, value),
        2 => Held::Bytes(scope.upload(&vec![value; 4 * words])?, value),
        _ => {
            let zeroed = scope.alloc_zeroed::<u32>(words)?;
            assert!(zeroed.as_slice().iter().all(|word| *word == 0));
            Held::Words(zeroed, value)
        }
    };
    held.fill();
    run.born(held.range(), scope.depth());
    Ok(held)
}

fn body<'s>(
    scope: &mut Scope<'s, '_>,
    run: &mut Run,
    mut outer: Option<&mut (dyn Buffers + '_)>,
) -> Result<(), Error> {
    let depth = scope.depth();
    let mut own: Vec<Held<'s>> = Vec::new();
    for _ in 0..3 + run.choose(14) {
        run.operations += 1;
        if run.operations > 120 {
            break;
        }
        run.may_leave()?;
        let mut chain =
            Chain { own: &mut own, outer: outer.as_mut().map(|outer| &mut **outer as _) };
        match run.choose(20) {
            0..9 => {
                let held = ask(scope, run)?;
                own.push(held);
            }
            9 => drop((scope.alloc::<u32>(0)?, scope.alloc::<()>(3)?)),
            10..14 => chain.drop_one(run),
            14..18 if depth < 5 => inner(scope, run, &mut chain)?,
            18 => drop(scope.persistent::<u8>(64 + run.choose(64) as usize)?),
            _ => chain.check(),
        }
    }
    while let Some(held) = own.pop() {
        drop_or_leak(held, run);
    }
    Ok(())
}

/// A scope inside, in either form. Its error ends the scope around it, or does not.
fn inner(scope: &mut Scope<'_, '_>, run: &mut Run, chain: &mut Chain<'_, '_>) -> Result<(), Error> {
    let depth = scope.depth() + 1;
    let options = ScopeOptions::named("inner").reset(RESETS[run.choose(3) as usize]);
    let outcome = if run.choose(2) == 0 {
        let outcome = scope.scope_with(options, |inner| body(inner, run, Some(&mut *chain)));
        run.closed(depth);
        outcome
    } else {
        let is_forgotten = run.choose(6) == 0;
        let mut guard = scope.enter_with(options)?;
        let outcome = body(&mut guard.scope(), run, Some(&mut *chain));
        run.closed(depth);
        if is_forgotten {
            std::mem::forget(guard);
        } else {
            guard.close()?;
        }
        outcome
    };
    chain.check();
    if run.choose(2) == 0 { outcome } else { Ok(()) }
}

fn step(arena: &mut Arena, mut run: Run) {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        if run.deviating.forgets_root {
            let mut guard = arena.enter_with(STEP).expect("it opens");
            let _ = body(&mut guard.scope(), &mut run, None);
            std::mem::forget(guard);
        } else {
            let _ = arena.scope_with(STEP, |scope| body(scope, &mut run, None));
        }
    }));
    if let Err(panic) = outcome
        && !panic.is::<OnPurpose>()
    {
        resume_unwind(panic);
    }
}

fn plan_of(program: u64) -> SlotTable {
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::mib(8)).build().expect("room");
    arena.record(None);
    step(&mut arena, Run::new(program, 0, Deviating::default()));
    let log = arena.recorded(STEP).expect("the step was observed");
    let options = Options { restart_budget: 100, node_budget: 100, ..Options::default() };
    PlannedStep::solve(&log, &options).expect("small").slots().expect("few")
}

#[test]
fn no_run_of_a_planned_program_overlaps_or_loses_a_byte() {
    let (mut deviations, mut as_planned) = (0, 0);
    for program in 0..PROGRAMS {
        let reset = RESETS[program as usize % 3];
        let mut arena = Arena::builder(Host::new())
            .capacity(ByteSize::mib(2))
            .reset(reset)
            .build()
            .expect("room");
        let _weights = arena.persistent::<u8>(100 + program as usize).expect("room");
        let slots = plan_of(program);
        arena.install_plan(STEP, slots.clone()).expect("it fits");
        let mut rng = ChaCha8Rng::seed_from_u64(program);
        for noise in 0..STEPS {
            match rng.random_range(0..30) {
                0 => arena.record(None),
                1 => drop(arena.stop_observing()),
                2 => arena.install_plan(STEP, plan_of(program + 7)).expect("it fits"),
                3 => arena.install_plan(STEP, slots.clone()).expect("it fits"),
                4 => {
                    let other = arena.scope_named("other", |step| step.alloc::<u8>(5000).map(drop));
                    other.expect("it fits");
                }
                _ => {}
            }
            let mut deviating = Deviating::default();
            if rng.random_range(0..2) == 0 {
                deviating.per_mille = [5, 30][rng.random_range(0..2)];
                deviating.leaves = rng.random_range(0..3) == 0;
                deviating.forgets_root = rng.random_range(0..7) == 0;
            }
            step(&mut arena, Run::new(program, noise, deviating));
            deviations += arena.plan_deviations(STEP).expect("a plan").total();
        }
        arena.install_plan(STEP, slots).expect("it fits");
        for _ in 0..3 {
            step(&mut arena, Run::new(program, 0, Deviating::default()));
        }
        as_planned += u64::from(arena.plan_deviations(STEP).expect("a plan").total() == 0);
    }
    println!(
        "{PROGRAMS} programs, {deviations} deviations seen, {as_planned} as planned at the end"
    );
    assert!(deviations > 1000, "the runs hardly deviated: {deviations}");
    assert_eq!(as_planned, PROGRAMS);
}
