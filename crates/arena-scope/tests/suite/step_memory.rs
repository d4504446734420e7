//! What is given back when the host memory for the kinds of step is full, and what stays.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use arena_scope::plan::{PlannedSlot, Planner, SlotTable};
use arena_scope::steady::NotSteady;
use arena_scope::{Alignment, Arena, ByteSize, Error, Host, StepKey};
use rstest::rstest;

use crate::common::{KIB, Outcome, builder};

fn key(n: u64) -> StepKey {
    StepKey::named("train").variant(n)
}

/// An arena that can remember no kind of step but the one that it is at.
fn forgetful() -> Result<Arena<Host>, Error> {
    builder(Host::new(), 64 * KIB).step_memory(ByteSize::bytes_exact(0)).build()
}

/// One place, which no bump would choose.
fn table(n: u64) -> SlotTable {
    let (offset_bytes, alignment) = (256 * (n + 1), Alignment::DEFAULT);
    SlotTable::new(&[PlannedSlot { offset_bytes, bytes: 100, alignment }]).unwrap()
}

/// One request; where it lies.
fn step(arena: &mut Arena<Host>, key: StepKey) -> Result<u64, Error> {
    arena.scope_with(key, |step| arena_scope::Ok(step.alloc::<u8>(100)?.offset_bytes()))
}

/// Has a plan for each key, and counts how often it was asked.
#[derive(Debug, Clone, Default)]
struct Known(Arc<Mutex<HashMap<StepKey, u32>>>);

impl Planner for Known {
    fn plan_for(&mut self, key: StepKey) -> Option<SlotTable> {
        *self.0.lock().unwrap().entry(key).or_default() += 1;
        (key.variant < 100).then(|| table(key.variant))
    }
}

impl Known {
    fn asked(&self, key: StepKey) -> u32 {
        self.0.lock().unwrap().get(&key).copied().unwrap_or(0)
    }
}

#[test]
fn a_planner_is_asked_once_before_the_first_step_of_a_key() -> Outcome {
    let mut arena = builder(Host::new(), 64 * KIB).build()?;
    let planner = Known::default();
    arena.set_planner(Box::new(planner.clone()), 1);
    for _ in 0..3 {
        assert_eq!(step(&mut arena, key(1))?, 512, "from the first step on");
        assert_eq!(step(&mut arena, key(100))?, 0, "it has none");
    }
    assert_eq!([1, 100].map(|n| planner.asked(key(n))), [1, 1]);
    arena.set_planner(Box::new(planner.clone()), 1);
    step(&mut arena, key(100))?;
    assert_eq!(planner.asked(key(100)), 2, "another planner may have one");
    Ok(())
}

#[test]
fn a_kind_that_was_forgotten_gets_the_same_plan_again() -> Outcome {
    let mut arena = forgetful()?;
    let planner = Known::default();
    arena.set_planner(Box::new(planner.clone()), 1);
    for round in 1..=3 {
        for n in 0..10 {
            assert_eq!(step(&mut arena, key(n))?, 256 * (n + 1));
            assert_eq!(step(&mut arena, key(n))?, 256 * (n + 1));
            assert_eq!(planner.asked(key(n)), round, "it is asked once each time");
        }
    }
    assert!(arena.plan_span(key(8)).is_none() && arena.plan_span(key(9)).is_some());
    assert!(arena.observed().expect("it is observed").is_stable());
    Ok(())
}

#[test]
fn a_plan_that_the_program_gave_is_followed_though_nothing_is_remembered() -> Outcome {
    let mut arena = forgetful()?;
    for n in 0..10 {
        arena.install_plan(key(n), table(n))?;
        assert!(arena.share_plan(key(n + 10), key(n)));
    }
    arena.observe(None);
    for _ in 0..3 {
        for n in 0..10 {
            assert_eq!(step(&mut arena, key(n))?, 256 * (n + 1));
            assert_eq!(step(&mut arena, key(n + 10))?, 256 * (n + 1), "it shares the plan");
            step(&mut arena, key(20))?;
        }
    }
    let seen = arena.stop_observing().expect("it is observed");
    assert!(seen.is_stable());
    assert_eq!((seen.kinds.len(), seen.steps(), seen.forgotten), (21, 90, 29));
    for n in 0..20 {
        assert_eq!(arena.plan_deviations(key(n)).map(|seen| seen.unplanned()), Some(0));
    }
    Ok(())
}

#[test]
fn a_plan_that_shrank_to_its_slots_keeps_its_counts_and_takes_little_memory() -> Outcome {
    let mut arena = forgetful()?;
    arena.install_plan(key(1), table(1))?;
    let installed_bytes = arena.step_memory_bytes();
    arena.scope_with(key(1), |step| step.alloc::<u8>(200).map(drop))?;
    assert!(arena.step_memory_bytes() > installed_bytes + 16 * KIB, "a step follows it");
    let (deviations, sites) = (arena.plan_deviations(key(1)), arena.plan_deviation_sites(key(1)));
    assert_eq!(sites.len(), 1);
    for n in 2..4 {
        step(&mut arena, key(n))?;
        assert!(arena.step_memory_bytes() < installed_bytes + 2 * KIB);
        assert_eq!(arena.plan_deviations(key(1)), deviations);
        assert_eq!(arena.plan_deviation_sites(key(1)), sites);
    }
    assert_eq!(step(&mut arena, key(1))?, 512);
    Ok(())
}

#[test]
fn the_kind_that_was_used_last_is_forgotten_last() -> Outcome {
    let mut arena = builder(Host::new(), 64 * KIB).step_memory(ByteSize::kib(16)).build()?;
    arena.observe(None);
    for n in 1..=200 {
        step(&mut arena, key(0))?;
        step(&mut arena, key(n))?;
        assert!(arena.step_memory_bytes() <= 16 * KIB);
    }
    let seen = arena.observed().expect("it is observed");
    assert_eq!((seen.kinds[0].key, seen.kinds[0].steps), (key(0), 200));
    // The others in the order in which they came.
    let others: Vec<u64> = seen.kinds[1..].iter().map(|kind| kind.key.variant).collect();
    assert!(others.len() > 4 && others.iter().copied().eq(201 - others.len() as u64..=200));
    assert_eq!(seen.forgotten + seen.kinds.len() as u64, 201);
    Ok(())
}

#[rstest]
fn a_record_that_was_forgotten_is_counted(#[values(false, true)] planned: bool) -> Outcome {
    let mut arena = forgetful()?;
    if planned {
        arena.install_plan(key(1), table(1))?;
    }
    arena.record(None);
    step(&mut arena, key(1))?;
    assert!(arena.recorded(key(1)).is_some());
    step(&mut arena, key(2))?;
    step(&mut arena, key(2))?;
    assert!(arena.recorded(key(1)).is_none() && arena.recorded(key(2)).is_some());
    // It is not compared with what is not known any more.
    arena.scope_with(key(1), |step| step.alloc::<u8>(300).map(drop))?;
    let seen = arena.observed().expect("it is observed");
    assert_eq!(seen.forgotten, 2);
    let divergence = seen.divergence.map(|seen| (seen.key, seen.step, seen.at));
    assert_eq!(divergence, planned.then_some((key(1), 2, None)));
    Ok(())
}

#[test]
fn what_a_forgotten_kind_did_is_told() -> Outcome {
    let mut arena = forgetful()?;
    arena.observe(None);
    let mut kept = Vec::new();
    for _ in 0..5 {
        arena.scope_with(key(1), |step| {
            kept.push(step.persistent::<u8>(256)?);
            arena_scope::Ok(())
        })?;
    }
    for n in 2..5 {
        step(&mut arena, key(n))?;
    }
    let seen = arena.observed().expect("it is observed");
    assert_eq!((seen.kinds.len(), seen.steps()), (1, 8));
    assert_eq!(seen.check(), Err(NotSteady::KeptGrows { key: key(1), grown_bytes: 512 }));
    Ok(())
}

#[test]
fn what_was_observed_goes_when_observing_ends() -> Outcome {
    let mut arena = builder(Host::new(), 64 * KIB).build()?;
    arena.record(None);
    arena.scope_with(key(1), |step| (0..200).try_for_each(|_| step.alloc::<u8>(1).map(drop)))?;
    let recorded_bytes = arena.step_memory_bytes();
    assert!(arena.stop_observing().is_some());
    assert!(arena.step_memory_bytes() + 200 * 32 < recorded_bytes);
    Ok(())
}

#[test]
fn the_smaller_requests_of_a_key_that_shares_a_plan_are_by_design() -> Outcome {
    let mut arena = builder(Host::new(), 64 * KIB).build()?;
    arena.install_plan(key(1), table(1))?;
    assert!(arena.share_plan(key(2), key(1)));
    let smaller =
        |arena: &mut Arena<Host>, n| arena.scope_with(key(n), |step| step.alloc::<u8>(7).map(drop));
    smaller(&mut arena, 2)?;
    let by_design = arena.plan_deviations(key(1)).expect("there is a plan");
    assert_eq!((by_design.smaller_by_design, by_design.smaller, by_design.unplanned()), (1, 0, 0));
    assert_eq!(arena.plan_deviation_sites(key(1)), []);
    smaller(&mut arena, 1)?;
    let not = arena.plan_deviations(key(1)).expect("there is a plan");
    assert_eq!((not.smaller_by_design, not.smaller, not.unplanned(), not.total()), (1, 1, 1, 0));
    arena.scope_with(key(2), |step| step.alloc::<u8>(200).map(drop))?;
    let larger = arena.plan_deviations(key(2)).expect("there is a plan");
    assert_eq!((larger.larger, larger.missing, larger.unplanned()), (1, 1, 3), "not by design");
    Ok(())
}
