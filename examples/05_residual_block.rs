//! A residual block, `y = x + W₂ relu(W₁ x)`: an outer and an inner buffer as operands of one call.
//!
//! `x` and `y` belong to the step. The temporary buffers of the block live in an inner scope, so a deep stack of
//! blocks needs the temporary memory of only one block.

use arena_scope::{Arena, ByteSize, Error, Host, Scope, Transient, View, ViewMut};

const WIDTH: usize = 64;

fn main() -> Result<(), Error> {
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(64)).build()?;
    // The first matrix negates, the second halves: relu passes the negative inputs on.
    let negate = arena.persistent_from(&diagonal(-1.0))?;
    let halve = arena.persistent_from(&diagonal(0.5))?;
    arena.mark()?;

    arena.scope(|step| {
        let ramp: Vec<f32> = (-32_i16..32).map(f32::from).collect();
        let mut x = step.upload(&ramp)?;
        let before_bytes = step.stats().used_bytes;
        for _ in 0..3 {
            // Shadowing would keep each old `x` until the step ends; assigning drops it here.
            x = residual_block(step, x.view(), negate.view(), halve.view())?;
        }

        // Each block adds half of the magnitude to a negative element, and nothing to a positive.
        assert_eq!((x.as_slice()[0], x.as_slice()[63]), (-32.0 / 8.0, 31.0));
        // Three outputs of 256 bytes are left, and no scratch.
        assert_eq!(step.stats().used_bytes - before_bytes, 3 * 256);
        println!("-32 -> {}, 31 -> {}", x.as_slice()[0], x.as_slice()[63]);
        println!("three blocks hold {} bytes", step.stats().used_bytes - before_bytes);
        arena_scope::Ok(())
    })?;

    // The last block's scratch, two buffers above its output, was the highest.
    let stats = arena.stats();
    assert_eq!(stats.peak_transient_bytes(), (1 + 3 + 2) * 256);
    println!("peak {} bytes, not {}", stats.peak_transient_bytes(), (1 + 3 + 3 * 2) * 256);
    Ok(())
}

/// The output comes from the step's scope, the scratch from one inside it.
fn residual_block<'s>(
    step: &mut Scope<'s, '_>,
    x: View<'_, f32>,
    first: View<'_, f32>,
    second: View<'_, f32>,
) -> Result<Transient<'s, f32>, Error> {
    let mut y = step.alloc::<f32>(x.len())?;
    step.scope_named("branch", |inner| {
        let mut hidden = inner.alloc::<f32>(x.len())?;
        multiply(first, x, hidden.view_mut());
        hidden.as_mut_slice().iter_mut().for_each(|h| *h = h.max(0.0));

        let mut branch = inner.alloc::<f32>(x.len())?;
        multiply(second, hidden.view(), branch.view_mut());

        // `x` and `y` are the step's, `branch` is this scope's: a view has a lifetime of its own.
        add(x, branch.view(), y.view_mut());
        arena_scope::Ok(())
    })?;
    Ok(y)
}

fn add(a: View<'_, f32>, b: View<'_, f32>, mut sum: ViewMut<'_, f32>) {
    for ((sum, a), b) in sum.as_mut_slice().iter_mut().zip(a.as_slice()).zip(b.as_slice()) {
        *sum = a + b;
    }
}

fn multiply(matrix: View<'_, f32>, vector: View<'_, f32>, mut product: ViewMut<'_, f32>) {
    let rows = matrix.as_slice().chunks_exact(vector.len());
    for (product, row) in product.as_mut_slice().iter_mut().zip(rows) {
        *product = row.iter().zip(vector.as_slice()).map(|(a, b)| a * b).sum();
    }
}

fn diagonal(value: f32) -> Vec<f32> {
    (0..WIDTH * WIDTH).map(|n| if n % (WIDTH + 1) == 0 { value } else { 0.0 }).collect()
}
