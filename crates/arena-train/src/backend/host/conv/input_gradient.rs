//! Gradient of the input.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::CLOSED;
use super::routes::{ENTRY_LEN, OpenRoute};
use crate::backend::host::error::{KernelError, check_len, check_workspace};
use crate::backend::host::shape::ConvShape;
use crate::backend::host::split::{part_count, part_len};

/// Elements of a row of the kernel whose sums are kept in registers, where there are as many.
///
/// In elements and not in vectors, because the order in which contributions meet in an element of
/// the result follows from the blocks, and must not depend on the width of a vector.
const WIDE: usize = 80;

/// Elements of a block at the end of a row: in channels come in multiples of this.
const SHORT: usize = 16;

/// Workspace of one part: the open routes of one image sorted by pixel, and where each pixel's end.
pub(super) fn part_workspace_len(shape: &ConvShape) -> usize {
    shape.out_image_len() * ENTRY_LEN + shape.conv_rows() * shape.conv_cols() + 1
}

fn check_shape(shape: &ConvShape) -> Result<(), KernelError> {
    shape.check()?;
    if !shape.in_channels.is_multiple_of(16) {
        return Err(KernelError::Shape {
            reason: "the gradient of the input needs in channels in multiples of 16",
        });
    }
    Ok(())
}

/// Elements of workspace that [`conv_input_gradient`] needs.
///
/// # Errors
///
/// As [`ConvShape::check`], and [`KernelError::Shape`] where the input has one channel: no layer
/// lies before that one.
pub fn conv_input_gradient_workspace_len(
    shape: &ConvShape,
    threads: usize,
) -> Result<usize, KernelError> {
    check_shape(shape)?;
    Ok(part_count(shape.batch, threads) * part_workspace_len(shape))
}

/// The gradient of the input from the gradient of the pooled output.
///
/// Shapes: `weight` `[out_channels, kernel, kernel, in_channels]`, `routes` and `output_gradient`
/// `[batch, out_rows, out_cols, out_channels]`, `input_gradient` `[batch, in_rows, in_cols,
/// in_channels]`.
///
/// # Errors
///
/// [`KernelError`] when the shape is not served or a slice does not fit it; nothing is written.
pub fn conv_input_gradient(
    shape: &ConvShape,
    weight: &[f32],
    routes: &[u8],
    output_gradient: &[f32],
    input_gradient: &mut [f32],
    workspace: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    let needed = conv_input_gradient_workspace_len(shape, threads)?;
    check_len("weight", weight.len(), shape.weight_len())?;
    check_len("routes", routes.len(), shape.output_len())?;
    check_len("output gradient", output_gradient.len(), shape.output_len())?;
    check_len("input gradient", input_gradient.len(), shape.input_len())?;
    check_workspace(workspace.len(), needed)?;
    if shape.batch == 0 {
        return Ok(());
    }

    let arch = Arch::new();
    let images = part_len(shape.batch, threads);
    input_gradient
        .par_chunks_mut(images * shape.image_len())
        .zip(workspace[..needed].par_chunks_mut(part_workspace_len(shape)))
        .zip(routes.par_chunks(images * shape.out_image_len()))
        .zip(output_gradient.par_chunks(images * shape.out_image_len()))
        .for_each(|(((input_gradient, workspace), routes), output_gradient)| {
            let (list, ends) = workspace.split_at_mut(shape.out_image_len() * ENTRY_LEN);
            arch.dispatch(InputGradient {
                shape,
                weight,
                routes,
                output_gradient,
                input_gradient,
                list: bytemuck::cast_slice_mut(list),
                ends: bytemuck::cast_slice_mut(ends),
            });
        });
    Ok(())
}

pub(super) struct InputGradient<'a> {
    pub(super) shape: &'a ConvShape,
    pub(super) weight: &'a [f32],
    pub(super) routes: &'a [u8],
    pub(super) output_gradient: &'a [f32],
    pub(super) input_gradient: &'a mut [f32],
    pub(super) list: &'a mut [OpenRoute],
    pub(super) ends: &'a mut [u32],
}

impl WithSimd for InputGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let shape = self.shape;
        let out_len = shape.out_image_len();
        let inputs = self.input_gradient.chunks_exact_mut(shape.image_len());
        let outputs =
            self.routes.chunks_exact(out_len).zip(self.output_gradient.chunks_exact(out_len));
        for (input_gradient, (routes, output_gradient)) in inputs.zip(outputs) {
            sort_by_pixel(shape, routes, output_gradient, self.list, self.ends);
            input_gradient.fill(0.0);
            let run_len = shape.run_len();
            for row in 0..shape.kernel {
                let mut first = 0;
                while first < run_len {
                    let weight = &self.weight[row * run_len + first..];
                    let shift = row * shape.row_len() + first;
                    let gradient = &mut input_gradient[shift..];
                    let wide = run_len - first >= WIDE;
                    let block = Block { shape, weight, list: self.list, ends: self.ends };
                    match (S::F32_LANES, wide) {
                        (16, true) => block.scatter::<S, { WIDE / 16 }>(simd, gradient),
                        (16, false) => block.scatter::<S, { SHORT / 16 }>(simd, gradient),
                        (8, true) => block.scatter::<S, { WIDE / 8 }>(simd, gradient),
                        (8, false) => block.scatter::<S, { SHORT / 8 }>(simd, gradient),
                        (4, true) => block.scatter::<S, { WIDE / 4 }>(simd, gradient),
                        (4, false) => block.scatter::<S, { SHORT / 4 }>(simd, gradient),
                        (_, true) => block.scatter::<S, WIDE>(simd, gradient),
                        (_, false) => block.scatter::<S, SHORT>(simd, gradient),
                    }
                    first += if wide { WIDE } else { SHORT };
                }
            }
        }
    }
}

/// Lists the open routes of one image by the pixel before the pool that each leads to, with the
/// offset of the channel's filter. Pixels come window by window; `ends[i]` is where pixel `i - 1`'s
/// entries end.
#[inline(always)]
fn sort_by_pixel(
    shape: &ConvShape,
    routes: &[u8],
    gradient: &[f32],
    list: &mut [OpenRoute],
    ends: &mut [u32],
) {
    let channels = shape.out_channels;
    let filter_len = shape.filter_len();
    ends[0] = 0;
    let mut next = 0_u32;
    let windows = routes.chunks_exact(channels).zip(gradient.chunks_exact(channels));
    for ((routes, gradient), ends) in windows.zip(ends[1..].chunks_exact_mut(4)) {
        // Counting sort by route; closed routes are counted last and not kept.
        let mut counts = [0_u32; 8];
        for route in routes {
            counts[usize::from(route & 7)] += 1;
        }
        let mut starts = [0_u32; 8];
        for route in 0..4 {
            starts[route] = next;
            next += counts[route];
            ends[route] = next;
        }
        let mut offset = 0;
        for (route, value) in routes.iter().zip(gradient) {
            let route = usize::from(route & 7);
            if route < usize::from(CLOSED) {
                list[starts[route] as usize] = OpenRoute { value: *value, offset };
                starts[route] += 1;
            }
            // `ConvShape::check` holds the weights' count below 2^32.
            offset += filter_len as u32;
        }
    }
}

/// One block of one row of all filters.
struct Block<'a> {
    shape: &'a ConvShape,
    /// From the block's first element in the first filter.
    weight: &'a [f32],
    list: &'a [OpenRoute],
    ends: &'a [u32],
}

impl Block<'_> {
    /// Adds to the gradient what the block, `VECTORS` vectors wide, brings.
    #[inline(always)]
    fn scatter<S: Simd, const VECTORS: usize>(&self, simd: S, gradient: &mut [f32]) {
        let shape = self.shape;
        let len = VECTORS * S::F32_LANES;
        let (pixel, row) = (shape.in_channels, shape.row_len());
        let shifts = [0, pixel, row, row + pixel];
        for window_row in 0..shape.out_rows() {
            for window_col in 0..shape.out_cols() {
                let window = window_row * shape.out_cols() + window_col;
                let origin = 2 * window_row * row + 2 * window_col * pixel;
                for (route, shift) in shifts.into_iter().enumerate() {
                    let index = 4 * window + route;
                    let open = self.ends[index] as usize..self.ends[index + 1] as usize;
                    if open.is_empty() {
                        continue;
                    }
                    let mut sums = [simd.splat_f32s(0.0); VECTORS];
                    for open in &self.list[open] {
                        let value = simd.splat_f32s(open.value);
                        let filter = &self.weight[open.offset as usize..][..len];
                        for (sum, weight) in sums.iter_mut().zip(S::as_simd_f32s(filter).0) {
                            *sum = simd.mul_add_e_f32s(value, *weight, *sum);
                        }
                    }
                    let run = &mut gradient[origin + shift..][..len];
                    for (gradient, sum) in S::as_mut_simd_f32s(run).0.iter_mut().zip(sums) {
                        *gradient = simd.add_f32s(*gradient, sum);
                    }
                }
            }
        }
    }
}
