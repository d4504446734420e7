//! A program that cannot be probed: it begins in addresses for far more than it needs, and fits itself after its
//! first epoch.
//!
//! The region takes memory as the steps need it. When each kind of step has run once, the recorded steps are planned,
//! and what the plans do not need goes back to the system. No address changes in all this.

use arena_plan::{Options, PlannedRun};
use arena_scope::{Arena, ByteSize, Error, Host, Persistent, RegionKind};

const KIB: usize = 1 << 10;

fn main() -> Result<(), Error> {
    // 64 GiB of addresses cost nothing. Just what is needed is taken, so that the numbers below are simple.
    let builder = Arena::builder(Host::new()).capacity(ByteSize::gib(64));
    let mut arena = builder.region(RegionKind::Virtual).commit_ahead(ByteSize::kib(0)).build()?;
    let mut weights = arena.persistent_zeroed::<u8>(256 * KIB)?;
    let address = weights.address();
    assert_eq!(arena.stats().committed_bytes, 256 << 10);

    arena.record(None);
    epoch(&mut arena, &mut weights)?;
    println!("after one epoch:\n{}", arena.status());
    // Three activations and four gradients, side by side.
    assert_eq!(arena.stats().committed_bytes, (256 + 7 * 512) << 10);

    let run = PlannedRun::from_record(&arena, &Options::default());
    let given_bytes = run.fit(&mut arena)?;
    println!("given back: {} KiB", given_bytes >> 10);
    epoch(&mut arena, &mut weights)?;
    println!("planned:\n{}", arena.status());
    // The activations, and two of the gradients at a time.
    assert_eq!(arena.stats().committed_bytes, (256 + 5 * 512) << 10);
    assert_eq!(run.capacity().bytes(), (256 + 5 * 512) << 10);
    assert_eq!((weights.address(), weights.as_slice()[0]), (address, 2));

    // Between two phases nothing but the weights stays.
    arena.trim_to(0)?;
    assert_eq!(arena.stats().committed_bytes, 256 << 10);
    Ok(())
}

/// Two steps that are like each other, forwards and backwards.
fn epoch(arena: &mut Arena, weights: &mut Persistent<u8>) -> Result<(), Error> {
    for _ in 0..2 {
        arena.scope_named("train", |step| {
            let mut activations = Vec::new();
            for _layer in 0..3 {
                activations.push(step.alloc_zeroed::<u8>(512 * KIB)?);
            }
            let mut gradient = step.alloc_zeroed::<u8>(512 * KIB)?;
            while let Some(activation) = activations.pop() {
                let mut next = step.alloc_zeroed::<u8>(512 * KIB)?;
                next.view_mut().copy_from(gradient.view())?;
                gradient = next;
                drop(activation);
            }
            Ok::<(), Error>(())
        })?;
    }
    weights.as_mut_slice().iter_mut().for_each(|weight| *weight += 1);
    Ok(())
}
