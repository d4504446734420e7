//! A smaller last batch, and full size again: memory does not creep up.
//!
//! An epoch's last batch is smaller than the others. It asks for less, from the same mark, so the
//! peak is that of a full batch. Named as a variant, it is a second known kind of step.

use arena_scope::{Arena, ByteSize, Error, Host, Scope, ScopeOptions};

const FEATURES: usize = 10;

fn main() -> Result<(), Error> {
    let full_peak_bytes = peak_of(&[64])?.0;
    let (peak_bytes, losses) = peak_of(&[64, 37].repeat(50))?;

    assert_eq!(peak_bytes, full_peak_bytes);
    println!("peak of one batch of 64:      {full_peak_bytes} bytes");
    println!("peak of 64, 37, 64, 37, ...:  {peak_bytes} bytes");

    // Each mean is over its own batch: the loss of sample n is n.
    assert_eq!((losses[0], losses[1]), (31.5, 18.0));
    println!("mean losses {} and {}", losses[0], losses[1]);
    Ok(())
}

/// Runs batches of these sizes. Returns the highest cursor and each batch's mean loss.
fn peak_of(batches: &[usize]) -> Result<(u64, Vec<f32>), Error> {
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(64)).build()?;
    let weights = arena.persistent_from(&[0.1_f32; FEATURES])?;
    arena.mark()?;
    arena.observe(None);

    let mut losses = Vec::new();
    for &size in batches {
        // Name and variant together say which steps repeat each other.
        let options = ScopeOptions::named("train").variant(size as u64);
        let loss = arena.scope_with(options, |step| mean_loss(step, size, weights.as_slice()))?;
        losses.push(loss);
        assert_eq!(arena.stats().used_bytes, arena.stats().mark_bytes);
    }

    let seen = arena.stop_observing().expect("it was observed");
    assert!(seen.is_stable(), "{:?}", seen.divergence);
    for kind in &seen.kinds {
        assert_eq!(kind.steps as usize, batches.len() / seen.kinds.len());
        println!(
            "`{}` ({}): {} steps, each up to {} bytes, the same addresses every time",
            kind.key.name, kind.key.variant, kind.steps, kind.high_water_bytes
        );
    }
    Ok((arena.stats().peak_bytes, losses))
}

/// Sample `n` holds `n` ten times, and each weight is a tenth: its output, taken as loss, is `n`.
fn mean_loss(step: &Scope<'_, '_>, size: usize, weights: &[f32]) -> Result<f32, Error> {
    let samples: Vec<f32> = (0..size * FEATURES).map(|n| (n / FEATURES) as f32).collect();
    let samples = step.upload(&samples)?;

    let mut losses = step.alloc::<f32>(size)?;
    let rows = samples.as_slice().chunks_exact(FEATURES);
    for (loss, row) in losses.as_mut_slice().iter_mut().zip(rows) {
        *loss = row.iter().zip(weights).map(|(x, w)| x * w).sum::<f32>().round();
    }
    Ok(losses.as_slice().iter().sum::<f32>() / size as f32)
}
