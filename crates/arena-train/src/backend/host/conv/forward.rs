//! Forward: direct convolution in registers, with bias, ReLU and max-pool as its epilogue.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::CLOSED;
use crate::backend::host::error::{KernelError, check_len, check_workspace};
use crate::backend::host::shape::ConvShape;
use crate::backend::host::split::part_len;

/// Vectors of output channels that one tile holds in registers.
const TILE_VECTORS: usize = 2;

/// Elements of workspace that [`conv_relu_pool_forward`] needs.
///
/// # Errors
///
/// As [`ConvShape::check`].
pub fn conv_relu_pool_workspace_len(
    shape: &ConvShape,
    _threads: usize,
) -> Result<usize, KernelError> {
    shape.check()?;
    Ok(shape.weight_len())
}

/// `output = max_pool(relu(conv(input, weight) + bias))`, and the routes that the gradients need.
///
/// Where elements of a window are equal, the first wins. A route is closed where the pooled value
/// is not positive.
///
/// Shapes: `input` `[batch, in_rows, in_cols, in_channels]`, `weight` `[out_channels, kernel,
/// kernel, in_channels]`, `bias` `[out_channels]`, `output` and `routes` `[batch, out_rows,
/// out_cols, out_channels]`.
///
/// # Errors
///
/// [`KernelError`] when the shape is not served or a slice does not fit it; nothing is written.
#[expect(clippy::too_many_arguments, reason = "operands, results and memory of one kernel")]
pub fn conv_relu_pool_forward(
    shape: &ConvShape,
    input: &[f32],
    weight: &[f32],
    bias: &[f32],
    output: &mut [f32],
    routes: &mut [u8],
    workspace: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    let needed = conv_relu_pool_workspace_len(shape, threads)?;
    check_len("input", input.len(), shape.input_len())?;
    check_len("weight", weight.len(), shape.weight_len())?;
    check_len("bias", bias.len(), shape.out_channels)?;
    check_len("output", output.len(), shape.output_len())?;
    check_len("routes", routes.len(), shape.output_len())?;
    check_workspace(workspace.len(), needed)?;
    if shape.output_len() == 0 {
        return Ok(());
    }

    let arch = Arch::new();
    let packed = &mut workspace[..needed];
    arch.dispatch(PackWeights { shape, weight, packed: &mut *packed });
    let packed = &*packed;

    let images = part_len(shape.batch, threads);
    output
        .par_chunks_mut(images * shape.out_image_len())
        .zip(routes.par_chunks_mut(images * shape.out_image_len()))
        .zip(input.par_chunks(images * shape.image_len()))
        .for_each(|((output, routes), input)| {
            arch.dispatch(Forward { shape, input, packed, bias, output, routes });
        });
    Ok(())
}

/// Reorders the weights so that a tile reads its own in one stream:
/// `[tile of out channels, kernel row, kernel column, in channel, out channel in the tile]`.
pub(super) struct PackWeights<'a> {
    pub(super) shape: &'a ConvShape,
    pub(super) weight: &'a [f32],
    pub(super) packed: &'a mut [f32],
}

impl WithSimd for PackWeights<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let filter_len = self.shape.filter_len();
        let tile = TILE_VECTORS * S::F32_LANES;
        let filters = self.weight.chunks_exact(tile * filter_len);
        for (packed, filters) in self.packed.chunks_exact_mut(tile * filter_len).zip(filters) {
            for (channel, filter) in filters.chunks_exact(filter_len).enumerate() {
                for (packed, weight) in packed[channel..].iter_mut().step_by(tile).zip(filter) {
                    *packed = *weight;
                }
            }
        }
    }
}

pub(super) struct Forward<'a> {
    pub(super) shape: &'a ConvShape,
    pub(super) input: &'a [f32],
    pub(super) packed: &'a [f32],
    pub(super) bias: &'a [f32],
    pub(super) output: &'a mut [f32],
    pub(super) routes: &'a mut [u8],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // A tile of w windows holds 4w x 2 sums, and needs a few registers more.
        if S::REGISTER_COUNT >= 32 {
            self.run::<S, 2, 8>(simd);
        } else {
            self.run::<S, 1, 4>(simd);
        }
    }
}

impl Forward<'_> {
    /// `PIXELS` must be 4 x `WINDOWS`: the language cannot say so yet.
    #[inline(always)]
    fn run<S: Simd, const WINDOWS: usize, const PIXELS: usize>(self, simd: S) {
        let shape = self.shape;
        let tile = TILE_VECTORS * S::F32_LANES;
        let images = self.input.chunks_exact(shape.image_len());
        let outputs = self.output.chunks_exact_mut(shape.out_image_len());
        let routes = self.routes.chunks_exact_mut(shape.out_image_len());
        for ((image, output), routes) in images.zip(outputs).zip(routes) {
            let tiles = self.packed.chunks_exact(tile * shape.filter_len());
            for (index, (packed, bias)) in tiles.zip(self.bias.chunks_exact(tile)).enumerate() {
                let weights = S::as_simd_f32s(packed).0.as_chunks::<TILE_VECTORS>().0;
                let bias = S::as_simd_f32s(bias).0.as_chunks::<TILE_VECTORS>().0[0];
                for window_row in 0..shape.out_rows() {
                    for window_col in (0..shape.out_cols()).step_by(WINDOWS) {
                        let origin =
                            2 * window_row * shape.row_len() + 2 * window_col * shape.in_channels;
                        let sums = convolve::<S, PIXELS>(simd, shape, &image[origin..], weights);
                        let first = (window_row * shape.out_cols() + window_col)
                            * shape.out_channels
                            + index * tile;
                        for window in 0..WINDOWS {
                            let at = first + window * shape.out_channels;
                            let (left, right) = (2 * window, 2 * window + PIXELS / 2);
                            pool_window::<S>(
                                simd,
                                [sums[left], sums[left + 1], sums[right], sums[right + 1]],
                                bias,
                                &mut output[at..][..tile],
                                &mut routes[at..][..tile],
                            );
                        }
                    }
                }
            }
        }
    }
}

/// The sums of a tile of two rows of `PIXELS / 2` output pixels each, whose top left corner's
/// receptive field begins at `corner`.
#[inline(always)]
fn convolve<S: Simd, const PIXELS: usize>(
    simd: S,
    shape: &ConvShape,
    corner: &[f32],
    weights: &[[S::f32s; TILE_VECTORS]],
) -> [[S::f32s; TILE_VECTORS]; PIXELS] {
    let run_len = shape.run_len();
    let mut sums = [[simd.splat_f32s(0.0); TILE_VECTORS]; PIXELS];
    for (row, weights) in weights.chunks_exact(run_len).enumerate() {
        // One slice for each pixel, all of the length of `weights`: no bounds check in the loop.
        let runs: [&[f32]; PIXELS] = std::array::from_fn(|pixel| {
            let (pixel_row, pixel_col) = (pixel / (PIXELS / 2), pixel % (PIXELS / 2));
            let start = (row + pixel_row) * shape.row_len() + pixel_col * shape.in_channels;
            &corner[start..][..weights.len()]
        });
        for (tap, weights) in weights.iter().enumerate() {
            for (sums, run) in sums.iter_mut().zip(&runs) {
                let value = simd.splat_f32s(run[tap]);
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = simd.mul_add_e_f32s(value, *weight, *sum);
                }
            }
        }
    }
    sums
}

/// Bias, ReLU and max-pool of one window; the window's pixels come in the order of their routes.
#[inline(always)]
fn pool_window<S: Simd>(
    simd: S,
    pixels: [[S::f32s; TILE_VECTORS]; 4],
    bias: [S::f32s; TILE_VECTORS],
    output: &mut [f32],
    routes: &mut [u8],
) {
    let outputs = S::as_mut_simd_f32s(output).0;
    let zero = simd.splat_f32s(0.0);
    // Not as wide as the widest vector there is, but nothing here is wider than 16 lanes.
    let mut lanes = [0_u32; TILE_VECTORS * 16];
    let route_vectors = S::as_mut_simd_u32s(&mut lanes[..TILE_VECTORS * S::U32_LANES]).0;
    for (vector, ((output, route), bias)) in
        outputs.iter_mut().zip(route_vectors).zip(bias).enumerate()
    {
        let mut best = pixels[0][vector];
        let mut winner = simd.splat_u32s(0);
        for (index, pixel) in (1_u32..).zip(&pixels[1..]) {
            let wins = simd.greater_than_f32s(pixel[vector], best);
            best = simd.select_f32s(wins, pixel[vector], best);
            winner = simd.select_u32s(wins, simd.splat_u32s(index), winner);
        }
        // The bias is the same for the whole window, so it is added once, to the winner.
        let value = simd.add_f32s(best, bias);
        let shut = simd.less_than_or_equal_f32s(value, zero);
        // Written so that a NaN stays a NaN: a diverged run must be seen, not clipped.
        *output = simd.select_f32s(shut, zero, value);
        *route = simd.select_u32s(shut, simd.splat_u32s(u32::from(CLOSED)), winner);
    }
    for (route, lane) in routes.iter_mut().zip(lanes) {
        // At most CLOSED, so the truncation keeps the value.
        *route = lane as u8;
    }
}
