//! Out of memory in the middle of a step: what the error says, and a retry with a smaller batch.
//!
//! A request that does not fit returns an error at once and changes nothing. `?` leaves the scope, which puts the
//! cursor back to the mark, so the next try starts clean.
//! A step that says in advance what it needs is refused before its first kernel.

use arena_scope::{Arena, ByteSize, Error, Host, Persistent, Scope, ScopeOptions};

const FEATURES: usize = 16;

fn main() -> Result<(), Error> {
    let (mut arena, mut weights) = new_arena()?;
    arena.observe(None); // so that the error can say how much was asked for before
    let mark_bytes = arena.stats().mark_bytes;

    // A batch of 128 does not fit: its inputs do, its activations do not.
    let error = arena
        .scope_named("train", |scope| step(scope, &mut weights, 128))
        .expect_err("the arena holds 12 KiB");
    println!("{error}");

    let full = error.as_exhausted().expect("nothing else is wrong");
    assert_eq!((full.asked_bytes, full.alignment.bytes()), (8192, 256));
    assert_eq!((full.capacity_bytes, full.mark_bytes), (12_288, 64));
    assert_eq!((full.used_bytes, full.free_bytes), (8448, 3840));
    assert_eq!((full.kept_bytes, full.missing_bytes), (0, 8192 - 3840));
    let scope = full.scope.as_ref().expect("a scope asked");
    assert_eq!((scope.name, scope.depth, scope.resets), ("train", 1, 0));
    assert_eq!((scope.requests, scope.largest_bytes), (Some(1), Some(8192))); // the inputs
    println!("{} more bytes would have done", full.missing_bytes);

    // The arena is at the mark, and the weights are as they were.
    assert_eq!(arena.stats().used_bytes, mark_bytes);
    assert_eq!(weights.as_slice(), [1.0; FEATURES]);

    // So try again, with half the batch each time.
    let (size, loss) = train_with_what_fits(&mut arena, &mut weights, 128)?;
    println!("a batch of {size} fits: loss {loss}");
    assert_eq!(size, 64);

    // The failed try left no trace: a run that began with 64 gives the same bits.
    let (mut arena, mut clean_weights) = new_arena()?;
    let clean_loss = arena.scope(|scope| step(scope, &mut clean_weights, 64))?;
    assert_eq!(loss.to_bits(), clean_loss.to_bits());
    assert_eq!(weights.as_slice(), clean_weights.as_slice());
    println!("a run that began with 64: loss {clean_loss}");

    // What a step takes is known from one that ran: its high-water above the mark, twice that for twice
    // the batch. A step that says so is refused before it begins.
    let needed_bytes = arena.last_step_high_water_bytes() - arena.stats().mark_bytes;
    let options = ScopeOptions::named("train").needs(2 * needed_bytes);
    let mut began = false;
    let error = arena
        .scope_with(options, |scope| {
            began = true;
            step(scope, &mut clean_weights, 128)
        })
        .expect_err("a batch of 128 does not fit");
    assert!(error.is_exhausted() && !began);
    println!("{error}");
    Ok(())
}

fn train_with_what_fits(
    arena: &mut Arena,
    weights: &mut Persistent<f32>,
    mut size: usize,
) -> Result<(usize, f32), Error> {
    loop {
        match arena.scope_named("train", |scope| step(scope, weights, size)) {
            Ok(loss) => return Ok((size, loss)),
            Err(error) if error.is_exhausted() && size > 1 => size /= 2,
            Err(error) => return Err(error),
        }
    }
}

/// Everything is asked for before the first weight is changed.
fn step(scope: &Scope<'_, '_>, weights: &mut Persistent<f32>, size: usize) -> Result<f32, Error> {
    let inputs: Vec<f32> = (0..size * FEATURES).map(|n| (n % 7) as f32 / 7.0).collect();
    let inputs = scope.upload(&inputs)?;
    let mut activations = scope.alloc::<f32>(size * FEATURES)?;

    let weighted = inputs.as_slice().iter().zip(weights.as_slice().iter().cycle());
    for (activation, (x, w)) in activations.as_mut_slice().iter_mut().zip(weighted) {
        *activation = x * w;
    }
    let loss = activations.as_slice().iter().sum::<f32>() / size as f32;
    weights.as_mut_slice().iter_mut().for_each(|weight| *weight -= 0.01 * loss);
    Ok(loss)
}

fn new_arena() -> Result<(Arena, Persistent<f32>), Error> {
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(12)).build()?;
    let weights = arena.persistent_from(&[1.0_f32; FEATURES])?;
    arena.mark()?;
    Ok((arena, weights))
}
