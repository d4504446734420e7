//! Memory that grows per step or epoch, and why it does not here.

use arena_scope::device::{Call, Counting};
use arena_scope::{Arena, Device, Error, Host, Scope};

use crate::common::{KIB, MIB, Outcome, arena, host};

on_every_device!(
    a_thousand_steps_take_what_the_largest_takes,
    a_smaller_last_batch_does_not_ratchet,
);

/// Numbers from a fixed seed: a linear congruential generator (Knuth's MMIX constants).
fn numbers(mut seed: u64) -> impl FnMut() -> u64 {
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    }
}

// B029
fn a_thousand_steps_take_what_the_largest_takes<D: Device>(device: D) -> Outcome {
    let device = Counting::new(device);
    let counts = device.counts();
    let mut arena = arena(device, 4 * MIB)?;
    let weights = arena.persistent::<f32>(1000)?;
    arena.mark()?;
    let mut next = numbers(7);
    let mut largest = 0;
    for _ in 0..1000 {
        arena.scope(|step| {
            for _ in 0..10 {
                let _ = step.alloc::<u8>(usize::try_from(next() % 10_000).unwrap_or(0))?;
            }
            arena_scope::Ok(())
        })?;
        largest = largest.max(arena.last_step_high_water_bytes());
        let stats = arena.stats();
        assert_eq!((stats.used_bytes, stats.peak_bytes), (4000, largest));
    }
    assert_eq!(arena.resets(), 1000);
    assert_eq!((counts.calls(Call::Obtain), counts.calls(Call::Release)), (1, 0));
    drop((arena, weights));
    assert_eq!((counts.calls(Call::Obtain), counts.calls(Call::Release)), (1, 1));
    Ok(())
}

fn batch<D: Device>(arena: &mut Arena<D>, images: usize) -> Result<usize, Error> {
    arena.scope(|step| {
        let x = step.alloc::<f32>(images * 784)?;
        let hidden = step.alloc::<f32>(images * 100)?;
        let logits = step.alloc::<f32>(images * 10)?;
        let _ = (hidden, logits);
        Ok(x.len() / 784)
    })
}

// B030
fn a_smaller_last_batch_does_not_ratchet<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, MIB)?;
    assert_eq!(batch(&mut arena, 64)?, 64);
    let full = arena.stats().peak_bytes;
    for _epoch in 0..2 {
        for (items, sizes) in [(60_000, (937, 32)), (10_000, (156, 16))] {
            let mut seen = Vec::new();
            let mut left = items;
            while left > 0 {
                let size = left.min(64);
                seen.push(batch(&mut arena, size)?);
                left -= size;
                assert_eq!(arena.stats().used_bytes, 0);
            }
            let short = seen.pop();
            assert_eq!((seen.len(), short), (sizes.0, Some(sizes.1)));
            assert!(seen.iter().all(|size| *size == 64));
        }
    }
    for _ in 0..50 {
        batch(&mut arena, 64)?;
        batch(&mut arena, 37)?;
    }
    assert_eq!(arena.stats().peak_bytes, full);
    Ok(())
}

// B031
#[test]
fn an_evaluation_has_scopes_of_its_own_inside_the_epoch() -> Outcome {
    fn train(epoch: &mut Scope<'_, '_, Host>) -> Outcome {
        epoch.scope(|step| {
            let mut activations = step.alloc::<f32>(10_000)?;
            activations.as_mut_slice().fill(f32::NAN);
            let _gradients = step.alloc::<f32>(10_000)?;
            Ok(())
        })
    }
    let mut arena = host(MIB)?;
    arena.scope(|epoch| {
        let table = epoch.upload(&(0..1000_u32).collect::<Vec<_>>())?;
        let level = epoch.stats().used_bytes;
        for _ in 0..3 {
            train(epoch)?;
        }
        let training_peak = epoch.stats().peak_bytes;
        let mut hits = 0;
        for n in 0..5_u32 {
            hits += epoch.scope(|step| {
                let mut right = step.alloc_zeroed::<u32>(8000)?;
                right.as_mut_slice()[..7].fill(n);
                arena_scope::Ok(right.as_slice().iter().filter(|right| **right > 0).count())
            })?;
        }
        assert_eq!(hits, 28);
        assert_eq!(epoch.stats().peak_bytes, training_peak);
        train(epoch)?;
        assert_eq!(epoch.stats().used_bytes, level);
        assert!(table.as_slice().iter().copied().eq(0..1000));
        Ok(())
    })
}

// B090: no drop-based reclaim is promised; an inner scope with a promoted result is the way.
#[test]
fn a_shadowed_buffer_holds_its_bytes_and_an_inner_scope_does_not() -> Outcome {
    let one = usize::try_from(MIB).unwrap_or(0);
    let mut arena = host(4 * MIB)?;
    arena.scope(|step| {
        let t = step.alloc::<u8>(one)?;
        let t = step.alloc::<u8>(t.len())?;
        let _u = step.alloc::<u8>(t.len())?;
        assert_eq!(step.stats().used_bytes, 3 * MIB);
        arena_scope::Ok(())
    })?;
    arena.scope(|step| {
        let kept = step.scope(|inner| {
            let t = inner.alloc::<u8>(one)?;
            let t = inner.alloc::<u8>(t.len())?;
            inner.promote(t.view())
        })?;
        let _u = step.alloc::<u8>(kept.len())?;
        let stats = step.stats();
        assert_eq!(stats.used_bytes + stats.kept_bytes, 2 * MIB);
        Ok(())
    })
}

// A loop that keeps results on the device by `promote` and drops them does not grow either.
#[test]
fn results_that_are_promoted_and_dropped_are_reused() -> Outcome {
    let mut arena = host(64 * KIB)?;
    let mut last = None;
    for n in 0..100_u8 {
        last = Some(arena.scope(|step| step.promote(step.upload(&[n; 1000])?.view()))?);
        let kept_bytes = arena.stats().kept_bytes;
        assert!(kept_bytes <= 3 * KIB, "the new one, the one before, and a gap: {kept_bytes}");
    }
    assert_eq!(last.map(|last| last.as_slice().to_vec()), Some(vec![99; 1000]));
    Ok(())
}
