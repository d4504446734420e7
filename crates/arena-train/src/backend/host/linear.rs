//! Linear layers, with ReLU as their epilogue.

use pulp::Arch;
use rayon::prelude::*;

use super::error::{KernelError, check_len};
use super::sgemm::{MatrixMut, MatrixRef, sgemm};
use super::shape::LinearShape;
use super::split::part_len;

/// What follows the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    Identity,
    /// `max(x, 0)`; a NaN stays a NaN.
    Relu,
}

/// A layer without an activation may have no bias.
pub(in crate::backend) fn check_bias(
    operand: &'static str,
    found: usize,
    shape: &LinearShape,
    activation: Activation,
) -> Result<(), KernelError> {
    let none = found == 0 && activation == Activation::Identity;
    if none { Ok(()) } else { check_len(operand, found, shape.out_features) }
}

/// Below this many multiplications a product is not worth a join.
const SERIAL_BELOW: usize = 1 << 18;

/// Parts to cut a product of this shape into.
fn parts(shape: &LinearShape, threads: usize) -> usize {
    let work = shape.weight_len().saturating_mul(shape.batch);
    if work < SERIAL_BELOW { 1 } else { threads }
}

/// `output = activation(input * weight^T + bias)`.
///
/// Shapes: `input` `[batch, in]`, `weight` `[out, in]`, `bias` `[out]` or empty where there is none, `output`
/// `[batch, out]`.
///
/// # Errors
///
/// [`KernelError`] when a slice does not fit the shape; nothing is written.
pub fn linear_forward(
    shape: &LinearShape,
    input: &[f32],
    weight: &[f32],
    bias: &[f32],
    activation: Activation,
    output: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    shape.check()?;
    check_len("input", input.len(), shape.input_len())?;
    check_len("weight", weight.len(), shape.weight_len())?;
    check_bias("bias", bias.len(), shape, activation)?;
    check_len("output", output.len(), shape.output_len())?;

    let (arch, images) = (Arch::new(), part_len(shape.batch, parts(shape, threads)));
    output
        .par_chunks_mut(images * shape.out_features)
        .zip(input.par_chunks(images * shape.in_features))
        .try_for_each(|(output, input)| {
            let rows = output.len() / shape.out_features;
            let input = MatrixRef::row_major(input, rows, shape.in_features)?;
            let weight = MatrixRef::row_major(weight, shape.out_features, shape.in_features)?;
            let mut product = MatrixMut::row_major(output, rows, shape.out_features)?;
            sgemm(input, weight.transposed(), &mut product, false)?;
            let rows = output.chunks_exact_mut(shape.out_features);
            arch.dispatch(
                #[inline(always)]
                || rows.for_each(|row| add_bias(row, bias, activation)),
            );
            Ok(())
        })
}

#[inline(always)]
fn add_bias(row: &mut [f32], bias: &[f32], activation: Activation) {
    for (value, bias) in row.iter_mut().zip(bias) {
        let sum = *value + bias;
        *value = match activation {
            Activation::Identity => sum,
            Activation::Relu if sum <= 0.0 => 0.0,
            Activation::Relu => sum,
        };
    }
}

/// The gradients of the weights and the bias.
///
/// The work is cut by output feature: each sum over the batch is made by one thread.
///
/// Shapes: `input` `[batch, in]`, `output_gradient` `[batch, out]` (before the activation),
/// `weight_gradient` `[out, in]`, `bias_gradient` `[out]` or empty where there is no bias.
///
/// # Errors
///
/// [`KernelError`] when a slice does not fit the shape; nothing is written.
pub fn linear_weight_gradient(
    shape: &LinearShape,
    input: &[f32],
    output_gradient: &[f32],
    weight_gradient: &mut [f32],
    bias_gradient: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    shape.check()?;
    check_len("input", input.len(), shape.input_len())?;
    check_len("output gradient", output_gradient.len(), shape.output_len())?;
    check_len("weight gradient", weight_gradient.len(), shape.weight_len())?;
    check_bias("bias gradient", bias_gradient.len(), shape, Activation::Identity)?;

    let (arch, features) = (Arch::new(), part_len(shape.out_features, parts(shape, threads)));
    let weights = |part: usize, weight_gradient: &mut [f32], bias_gradient: &mut [f32]| {
        let (first, count) = (part * features, weight_gradient.len() / shape.in_features);
        let gradient = MatrixRef::row_major(output_gradient, shape.batch, shape.out_features)?
            .columns(first, count)?;
        let input = MatrixRef::row_major(input, shape.batch, shape.in_features)?;
        let mut product = MatrixMut::row_major(weight_gradient, count, shape.in_features)?;
        sgemm(gradient.transposed(), input, &mut product, false)?;
        bias_gradient.fill(0.0);
        let rows = output_gradient.chunks_exact(shape.out_features);
        arch.dispatch(
            #[inline(always)]
            || {
                for row in rows {
                    for (sum, value) in bias_gradient.iter_mut().zip(&row[first..]) {
                        *sum += value;
                    }
                }
            },
        );
        Ok(())
    };
    let weight_parts = weight_gradient.par_chunks_mut(features * shape.in_features).enumerate();
    if bias_gradient.is_empty() {
        return weight_parts.try_for_each(|(part, gradient)| weights(part, gradient, &mut []));
    }
    weight_parts
        .zip(bias_gradient.par_chunks_mut(features))
        .try_for_each(|((part, gradient), bias)| weights(part, gradient, bias))
}

/// The gradient of the input.
///
/// Where the input is the output of a ReLU, pass it as `relu_output`: the gradient is then taken
/// through the ReLU as well, which passes it where its output is positive.
///
/// Shapes: `weight` `[out, in]`, `output_gradient` `[batch, out]` (before the activation),
/// `relu_output` and `input_gradient` `[batch, in]`.
///
/// # Errors
///
/// [`KernelError`] when a slice does not fit the shape; nothing is written.
pub fn linear_input_gradient(
    shape: &LinearShape,
    weight: &[f32],
    output_gradient: &[f32],
    relu_output: Option<&[f32]>,
    input_gradient: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    shape.check()?;
    check_len("weight", weight.len(), shape.weight_len())?;
    check_len("output gradient", output_gradient.len(), shape.output_len())?;
    check_len("input gradient", input_gradient.len(), shape.input_len())?;
    if let Some(relu_output) = relu_output {
        check_len("relu output", relu_output.len(), shape.input_len())?;
    }

    let images = part_len(shape.batch, parts(shape, threads));
    input_gradient
        .par_chunks_mut(images * shape.in_features)
        .zip(output_gradient.par_chunks(images * shape.out_features))
        .enumerate()
        .try_for_each(|(part, (input_gradient, output_gradient))| {
            let rows = input_gradient.len() / shape.in_features;
            let gradient = MatrixRef::row_major(output_gradient, rows, shape.out_features)?;
            let weight = MatrixRef::row_major(weight, shape.out_features, shape.in_features)?;
            let mut product = MatrixMut::row_major(input_gradient, rows, shape.in_features)?;
            sgemm(gradient, weight, &mut product, false)?;
            if let Some(relu_output) = relu_output {
                let outputs = &relu_output[part * images * shape.in_features..];
                for (gradient, output) in input_gradient.iter_mut().zip(outputs) {
                    // Stored, not multiplied by zero: that would keep a NaN.
                    *gradient = if *output > 0.0 { *gradient } else { 0.0 };
                }
            }
            Ok(())
        })
}
