//! One region, one mark, one scope per step.
//!
//! A linear model is fitted by gradient descent. Its weights are persistent; each step's inputs,
//! predictions and gradient are transient, and after the step the cursor is back at the mark.

use arena_scope::{Arena, ByteSize, Error, Host, Scope, ViewMut};

/// Four samples of two features each, and what the weights `[2, -3]` make of them.
const SAMPLES: [f32; 8] = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, -1.0];
const TARGETS: [f32; 4] = [2.0, -3.0, -1.0, 5.0];

fn main() -> Result<(), Error> {
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;

    // Persistent buffers lie at the bottom of the region; the mark is where they end.
    let mut weights = arena.persistent_zeroed::<f32>(2)?;
    arena.mark()?;
    assert_eq!(arena.stats().mark_bytes, 8);
    println!("{} bytes of {} lie below the mark", arena.stats().mark_bytes, ByteSize::kib(4));

    // Watched, a step gets a signature: equal signature, equal addresses.
    arena.observe(None);
    let mut first = None;
    for n in 1..=8_u32 {
        let loss = arena.scope(|scope| step(scope, weights.view_mut()))?;

        // Whatever the step asked for is gone, and the next step gets the same addresses.
        assert_eq!(arena.stats().used_bytes, 8);
        let signature = arena.last_step_signature().expect("it is observed");
        assert_eq!(*first.get_or_insert(signature), signature);
        println!(
            "step {n}: loss {loss:.1e}, high-water {} bytes",
            arena.last_step_high_water_bytes()
        );
    }

    assert!((weights.as_slice()[0] - 2.0).abs() < 1e-3, "{:?}", weights.as_slice());
    assert!((weights.as_slice()[1] + 3.0).abs() < 1e-3, "{:?}", weights.as_slice());
    assert_eq!(arena.stats().driver_allocations, 1);
    println!("weights {:?}; the device was asked for memory once", weights.as_slice());
    Ok(())
}

/// Forward, backward and update. Returns the mean squared error before the update.
fn step(scope: &Scope<'_, '_>, mut weights: ViewMut<'_, f32>) -> Result<f32, Error> {
    let samples = scope.upload(&SAMPLES)?;
    let mut residuals = scope.upload(&TARGETS)?;
    let rows = samples.as_slice().as_chunks::<2>().0;
    for (residual, [x0, x1]) in residuals.as_mut_slice().iter_mut().zip(rows) {
        let [w0, w1] = [weights.view().as_slice()[0], weights.view().as_slice()[1]];
        *residual = w0 * x0 + w1 * x1 - *residual;
    }

    let mut gradient = scope.alloc_zeroed::<f32>(2)?;
    for (residual, row) in residuals.as_slice().iter().zip(rows) {
        for (gradient, x) in gradient.as_mut_slice().iter_mut().zip(row) {
            *gradient += 2.0 / 4.0 * residual * x;
        }
    }
    for (weight, gradient) in weights.as_mut_slice().iter_mut().zip(gradient.as_slice()) {
        *weight -= 0.5 * gradient;
    }

    let mut loss = scope.alloc::<f32>(1)?;
    loss.as_mut_slice()[0] = residuals.as_slice().iter().map(|r| r * r).sum::<f32>() / 4.0;
    scope.read_one(loss.view()) // a result leaves as a host value
}
