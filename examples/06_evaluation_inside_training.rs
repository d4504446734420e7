//! Evaluation in the middle of an epoch: a scope for each batch, and only the hits leave it.
//!
//! A perceptron learns whether the first of two numbers is the larger one. The epoch's scope holds
//! the centre of the inputs; training steps and evaluation batches are scopes inside it.

use arena_scope::{Arena, ByteSize, Error, Host, Persistent, Scope, Transient, View};

fn main() -> Result<(), Error> {
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(16)).build()?;
    let mut weights = arena.persistent_zeroed::<f32>(2)?;
    arena.mark()?;

    arena.scope_named("epoch", |epoch| {
        let centre = epoch.upload(&[50.0_f32, 50.0])?;
        let epoch_bytes = epoch.stats().used_bytes;

        for n in 0..3 {
            train(epoch, &mut weights, centre.view(), n)?;
        }
        let training_peak_bytes = epoch.stats().peak_bytes;

        let mut hits = 0; // on the host
        for n in 0..5 {
            hits += epoch.scope_named("evaluate", |batch| {
                let (inputs, labels) = batch_of::<32>(100 + n);
                let outputs = predict(batch, &inputs, weights.view(), centre.view())?;
                let pairs = outputs.as_slice().iter().zip(&labels);
                arena_scope::Ok(pairs.filter(|(output, label)| **output * **label > 0.0).count())
            })?;
        }
        println!("{hits} of 160 right after three steps");
        assert!(hits > 144, "{hits}");

        // Evaluation needed no more memory than training, and left nothing behind.
        println!("peak {training_peak_bytes} bytes before, {} after", epoch.stats().peak_bytes);
        assert_eq!(epoch.stats().peak_bytes, training_peak_bytes);
        assert_eq!(epoch.stats().used_bytes, epoch_bytes);
        assert_eq!(centre.as_slice(), [50.0, 50.0]);

        train(epoch, &mut weights, centre.view(), 3)?; // and training goes on
        println!("the epoch's own buffers: {epoch_bytes} bytes, unchanged");
        arena_scope::Ok(())
    })
}

/// One training step, in a scope inside the epoch's.
fn train(
    epoch: &mut Scope<'_, '_>,
    weights: &mut Persistent<f32>,
    centre: View<'_, f32>,
    n: u32,
) -> Result<(), Error> {
    epoch.scope_named("train", |step| {
        let (inputs, labels) = batch_of::<64>(n);
        let outputs = predict(step, &inputs, weights.view(), centre)?;
        let mut gradient = step.alloc_zeroed::<f32>(2)?;
        for ((input, label), output) in inputs.iter().zip(&labels).zip(outputs.as_slice()) {
            if output * label <= 0.0 {
                let pairs = gradient.as_mut_slice().iter_mut().zip(input);
                pairs.zip(centre.as_slice()).for_each(|((g, x), c)| *g += label * (x - c));
            }
        }
        let pairs = weights.as_mut_slice().iter_mut().zip(gradient.as_slice());
        pairs.for_each(|(weight, gradient)| *weight += gradient);
        Ok(())
    })
}

/// One output for each input, in the caller's scope.
fn predict<'s>(
    scope: &Scope<'s, '_>,
    inputs: &[[f32; 2]],
    weights: View<'_, f32>,
    centre: View<'_, f32>,
) -> Result<Transient<'s, f32>, Error> {
    let inputs = scope.upload(inputs)?;
    let mut outputs = scope.alloc(inputs.len())?;
    let (weights, centre) = (weights.as_slice(), centre.as_slice());
    for (output, [x0, x1]) in outputs.as_mut_slice().iter_mut().zip(inputs.as_slice()) {
        *output = weights[0] * (x0 - centre[0]) + weights[1] * (x1 - centre[1]);
    }
    Ok(outputs)
}

/// Pairs of different numbers below 101, and 1 or -1 for each.
fn batch_of<const SIZE: usize>(n: u32) -> ([[f32; 2]; SIZE], [f32; SIZE]) {
    let at = |i: usize| (n * 64 + i as u32) * 37;
    let inputs =
        std::array::from_fn(|i| [(at(i) % 101) as f32, (at(i) / 101 * 53 % 100) as f32 + 0.5]);
    (inputs, inputs.map(|[x0, x1]| if x0 > x1 { 1.0 } else { -1.0 }))
}
