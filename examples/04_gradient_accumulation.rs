//! Gradients accumulated over micro-batches: what must outlive a micro-batch is persistent.
//!
//! A step has four micro-batches. Each works in an inner scope whose bytes are cleared when it
//! closes, and adds its gradient to a persistent accumulator, which is cleared once per step and not
//! once per micro-batch.

use arena_scope::{Arena, ByteSize, Error, Host, Reset, View, ViewMut};

const GRADIENTS: [[f32; 2]; 4] = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]];

fn main() -> Result<(), Error> {
    let builder = Arena::builder(Host::new()).capacity(ByteSize::kib(4));
    let mut arena = builder.reset(Reset::Zero).build()?;
    let mut accumulator = arena.persistent_zeroed::<f32>(2)?;
    let mut weights = arena.persistent_from(&[100.0_f32, 100.0])?;
    arena.mark()?;

    for n in 1..=2 {
        arena.scope_named("step", |step| {
            accumulator.view_mut().zero()?; // once per step

            for values in &GRADIENTS {
                step.scope_named("micro-batch", |micro| {
                    let mut gradient = micro.alloc::<f32>(2)?;
                    assert_eq!(gradient.as_slice(), [0.0, 0.0]); // cleared since it was last used
                    gradient.view_mut().write(values)?; // stands for a backward pass
                    add(gradient.view(), accumulator.view_mut());
                    arena_scope::Ok(())
                })?;
            }
            // The sum of all four: clearing the scratch of a micro-batch did not touch it.
            assert_eq!(accumulator.as_slice(), [16.0, 20.0]);

            let mut mean = step.alloc::<f32>(2)?;
            for (mean, sum) in mean.as_mut_slice().iter_mut().zip(accumulator.as_slice()) {
                *mean = sum / 4.0;
            }
            assert_eq!(mean.as_slice(), [4.0, 5.0]);
            for (weight, mean) in weights.as_mut_slice().iter_mut().zip(mean.as_slice()) {
                *weight -= mean;
            }
            println!("step {n}: sum {:?}, mean {:?}", accumulator.as_slice(), mean.as_slice());
            arena_scope::Ok(())
        })?;
    }

    assert_eq!(weights.as_slice(), [92.0, 90.0]);
    println!("weights {:?} after two steps", weights.as_slice());

    // Four micro-batches took the memory of one: they lie at the same address, one after another.
    let stats = arena.stats();
    assert_eq!(stats.peak_transient_bytes(), 512 + 8 - stats.mark_bytes);
    println!("mark {} bytes, peak {} bytes", stats.mark_bytes, stats.peak_bytes);
    Ok(())
}

fn add(from: View<'_, f32>, mut to: ViewMut<'_, f32>) {
    for (to, from) in to.as_mut_slice().iter_mut().zip(from.as_slice()) {
        *to += from;
    }
}
