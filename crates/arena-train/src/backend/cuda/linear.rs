//! Linear layers, and sums of columns.

use super::error::{CudaError, check_len, check_workspace, count};
use super::gemm::Matrix;
use super::kernels::Kernels;
use super::module::Grid;
use super::range::{Input, Output};
use crate::backend::host::{Activation, KernelError, LinearShape, check_bias};

/// Columns of a block of `column_sums`.
const SUM_COLS: u32 = 32;

/// Rows that such a block adds at a time.
const SUM_ROWS: u32 = 8;

/// Rows of a chunk, unless there are very many: 32 for each thread.
const CHUNK_ROWS: usize = 256;

/// The most chunks, which the second pass adds.
const MAX_CHUNKS: usize = 64;

/// How many chunks the rows of a sum are cut into, and of how many rows. They follow from the
/// number of rows alone, so the order of a sum is always the same.
pub(super) fn chunks(rows: usize) -> (usize, usize) {
    let chunk_rows = rows.div_ceil(MAX_CHUNKS).max(CHUNK_ROWS);
    (rows.div_ceil(chunk_rows).max(1), chunk_rows)
}

impl Kernels {
    /// `output = activation(input * weight^T + bias)`: see
    /// [`linear_forward`](crate::backend::host::linear_forward).
    ///
    /// # Errors
    ///
    /// When an operand does not fit the shape, or the device refuses.
    pub fn linear_forward(
        &self,
        shape: &LinearShape,
        input: Input<'_, f32>,
        weight: Input<'_, f32>,
        bias: Input<'_, f32>,
        activation: Activation,
        mut output: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        shape.check()?;
        check_len("input", input.len(), shape.input_len())?;
        check_len("weight", weight.len(), shape.weight_len())?;
        check_bias("bias", bias.len(), shape, activation)?;
        check_len("output", output.len(), shape.output_len())?;
        let elements = count(output.len())?;

        let input = Matrix::new(input, shape.batch, shape.in_features)?;
        let weight = Matrix::new(weight, shape.out_features, shape.in_features)?;
        self.multiply(input, weight.transposed(), output.reborrow())?;
        if elements == 0 || bias.is_empty() {
            return Ok(());
        }
        let relu = u32::from(activation == Activation::Relu);
        let features = count(shape.out_features)?;
        // SAFETY: a thread below `elements` changes the element of its number and reads its
        // feature's bias; the lengths were checked.
        unsafe {
            self.module.bias_activation(
                Grid::flat(elements),
                output.address(),
                bias.address(),
                features,
                relu,
                elements,
            )
        }
    }

    /// The gradients of weights and bias: see
    /// [`linear_weight_gradient`](crate::backend::host::linear_weight_gradient).
    ///
    /// # Errors
    ///
    /// When an operand does not fit the shape, or the device refuses.
    pub fn linear_weight_gradient(
        &self,
        shape: &LinearShape,
        input: Input<'_, f32>,
        output_gradient: Input<'_, f32>,
        weight_gradient: Output<'_, f32>,
        bias_gradient: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        shape.check()?;
        check_len("input", input.len(), shape.input_len())?;
        check_len("output gradient", output_gradient.len(), shape.output_len())?;
        check_len("weight gradient", weight_gradient.len(), shape.weight_len())?;
        check_bias("bias gradient", bias_gradient.len(), shape, Activation::Identity)?;
        count(output_gradient.len())?;

        let gradient = Matrix::new(output_gradient, shape.batch, shape.out_features)?;
        let input = Matrix::new(input, shape.batch, shape.in_features)?;
        self.multiply(gradient.transposed(), input, weight_gradient)?;
        if bias_gradient.is_empty() {
            return Ok(());
        }
        // One chunk: a batch has few rows.
        self.sum_chunks(shape.out_features, output_gradient, None, bias_gradient, shape.batch)
    }

    /// The gradient of the input, and through the ReLU that made it: see
    /// [`linear_input_gradient`](crate::backend::host::linear_input_gradient).
    ///
    /// # Errors
    ///
    /// When an operand does not fit the shape, or the device refuses.
    pub fn linear_input_gradient(
        &self,
        shape: &LinearShape,
        weight: Input<'_, f32>,
        output_gradient: Input<'_, f32>,
        relu_output: Option<Input<'_, f32>>,
        mut input_gradient: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        shape.check()?;
        check_len("weight", weight.len(), shape.weight_len())?;
        check_len("output gradient", output_gradient.len(), shape.output_len())?;
        check_len("input gradient", input_gradient.len(), shape.input_len())?;
        if let Some(relu_output) = relu_output {
            check_len("relu output", relu_output.len(), shape.input_len())?;
        }
        let elements = count(input_gradient.len())?;

        let gradient = Matrix::new(output_gradient, shape.batch, shape.out_features)?;
        let weight = Matrix::new(weight, shape.out_features, shape.in_features)?;
        self.multiply(gradient, weight, input_gradient.reborrow())?;
        let Some(relu_output) = relu_output.filter(|_| elements > 0) else { return Ok(()) };
        let (gradient, relu_output) = (input_gradient.address(), relu_output.address());
        // SAFETY: a thread below `elements` reads the output and changes the gradient of its
        // number; the lengths were checked.
        unsafe { self.module.relu_mask(Grid::flat(elements), gradient, relu_output, elements) }
    }

    /// `sums[col]`: the sum of a column of `values` `[rows, cols]`; with `routes`, of its elements
    /// whose route is open. `partial` holds a row of sums for each of the [`chunks`].
    pub(super) fn column_sums(
        &self,
        cols: usize,
        values: Input<'_, f32>,
        routes: Option<Input<'_, u8>>,
        sums: Output<'_, f32>,
        partial: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        let (chunks, chunk_rows) = chunks(values.len() / cols.max(1));
        if chunks == 1 {
            return self.sum_chunks(cols, values, routes, sums, chunk_rows);
        }
        check_workspace(partial.len(), chunks * cols)?;
        let (mut partial, _) = partial
            .split(chunks * cols, chunks * cols)
            .ok_or_else(|| KernelError::Workspace { needed: chunks * cols, found: 0 })?;
        self.sum_chunks(cols, values, routes, partial.reborrow(), chunk_rows)?;
        self.sum_chunks(cols, partial.as_input(), None, sums, chunks)
    }

    /// `sums[chunk][col]`: the sum of a column over the rows of a chunk. Without a row there is one
    /// chunk, with sums of zero.
    fn sum_chunks(
        &self,
        cols: usize,
        values: Input<'_, f32>,
        routes: Option<Input<'_, u8>>,
        sums: Output<'_, f32>,
        chunk_rows: usize,
    ) -> Result<(), CudaError> {
        if cols == 0 {
            return Ok(());
        }
        count(values.len())?;
        let rows = values.len() / cols;
        let chunk_rows = chunk_rows.max(1);
        let chunks = rows.div_ceil(chunk_rows).max(1);
        check_len("values", values.len(), rows * cols)?;
        check_len("sums", sums.len(), chunks * cols)?;
        if let Some(routes) = routes {
            check_len("routes", routes.len(), values.len())?;
        }
        let (rows, cols) = (count(rows)?, count(cols)?);
        let (chunk_rows, chunks) = (count(chunk_rows)?, count(chunks)?);
        let grid =
            Grid { blocks: (cols.div_ceil(SUM_COLS), chunks), threads: (SUM_COLS, SUM_ROWS) };
        let routes = routes.map_or(0, |routes| routes.address());
        let (values, sums) = (values.address(), sums.address());
        // SAFETY: a thread reads elements of its column in its chunk's rows, both below the counts
        // given, and the routes of these unless that address is null; one thread of each column
        // and chunk writes its sum. The lengths were checked, and a block is 32 x 8 threads.
        unsafe { self.module.column_sums(grid, values, routes, sums, rows, cols, chunk_rows) }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_CHUNKS, chunks};

    #[test]
    fn chunks_cover_the_rows_and_are_few() {
        for rows in [0, 1, 255, 256, 257, 9216, 16_384, 16_385, 1_000_000] {
            let (count, chunk_rows) = chunks(rows);
            assert!(count * chunk_rows >= rows && (1..=MAX_CHUNKS).contains(&count), "{rows}");
            assert!((count - 1) * chunk_rows < rows.max(1), "{rows}: an empty chunk");
        }
    }
}
