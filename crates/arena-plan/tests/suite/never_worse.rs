//! A plan never makes a step fail that the bump would serve.

use arena_plan::{Options, PlannedStep};
use arena_scope::plan::SlotTable;
use arena_scope::{
    Alignment, Arena, ByteSize, Device, Error, Host, Persistent, Probe, Reset, Scope, ScopeOptions,
    StepKey, Transient,
};
use proptest::prelude::*;

type Outcome = Result<(), Error>;

const STEP: StepKey = StepKey::named("step");

#[derive(Debug, Clone)]
enum Op {
    Alloc { units: usize, log2: u32 },
    Drop(usize),
    Keep(usize),
    Scope { forgotten: bool, ops: Vec<Op> },
}

fn ops(depth: u32) -> impl Strategy<Value = Vec<Op>> {
    let leaf = prop_oneof![
        8 => (1_usize..40, 0_u32..10).prop_map(|(units, log2)| Op::Alloc { units, log2 }),
        6 => any::<usize>().prop_map(Op::Drop),
        1 => (1_usize..20).prop_map(Op::Keep),
    ];
    let op = leaf.prop_recursive(depth, 24, 8, |inner| {
        (prop::bool::weighted(0.2), prop::collection::vec(inner, 0..8))
            .prop_map(|(forgotten, ops)| Op::Scope { forgotten, ops })
    });
    prop::collection::vec(op, 1..14)
}

/// A program, and one that is the same up to a point and then another.
fn like(usual: Vec<Op>) -> impl Strategy<Value = (Vec<Op>, Vec<Op>)> {
    (0..=usual.len(), ops(2))
        .prop_map(move |(common, rest)| (usual.clone(), [&usual[..common], &rest[..]].concat()))
}

/// Buffers of one step, each with the byte that it was filled with.
struct Step<'a, D: Device> {
    kept: &'a mut Vec<Persistent<u8, D>>,
    pattern: u8,
}

impl<D: Device> Step<'_, D> {
    fn run(&mut self, scope: &mut Scope<'_, '_, D>, ops: &[Op]) -> Outcome {
        let mut live: Vec<(Transient<'_, u8, D>, u8)> = Vec::new();
        for op in ops {
            match op {
                Op::Alloc { units, log2 } => {
                    self.pattern = self.pattern % 250 + 1;
                    let alignment = Alignment::new(1 << log2).expect("a power of two");
                    let mut buffer = scope.alloc_aligned::<u8>(units * 32, alignment)?;
                    buffer.view_mut().fill_bytes(self.pattern)?;
                    live.push((buffer, self.pattern));
                }
                Op::Drop(_) if live.is_empty() => {}
                Op::Drop(pick) => drop(live.swap_remove(pick % live.len())),
                Op::Keep(units) => self.kept.push(scope.persistent(units * 32)?),
                Op::Scope { forgotten: false, ops } => {
                    scope.scope(|inner| self.run(inner, ops))?;
                }
                Op::Scope { forgotten: true, ops } => {
                    let mut guard = scope.enter()?;
                    self.run(&mut guard.scope(), ops)?;
                    std::mem::forget(guard);
                }
            }
            for (buffer, pattern) in &live {
                let expected = if D::MEASURES_ONLY { 0 } else { *pattern };
                assert!(buffer.view().to_vec()?.iter().all(|byte| *byte == expected), "{buffer:?}");
            }
        }
        Ok(())
    }
}

/// Runs a step; a kept buffer lives to the end of the next one.
fn step<D: Device>(
    arena: &mut Arena<D>,
    reset: Reset,
    kept: &mut Vec<Persistent<u8, D>>,
    ops: &[Op],
) -> Outcome {
    let mut now = Vec::new();
    let options = ScopeOptions::from(STEP).reset(reset);
    arena.scope_with(options, |scope| Step { kept: &mut now, pattern: 0 }.run(scope, ops))?;
    *kept = now;
    if reset == Reset::Zero && !D::MEASURES_ONLY {
        arena.scope_named("look", |scope| {
            let all =
                scope.alloc_aligned::<u8>(scope.stats().free_bytes as usize, Alignment::ONE)?;
            assert!(all.view().to_vec()?.iter().all(|byte| *byte == 0), "a step was cleared");
            arena_scope::Ok(())
        })?;
    }
    Ok(())
}

fn run<D: Device>(arena: &mut Arena<D>, reset: Reset, steps: &[&[Op]]) -> Outcome {
    let mut kept = Vec::new();
    steps.iter().try_for_each(|ops| step(arena, reset, &mut kept, ops))
}

fn probe() -> Result<Arena<Probe>, Error> {
    Arena::builder(Probe::like(&Host::new())).capacity(ByteSize::gib(1)).build()
}

fn host(capacity_bytes: u64) -> Result<Arena<Host>, Error> {
    Arena::builder(Host::new()).capacity(ByteSize::bytes_exact(capacity_bytes)).build()
}

fn yielding(ops: &[Op]) -> Result<SlotTable, TestCaseError> {
    let mut probe = probe()?;
    probe.record(None);
    run(&mut probe, Reset::Keep, &[ops])?;
    let log = probe.recorded(STEP).expect("it was recorded");
    Ok(PlannedStep::solve(&log, &Options::default())?.yielding_slots(&log)?)
}

/// The smallest capacity in which the bump serves these steps.
fn bumped_bytes(reset: Reset, steps: &[&[Op]]) -> Result<u64, Error> {
    let mut probe = probe()?;
    run(&mut probe, reset, steps)?;
    Ok(probe.smallest_capacity_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_just_the_bytes_that_the_bump_needs_a_yielding_plan_serves_every_step(
        (usual, unusual) in ops(2).prop_flat_map(like),
        zero in any::<bool>(),
    ) {
        let reset = if zero { Reset::Zero } else { Reset::Keep };
        let steps: Vec<&[Op]> = [&usual, &usual, &usual, &unusual, &usual, &unusual, &usual]
            .map(Vec::as_slice)
            .to_vec();
        let capacity_bytes = bumped_bytes(reset, &steps)?;
        // A look at the bytes gives kept ones back earlier, and then they may lie elsewhere.
        prop_assume!(run(&mut host(capacity_bytes)?, reset, &steps).is_ok());
        let mut arena = host(capacity_bytes)?;
        arena.install_plan(STEP, yielding(&usual)?)?; // Its peak is not above the bump's.
        run(&mut arena, reset, &steps)?;
    }

    #[test]
    fn a_step_that_is_as_it_was_recorded_follows_its_yielding_plan_to_the_end(usual in ops(2)) {
        let mut arena = host(bumped_bytes(Reset::Keep, &[&usual, &usual])? + 100_000)?;
        arena.install_plan(STEP, yielding(&usual)?)?;
        run(&mut arena, Reset::Keep, &[&usual, &usual, &usual])?;
        let deviations = arena.plan_deviations(STEP).expect("a plan is installed");
        prop_assert_eq!(deviations.total(), 0, "{:?}", deviations);
    }
}
