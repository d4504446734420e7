//! Buffers without a lifetime: where they can be used, and what their drop means.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use arena_scope::device::{Call, Counting};
use arena_scope::errors::ScopeId;
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::record::StepLog;
use arena_scope::{
    Alignment, Device, Error, ErrorKind, Host, Placement, Reset, Scope, ScopeOptions, StepBuffer,
    StepKey,
};
use rstest::rstest;
use static_assertions::{assert_impl_all, assert_not_impl_any};

use crate::common::{KIB, Outcome, arena, builder, host, written};
use crate::heap;

assert_impl_all!(StepBuffer<f32>: Send, Sync);
assert_impl_all!(StepBuffer<f32, Counting<Host>>: Send, Sync);
assert_not_impl_any!(StepBuffer<f32>: Clone);

const VALUES: [f32; 3] = [1.0, 2.0, 3.0];
const STEP: StepKey = StepKey::named("step");

fn made<D: Device>(step: &Scope<'_, '_, D>) -> Result<StepBuffer<f32, D>, Error> {
    step.own(step.upload(&VALUES)?)
}

/// The two scopes that a refused use names.
fn stale<B: std::fmt::Debug>(refused: Result<B, Error>) -> (ScopeId, ScopeId) {
    match *refused.unwrap_err().kind() {
        ErrorKind::StaleBuffer { made_in, used_in } => (made_in, used_in),
        ref other => panic!("{other}"),
    }
}

/// Each way to use a buffer, and that each is refused alike.
fn refused<D: Device>(
    mut buffer: StepBuffer<f32, D>,
    step: &Scope<'_, '_, D>,
) -> (ScopeId, ScopeId) {
    let told = stale(buffer.view(step));
    assert_eq!(told, stale(buffer.view_mut(step)));
    assert_eq!(told, stale(buffer.take(step)));
    told
}

on_every_device!(
    a_buffer_is_used_in_its_scope_and_inside_it,
    a_buffer_is_refused_after_its_scope,
    a_buffer_of_an_inner_scope_is_refused_outside_and_beside_it,
    a_buffer_of_a_forgotten_scope_is_refused_around_it,
    a_buffer_of_a_forgotten_step_is_refused_in_the_next,
    a_buffer_is_refused_after_a_panic_and_after_an_error,
    a_buffer_is_refused_in_another_arena,
    an_outer_buffer_that_an_inner_scope_owns_ends_with_that,
    a_buffer_outlives_its_arena_and_holds_nothing,
    a_buffer_can_be_dropped_on_any_thread_at_any_time,
);

fn a_buffer_is_used_in_its_scope_and_inside_it<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 8 * KIB)?;
    arena.scope(|step| {
        let mut x = made(step)?;
        assert_eq!((x.len(), x.is_empty()), (3, false));
        assert_eq!(x.view(step)?.to_vec()?, written::<D, _>(&VALUES));
        step.scope(|inner| {
            x.view_mut(inner)?.write(&[4.0, 5.0, 6.0])?;
            inner.scope(|deeper| {
                assert_eq!(x.view(deeper)?.to_vec()?, written::<D, _>(&[4.0, 5.0, 6.0]));
                arena_scope::Ok(())
            })
        })?;
        let x = x.take(step)?;
        assert_eq!(x.view().to_vec()?, written::<D, _>(&[4.0, 5.0, 6.0]));
        let empty = step.alloc_owned::<f32>(0)?;
        assert!(empty.is_empty() && empty.view(step)?.is_empty());
        arena_scope::Ok(())
    })
}

fn a_buffer_is_refused_after_its_scope<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 8 * KIB)?;
    let late = arena.scope_named("train", |step| made(step))?;
    arena.scope_named("evaluate", |step| {
        let _same_bytes = step.upload(&[9.0_f32; 3])?;
        let (made_in, used_in) = refused(late, step);
        assert_eq!((made_in.name, made_in.depth, made_in.number), ("train", 1, 1));
        assert_eq!((used_in.name, used_in.depth, used_in.number), ("evaluate", 1, 2));
        assert_eq!(made_in.arena, used_in.arena);
        arena_scope::Ok(())
    })
}

fn a_buffer_of_an_inner_scope_is_refused_outside_and_beside_it<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 8 * KIB)?;
    arena.scope(|step| {
        let inner = |scope: &mut Scope<'_, '_, D>| made(scope);
        let [outside, beside, below] = [step.scope(inner)?, step.scope(inner)?, step.scope(inner)?];
        assert_eq!(stale(outside.view(step)).0.depth, 2);
        step.scope(|sibling| {
            assert_eq!(stale(beside.view(sibling)).1.depth, 2);
            sibling.scope(|deeper| {
                assert_eq!(stale(below.view(deeper)).1.depth, 3);
                arena_scope::Ok(())
            })
        })
    })
}

fn a_buffer_of_a_forgotten_scope_is_refused_around_it<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 8 * KIB)?;
    arena.scope(|step| {
        let mut guard = step.enter()?;
        let inner = made(&guard.scope())?;
        std::mem::forget(guard);
        // Its frame is open until the next scope opens, and its bytes are not reused; but nobody may
        // hold on to them from out here.
        let (made_in, used_in) = stale(inner.view(step));
        assert_eq!((made_in.depth, used_in.depth), (2, 1));
        step.scope(|sibling| {
            refused(inner, sibling);
            arena_scope::Ok(())
        })
    })
}

fn a_buffer_of_a_forgotten_step_is_refused_in_the_next<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 8 * KIB)?;
    let mut guard = arena.enter()?;
    let late = made(&guard.scope())?;
    std::mem::forget(guard);
    arena.scope(|step| {
        refused(late, step);
        arena_scope::Ok(())
    })
}

fn a_buffer_is_refused_after_a_panic_and_after_an_error<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 8 * KIB)?;
    let mut field = None;
    let step = AssertUnwindSafe(|| {
        arena.scope(|step| -> Result<(), Error> {
            field = Some(made(step)?);
            resume_unwind(Box::new("asked for"))
        })
    });
    catch_unwind(step).unwrap_err();
    let failed = arena.scope(|step| {
        refused(field.take().expect("it was made"), step);
        field = Some(made(step)?);
        step.alloc::<u8>(1 << 20).map(drop)
    });
    assert!(failed.unwrap_err().is_exhausted());
    arena.scope(|step| {
        refused(field.take().expect("it was made"), step);
        arena_scope::Ok(())
    })
}

fn a_buffer_is_refused_in_another_arena<D: Device>(device: D) -> Outcome {
    let mut mine = arena(device, 8 * KIB)?;
    let mut other = arena(Counting::new(Host::new()), 8 * KIB)?;
    let mut other_too = arena(Counting::new(Host::new()), 8 * KIB)?;
    mine.scope(|_| arena_scope::Ok(()))?;
    other.scope_named("theirs", |theirs| {
        let mut x = made(theirs)?;
        let t = theirs.upload(&VALUES)?;
        other_too.scope_named("mine", |mine| {
            let told = [
                x.view(mine).map(drop).unwrap_err(),
                x.view_mut(mine).map(drop).unwrap_err(),
                x.take(mine).map(drop).unwrap_err(),
                mine.own(t).map(drop).unwrap_err(),
            ];
            for told in told {
                let ErrorKind::ForeignBuffer { made_in, used_in } = *told.kind() else {
                    panic!("{told}")
                };
                assert_eq!((made_in.name, used_in.name), ("theirs", "mine"));
                assert_ne!(made_in.arena, used_in.arena);
            }
            arena_scope::Ok(())
        })
    })
}

fn an_outer_buffer_that_an_inner_scope_owns_ends_with_that<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 8 * KIB)?;
    arena.scope(|step| {
        let x = step.upload(&VALUES)?;
        let late = step.scope(|inner| {
            let x = inner.own(x)?;
            assert_eq!(x.view(inner)?.to_vec()?, written::<D, _>(&VALUES));
            arena_scope::Ok(x)
        })?;
        refused(late, step);
        arena_scope::Ok(())
    })
}

fn a_buffer_outlives_its_arena_and_holds_nothing<D: Device>(device: D) -> Outcome {
    let device = Counting::new(device);
    let counts = device.counts();
    let mut arena = arena(device, 8 * KIB)?;
    let late = arena.scope(|step| made(step))?;
    drop(arena);
    assert_eq!(counts.calls(Call::Release), 1);
    drop(late);
    Ok(())
}

fn a_buffer_can_be_dropped_on_any_thread_at_any_time<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 8 * KIB)?;
    for _ in 0..3 {
        let late = arena.scope_with(STEP, |step| {
            let (early, late) = (made(step)?, made(step)?);
            std::thread::spawn(move || drop(early)).join().expect("it only drops");
            assert_eq!(made(step)?.view(step)?.to_vec()?, written::<D, _>(&VALUES));
            arena_scope::Ok(late)
        })?;
        std::thread::spawn(move || drop(late)).join().expect("it only drops");
    }
    Ok(())
}

// --- what a drop means ------------------------------------------------------------------------------

/// A step whose activations are handed on from layer to layer, in either form; the largest of them are never
/// alive together. What it read.
fn layers(step: &mut Scope<'_, '_>, owned: bool) -> Result<f32, Error> {
    let mut activations = Vec::with_capacity(4);
    let mut cached = Vec::with_capacity(4);
    for n in 1..=4_u8 {
        let mut x = step.alloc::<f32>(64)?;
        x.as_mut_slice().fill(f32::from(n));
        if owned { cached.push(step.own(x)?) } else { activations.push(x) }
    }
    step.scope(|inner| {
        let scratch = inner.alloc_owned::<f32>(100)?;
        drop(scratch);
        inner.alloc_owned::<f32>(100).map(drop)
    })?;
    let mut sum = 0.0;
    for n in (0..4).rev() {
        let mut gradient = step.alloc::<f32>(64)?;
        let x = if owned { cached.remove(n).take(step)? } else { activations.remove(n) };
        gradient.as_mut_slice().copy_from_slice(x.as_slice());
        drop(x);
        sum = 2.0 * sum + gradient.as_slice()[63];
        if owned {
            drop(step.own(gradient)?);
        }
    }
    Ok(sum)
}

fn recorded(owned: bool) -> Result<StepLog, Error> {
    let mut arena = host(64 * KIB)?;
    arena.record(None);
    arena.scope_with(STEP, |step| layers(step, owned))?;
    Ok(arena.recorded(STEP).expect("it was recorded"))
}

#[test]
fn a_recording_learns_the_same_from_both_forms() -> Outcome {
    assert_eq!(recorded(true)?.events(), recorded(false)?.events());
    Ok(())
}

/// Activations side by side; gradients where there is room by then.
fn plan() -> SlotTable {
    let offsets = [0, 256, 512, 768, 1024, 1024, 1024, 768, 512, 256];
    let slot = |(n, offset_bytes): (usize, u64)| PlannedSlot {
        offset_bytes,
        bytes: if n == 4 || n == 5 { 400 } else { 256 },
        alignment: Alignment::DEFAULT,
    };
    SlotTable::new(&offsets.into_iter().enumerate().map(slot).collect::<Vec<_>>()).unwrap()
}

#[rstest]
fn under_a_plan_both_forms_get_the_same_addresses_and_allocate_nothing(
    #[values(Reset::Keep, Reset::Zero)] reset: Reset,
) -> Outcome {
    let mut seen = Vec::new();
    for owned in [false, true] {
        let mut arena = builder(Host::new(), 2 * KIB).reset(reset).build()?;
        arena.install_plan(STEP, plan())?;
        for n in 0..6 {
            let before = heap::allocations();
            let read = arena.scope_with(STEP, |step| layers(step, owned))?;
            let of_the_program = 2; // its two lists
            if n >= 2 {
                assert_eq!(heap::allocations() - before, of_the_program, "step {n}");
            }
            seen.push((
                read.to_bits(),
                arena.last_step_signature(),
                arena.last_step_high_water_bytes(),
            ));
        }
        assert_eq!(arena.plan_deviations(STEP).map(|seen| seen.total()), Some(0), "{owned}");
    }
    assert!(seen.iter().all(|step| *step == seen[0]), "{seen:?}");
    Ok(())
}

#[test]
fn a_late_drop_does_not_free_the_bytes_of_a_later_buffer() -> Outcome {
    let slot = PlannedSlot { offset_bytes: 0, bytes: 256, alignment: Alignment::DEFAULT };
    let mut arena = host(64 * KIB)?;
    arena.install_plan(STEP, SlotTable::new(&[slot; 2]).unwrap())?;
    for _ in 0..4 {
        let late = arena.scope_with(STEP, |step| step.alloc_owned::<u8>(256))?;
        arena.scope_with(STEP, |step| {
            let first = step.own(step.upload(&[1_u8; 256])?)?;
            drop(late);
            let _second = step.upload(&[2_u8; 256])?;
            assert_eq!(first.view(step)?.as_slice(), [1; 256]);
            arena_scope::Ok(())
        })?;
    }
    Ok(())
}

#[rstest]
fn drops_wait_in_no_list_that_grows(#[values(false, true)] observed: bool) -> Outcome {
    let mut arena = host(64 * KIB)?;
    if observed {
        arena.observe(None);
    }
    let mut field = None;
    for n in 0..10 {
        let before = heap::allocations();
        arena.scope_with(STEP, |step| {
            for _ in 0..50 {
                field = Some(step.alloc_owned::<u8>(8)?); // the last one is dropped in the next step
            }
            arena_scope::Ok(())
        })?;
        if n >= 2 {
            assert_eq!(heap::allocations() - before, 0, "step {n}");
        }
    }
    Ok(())
}

#[rstest]
fn both_forms_give_the_same_under_each_placement(
    #[values(
        Placement::Bump,
        Placement::Separate,
        Placement::Unguarded,
        Placement::Shuffled { seed: 7 }
    )]
    placement: Placement,
) -> Outcome {
    let mut arena = builder(Host::new(), 64 * KIB).placement(placement).build()?;
    let options = ScopeOptions::from(STEP).reset(Reset::Poison);
    for _ in 0..3 {
        let owned = arena.scope_with(options, |step| layers(step, true))?;
        let plain = arena.scope_with(options, |step| layers(step, false))?;
        assert_eq!(owned.to_bits(), plain.to_bits());
    }
    Ok(())
}
