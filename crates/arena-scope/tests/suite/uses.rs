//! Every way to read or write a step's buffer is a use to a recording; so is the use of a view that was kept, and
//! use on another thread.

use arena_scope::device::Deferred;
use arena_scope::record::LastUse;
use arena_scope::{
    Alignment, Arena, Device, Error, Host, Scope, StepBuffer, Transient, View, ViewMut,
};

use crate::common::{KIB, Outcome, builder, host};
use crate::heap;

const LEN: usize = 8;

/// The last use of the first buffer of a step.
fn last_use<D: Device>(
    arena: &mut Arena<D>,
    step: impl FnOnce(&mut Scope<'_, '_, D>) -> Outcome,
) -> Result<Option<LastUse>, Error> {
    arena.record(None);
    arena.scope_named("step", step)?;
    Ok(arena.recorded("step").expect("it was recorded").requests()[0].last_use)
}

/// That it came right before this event, and was called in this file.
#[track_caller]
fn assert_here(last_use: Option<LastUse>, event: usize, name: &str) {
    let seen = last_use.map(|last| (last.before_event, last.call_site.file()));
    assert_eq!(seen, Some((event, file!())), "{name}");
}

type Whole = fn(&Scope<'_, '_>, &mut Transient<'_, f32>);

const WHOLE: [(&str, Whole); 6] = [
    ("view", |_, x| assert!(!x.view().is_empty())),
    ("view_mut", |_, x| assert!(!x.view_mut().is_empty())),
    ("as_slice", |_, x| assert!(!x.as_slice().is_empty())),
    ("as_mut_slice", |_, x| x.as_mut_slice().fill(0.0)),
    ("address", |_, x| assert!(x.address() > 0)),
    ("declare_stream", |step, x| x.declare_stream(step.device().stream()).unwrap()),
];

#[test]
fn each_access_to_a_buffer_is_a_use_of_it() -> Outcome {
    for (name, access) in WHOLE {
        let last = last_use(&mut host(64 * KIB)?, |step| {
            let mut x = step.alloc::<f32>(LEN)?; // event 1, after the opening
            drop(step.alloc::<f32>(LEN)?);
            access(step, &mut x);
            step.alloc::<f32>(LEN).map(drop)
        })?;
        assert_here(last, 4, name);
    }
    Ok(())
}

type Owned = fn(&Scope<'_, '_>, &mut StepBuffer<f32>);

const OWNED: [(&str, Owned); 2] = [
    ("view", |step, x| assert!(!x.view(step).unwrap().is_empty())),
    ("view_mut", |step, x| assert!(!x.view_mut(step).unwrap().is_empty())),
];

#[test]
fn a_buffer_without_a_lifetime_is_used_like_any_other() -> Outcome {
    for (name, access) in OWNED {
        let last = last_use(&mut host(64 * KIB)?, |step| {
            let mut x = step.alloc_owned::<f32>(LEN)?;
            drop(step.alloc::<f32>(LEN)?);
            access(step, &mut x);
            step.alloc::<f32>(LEN).map(drop)
        })?;
        assert_here(last, 4, name);
    }
    Ok(())
}

type Shared = fn(&Scope<'_, '_>, View<'_, f32>);

const SHARED: [(&str, Shared); 14] = [
    ("as_slice", |_, x| assert!(!x.as_slice().is_empty())),
    ("address", |_, x| assert!(x.address() > 0)),
    ("mark_used", |_, x| x.mark_used()),
    ("range", |_, x| assert_eq!(x.range(3..).unwrap().len(), 5)),
    ("split_at", |_, x| assert_eq!(x.split_at(3).unwrap().0.len(), 3)),
    ("parts", |_, x| assert_eq!(x.parts(2, Alignment::ONE).unwrap().count(), 2)),
    ("to_vec", |_, x| assert_eq!(x.to_vec().unwrap(), [0.0; LEN])),
    ("read_into", |_, x| x.read_into(&mut [0.0; LEN]).unwrap()),
    ("read", |step, x| assert_eq!(step.read(x).unwrap(), [0.0; LEN])),
    ("read_one", |step, x| assert!(step.read_one(x).is_err())),
    ("promote", |step, x| assert!(step.promote(x).unwrap().is_kept())),
    ("check_written", |step, x| step.check_written("x", x).unwrap()),
    ("declare_stream", |step, x| x.declare_stream(step.device().stream()).unwrap()),
    ("the end of it", |_, x| assert_eq!(x.range(LEN - 1..).unwrap().as_slice(), [0.0])),
];

#[test]
fn each_use_of_a_view_that_was_kept_is_a_use_of_its_buffer() -> Outcome {
    for (name, using) in SHARED {
        let last = last_use(&mut host(64 * KIB)?, |step| {
            let x = step.upload(&[0.0_f32; LEN])?;
            let kept = x.view();
            drop(step.alloc::<f32>(LEN)?);
            using(step, kept);
            step.alloc::<f32>(LEN).map(drop)
        })?;
        assert_here(last, 4, name);
    }
    Ok(())
}

type Exclusive = fn(ViewMut<'_, f32>, View<'_, f32>);

const EXCLUSIVE: [(&str, Exclusive); 15] = [
    ("as_slice", |x, _| assert!(!x.as_slice().is_empty())),
    ("as_mut_slice", |mut x, _| x.as_mut_slice().fill(0.0)),
    ("into_mut_slice", |x, _| x.into_mut_slice().fill(0.0)),
    ("address", |x, _| assert!(x.address() > 0)),
    ("mark_used", |x, _| x.mark_used()),
    ("view", |x, _| assert!(!x.view().is_empty())),
    ("reborrow", |mut x, _| assert!(!x.reborrow().is_empty())),
    ("range", |x, _| assert_eq!(x.range(3..).unwrap().len(), 5)),
    ("split_at_mut", |x, _| assert_eq!(x.split_at_mut(3).unwrap().0.len(), 3)),
    ("parts_mut", |x, _| assert_eq!(x.parts_mut(2, Alignment::ONE).unwrap().count(), 2)),
    ("write", |mut x, _| x.write(&[0.0; LEN]).unwrap()),
    ("copy_from", |mut x, other| x.copy_from(other).unwrap()),
    ("zero", |mut x, _| x.zero().unwrap()),
    ("fill", |mut x, _| x.fill(1.0).unwrap()),
    ("fill_bytes", |mut x, _| x.fill_bytes(1).unwrap()),
];

#[test]
fn each_use_of_an_exclusive_view_is_a_use_of_its_buffer() -> Outcome {
    for (name, using) in EXCLUSIVE {
        let last = last_use(&mut host(64 * KIB)?, |step| {
            let mut x = step.alloc::<f32>(LEN)?;
            let kept = x.view_mut();
            let other = step.upload(&[1.0_f32; LEN])?;
            using(kept, other.view());
            step.alloc::<f32>(LEN).map(drop)
        })?;
        assert_here(last, 3, name);
    }
    Ok(())
}

#[test]
fn the_source_of_a_copy_is_used_in_its_own_arena() -> Outcome {
    let (mut here, mut there) = (host(KIB)?, host(KIB)?);
    let last = last_use(&mut there, |step| {
        let from = step.upload(&[2.0_f32; LEN])?;
        let kept = from.view();
        drop(step.alloc::<f32>(LEN)?);
        here.scope(|other| other.alloc::<f32>(LEN)?.view_mut().copy_from(kept))
    })?;
    assert_here(last, 4, "copy_from");
    Ok(())
}

#[test]
fn crossing_to_another_stream_is_a_use() -> Outcome {
    let mut arena = builder(Deferred::new(1), KIB).build()?;
    let side = arena.device().new_stream();
    let last = last_use(&mut arena, |step| step.alloc::<f32>(LEN)?.declare_stream(&side))?;
    assert_here(last, 2, "declare_stream");
    Ok(())
}

#[test]
fn a_slice_that_was_kept_counts_where_it_was_taken() -> Outcome {
    let last = last_use(&mut host(64 * KIB)?, |step| {
        let x = step.upload(&[1.0_f32; LEN])?;
        let kept = x.as_slice();
        drop(step.alloc::<f32>(LEN)?);
        assert_eq!(kept[0], 1.0);
        Ok(())
    })?;
    assert_here(last, 2, "as documented");
    Ok(())
}

#[test]
fn use_on_another_thread_is_a_use_with_its_call() -> Outcome {
    let mut line = 0;
    let last = last_use(&mut host(64 * KIB)?, |step| {
        let x = step.alloc::<f32>(LEN)?;
        let _early = x.view();
        let _y = step.alloc::<f32>(LEN)?;
        std::thread::scope(|threads| {
            threads.spawn(|| {
                line = line!() + 1;
                assert_eq!(x.as_slice().len(), LEN);
            });
        });
        Ok(())
    })?;
    assert_eq!(last.map(|last| (last.before_event, last.call_site.line())), Some((3, line)));
    Ok(())
}

#[test]
fn threads_that_use_buffers_while_the_step_goes_on_lose_no_use() -> Outcome {
    let mut arena = host(64 * KIB)?;
    arena.record(None);
    for n in 0..20 {
        let name: &'static str = ["a", "b", "c", "d"][n % 4];
        arena.scope_named(name, |step| {
            let buffers: Vec<_> =
                (0..4).map(|_| step.alloc::<u8>(256)).collect::<Result<_, _>>()?;
            std::thread::scope(|threads| -> Outcome {
                for x in &buffers {
                    threads.spawn(move || {
                        for n in 0..100 {
                            let part = x.view().range(n..).unwrap();
                            assert_eq!(part.as_slice().len(), 256 - n);
                        }
                    });
                }
                (0..100).try_for_each(|_| step.alloc::<u8>(256).map(drop))
            })
        })?;
        let log = arena.recorded(name).expect("it was recorded");
        let uses: Vec<_> = log.requests().iter().map(|request| request.last_use).collect();
        assert!(uses[..4].iter().all(|last| last.is_some_and(|last| last.before_event >= 5)));
        assert!(uses[4..].iter().all(Option::is_none), "{uses:?}");
    }
    Ok(())
}

#[test]
fn steps_that_are_recorded_again_and_again_allocate_nothing_for_their_uses() -> Outcome {
    let mut arena = builder(Host::new(), 64 * KIB).build()?;
    arena.record(Some(heap::allocations));
    for _ in 0..4 {
        arena.scope_named("step", |step| {
            for _ in 0..20 {
                let x = step.alloc::<f32>(LEN)?;
                assert_eq!(x.view().range(1..)?.len() + 1, x.as_slice().len());
            }
            arena_scope::Ok(())
        })?;
    }
    let seen = arena.observed().expect("it is recorded");
    assert_eq!(seen.heap_allocations_per_step(), Some(0), "{seen:?}");
    Ok(())
}
