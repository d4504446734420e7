//! What a planner is told of, and when what it has ready is followed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use arena_scope::device::{Call, FailSwitch, Failing};
use arena_scope::plan::{PlannedSlot, Planner, SlotTable};
use arena_scope::record::StepLog;
use arena_scope::{Alignment, Arena, Error, Host, RegionKind, Reset, StepKey};

use crate::common::{KIB, MIB, builder, failing, host};

const TRAIN: StepKey = StepKey::named("train");
const PATIENCE: u32 = 3;

/// Writes down what it is told, and has ready what it is given.
#[derive(Debug, Clone, Default)]
struct Scripted {
    told: Arc<Mutex<Vec<(StepKey, usize)>>>,
    ready: Arc<Mutex<VecDeque<(StepKey, SlotTable)>>>,
    /// Records that it does not take.
    refuses: Arc<Mutex<u32>>,
    fits: bool,
}

impl Planner for Scripted {
    fn recorded(&mut self, key: StepKey, log: &StepLog) -> bool {
        self.told.lock().unwrap().push((key, log.events().len()));
        let mut refuses = self.refuses.lock().unwrap();
        let takes = *refuses == 0;
        *refuses = refuses.saturating_sub(1);
        takes
    }

    fn ready(&mut self) -> Option<(StepKey, SlotTable)> {
        self.ready.lock().unwrap().pop_front()
    }

    fn fits(&self) -> bool {
        self.fits
    }
}

impl Scripted {
    fn told(&self) -> usize {
        self.told.lock().unwrap().len()
    }

    /// Has a plan of one slot ready.
    fn prepare(&self, key: StepKey, offset_bytes: u64) {
        self.ready.lock().unwrap().push_back((key, table(offset_bytes)));
    }
}

fn table(offset_bytes: u64) -> SlotTable {
    let alignment = Alignment::DEFAULT;
    SlotTable::new(&[PlannedSlot { offset_bytes, bytes: 256, alignment }]).unwrap()
}

fn planned() -> (Arena<Host>, Scripted) {
    let mut arena = host(64 * KIB).unwrap();
    let planner = Scripted::default();
    arena.set_planner(Box::new(planner.clone()), PATIENCE);
    (arena, planner)
}

/// One request; where it lies.
fn step(arena: &mut Arena<Host>, key: StepKey, len: usize) -> u64 {
    let placed =
        arena.scope_with(key, |step| arena_scope::Ok(step.alloc::<u8>(len)?.offset_bytes()));
    placed.unwrap()
}

#[test]
fn a_planner_is_told_of_the_first_step_of_each_kind_and_of_no_other() {
    let (mut arena, planner) = planned();
    for key in [TRAIN, TRAIN, TRAIN.variant(7), TRAIN, TRAIN.variant(7)] {
        step(&mut arena, key, 256);
    }
    // A scope, a request, a drop, and the scope's close.
    assert_eq!(*planner.told.lock().unwrap(), [(TRAIN, 4), (TRAIN.variant(7), 4)]);
}

#[test]
fn a_planner_that_is_busy_is_told_of_the_next_steps_until_it_takes_one() {
    let (mut arena, planner) = planned();
    *planner.refuses.lock().unwrap() = 2;
    for told in [1, 2, 3, 3, 3] {
        step(&mut arena, TRAIN, 256);
        assert_eq!(planner.told(), told);
    }
}

#[test]
fn for_each_plan_that_did_not_last_the_patience_is_twice_as_long() {
    let (mut arena, planner) = planned();
    let larger = 300;
    let mut steps_until_told = || {
        let before = planner.told();
        let steps = (1..).find(|_| {
            step(&mut arena, TRAIN, larger);
            planner.told() > before
        });
        planner.prepare(TRAIN, 512);
        steps.unwrap()
    };
    assert_eq!(steps_until_told(), 1, "the first step of all");
    // Of the plan that comes then so many steps deviate, and the next one does too.
    let patience = u64::from(PATIENCE);
    let expected = [patience + 1, 2 * patience + 1, 4 * patience + 1];
    assert_eq!([(); 3].map(|()| steps_until_told()), expected);
}

#[test]
fn the_plan_that_is_ready_is_followed_by_the_next_step() {
    let (mut arena, planner) = planned();
    assert_eq!(step(&mut arena, TRAIN, 256), 0);
    planner.prepare(TRAIN, 512);
    assert_eq!(step(&mut arena, TRAIN, 256), 512);
    planner.prepare(TRAIN, 1024);
    assert_eq!(step(&mut arena, TRAIN, 256), 1024);
}

#[test]
fn a_kind_follows_its_own_plan_or_the_one_that_it_shares_and_else_none() {
    let (mut arena, planner) = planned();
    planner.prepare(TRAIN.variant(1), 256);
    planner.prepare(TRAIN.variant(2), 512);
    assert_eq!(step(&mut arena, TRAIN.variant(3), 256), 0);
    assert_eq!(step(&mut arena, TRAIN.variant(1), 256), 256);
    assert!(arena.share_plan(TRAIN.variant(3), TRAIN.variant(2)));
    assert_eq!(step(&mut arena, TRAIN.variant(3), 256), 512);
    // A plan of its own, which is nobody else's.
    planner.prepare(TRAIN.variant(3), 1024);
    assert_eq!(step(&mut arena, TRAIN.variant(3), 256), 1024);
    assert_eq!(step(&mut arena, TRAIN.variant(2), 256), 512);
    assert!(!arena.share_plan(TRAIN, TRAIN.variant(4)), "it has none");
    assert_eq!(step(&mut arena, TRAIN, 256), 0);
}

#[test]
fn a_planner_is_told_again_when_its_patience_has_lasted_and_the_next_step_deviates_too() {
    let (mut arena, planner) = planned();
    let (as_planned, larger) = (256, 300);
    planner.prepare(TRAIN, 512);
    *planner.refuses.lock().unwrap() = 1;
    let mut run = |lens: &[usize]| {
        for &len in lens {
            step(&mut arena, TRAIN, len);
        }
        planner.told()
    };
    assert_eq!(run(&[as_planned, larger, larger, as_planned, larger]), 0, "not in a row");
    assert_eq!(run(&[larger, larger, as_planned]), 0, "the one that was recorded was as planned");
    assert_eq!(run(&[larger, larger, larger]), 0);
    assert_eq!(run(&[larger]), 1, "and it refuses");
    assert_eq!(run(&[larger, larger]), 1, "the patience begins anew");
    assert_eq!(run(&[larger]), 2);
    assert_eq!(run(&[larger; 20]), 2, "it has one in work");
}

#[test]
fn the_deviations_of_a_plan_that_was_replaced_do_not_count() {
    let (mut arena, planner) = planned();
    let larger = 300;
    for (before, offset_bytes, patience) in [(0, 512, PATIENCE), (1, 1024, 2 * PATIENCE)] {
        planner.prepare(TRAIN, offset_bytes);
        for _ in 0..patience {
            step(&mut arena, TRAIN, larger);
            assert_eq!(planner.told(), before, "{offset_bytes}");
        }
        step(&mut arena, TRAIN, larger);
        assert_eq!(planner.told(), before + 1, "{offset_bytes}");
    }
}

// --- a planner that fits ----------------------------------------------------------------------

/// An arena that a step has grown to 8 MiB, with a planner that fits.
fn grown(reset: Reset) -> Result<(Arena<Failing<Host>>, FailSwitch, Scripted), Error> {
    let (device, switch) = failing();
    let builder = builder(device, 64 * MIB).region(RegionKind::Virtual).reset(reset);
    let mut arena = builder.build()?;
    let planner = Scripted { fits: true, ..Scripted::default() };
    arena.set_planner(Box::new(planner.clone()), PATIENCE);
    arena.scope_with(TRAIN, |step| step.alloc::<u8>(8 << 20).map(drop))?;
    assert!(arena.stats().committed_bytes >= 8 * MIB);
    Ok((arena, switch, planner))
}

#[test]
fn what_the_device_does_not_take_back_stays_and_the_step_runs() -> Result<(), Error> {
    let (mut arena, switch, planner) = grown(Reset::Keep)?;
    let before = arena.stats().committed_bytes;
    planner.prepare(TRAIN, 0);
    switch.fail_nth(Call::Decommit, 1);
    let step = |arena: &mut Arena<_>| {
        arena.scope_with(TRAIN, |step| step.alloc::<u8>(256).map(drop))?;
        Ok::<_, Error>(arena.stats().committed_bytes)
    };
    assert_eq!(step(&mut arena)?, before);
    assert_eq!(step(&mut arena)?, before, "it is tried with the next plan that is ready");
    planner.prepare(TRAIN, 0);
    assert!(step(&mut arena)? < before);
    Ok(())
}

#[test]
fn an_error_that_waits_is_not_lost_by_fitting() -> Result<(), Error> {
    let (mut arena, switch, planner) = grown(Reset::Zero)?;
    let mut guard = arena.enter()?;
    drop(guard.scope().upload(&[1_u8; 10])?);
    switch.fail_nth(Call::Fill, 1);
    drop(guard);
    planner.prepare(TRAIN, 0);
    let mut next = || arena.scope_with(TRAIN, |step| step.alloc::<u8>(256).map(drop));
    let told = next().unwrap_err();
    assert!(told.to_string().contains("fill"), "{told}");
    next()
}
