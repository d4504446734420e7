//! Steps under a plan when something goes wrong: a device refuses, somebody panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use arena_scope::device::{Call, FailSwitch, Failing};
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::record::StepEvent;
use arena_scope::{Alignment, Arena, Device, Error, Host, Reset, StepKey};

use crate::common::{KIB, Outcome, builder, failing, host};

const STEP: StepKey = StepKey::named("step");

/// A plan of slots, each (offset, size).
fn table(slots: &[(u64, u64)]) -> SlotTable {
    let alignment = Alignment::DEFAULT;
    let slot = |&(offset_bytes, bytes): &_| PlannedSlot { offset_bytes, bytes, alignment };
    SlotTable::new(&slots.iter().map(slot).collect::<Vec<_>>()).expect("the slots are right")
}

fn planned(
    slots: &[(u64, u64)],
    reset: Reset,
) -> Result<(Arena<Failing<Host>>, FailSwitch), Error> {
    let (device, switch) = failing();
    let mut arena = builder(device, 64 * KIB).reset(reset).build()?;
    arena.install_plan(STEP, table(slots))?;
    Ok((arena, switch))
}

/// Two buffers of a plan that gives the second the first one's bytes.
fn in_turn<D: Device>(arena: &mut Arena<D>) -> Result<bool, Error> {
    arena.scope_with(STEP, |scope| {
        let first = scope.alloc::<u8>(256)?;
        let at = first.address();
        drop(first);
        Ok(scope.alloc::<u8>(256)?.address() == at)
    })
}

#[test]
fn a_panic_while_a_root_scope_opens_leaves_the_arena_at_the_mark_and_the_plan_whole() -> Outcome {
    static FAILS: AtomicBool = AtomicBool::new(true);
    let mut arena = host(64 * KIB)?;
    arena.install_plan(STEP, table(&[(0, 256), (0, 256)]))?;
    arena.observe(Some(|| {
        assert!(!FAILS.load(Ordering::Relaxed), "the counter of heap allocations panics");
        0
    }));
    let step = AssertUnwindSafe(|| arena.scope_with(STEP, |_| arena_scope::Ok(())));
    let told = catch_unwind(step).unwrap_err();
    assert_eq!(told.downcast_ref(), Some(&"the counter of heap allocations panics"));
    arena.stop_observing();
    assert!(in_turn(&mut arena)?);
    // A step that ends early, which an unended one before it must not make a part of itself.
    arena.scope_with(STEP, |step| step.scope(|_| arena_scope::Ok(())))?;
    arena.scope_with(STEP, |step| {
        let first = step.alloc::<u8>(256)?;
        let second = step.alloc::<u8>(256)?;
        assert!(first.address().abs_diff(second.address()) >= 256, "{first:?} {second:?}");
        arena_scope::Ok(())
    })?;
    assert_eq!(arena.stats().used_bytes, 0);
    assert!(in_turn(&mut arena)?);
    Ok(())
}

#[test]
fn slots_that_could_not_be_cleared_are_not_given_out_again_before_the_root_has_cleared_them()
-> Outcome {
    let (mut arena, switch) = planned(&[(0, 256), (0, 256)], Reset::Zero)?;
    arena.scope_with(STEP, |step| {
        switch.fail_nth(Call::Fill, 1);
        let told = step.scope(|inner| inner.upload(&[0xff_u8; 256]).map(drop)).unwrap_err();
        assert!(told.to_string().contains("fill"), "{told}");
        step.scope(|inner| {
            assert_eq!(inner.alloc::<u8>(256)?.as_slice(), [0; 256]);
            arena_scope::Ok(())
        })
    })?;
    arena.scope_named("look", |step| {
        assert_eq!(step.alloc::<u8>(4096)?.as_slice(), [0; 4096]);
        arena_scope::Ok(())
    })?;
    assert!(in_turn(&mut arena)?, "the next step is as planned");
    Ok(())
}

#[test]
fn a_refused_fill_takes_the_request_back() -> Outcome {
    let (mut arena, switch) = planned(&[(0, 256), (256, 512)], Reset::Keep)?;
    for _ in 0..3 {
        arena.scope_with(STEP, |step| {
            switch.fail_nth(Call::CopyIn, 1);
            let told = step.upload(&[1_u8; 256]).unwrap_err();
            assert!(told.to_string().contains("copy_in"), "{told}");
            let first = step.upload(&[1_u8; 256])?;
            assert_eq!((first.offset_bytes(), step.upload(&[1_u8; 512])?.offset_bytes()), (0, 256));
            arena_scope::Ok(())
        })?;
    }
    let deviations = arena.plan_deviations(STEP).expect("a plan is installed");
    assert_eq!((deviations.total(), deviations.smaller), (0, 0));
    Ok(())
}

#[test]
fn a_plan_that_sets_the_mark_begins_to_poison_too() -> Outcome {
    let (mut arena, _) = planned(&[(0, 256)], Reset::Poison)?;
    arena.scope_with(STEP, |step| {
        assert_eq!(step.alloc::<u8>(256)?.as_slice(), [0xff; 256], "planned");
        assert_eq!(step.alloc::<u8>(256)?.as_slice(), [0xff; 256], "bumped");
        arena_scope::Ok(())
    })?;
    Ok(())
}

#[test]
fn a_buffer_of_elements_without_a_byte_is_not_taken_for_another_one() -> Outcome {
    let mut arena = host(64 * KIB)?;
    arena.record(None);
    arena.scope_with(STEP, |step| {
        let nothing = step.alloc::<()>(5)?;
        let _something = step.alloc::<u8>(256)?;
        drop(nothing);
        arena_scope::Ok(())
    })?;
    let log = arena.recorded(STEP).expect("it was recorded");
    let drops = log.events().iter().filter(|event| matches!(event, StepEvent::Drop { .. })).count();
    assert_eq!(drops, 1, "{log:?}");
    Ok(())
}
