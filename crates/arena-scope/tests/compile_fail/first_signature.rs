//! The signature that everybody writes first: the output's lifetime is the scope's, and nothing says so.

use arena_scope::{Error, Scope, Transient, View};

fn relu(step: &Scope, x: View<f32>) -> Result<Transient<f32>, Error> {
    let mut y = step.alloc(x.len())?;
    for (y, x) in y.as_mut_slice().iter_mut().zip(x.as_slice()) {
        *y = x.max(0.0);
    }
    Ok(y)
}

fn main() {}
