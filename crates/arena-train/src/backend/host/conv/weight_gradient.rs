//! Gradient of the weights and the bias.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::routes::{ENTRY_LEN, OpenRoute, add_open, list_channel};
use crate::backend::host::error::{KernelError, check_len, check_workspace};
use crate::backend::host::shape::ConvShape;
use crate::backend::host::split::{part_count, part_len};

/// Images whose routes are walked for one load of a filter's sums. Two images of the second layer
/// are what a first-level cache holds.
const GROUP: usize = 2;

/// Widest vector in `f32` elements: what a load at an image's end may read beyond it.
const MAX_LANES: usize = 16;

/// Elements of a vector that suits the short runs of a one-channel image.
const NARROW_LANES: usize = 8;

/// The workspace of one part: lists of open routes, one image's bias sums, padded images, padded
/// filter sums.
pub(super) struct PartLens {
    pub(super) list: usize,
    pub(super) bias: usize,
    pub(super) images: usize,
    pub(super) sums: usize,
}

impl PartLens {
    pub(super) fn new(shape: &ConvShape, channels: usize) -> Self {
        let windows = shape.out_rows() * shape.out_cols();
        let list = GROUP * (windows + 1) * ENTRY_LEN;
        if shape.run_len().is_multiple_of(MAX_LANES) {
            Self { list, bias: channels, images: 0, sums: 0 }
        } else {
            Self {
                list,
                bias: channels,
                images: GROUP * (shape.image_len() + MAX_LANES),
                sums: channels * shape.kernel * shape.run_len().next_multiple_of(MAX_LANES),
            }
        }
    }

    fn total(&self) -> usize {
        self.list + self.bias + self.images + self.sums
    }
}

/// Elements of workspace that [`conv_weight_gradient`] needs.
///
/// # Errors
///
/// As [`ConvShape::check`].
pub fn conv_weight_gradient_workspace_len(
    shape: &ConvShape,
    threads: usize,
) -> Result<usize, KernelError> {
    shape.check()?;
    let parts = part_count(shape.out_channels, threads);
    Ok(parts * PartLens::new(shape, part_len(shape.out_channels, threads)).total())
}

/// The gradients of the weights and the bias from the gradient of the pooled output.
///
/// The work is cut by output channel, so that each sum over the batch is made by one thread in the
/// order of the images.
///
/// Shapes: `input` `[batch, in_rows, in_cols, in_channels]`, `routes` and `output_gradient`
/// `[batch, out_rows, out_cols, out_channels]`, `weight_gradient` `[out_channels, kernel, kernel,
/// in_channels]`, `bias_gradient` `[out_channels]`.
///
/// # Errors
///
/// [`KernelError`] when the shape is not served or a slice does not fit it; nothing is written.
#[expect(clippy::too_many_arguments, reason = "operands, results and memory of one kernel")]
pub fn conv_weight_gradient(
    shape: &ConvShape,
    input: &[f32],
    routes: &[u8],
    output_gradient: &[f32],
    weight_gradient: &mut [f32],
    bias_gradient: &mut [f32],
    workspace: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    let needed = conv_weight_gradient_workspace_len(shape, threads)?;
    check_len("input", input.len(), shape.input_len())?;
    check_len("routes", routes.len(), shape.output_len())?;
    check_len("output gradient", output_gradient.len(), shape.output_len())?;
    check_len("weight gradient", weight_gradient.len(), shape.weight_len())?;
    check_len("bias gradient", bias_gradient.len(), shape.out_channels)?;
    check_workspace(workspace.len(), needed)?;

    let arch = Arch::new();
    let channels = part_len(shape.out_channels, threads);
    let lens = PartLens::new(shape, channels);
    weight_gradient
        .par_chunks_mut(channels * shape.filter_len())
        .zip(bias_gradient.par_chunks_mut(channels))
        .zip(workspace[..needed].par_chunks_mut(lens.total()))
        .enumerate()
        .for_each(|(part, ((weight_gradient, bias_gradient), workspace))| {
            let (list, workspace) = workspace.split_at_mut(lens.list);
            let (bias_partial, workspace) = workspace.split_at_mut(lens.bias);
            let (images, sums) = workspace.split_at_mut(lens.images);
            let bias_channels = bias_gradient.len();
            let work = WeightGradient {
                shape,
                first_channel: part * channels,
                input,
                routes,
                output_gradient,
                weight_gradient,
                bias_gradient,
                lists: bytemuck::cast_slice_mut(list),
                bias_partial: &mut bias_partial[..bias_channels],
                images,
                sums,
            };
            if shape.run_len() <= NARROW_LANES {
                dispatch_narrow(arch, work);
            } else {
                arch.dispatch(work);
            }
        });
    Ok(())
}

/// Runs with vectors of [`NARROW_LANES`] elements where the processor has them: for shorter runs a
/// wider vector would only add more lanes to throw away and straddle more cache lines.
fn dispatch_narrow(arch: Arch, work: WeightGradient<'_>) {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    if let Some(simd) = pulp::x86::V3::try_new() {
        return Simd::vectorize(simd, work);
    }
    arch.dispatch(work);
}

pub(super) struct WeightGradient<'a> {
    pub(super) shape: &'a ConvShape,
    pub(super) first_channel: usize,
    pub(super) input: &'a [f32],
    pub(super) routes: &'a [u8],
    pub(super) output_gradient: &'a [f32],
    pub(super) weight_gradient: &'a mut [f32],
    pub(super) bias_gradient: &'a mut [f32],
    pub(super) lists: &'a mut [OpenRoute],
    pub(super) bias_partial: &'a mut [f32],
    pub(super) images: &'a mut [f32],
    pub(super) sums: &'a mut [f32],
}

impl WithSimd for WeightGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let shape = self.shape;
        let run_len = shape.run_len();
        self.bias_gradient.fill(0.0);
        let out_len = shape.out_image_len();
        let images =
            self.routes.chunks_exact(out_len).zip(self.output_gradient.chunks_exact(out_len));
        for (routes, gradient) in images {
            let (partial, sums) = (&mut *self.bias_partial, &mut *self.bias_gradient);
            add_open(shape, self.first_channel, routes, gradient, partial, sums);
        }
        if run_len.is_multiple_of(S::F32_LANES) {
            // Each row of a filter is a whole number of vectors: sum where the result belongs.
            self.weight_gradient.fill(0.0);
            let images = shape.image_len();
            for start in (0..shape.batch).step_by(GROUP) {
                let group = GROUP.min(shape.batch - start);
                let input = &self.input[start * images..][..group * images];
                accumulate_group(
                    simd,
                    &Group {
                        shape,
                        first_channel: self.first_channel,
                        first_image: start,
                        count: group,
                        input,
                        image_stride: images,
                        routes: self.routes,
                        output_gradient: self.output_gradient,
                        run_stride: run_len,
                    },
                    self.weight_gradient,
                    self.lists,
                );
            }
        } else {
            // Whole vectors reach beyond a row of the filter, into sums that are thrown away, and
            // beyond the image's end, which is why the images are copied.
            let run_stride = run_len.next_multiple_of(S::F32_LANES);
            let filter_stride = shape.kernel * run_stride;
            let sums = &mut self.sums[..self.bias_gradient.len() * filter_stride];
            sums.fill(0.0);
            let image_stride = shape.image_len() + MAX_LANES;
            self.images.fill(0.0);
            for start in (0..shape.batch).step_by(GROUP) {
                let group = GROUP.min(shape.batch - start);
                for (copy, image) in self
                    .images
                    .chunks_exact_mut(image_stride)
                    .zip(self.input[start * shape.image_len()..].chunks_exact(shape.image_len()))
                {
                    copy[..image.len()].copy_from_slice(image);
                }
                accumulate_group(
                    simd,
                    &Group {
                        shape,
                        first_channel: self.first_channel,
                        first_image: start,
                        count: group,
                        input: self.images,
                        image_stride,
                        routes: self.routes,
                        output_gradient: self.output_gradient,
                        run_stride,
                    },
                    sums,
                    self.lists,
                );
            }
            let runs = self.weight_gradient.chunks_exact_mut(run_len);
            for (run, sums) in runs.zip(sums.chunks_exact(run_stride)) {
                run.copy_from_slice(&sums[..run_len]);
            }
        }
    }
}

/// A few images whose contribution is added to all filters of one part.
struct Group<'a> {
    shape: &'a ConvShape,
    first_channel: usize,
    first_image: usize,
    count: usize,
    /// The images of the group, `image_stride` apart.
    input: &'a [f32],
    image_stride: usize,
    routes: &'a [u8],
    output_gradient: &'a [f32],
    /// Elements between two rows of a filter's sums.
    run_stride: usize,
}

#[inline(always)]
fn accumulate_group<S: Simd>(
    simd: S,
    group: &Group<'_>,
    sums: &mut [f32],
    lists: &mut [OpenRoute],
) {
    let shape = group.shape;
    let out_len = shape.out_image_len();
    let capacity = shape.out_rows() * shape.out_cols() + 1;
    let filters = sums.chunks_exact_mut(shape.kernel * group.run_stride);
    for (channel, filter) in filters.enumerate() {
        let mut counts = [0; GROUP];
        for image in 0..group.count {
            let at = (group.first_image + image) * out_len;
            let list = &mut lists[image * capacity..][..capacity];
            counts[image] = list_channel(
                shape,
                group.first_channel + channel,
                &group.routes[at..][..out_len],
                &group.output_gradient[at..][..out_len],
                list,
            );
        }
        let lists = |image: usize| &lists[image * capacity..][..counts[image]];
        let vectors = S::as_mut_simd_f32s(filter).0;
        let row_vectors = group.run_stride / S::F32_LANES;
        if row_vectors == 1 {
            // One vector holds a row of the filter: keep several rows at once.
            let (blocks, rest) = vectors.as_chunks_mut::<5>();
            let mut offset = 0;
            for block in blocks {
                accumulate::<S, 5, 1>(simd, group, offset, &lists, block.as_chunks_mut().0);
                offset += 5 * shape.row_len();
            }
            for block in rest.as_chunks_mut::<1>().0 {
                accumulate::<S, 1, 1>(simd, group, offset, &lists, std::slice::from_mut(block));
                offset += shape.row_len();
            }
            continue;
        }
        for (row, vectors) in vectors.chunks_exact_mut(row_vectors).enumerate() {
            let mut offset = row * shape.row_len();
            let (wide, rest) = vectors.as_chunks_mut::<10>();
            for block in wide {
                accumulate::<S, 1, 10>(simd, group, offset, &lists, std::slice::from_mut(block));
                offset += 10 * S::F32_LANES;
            }
            for block in rest.as_chunks_mut::<1>().0 {
                accumulate::<S, 1, 1>(simd, group, offset, &lists, std::slice::from_mut(block));
                offset += S::F32_LANES;
            }
        }
    }
}

/// Adds to `ROWS` rows of `VECTORS` vectors of one filter's sums what the listed routes bring.
#[inline(always)]
fn accumulate<'l, S: Simd, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    group: &Group<'_>,
    offset: usize,
    lists: &impl Fn(usize) -> &'l [OpenRoute],
    sums: &mut [[S::f32s; VECTORS]],
) {
    let Some(sums) = sums.first_chunk_mut::<ROWS>() else { return };
    let mut local = *sums;
    for image in 0..group.count {
        let image_values = &group.input[image * group.image_stride + offset..];
        for open in lists(image) {
            let value = simd.splat_f32s(open.value);
            for (row, sums) in local.iter_mut().enumerate() {
                let start = open.offset as usize + row * group.shape.row_len();
                let run = &image_values[start..][..VECTORS * S::F32_LANES];
                for (sum, x) in sums.iter_mut().zip(S::as_simd_f32s(run).0) {
                    *sum = simd.mul_add_e_f32s(value, *x, *sum);
                }
            }
        }
    }
    *sums = local;
}
