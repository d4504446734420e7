//! Data that must outlive a step.

use arena_scope::{Device, Error, Host, Persistent, Reset, Scope, ScopeOptions};

use crate::common::{KIB, Outcome, arena, builder, host, written};

on_every_device!(persistent_buffers_asked_for_in_a_step_are_kept_at_the_top);

// B022: asked for inside a step is legal, and lands where no step reaches.
#[test]
fn weights_that_are_born_in_the_first_step_train_on() -> Outcome {
    let mut arena = builder(Host::new(), 16 * KIB).reset(Reset::Poison).build()?;
    arena.mark()?;
    let mut weights: Option<Persistent<f32>> = None;
    for _ in 0..3 {
        arena.scope(|step| {
            if weights.is_none() {
                let mut fresh = step.persistent::<f32>(4)?;
                fresh.as_mut_slice().fill(1.0);
                weights = Some(fresh);
            }
            let weights = weights.as_mut().expect("made in the first step");
            let free = usize::try_from(step.stats().free_bytes).unwrap_or(0);
            let mut scratch = step.alloc::<u8>(free)?;
            scratch.as_mut_slice().fill(0xee);
            weights.as_mut_slice().iter_mut().for_each(|weight| *weight -= 0.1);
            arena_scope::Ok(())
        })?;
        assert_eq!(arena.stats().used_bytes, 0);
    }
    let weights = weights.expect("made in the first step");
    assert!(weights.as_slice().iter().all(|weight| (weight - 0.7).abs() < 1e-6));
    Ok(())
}

fn persistent_buffers_asked_for_in_a_step_are_kept_at_the_top<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 16 * KIB)?;
    let below = arena.persistent_from(&[1_u8; 1000])?;
    arena.mark()?;
    let addresses = |step: &Scope<'_, '_, D>| -> Result<[u64; 2], Error> {
        Ok([step.alloc::<f32>(10)?.address(), step.alloc::<f32>(10)?.address()])
    };
    let before = arena.scope(|step| addresses(step))?;
    let kept = arena.scope(|step| {
        let _ = step.alloc::<f32>(10)?;
        let kept = step.persistent::<u8>(1000)?;
        assert!(kept.is_kept() && kept.offset_bytes() == 15 * KIB);
        arena_scope::Ok(kept)
    })?;
    assert_eq!(arena.stats().mark_bytes, 1000, "the mark stays where it is");
    assert_eq!(arena.stats().kept_bytes, KIB);
    assert_eq!(arena.scope(|step| addresses(step))?, before, "and so does every address");
    assert_eq!(below.view().to_vec()?, written::<D, _>(&[1_u8; 1000]));

    // Dropped: the bytes come back with the next close, not before.
    drop(kept);
    assert_eq!(arena.stats().kept_bytes, KIB);
    arena.scope(|_| arena_scope::Ok(()))?;
    assert_eq!(arena.stats().kept_bytes, 0);
    drop(below);
    arena.scope(|_| arena_scope::Ok(()))?;
    assert_eq!(arena.stats().mark_bytes, 1000, "below the mark they come back with the arena");
    Ok(())
}

// B023
#[test]
fn optimizer_state_that_appears_in_step_one_is_kept() -> Outcome {
    let (rate, beta1, beta2, epsilon) = (0.1_f64, 0.9_f64, 0.999_f64, 1e-8_f64);
    let mut arena = builder(Host::new(), 16 * KIB).reset(Reset::Zero).build()?;
    let mut parameter = arena.persistent_from(&[1.0_f64])?;
    arena.mark()?;
    let mut moments: Option<[Persistent<f64>; 2]> = None;
    let mut seen = Vec::new();
    for (n, gradient) in [1.0_f64, 0.0, 0.0].into_iter().enumerate() {
        arena.scope(|step| {
            let g = step.upload(&[gradient])?;
            if moments.is_none() {
                let mut fresh = [step.persistent::<f64>(1)?, step.persistent::<f64>(1)?];
                fresh.iter_mut().for_each(|moment| moment.as_mut_slice().fill(0.0));
                moments = Some(fresh);
            }
            let [m, v] = moments.as_mut().expect("made in step 1");
            let (m, v) = (&mut m.as_mut_slice()[0], &mut v.as_mut_slice()[0]);
            let g = g.as_slice()[0];
            *m = beta1 * *m + (1.0 - beta1) * g;
            *v = beta2 * *v + (1.0 - beta2) * g * g;
            let power = i32::try_from(n + 1).unwrap_or(i32::MAX);
            let m_hat = *m / (1.0 - beta1.powi(power));
            let v_hat = *v / (1.0 - beta2.powi(power));
            parameter.as_mut_slice()[0] -= rate * m_hat / (v_hat.sqrt() + epsilon);
            step.scope(|inner| inner.upload(&[f64::NAN; 100]).map(drop))
        })?;
        seen.push(parameter.as_slice()[0]);
        assert_eq!(arena.stats().used_bytes, arena.stats().mark_bytes);
    }
    for (seen, wanted) in seen.iter().zip([0.9, 0.832_99, 0.7812]) {
        assert!((seen - wanted).abs() < 1e-5, "{seen} for {wanted}");
    }
    Ok(())
}

// B024
#[test]
fn losses_leave_as_host_values() -> Outcome {
    let mut arena = host(KIB)?;
    let mut history = Vec::new();
    for loss in [3.0_f32, 2.0, 1.0] {
        history.push(arena.scope(|step| {
            let loss = step.upload(&[loss])?;
            step.read_one(loss.view())
        })?);
        assert_eq!(arena.stats().used_bytes, arena.stats().mark_bytes);
    }
    assert_eq!(history, [3.0, 2.0, 1.0]);
    Ok(())
}

// B025
#[test]
fn gradients_accumulate_over_micro_batches() -> Outcome {
    let mut arena = host(64 * KIB)?;
    let mut sum = arena.persistent_zeroed::<f32>(2)?;
    arena.mark()?;
    let micro = ScopeOptions::named("micro").reset(Reset::Zero);
    for _ in 0..2 {
        arena.scope(|step| {
            sum.view_mut().zero()?;
            for gradient in [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0_f32]] {
                step.scope_with(micro, |inner| {
                    let gradient = inner.upload(&gradient)?;
                    let pairs = sum.as_mut_slice().iter_mut().zip(gradient.as_slice());
                    pairs.for_each(|(sum, gradient)| *sum += gradient);
                    arena_scope::Ok(())
                })?;
            }
            assert_eq!(sum.as_slice().iter().map(|sum| sum / 4.0).collect::<Vec<_>>(), [4.0, 5.0]);
            arena_scope::Ok(())
        })?;
        assert_eq!(sum.as_slice(), [16.0, 20.0]);
    }
    Ok(())
}
