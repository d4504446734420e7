//! Buffers as operands of other crates' arrays, on the host.
//!
//! A buffer is a slice, so `ndarray` and `faer` lay a shape over its memory without a copy. Their results go
//! into the arena's buffers likewise. The arena knows no shapes: they stay the program's own.

use std::error::Error;

use arena_scope::{Arena, ByteSize, Host, View, ViewMut};
use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, ShapeError, aview1};

const BATCH: usize = 2;
const INPUTS: usize = 3;
const OUTPUTS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    let weights: Vec<f32> = (0..INPUTS * OUTPUTS).map(|n| n as f32).collect();
    let weights = arena.persistent_from(&weights)?;

    arena.scope(|step| -> Result<(), Box<dyn Error>> {
        let x = step.upload(&[1.0_f32, 0.0, 2.0, -1.0, 1.0, 0.5])?;
        let mut y = step.alloc::<f32>(BATCH * OUTPUTS)?;
        let wanted = [16.0, 19.0, 22.0, 25.0, 8.0, 8.5, 9.0, 9.5];

        product_by_ndarray(x.view(), weights.view(), y.view_mut())?;
        assert_eq!(y.as_slice(), wanted);

        y.view_mut().fill(f32::NAN)?;
        product_by_faer(x.view(), weights.view(), y.view_mut());
        assert_eq!(y.as_slice(), wanted);

        // Both read where the buffer lies.
        let address = x.as_slice().as_ptr();
        assert_eq!(ArrayView2::from_shape((BATCH, INPUTS), x.as_slice())?.as_ptr(), address);
        assert_eq!(MatRef::from_row_major_slice(x.as_slice(), BATCH, INPUTS).as_ptr(), address);

        // All of a crate's operations on views work, here a sum over the batch. What they return is on the
        // heap; `upload` brings it into the step.
        let y = ArrayView2::from_shape((BATCH, OUTPUTS), y.as_slice())?;
        let sums = y.sum_axis(ndarray::Axis(0));
        let sums = step.upload(sums.as_slice().ok_or("a sum is contiguous")?)?;
        assert_eq!(aview1(sums.as_slice()), aview1(&[24.0, 27.5, 31.0, 34.5]));
        println!("ndarray and faer agree on {:?}", step.read(sums.view())?);
        Ok(())
    })?;
    Ok(())
}

/// `y = x * weights`
fn product_by_ndarray(
    x: View<'_, f32>,
    weights: View<'_, f32>,
    mut y: ViewMut<'_, f32>,
) -> Result<(), ShapeError> {
    let x = ArrayView2::from_shape((BATCH, INPUTS), x.as_slice())?;
    let weights = ArrayView2::from_shape((INPUTS, OUTPUTS), weights.as_slice())?;
    let mut y = ArrayViewMut2::from_shape((BATCH, OUTPUTS), y.as_mut_slice())?;
    general_mat_mul(1.0, &x, &weights, 0.0, &mut y);
    Ok(())
}

/// The same. `faer` panics where a slice has another length than its shape.
fn product_by_faer(x: View<'_, f32>, weights: View<'_, f32>, mut y: ViewMut<'_, f32>) {
    let x = MatRef::from_row_major_slice(x.as_slice(), BATCH, INPUTS);
    let weights = MatRef::from_row_major_slice(weights.as_slice(), INPUTS, OUTPUTS);
    let y = MatMut::from_row_major_slice_mut(y.as_mut_slice(), BATCH, OUTPUTS);
    matmul(y, Accum::Replace, x, weights, 1.0, Par::Seq);
}
