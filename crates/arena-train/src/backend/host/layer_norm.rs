//! Layer normalisation (Ba, Kiros and Hinton, 2016).

use pulp::Arch;
use rayon::prelude::*;

use super::error::{KernelError, check_len};
use super::math::sum;
use super::split::part_len;

/// Added to the variance before its root is taken.
pub const LAYER_NORM_EPSILON: f32 = 1e-5;

/// What the forward pass keeps of a row: its mean, and one over its standard deviation.
pub const LAYER_NORM_STATISTICS: usize = 2;

/// Below this many elements a pass is not worth a join.
const SERIAL_BELOW: usize = 1 << 14;

fn rows_of_a_part(rows: usize, width: usize, threads: usize) -> usize {
    part_len(rows, if rows * width < SERIAL_BELOW { 1 } else { threads })
}

fn rows_of(width: usize, input: &[f32]) -> Result<usize, KernelError> {
    if width == 0 {
        return Err(KernelError::Shape { reason: "a row to normalise has at least one element" });
    }
    check_len("input", input.len(), input.len() / width * width)?;
    Ok(input.len() / width)
}

/// `output = (input - mean) / sqrt(variance + epsilon) * weight + bias`, for each row.
///
/// Shapes: `input` and `output` `[rows, width]`, `weight` and `bias` `[width]`, `statistics` `[rows, 2]`.
///
/// # Errors
///
/// [`KernelError`] when a slice does not fit; nothing is written.
pub fn layer_norm_forward(
    width: usize,
    input: &[f32],
    weight: &[f32],
    bias: &[f32],
    output: &mut [f32],
    statistics: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    let rows = rows_of(width, input)?;
    check_len("weight", weight.len(), width)?;
    check_len("bias", bias.len(), width)?;
    check_len("output", output.len(), input.len())?;
    check_len("statistics", statistics.len(), rows * LAYER_NORM_STATISTICS)?;
    let arch = Arch::new();
    let part = rows_of_a_part(rows, width, threads);
    output
        .par_chunks_mut(part * width)
        .zip(statistics.par_chunks_mut(part * LAYER_NORM_STATISTICS))
        .zip(input.par_chunks(part * width))
        .for_each(|((output, statistics), input)| {
            arch.dispatch(
                #[inline(always)]
                || {
                    let rows = output.chunks_exact_mut(width).zip(input.chunks_exact(width));
                    let statistics = statistics.chunks_exact_mut(LAYER_NORM_STATISTICS);
                    for ((output, input), statistics) in rows.zip(statistics) {
                        let mean = sum([input], |[x]| x) / width as f32;
                        let variance = sum([input], |[x]| (x - mean) * (x - mean)) / width as f32;
                        let scale = 1.0 / (variance + LAYER_NORM_EPSILON).sqrt();
                        let parameters = weight.iter().zip(bias);
                        for ((output, input), (weight, bias)) in
                            output.iter_mut().zip(input).zip(parameters)
                        {
                            *output = (input - mean) * scale * weight + bias;
                        }
                        statistics.copy_from_slice(&[mean, scale]);
                    }
                },
            );
        });
    Ok(())
}

/// The gradient of the input, to which the gradient that went round the layer is added, if there is one: that of a
/// residual connection.
///
/// Shapes: `input`, `output_gradient`, `residual_gradient` and `input_gradient` `[rows, width]`, `statistics`
/// `[rows, 2]`, `weight` `[width]`.
///
/// # Errors
///
/// [`KernelError`] when a slice does not fit; nothing is written.
#[expect(clippy::too_many_arguments, reason = "each is an operand of the formula")]
pub fn layer_norm_input_gradient(
    width: usize,
    input: &[f32],
    statistics: &[f32],
    weight: &[f32],
    output_gradient: &[f32],
    residual_gradient: Option<&[f32]>,
    input_gradient: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    let rows = rows_of(width, input)?;
    check_len("statistics", statistics.len(), rows * LAYER_NORM_STATISTICS)?;
    check_len("weight", weight.len(), width)?;
    check_len("output gradient", output_gradient.len(), input.len())?;
    check_len("input gradient", input_gradient.len(), input.len())?;
    if let Some(residual) = residual_gradient {
        check_len("residual gradient", residual.len(), input.len())?;
    }
    let arch = Arch::new();
    let part = rows_of_a_part(rows, width, threads);
    input_gradient.par_chunks_mut(part * width).enumerate().for_each(|(index, input_gradient)| {
        arch.dispatch(
            #[inline(always)]
            || {
                for (row, gradient) in input_gradient.chunks_exact_mut(width).enumerate() {
                    let row = index * part + row;
                    let range = row * width..(row + 1) * width;
                    let (input, above) = (&input[range.clone()], &output_gradient[range.clone()]);
                    let [mean, scale] = [statistics[2 * row], statistics[2 * row + 1]];
                    let normal = |x: f32| (x - mean) * scale;
                    let mean_gradient =
                        sum([above, weight], |[above, weight]| above * weight) / width as f32;
                    let product = |[above, weight, x]: [f32; 3]| above * weight * normal(x);
                    let mean_product = sum([above, weight, input], product) / width as f32;
                    let operands = input.iter().zip(above).zip(weight);
                    for (gradient, ((x, above), weight)) in gradient.iter_mut().zip(operands) {
                        *gradient =
                            scale * (above * weight - mean_gradient - normal(*x) * mean_product);
                    }
                    if let Some(residual) = residual_gradient {
                        for (gradient, residual) in gradient.iter_mut().zip(&residual[range]) {
                            *gradient += residual;
                        }
                    }
                }
            },
        );
    });
    Ok(())
}

/// The gradients of the weights and biases.
///
/// The work is cut by column: each sum over the rows is made by one thread, in the rows' order.
///
/// Shapes: `input` and `output_gradient` `[rows, width]`, `statistics` `[rows, 2]`, `weight_gradient` and
/// `bias_gradient` `[width]`.
///
/// # Errors
///
/// [`KernelError`] when a slice does not fit; nothing is written.
pub fn layer_norm_weight_gradient(
    width: usize,
    input: &[f32],
    statistics: &[f32],
    output_gradient: &[f32],
    weight_gradient: &mut [f32],
    bias_gradient: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    let rows = rows_of(width, input)?;
    check_len("statistics", statistics.len(), rows * LAYER_NORM_STATISTICS)?;
    check_len("output gradient", output_gradient.len(), input.len())?;
    check_len("weight gradient", weight_gradient.len(), width)?;
    check_len("bias gradient", bias_gradient.len(), width)?;
    let arch = Arch::new();
    let part = part_len(width, if input.len() < SERIAL_BELOW { 1 } else { threads });
    weight_gradient
        .par_chunks_mut(part)
        .zip(bias_gradient.par_chunks_mut(part))
        .enumerate()
        .for_each(|(index, (weight_gradient, bias_gradient))| {
            let first = index * part;
            weight_gradient.fill(0.0);
            bias_gradient.fill(0.0);
            arch.dispatch(
                #[inline(always)]
                || {
                    for row in 0..rows {
                        let [mean, scale] = [statistics[2 * row], statistics[2 * row + 1]];
                        let from = row * width + first;
                        let range = from..from + weight_gradient.len();
                        let operands = input[range.clone()].iter().zip(&output_gradient[range]);
                        let sums = weight_gradient.iter_mut().zip(bias_gradient.iter_mut());
                        for ((weight, bias), (input, above)) in sums.zip(operands) {
                            *weight += above * ((input - mean) * scale);
                            *bias += above;
                        }
                    }
                },
            );
        });
    Ok(())
}
