//! The promises, each with a test of its name. Promise 1 is kept by the compiler (`compile_fail`),
//! promise 10 is measured where the heap is counted (`no_heap`); promise 8 needs streams.

use std::cell::Cell;

use arena_scope::device::{Call, Counting};
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::record::StepEvent;
use arena_scope::steady::{Divergence, NotSteady};
use arena_scope::{
    Alignment, Arena, Device, Error, ErrorKind, Host, Reset, ScopeOptions, Transient,
};
use rstest::rstest;

use crate::common::{KIB, MIB, Outcome, arena, builder, counting, failing, host, written};

on_every_device!(
    promise_2_outer_buffers_stay_usable_inside,
    promise_3_a_failed_call_changes_nothing,
    promise_4_the_address_is_aligned_and_empty_buffers_are_legal,
    promise_7_persistent_buffers_never_move,
    promise_9_equal_requests_get_equal_addresses,
);

fn promise_2_outer_buffers_stay_usable_inside<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 64 * KIB)?;
    arena.scope(|epoch| {
        let mut total = epoch.upload(&[0_u32; 4])?;
        for n in 1..=3 {
            epoch.scope(|step| {
                let x = step.upload(&[n; 4])?;
                step.scope(|micro| {
                    let y = micro.alloc::<u32>(4)?;
                    assert!(y.address() > x.address() && x.address() > total.address());
                    total.view_mut().copy_from(x.view())
                })?;
                assert_eq!(step.read(total.view())?, written::<D, _>(&[n; 4]));
                arena_scope::Ok(())
            })?;
        }
        assert_eq!(epoch.read(total.view())?, written::<D, _>(&[3_u32; 4]));
        Ok(())
    })
}

fn promise_3_a_failed_call_changes_nothing<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 4096)?;
    let weights = arena.persistent_from(&[1_u8; 100])?;
    arena.mark()?;
    let told = arena.mark().unwrap_err();
    assert!(told.to_string().contains("100"), "{told}");
    let before = arena.stats();
    assert!(arena.persistent::<u8>(5000).unwrap_err().is_exhausted());
    let told = arena.persistent_zeroed::<u64>(usize::MAX).unwrap_err();
    assert!(matches!(told.kind(), ErrorKind::TooBig { element_bytes: 8, .. }), "{told}");
    assert_eq!(arena.stats(), before);
    arena.scope(|step| {
        let x = step.upload(&[2_u8; 100])?;
        let before = step.stats();
        let mut refused = Vec::new();
        for call in 0..6 {
            let outcome = match call {
                0 => step.alloc::<u8>(5000).map(drop),
                1 => step.persistent::<u8>(4000).map(drop),
                2 => step.scope(|inner| inner.alloc::<u8>(5000).map(drop)),
                3 => step.alloc::<u64>(usize::MAX).map(drop),
                4 => step.read_one(x.view()).map(drop),
                _ => x.view().range(50..101).map(drop),
            };
            refused.push(outcome.unwrap_err());
            assert_eq!(step.stats(), before);
        }
        assert!(refused[..3].iter().all(Error::is_exhausted), "{refused:?}");
        assert!(matches!(refused[3].kind(), ErrorKind::TooBig { .. }));
        assert!(matches!(refused[4].kind(), ErrorKind::LengthMismatch { .. }));
        assert!(matches!(refused[5].kind(), ErrorKind::OutOfBounds { .. }));
        assert_eq!(step.read(x.view())?, written::<D, _>(&[2_u8; 100]));
        let rest = usize::try_from(step.stats().free_bytes).unwrap_or(0);
        assert!(step.alloc_aligned::<u8>(rest, Alignment::ONE).is_ok(), "the exact fit");
        arena_scope::Ok(())
    })?;
    assert_eq!(weights.view().to_vec()?, written::<D, _>(&[1_u8; 100]));
    Ok(())
}

fn promise_4_the_address_is_aligned_and_empty_buffers_are_legal<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 64 * KIB)?;
    let _odd = arena.persistent::<u8>(3)?;
    arena.scope(|step| {
        for log in 0..=14 {
            let alignment = Alignment::new(1 << log)?;
            let buffer = step.alloc_aligned::<u8>(3, alignment)?;
            assert!(alignment.divides(buffer.address()));
            let used = step.stats().used_bytes;
            assert_eq!(used, buffer.offset_bytes() + 3, "the size is not rounded");
            assert!(step.alloc_aligned::<u8>(0, alignment)?.is_empty());
            assert_eq!(step.stats().used_bytes, used);
        }
        Ok(())
    })
}

// Promise 5
#[test]
fn promise_5_contents_are_what_the_call_says() -> Outcome {
    let mut arena = host(64 * KIB)?;
    for _ in 0..2 {
        arena.scope(|step| {
            assert_eq!(step.alloc_zeroed::<u32>(1000)?.as_slice(), [0; 1000]);
            assert_eq!(step.upload(&[7_u32; 1000])?.as_slice(), [7; 1000]);
            // Any bytes, but initialised ones: they can be summed.
            let any = step.alloc::<u32>(1000)?;
            let _: u64 = any.as_slice().iter().map(|word| u64::from(*word)).sum();
            step.upload(&[u32::MAX; 4000]).map(drop)
        })?;
    }
    Ok(())
}

// Promise 5
#[rstest]
#[case::keep(Reset::Keep)]
#[case::zero(Reset::Zero)]
#[case::poison(Reset::Poison)]
fn promise_5_a_close_clears_from_the_scopes_start_to_its_high_water(
    #[case] reset: Reset,
) -> Outcome {
    let (device, counts) = counting();
    let mut arena = arena(device, 64 * KIB)?;
    let weights = arena.persistent_from(&[1_u8; 1000])?;
    arena.mark()?;
    let options = ScopeOptions::default().reset(reset);
    let clears = reset != Reset::Keep;
    arena.scope_with(options, |step| {
        let x = step.upload(&[2_u8; 500])?; // 1024..1524
        let before = counts.bytes(Call::Fill);
        step.scope_with(options, |inner| {
            inner.upload(&[3_u8; 100])?; // 1536..1636
            inner.scope(|innermost| innermost.upload(&[4_u8; 300]).map(drop)) // 1792..2092
        })?;
        let cleared = counts.bytes(Call::Fill) - before;
        assert_eq!(cleared, if clears { 2092 - 1524 } else { 0 });
        assert_eq!(x.as_slice(), [2; 500]);
        arena_scope::Ok(())
    })?;
    let cleared = counts.bytes(Call::Fill);
    assert_eq!(cleared, if clears { (2092 - 1524) + (2092 - 1000) } else { 0 });
    assert_eq!(weights.as_slice(), [1; 1000]);
    Ok(())
}

fn promise_7_persistent_buffers_never_move<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 64 * KIB)?;
    let first = arena.persistent_from(&[1_u8; 100])?;
    arena.mark()?;
    let mut all = vec![(first.address(), first)];
    for n in 2..10_u8 {
        let address_of_step = |arena: &mut Arena<D>| {
            arena.scope(|step| arena_scope::Ok(step.alloc::<u8>(100)?.address()))
        };
        let before = address_of_step(&mut arena)?;
        let kept = arena.scope(|step| step.promote(step.upload(&[n; 100])?.view()))?;
        all.push((kept.address(), kept));
        assert_eq!(address_of_step(&mut arena)?, before);
        if n % 4 == 0 {
            all.remove(1);
        }
        for (address, buffer) in &all {
            assert_eq!(buffer.address(), *address);
        }
    }
    let values: Vec<u8> = all
        .iter()
        .map(|(_, buffer)| Ok(buffer.view().to_vec()?[99]))
        .collect::<Result<_, Error>>()?;
    assert_eq!(values, written::<D, _>(&[1, 4, 5, 6, 7, 8, 9])[..].to_vec());
    Ok(())
}

// B056
fn promise_9_equal_requests_get_equal_addresses<D: Device>(device: D) -> Outcome {
    let device = Counting::new(device);
    let counts = device.counts();
    let mut arena = arena(device, MIB)?;
    arena.observe(None);
    let _weights = arena.persistent::<f32>(777)?;
    arena.mark()?;
    let mut step = |batch: usize| -> Result<_, Error> {
        let addresses = arena.scope_named("train", |step| {
            let x = step.alloc::<f32>(batch * 784)?;
            let inner = step.scope(|inner| {
                arena_scope::Ok([
                    inner.alloc::<u8>(batch)?.address(),
                    inner.alloc::<u8>(3)?.address(),
                ])
            })?;
            let y = step.alloc::<f32>(batch * 10)?;
            arena_scope::Ok([x.address(), inner[0], inner[1], y.address()])
        })?;
        Ok((addresses, arena.last_step_signature()))
    };
    let first = step(64)?;
    for _ in 0..100 {
        assert_eq!(step(64)?, first);
    }
    let smaller = step(32)?;
    assert_ne!(smaller.0, first.0);
    assert_ne!(smaller.1, first.1, "another layout, another signature");
    assert_eq!(step(64)?, first);
    assert_eq!(counts.calls(Call::Obtain), 1);
    Ok(())
}

fn three_steps(arena: &mut Arena<Host>, sizes: [usize; 3]) -> Result<(), NotSteady> {
    arena
        .assert_steady_state(3, |arena, n| {
            let size = sizes[usize::try_from(n).unwrap_or(0)];
            arena
                .scope_named("train", |step| {
                    let _ = step.alloc::<u8>(10)?;
                    step.scope(|inner| inner.alloc::<u8>(size).map(drop))
                })
                .map_err(Failure::Arena)
        })
        .map(drop)
        .map_err(|failure| match failure {
            Failure::Arena(error) => panic!("{error}"),
            Failure::NotSteady(not_steady) => not_steady,
        })
}

#[derive(Debug)]
enum Failure {
    Arena(Error),
    NotSteady(NotSteady),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Arena(error)
    }
}

impl From<NotSteady> for Failure {
    fn from(not_steady: NotSteady) -> Self {
        Self::NotSteady(not_steady)
    }
}

#[test]
fn promise_9_the_first_step_that_differs_is_named_with_its_request() -> Outcome {
    let mut arena = host(64 * KIB)?;
    assert_eq!(three_steps(&mut arena, [20, 20, 20]), Ok(()));
    let NotSteady::Addresses(Divergence { key, step, at: Some(at), .. }) =
        three_steps(&mut arena, [20, 20, 21]).unwrap_err()
    else {
        panic!("another promise")
    };
    assert_eq!((key.name, step, at.request), ("train", 3, 1));
    let bytes = |event| match event {
        Some(StepEvent::Alloc { bytes, offset_bytes, .. }) => Some((bytes, offset_bytes)),
        _ => None,
    };
    assert_eq!((bytes(at.expected), bytes(at.found)), (Some((20, 256)), Some((21, 256))));
    Ok(())
}

// The order of drops decides no address of the bump.
#[test]
fn promise_9_a_drop_in_another_place_is_no_difference() -> Outcome {
    let mut arena = host(64 * KIB)?;
    arena.record(None);
    for (size, drops_early) in [(20, true), (20, false), (21, false)] {
        arena.scope(|step| {
            let first = step.alloc::<u8>(10)?;
            let kept = (!drops_early).then_some(first); // Else it is dropped here.
            step.alloc::<u8>(size)?;
            drop(kept);
            arena_scope::Ok(())
        })?;
    }
    let divergence = arena.stop_observing().unwrap().divergence.unwrap();
    let at = divergence.at.unwrap();
    assert_eq!((divergence.step, at.request), (3, 1));
    assert!(matches!(at.expected, Some(StepEvent::Alloc { bytes: 20, .. })), "{at:?}");
    assert!(matches!(at.found, Some(StepEvent::Alloc { bytes: 21, .. })), "{at:?}");
    Ok(())
}

#[test]
fn promise_9_addresses_that_another_plan_gives_are_no_difference() -> Outcome {
    let mut arena = host(64 * KIB)?;
    arena.observe(None);
    let step =
        |arena: &mut Arena<Host>| arena.scope_named("train", |step| step.alloc::<u8>(10).map(drop));
    for offset_bytes in [0, 256] {
        step(&mut arena)?;
        step(&mut arena)?;
        let slot = PlannedSlot { offset_bytes, bytes: 10, alignment: Alignment::DEFAULT };
        arena.install_plan("train", SlotTable::new(&[slot]).unwrap())?;
    }
    step(&mut arena)?;
    let seen = arena.observed().unwrap();
    assert!(seen.is_stable() && seen.steps() == 5, "{seen:?}");
    arena.scope_named("train", |step| step.alloc::<u8>(11).map(drop))?;
    assert!(!arena.stop_observing().unwrap().is_stable());
    Ok(())
}

#[test]
fn promise_9_heap_allocations_of_the_first_two_steps_do_not_count() -> Outcome {
    thread_local!(static SO_FAR: Cell<u64> = const { Cell::new(0) });
    for (allocates_in, told) in [(0, 0), (1, 0), (2, 5), (3, 5)] {
        let mut arena = host(64 * KIB)?;
        arena.observe(Some(|| SO_FAR.get()));
        for n in 0..4 {
            arena.scope(|_| {
                SO_FAR.set(SO_FAR.get() + if n == allocates_in { 5 } else { 0 });
                arena_scope::Ok(())
            })?;
        }
        let seen = arena.stop_observing().unwrap();
        assert_eq!(seen.heap_allocations_per_step(), Some(told), "in step {}", allocates_in + 1);
    }
    Ok(())
}

// A request that the device refused is no part of the record, so it is not what differs.
#[test]
fn promise_9_a_refused_request_is_not_taken_for_the_difference() -> Outcome {
    let (device, switch) = failing();
    let mut arena = arena(device, 64 * KIB)?;
    arena.record(None);
    for size in [20_usize, 21] {
        arena.scope(|step| {
            if size == 21 {
                switch.fail_nth(Call::CopyIn, 1);
                let told = step.upload(&[1_u8; 7]).unwrap_err();
                assert!(told.to_string().contains("copy_in"), "{told}");
            }
            let _ = step.alloc::<u8>(10)?;
            step.alloc::<u8>(size).map(drop)
        })?;
    }
    let divergence = arena.stop_observing().and_then(|seen| seen.divergence);
    assert_eq!(divergence.and_then(|found| Some((found.step, found.at?.request))), Some((2, 1)));
    Ok(())
}

// Promise 7: a loop that keeps on making persistent buffers is reported, wherever it makes them.
#[rstest]
#[case::inside_the_step(true)]
#[case::between_the_steps(false)]
fn promise_7_a_loop_that_keeps_on_making_persistent_buffers_is_reported(
    #[case] inside: bool,
) -> Outcome {
    let mut arena = host(64 * KIB)?;
    let mut made = Vec::new();
    let outcome = arena.assert_steady_state(5, |arena, _| {
        if !inside {
            made.push(arena.persistent::<u8>(100)?);
        }
        arena.scope(|step| {
            if inside {
                made.push(step.persistent::<u8>(100)?);
            }
            step.alloc::<u8>(100).map(drop)
        })?;
        Ok::<_, Failure>(())
    });
    let Err(Failure::NotSteady(NotSteady::KeptGrows { grown_bytes, .. })) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(grown_bytes, 2 * 256, "in the fourth and the fifth step");
    Ok(())
}

#[test]
fn promise_7_a_kept_result_that_each_step_replaces_is_steady() -> Outcome {
    let mut arena = host(64 * KIB)?;
    let mut last = None;
    let seen = arena.assert_steady_state(20, |arena, _| {
        last = Some(arena.scope(|step| step.promote(step.upload(&[1_u8; 100])?.view()))?);
        Ok::<_, Failure>(())
    });
    assert!(seen.is_ok(), "{seen:?}");
    Ok(())
}

#[test]
fn promise_7_optimizer_state_that_is_born_in_the_first_step_is_steady() -> Outcome {
    let mut arena = host(64 * KIB)?;
    let mut moments = None;
    let seen = arena.assert_steady_state(5, |arena, _| {
        arena.scope(|step| {
            if moments.is_none() {
                moments = Some(step.persistent::<u8>(100)?);
            }
            step.alloc::<u8>(100).map(drop)
        })?;
        Ok::<_, Failure>(())
    });
    let seen = seen.unwrap_or_else(|failure| panic!("{failure:?}"));
    assert_eq!((seen.steps(), seen.is_stable()), (5, true));
    Ok(())
}

#[test]
fn promise_9_steps_of_different_kinds_are_compared_each_with_its_own() -> Outcome {
    let mut arena = builder(Host::new(), 64 * KIB).build()?;
    let seen = arena.steady_state(12, |arena, n| {
        let last = n % 4 == 3;
        let batch = if last { 3 } else { 64 };
        let options = ScopeOptions::named("train").variant(batch);
        arena.scope_with(options, |step| {
            let _: Transient<'_, u8> = step.alloc(usize::try_from(batch).unwrap_or(0))?;
            step.alloc::<u8>(1).map(drop)
        })
    })?;
    assert!(seen.is_stable());
    let steps: Vec<_> = seen.kinds.iter().map(|kind| (kind.key.variant, kind.steps)).collect();
    assert_eq!(steps, [(64, 9), (3, 3)]);
    assert_ne!(seen.kinds[0].signature, seen.kinds[1].signature);
    Ok(())
}
