//! The guard form: a scope that ends where its guard does.
//!
//! A closure cannot `continue` or `break` the loop around it. With a guard the loop can, and every way out closes
//! the scope. Even if a guard is leaked, the next scope gets its bytes back.

use arena_scope::{Arena, ByteSize, Error, Host, Scope};

fn main() -> Result<(), Error> {
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    let mut total = arena.persistent_zeroed::<f32>(1)?;
    arena.mark()?;
    let mark_bytes = arena.stats().mark_bytes;

    let batches = [[1.0_f32, 2.0], [f32::NAN, 1.0], [3.0, 4.0], [90.0, 9.0], [5.0, 6.0]];
    let mut skipped = 0;
    for batch in &batches {
        let mut guard = arena.enter()?;
        let sum = sum(&guard.scope(), batch)?;
        if sum.is_nan() {
            skipped += 1;
            continue; // the guard is dropped: the scope closes
        }
        if sum > 50.0 {
            break; // here as well
        }
        total.as_mut_slice()[0] += sum;
        guard.close()?; // as the drop does, but a device's refusal is told here, not later
    }
    assert_eq!((total.as_slice()[0], skipped), (10.0, 1));
    assert_eq!((arena.stats().used_bytes, arena.resets()), (mark_bytes, 4));
    println!("sum {}, {skipped} batch skipped, 4 scopes closed", total.as_slice()[0]);

    // An inner guard that is forgotten keeps its bytes until the scope around it closes.
    let mut outer = arena.enter()?;
    let mut step = outer.scope();
    let mut inner = step.enter()?;
    sum(&inner.scope(), &[1.0; 25])?;
    std::mem::forget(inner);
    assert_eq!(step.stats().used_bytes, 356);
    println!("forgotten: still at {} bytes", step.stats().used_bytes);

    // Nothing is handed out twice: the next buffer lies above the forgotten ones.
    assert_eq!(step.alloc::<u8>(1)?.offset_bytes(), 512);
    outer.close()?;
    assert_eq!(arena.stats().used_bytes, mark_bytes);
    println!("the outer scope closed: back at the mark, {mark_bytes} bytes");
    Ok(())
}

/// A function that takes the scope. Its buffers are dropped when it returns, so that the guard can
/// be closed: no buffer may be alive then.
fn sum(step: &Scope<'_, '_>, batch: &[f32]) -> Result<f32, Error> {
    let values = step.upload(batch)?;
    Ok(values.as_slice().iter().sum())
}
