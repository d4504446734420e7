//! Convolution, bias, ReLU and max-pool: im2col, a matrix product, and what surrounds them.

use super::error::{CudaError, check_len, check_workspace, count};
use super::gemm::Matrix;
use super::kernels::Kernels;
use super::linear::chunks;
use super::module::Grid;
use super::range::{Input, Output};
use crate::backend::host::{ConvShape, KernelError};

/// Parts of a workspace begin on multiples of so many elements: 256 bytes, as allocations do, so
/// that products read whole vectors.
const PART_LEN: usize = 64;

/// What a convolution keeps between its steps, in elements.
#[derive(Debug, Clone, Copy)]
struct Lens {
    /// Outputs of one channel before the pool.
    positions: usize,
    /// `[positions, filter_len]`: what the kernel covers at each position.
    patches: usize,
    /// `[positions, out_channels]`: outputs before the pool, or their gradient.
    sums: usize,
}

impl Lens {
    fn new(shape: &ConvShape) -> Result<Self, KernelError> {
        shape.check()?;
        let product = |a: usize, b: usize| a.checked_mul(b).ok_or(KernelError::Overflow);
        // Four elements to a window: the shape's check holds the rows and columns even.
        let positions = product(product(shape.batch, 4 * shape.out_rows())?, shape.out_cols())?;
        let patches = product(positions, shape.filter_len())?;
        let sums = product(positions, shape.out_channels)?;
        // What the kernels and cuBLAS count to.
        for len in [patches, sums] {
            count(len)?;
        }
        Ok(Self { positions, patches, sums })
    }

    /// Where the second part of a workspace begins.
    const fn second(&self) -> usize {
        self.patches.next_multiple_of(PART_LEN)
    }

    /// Where the third begins.
    const fn third(&self) -> usize {
        self.second() + self.sums.next_multiple_of(PART_LEN)
    }
}

/// Cuts a workspace into patches, sums and the rest.
fn cut<'w>(workspace: Output<'w, f32>, lens: &Lens) -> Result<[Output<'w, f32>; 3], KernelError> {
    let found = workspace.len();
    let short = || KernelError::Workspace { needed: lens.third(), found };
    let (patches, rest) = workspace.split(lens.patches, lens.second()).ok_or_else(short)?;
    let sums_end = rest.len().min(lens.third() - lens.second());
    let (sums, rest) = rest.split(lens.sums, sums_end).ok_or_else(short)?;
    Ok([patches, sums, rest])
}

impl Kernels {
    /// Workspace of [`conv_forward`](Self::conv_forward), in elements.
    ///
    /// # Errors
    ///
    /// As [`ConvShape::check`], and [`KernelError::Overflow`] when the patches of the batch are
    /// more than `i32::MAX` elements.
    pub fn conv_forward_workspace_len(&self, shape: &ConvShape) -> Result<usize, KernelError> {
        let lens = Lens::new(shape)?;
        Ok(lens.second() + lens.sums)
    }

    /// Workspace of [`conv_weight_gradient`](Self::conv_weight_gradient), in elements.
    ///
    /// # Errors
    ///
    /// As for [`conv_forward_workspace_len`](Self::conv_forward_workspace_len).
    pub fn conv_weight_gradient_workspace_len(
        &self,
        shape: &ConvShape,
    ) -> Result<usize, KernelError> {
        let lens = Lens::new(shape)?;
        let (chunks, _) = chunks(lens.positions / 4);
        Ok(lens.third() + chunks * shape.out_channels)
    }

    /// Workspace of [`conv_input_gradient`](Self::conv_input_gradient), in elements.
    ///
    /// # Errors
    ///
    /// As for [`conv_forward_workspace_len`](Self::conv_forward_workspace_len).
    pub fn conv_input_gradient_workspace_len(
        &self,
        shape: &ConvShape,
    ) -> Result<usize, KernelError> {
        self.conv_forward_workspace_len(shape)
    }

    /// `output = max_pool(relu(conv(input, weight) + bias))`, and the routes: see
    /// [`conv_relu_pool_forward`](crate::backend::host::conv_relu_pool_forward).
    ///
    /// # Errors
    ///
    /// When an operand does not fit the shape, or the device refuses.
    #[expect(clippy::too_many_arguments, reason = "operands, results and memory of one kernel")]
    pub fn conv_forward(
        &self,
        shape: &ConvShape,
        input: Input<'_, f32>,
        weight: Input<'_, f32>,
        bias: Input<'_, f32>,
        output: Output<'_, f32>,
        routes: Output<'_, u8>,
        workspace: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        check_workspace(workspace.len(), self.conv_forward_workspace_len(shape)?)?;
        check_len("input", input.len(), shape.input_len())?;
        check_len("weight", weight.len(), shape.weight_len())?;
        check_len("bias", bias.len(), shape.out_channels)?;
        check_len("output", output.len(), shape.output_len())?;
        check_len("routes", routes.len(), shape.output_len())?;
        let lens = Lens::new(shape)?;
        let [mut patches, mut sums, _] = cut(workspace, &lens)?;

        self.im2col(shape, input, patches.reborrow())?;
        let patches = Matrix::new(patches.as_input(), lens.positions, shape.filter_len())?;
        let weight = Matrix::new(weight, shape.out_channels, shape.filter_len())?;
        self.multiply(patches, weight.transposed(), sums.reborrow())?;
        let pooled = count(shape.output_len())?;
        if pooled == 0 {
            return Ok(());
        }
        let (out_cols, channels) = (count(shape.out_cols())?, count(shape.out_channels)?);
        // SAFETY: a thread below `pooled` reads its window's four elements of `sums`, which has
        // four for each pooled one, and its channel's bias; it writes the output and the route of
        // its number. The lengths were checked.
        unsafe {
            self.module.bias_relu_pool(
                Grid::flat(pooled),
                sums.address(),
                bias.address(),
                output.address(),
                routes.address(),
                out_cols,
                channels,
                pooled,
            )
        }
    }

    /// The gradients of weights and bias: see
    /// [`conv_weight_gradient`](crate::backend::host::conv_weight_gradient).
    ///
    /// # Errors
    ///
    /// When an operand does not fit the shape, or the device refuses.
    #[expect(clippy::too_many_arguments, reason = "operands, results and memory of one kernel")]
    pub fn conv_weight_gradient(
        &self,
        shape: &ConvShape,
        input: Input<'_, f32>,
        routes: Input<'_, u8>,
        output_gradient: Input<'_, f32>,
        weight_gradient: Output<'_, f32>,
        bias_gradient: Output<'_, f32>,
        workspace: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        check_workspace(workspace.len(), self.conv_weight_gradient_workspace_len(shape)?)?;
        check_len("input", input.len(), shape.input_len())?;
        check_len("routes", routes.len(), shape.output_len())?;
        check_len("output gradient", output_gradient.len(), shape.output_len())?;
        check_len("weight gradient", weight_gradient.len(), shape.weight_len())?;
        check_len("bias gradient", bias_gradient.len(), shape.out_channels)?;
        let lens = Lens::new(shape)?;
        let [mut patches, mut sums, partial] = cut(workspace, &lens)?;

        self.unpool(shape, output_gradient, routes, sums.reborrow())?;
        self.im2col(shape, input, patches.reborrow())?;
        let sums = Matrix::new(sums.as_input(), lens.positions, shape.out_channels)?;
        let patches = Matrix::new(patches.as_input(), lens.positions, shape.filter_len())?;
        self.multiply(sums.transposed(), patches, weight_gradient)?;
        // The pooled gradient has a quarter of the elements, so the bias sums that one.
        let channels = shape.out_channels;
        self.column_sums(channels, output_gradient, Some(routes), bias_gradient, partial)
    }

    /// The gradient of the input: see
    /// [`conv_input_gradient`](crate::backend::host::conv_input_gradient). Images of one channel
    /// are served too.
    ///
    /// # Errors
    ///
    /// When an operand does not fit the shape, or the device refuses.
    pub fn conv_input_gradient(
        &self,
        shape: &ConvShape,
        weight: Input<'_, f32>,
        routes: Input<'_, u8>,
        output_gradient: Input<'_, f32>,
        input_gradient: Output<'_, f32>,
        workspace: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        check_workspace(workspace.len(), self.conv_input_gradient_workspace_len(shape)?)?;
        check_len("weight", weight.len(), shape.weight_len())?;
        check_len("routes", routes.len(), shape.output_len())?;
        check_len("output gradient", output_gradient.len(), shape.output_len())?;
        check_len("input gradient", input_gradient.len(), shape.input_len())?;
        let lens = Lens::new(shape)?;
        let [mut patches, mut sums, _] = cut(workspace, &lens)?;

        self.unpool(shape, output_gradient, routes, sums.reborrow())?;
        let sums = Matrix::new(sums.as_input(), lens.positions, shape.out_channels)?;
        let weight = Matrix::new(weight, shape.out_channels, shape.filter_len())?;
        self.multiply(sums, weight, patches.reborrow())?;
        let elements = count(shape.input_len())?;
        if elements == 0 {
            return Ok(());
        }
        // SAFETY: a thread below `elements` reads, of the patches that hold its input element, the
        // element of its channel, and writes the input element of its number. `patches` holds all
        // of the batch's, and the lengths were checked.
        unsafe {
            self.module.col2im(
                Grid::flat(elements),
                patches.address(),
                input_gradient.address(),
                count(shape.in_rows)?,
                count(shape.in_cols)?,
                count(shape.in_channels)?,
                count(shape.kernel)?,
                elements,
            )
        }
    }

    /// What the kernel covers at each position of each image. The lengths are the caller's care.
    fn im2col(
        &self,
        shape: &ConvShape,
        images: Input<'_, f32>,
        patches: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        let elements = count(patches.len())?;
        if elements == 0 {
            return Ok(());
        }
        // SAFETY: a thread below `elements` writes the patch element of its number and reads the
        // pixel there, which lies inside its image: a position is at most the image's side less
        // the kernel's. `images` holds as many images as `patches` has patches for.
        unsafe {
            self.module.im2col(
                Grid::flat(elements),
                images.address(),
                patches.address(),
                count(shape.in_rows)?,
                count(shape.in_cols)?,
                count(shape.in_channels)?,
                count(shape.kernel)?,
                elements,
            )
        }
    }

    /// The gradient before pool and ReLU. The lengths are the caller's care.
    fn unpool(
        &self,
        shape: &ConvShape,
        output_gradient: Input<'_, f32>,
        routes: Input<'_, u8>,
        sums_gradient: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        let pooled = count(output_gradient.len())?;
        if pooled == 0 {
            return Ok(());
        }
        // SAFETY: a thread below `pooled` reads the gradient and the route of its number and
        // writes the four elements of its window; `sums_gradient` has four for each pooled one.
        unsafe {
            self.module.unpool(
                Grid::flat(pooled),
                output_gradient.address(),
                routes.address(),
                sums_gradient.address(),
                count(shape.out_cols())?,
                count(shape.out_channels)?,
                pooled,
            )
        }
    }
}
