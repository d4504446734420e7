//! Poison: memory that is stale reads as NaN.

use arena_scope::device::Call;
use arena_scope::{Arena, Device, Error, Host, Reset, ScopeOptions};
use rstest::rstest;

use crate::common::{KIB, Outcome, builder, counting};

// B078
#[test]
fn poison_covers_the_step_and_nothing_else() -> Outcome {
    let (device, counts) = counting();
    let mut arena = builder(device, 64 * KIB).build()?;
    let weights = arena.persistent_from(&[1.0_f32; 100])?;
    arena.mark()?;
    let kept = arena.persistent_from(&[2.0_f32; 100])?;
    arena.scope(|step| step.upload(&[1.0_f32; 5000]).map(drop))?;
    assert_eq!(counts.calls(Call::Fill), 0, "off by default, and then nothing is filled");

    let poison = ScopeOptions::default().reset(Reset::Poison);
    arena.scope_with(poison, |step| step.upload(&[1.0_f32; 1000]).map(drop))?;
    // From the mark to the high-water: the buffer begins at 512.
    assert_eq!((counts.calls(Call::Fill), counts.bytes(Call::Fill)), (1, 512 + 4000 - 400));
    arena.scope(|step| {
        let again = step.alloc::<f32>(5000)?;
        assert!(again.as_slice()[..1000].iter().all(|value| value.is_nan()));
        assert!(again.as_slice()[1000..].iter().all(|value| *value == 1.0));
        arena_scope::Ok(())
    })?;
    assert_eq!(weights.as_slice(), [1.0; 100]);
    assert_eq!(kept.as_slice(), [2.0; 100]);
    Ok(())
}

/// A few steps of gradient descent on y = 2x with scratch buffers; the losses.
fn losses<D: Device>(mut arena: Arena<D>) -> Result<Vec<u32>, Error> {
    let mut weight = arena.persistent_from(&[0.0_f32])?;
    let mut losses = Vec::new();
    for n in 0..20_u8 {
        losses.push(arena.scope(|step| {
            let x = step.upload(&[f32::from(n % 5), 1.0, -1.0])?;
            let w = step.read_one(weight.view())?;
            let x = step.read(x.view())?;
            let error = step.upload(&x.iter().map(|x| w * x - 2.0 * x).collect::<Vec<_>>())?;
            let (gradient, loss) = step.scope(|inner| {
                let error = inner.read(error.view())?;
                let gradient: f32 = error.iter().zip(&x).map(|(error, x)| error * x).sum();
                let scratch = inner.upload(&[gradient / 100.0])?;
                let loss: f32 = error.iter().map(|error| error * error).sum();
                arena_scope::Ok((inner.read_one(scratch.view())?, loss))
            })?;
            weight.view_mut().write(&[w - gradient])?;
            arena_scope::Ok(loss.to_bits())
        })?);
    }
    Ok(losses)
}

// B078
#[rstest]
#[case::zero(Reset::Zero)]
#[case::poison(Reset::Poison)]
fn results_are_bit_equal_under_every_policy(#[case] reset: Reset) -> Outcome {
    let run = |reset| losses(builder(Host::new(), 64 * KIB).reset(reset).build()?);
    assert_eq!(run(reset)?, run(Reset::Keep)?);
    Ok(())
}

#[test]
fn trimmed_memory_is_poisoned_again_before_it_is_used() -> Outcome {
    let mut arena = builder(Host::new(), 64 * KIB).reset(Reset::Poison).build()?;
    let all_poison = |arena: &mut Arena<Host>| {
        arena.scope(|step| {
            let all = step.alloc::<u8>(60_000)?;
            assert!(all.as_slice().iter().all(|byte| *byte == 0xff));
            arena_scope::Ok(())
        })
    };
    all_poison(&mut arena)?;
    arena.scope(|step| step.alloc::<u8>(100).map(drop))?;
    assert!(arena.trim()? > 0);
    all_poison(&mut arena)
}

#[test]
fn a_buffer_kept_in_a_poisoned_step_is_not_poisoned() -> Outcome {
    let mut arena = builder(Host::new(), 8 * KIB).reset(Reset::Poison).build()?;
    let kept = arena.scope(|step| {
        let result = step.upload(&[3.0_f32; 500])?;
        step.promote(result.view())
    })?;
    for _ in 0..2 {
        arena.scope(|step| {
            let free = usize::try_from(step.stats().free_bytes).unwrap_or(0);
            step.alloc::<u8>(free).map(drop)
        })?;
        assert_eq!(kept.as_slice(), [3.0; 500]);
    }
    Ok(())
}
