//! Scopes nest: an epoch's buffers can be used in its minibatches, whose own buffers die earlier.
//!
//! The epoch uploads a table once. Each minibatch works in a scope inside the epoch's, over the same
//! bytes every time. The best minibatch leaves as a persistent copy.

use arena_scope::{Arena, ByteSize, Error, Host, Persistent};

const TABLE: [f32; 12] = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0, 3.0, 5.0, 8.0];

fn main() -> Result<(), Error> {
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(8)).build()?;

    let best = arena.scope_named("epoch", |epoch| {
        let table = epoch.upload(&TABLE)?;
        let epoch_bytes = epoch.stats().used_bytes;
        println!("depth {}: the table, {epoch_bytes} bytes", epoch.depth());

        let mut best: Option<(f32, Persistent<f32>)> = None;
        let mut first_offset = None;
        for batch in 0..3 {
            let length = epoch.scope_named("minibatch", |minibatch| {
                // `table` belongs to the scope around this one and can be read here. Nothing can be
                // allocated from `epoch` meanwhile: it is borrowed until this scope closes.
                let input = table.view().range(batch * 4..batch * 4 + 4)?;

                let mut squares = minibatch.alloc::<f32>(4)?;
                for (square, x) in squares.as_mut_slice().iter_mut().zip(input.as_slice()) {
                    *square = x * x;
                }
                let length = squares.as_slice().iter().sum::<f32>().sqrt();

                let offset = squares.offset_bytes();
                assert_eq!(offset, *first_offset.get_or_insert(offset));
                println!("depth {}: length {length:.3} at offset {offset}", minibatch.depth());

                if best.as_ref().is_none_or(|(most, _)| length > *most) {
                    best = Some((length, minibatch.promote(squares.view())?));
                }
                arena_scope::Ok(length)
            })?;
            assert!(length > 0.0);
            // The minibatch is gone, the epoch's table is not.
            assert_eq!(epoch.stats().used_bytes, epoch_bytes);
        }
        assert_eq!(table.as_slice(), TABLE);
        arena_scope::Ok(best)
    })?;

    // The promoted copy lies at the region's top, out of the way of every scope.
    let (length, squares) = best.expect("three minibatches were looked at");
    assert!(squares.is_kept());
    assert_eq!(squares.as_slice(), [25.0, 81.0, 4.0, 36.0]);
    assert_eq!(arena.stats().used_bytes, 0);
    println!("best {length:.3}: {:?}, kept at the region's top", squares.as_slice());
    Ok(())
}
