//! How large must the region be? The program finds out on a device without memory.
//!
//! The loop is written once, generic over the device. On `Probe` it runs only for its shapes and gives the smallest
//! capacity. On `Host` it runs in exactly that capacity, and fails with one byte less.

use arena_scope::{Arena, ByteSize, Device, Error, Host, Persistent, Probe, View, ViewMut};

/// `moment = moment / 2 + gradient`, on a device whose memory the host can use. On the probe there is nothing to
/// compute, and `host_mut` is `None`.
fn update_moment<D: Device>(mut moment: ViewMut<'_, f32, D>, gradient: View<'_, f32, D>) {
    if let (Some(moment), Some(gradient)) = (moment.host_mut(), gradient.host()) {
        for (moment, gradient) in moment.iter_mut().zip(gradient) {
            *moment = *moment / 2.0 + gradient;
        }
    }
}

/// Three steps over 1000 parameters, with a moment that is born in the first.
fn train<D: Device>(arena: &mut Arena<D>) -> Result<f32, Error> {
    let weights = arena.persistent_from(&[1.0_f32; 1000])?;
    arena.mark()?;

    let mut moment: Option<Persistent<f32, D>> = None;
    for _ in 0..3 {
        arena.scope_named("train", |step| {
            let mut gradient = step.alloc(weights.len())?;
            gradient.view_mut().copy_from(weights.view())?; // stands for forward and backward
            let _workspace = step.alloc::<u8>(777)?;

            let moment = match &mut moment {
                Some(moment) => moment,
                none => none.insert(step.promote(gradient.view())?), // kept at the region's top
            };
            update_moment(moment.view_mut(), gradient.view());
            arena_scope::Ok(())
        })?;
    }
    let moment = moment.expect("three steps were made");
    Ok(moment.view().to_vec()?[0])
}

fn main() -> Result<(), Error> {
    // Addresses without memory: a capacity larger than any machine's costs nothing.
    let mut probe =
        Arena::builder(Probe::like(&Host::new())).capacity(ByteSize::gib(1024)).build()?;
    train(&mut probe)?;
    let needed_bytes = probe.smallest_capacity_bytes();
    println!("the probe says: {needed_bytes} bytes");

    let needed = ByteSize::bytes_exact(needed_bytes);
    let mut exact = Arena::builder(Host::new()).capacity(needed).build()?;
    let moment = train(&mut exact)?;
    assert_eq!(moment, 1.875); // 1, then halved and 1 added, three times
    println!("the host ran in exactly that: moment {moment}");

    let less = ByteSize::bytes_exact(needed_bytes - 1);
    let mut small = Arena::builder(Host::new()).capacity(less).build()?;
    let error = train(&mut small).expect_err("one byte is missing");
    let exhausted = error.as_exhausted().expect("nothing else is wrong");
    println!("one byte less: {} missing", exhausted.missing_bytes);
    println!("{error}");
    Ok(())
}
