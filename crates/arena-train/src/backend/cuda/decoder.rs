//! The decoder's layers but for its linear ones: see the functions of the same names in
//! [`host`](crate::backend::host). What they check, these check, but for the tokens, which lie on the device: one that
//! is not in the vocabulary becomes NaN.

use super::error::{CudaError, check_len, count};
use super::kernels::Kernels;
use super::module::Grid;
use super::range::{Input, Output};
use crate::backend::host::{
    AttentionShape, Dropout, EmbeddingShape, KernelError, LAYER_NORM_STATISTICS,
};

/// The rows of a matrix whose rows are normalised.
fn rows(width: usize, input: &Input<'_, f32>) -> Result<usize, CudaError> {
    if width == 0 {
        return Err(
            KernelError::Shape { reason: "a row to normalise has at least one element" }.into()
        );
    }
    check_len("input", input.len(), input.len() / width * width)?;
    Ok(input.len() / width)
}

impl Kernels {
    /// Layer normalisation.
    ///
    /// # Errors
    ///
    /// When an operand does not fit, or the device refuses.
    pub fn layer_norm_forward(
        &self,
        width: usize,
        input: Input<'_, f32>,
        [weight, bias]: [Input<'_, f32>; 2],
        output: Output<'_, f32>,
        statistics: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        let rows = rows(width, &input)?;
        check_len("weight", weight.len(), width)?;
        check_len("bias", bias.len(), width)?;
        check_len("output", output.len(), input.len())?;
        check_len("statistics", statistics.len(), rows * LAYER_NORM_STATISTICS)?;
        count(input.len())?;
        let (width, rows) = (count(width)?, count(rows)?);
        if rows == 0 {
            return Ok(());
        }
        // SAFETY: a thread below the rows touches its row of each operand, and the width's elements of weight
        // and bias; the lengths were checked.
        unsafe {
            self.module.layer_norm_forward(
                Grid::flat(rows),
                input.address(),
                weight.address(),
                bias.address(),
                output.address(),
                statistics.address(),
                width,
                rows,
            )
        }
    }

    /// The gradient of layer normalisation's input, with the residual connection's added.
    ///
    /// # Errors
    ///
    /// When an operand does not fit, or the device refuses.
    #[expect(clippy::too_many_arguments, reason = "each is an operand of the formula")]
    pub fn layer_norm_input_gradient(
        &self,
        width: usize,
        input: Input<'_, f32>,
        statistics: Input<'_, f32>,
        weight: Input<'_, f32>,
        output_gradient: Input<'_, f32>,
        residual_gradient: Option<Input<'_, f32>>,
        input_gradient: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        let rows = rows(width, &input)?;
        check_len("statistics", statistics.len(), rows * LAYER_NORM_STATISTICS)?;
        check_len("weight", weight.len(), width)?;
        check_len("output gradient", output_gradient.len(), input.len())?;
        check_len("input gradient", input_gradient.len(), input.len())?;
        if let Some(residual) = &residual_gradient {
            check_len("residual gradient", residual.len(), input.len())?;
        }
        count(input.len())?;
        let (width, rows) = (count(width)?, count(rows)?);
        if rows == 0 {
            return Ok(());
        }
        // SAFETY: as above; the residual gradient is not touched if its address is null.
        unsafe {
            self.module.layer_norm_input_gradient(
                Grid::flat(rows),
                input.address(),
                statistics.address(),
                weight.address(),
                output_gradient.address(),
                residual_gradient.map_or(0, |residual| residual.address()),
                input_gradient.address(),
                width,
                rows,
            )
        }
    }

    /// The gradients of layer normalisation's weights and biases.
    ///
    /// # Errors
    ///
    /// When an operand does not fit, or the device refuses.
    pub fn layer_norm_weight_gradient(
        &self,
        width: usize,
        input: Input<'_, f32>,
        statistics: Input<'_, f32>,
        output_gradient: Input<'_, f32>,
        [weight_gradient, bias_gradient]: [Output<'_, f32>; 2],
    ) -> Result<(), CudaError> {
        let rows = rows(width, &input)?;
        check_len("statistics", statistics.len(), rows * LAYER_NORM_STATISTICS)?;
        check_len("output gradient", output_gradient.len(), input.len())?;
        check_len("weight gradient", weight_gradient.len(), width)?;
        check_len("bias gradient", bias_gradient.len(), width)?;
        count(input.len())?;
        let (width, rows) = (count(width)?, count(rows)?);
        // SAFETY: a thread below the width reads its column of the rows and writes its element of both gradients;
        // the lengths were checked.
        unsafe {
            self.module.layer_norm_weight_gradient(
                Grid::flat(width),
                input.address(),
                statistics.address(),
                output_gradient.address(),
                weight_gradient.address(),
                bias_gradient.address(),
                width,
                rows,
            )
        }
    }

    /// GELU.
    ///
    /// # Errors
    ///
    /// When the lengths differ, or the device refuses.
    pub fn gelu_forward(
        &self,
        input: Input<'_, f32>,
        output: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        check_len("output", output.len(), input.len())?;
        let count = count(input.len())?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: a thread below the count touches the elements of its number; the lengths are equal.
        unsafe {
            self.module.gelu_forward(Grid::flat(count), input.address(), output.address(), count)
        }
    }

    /// The gradient of GELU's input.
    ///
    /// # Errors
    ///
    /// When the lengths differ, or the device refuses.
    pub fn gelu_input_gradient(
        &self,
        input: Input<'_, f32>,
        output_gradient: Input<'_, f32>,
        input_gradient: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        check_len("output gradient", output_gradient.len(), input.len())?;
        check_len("input gradient", input_gradient.len(), input.len())?;
        let count = count(input.len())?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe {
            self.module.gelu_input_gradient(
                Grid::flat(count),
                input.address(),
                output_gradient.address(),
                input_gradient.address(),
                count,
            )
        }
    }

    /// `sum = left + right`.
    ///
    /// # Errors
    ///
    /// When the lengths differ, or the device refuses.
    pub fn add(
        &self,
        left: Input<'_, f32>,
        right: Input<'_, f32>,
        sum: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        check_len("right", right.len(), left.len())?;
        check_len("sum", sum.len(), left.len())?;
        let count = count(left.len())?;
        if count == 0 {
            return Ok(());
        }
        let (left, right) = (left.address(), right.address());
        // SAFETY: as above.
        unsafe { self.module.add(Grid::flat(count), left, right, sum.address(), count) }
    }

    /// `sum += scale * values`.
    ///
    /// # Errors
    ///
    /// When the lengths differ, or the device refuses.
    pub fn add_scaled(
        &self,
        sum: Output<'_, f32>,
        scale: f32,
        values: Input<'_, f32>,
    ) -> Result<(), CudaError> {
        check_len("values", values.len(), sum.len())?;
        let count = count(sum.len())?;
        if count == 0 {
            return Ok(());
        }
        let (sum, values) = (sum.address(), values.address());
        // SAFETY: as above.
        unsafe { self.module.add_scaled(Grid::flat(count), sum, values, scale, count) }
    }

    /// Dropout: it drops the elements that the host's drops.
    ///
    /// # Errors
    ///
    /// When the probability is not at least 0 and below 1, or the device refuses.
    pub fn dropout(&self, dropout: Dropout, values: Output<'_, f32>) -> Result<(), CudaError> {
        let (threshold, scale) = dropout.threshold_and_scale()?;
        let count = count(values.len())?;
        if count == 0 || threshold == 0 {
            return Ok(());
        }
        let Dropout { seed, step, layer, .. } = dropout;
        // SAFETY: a thread below the count touches the element of its number.
        unsafe {
            self.module.dropout(
                Grid::flat(count),
                values.address(),
                threshold,
                scale,
                seed as u32,
                (seed >> 32) as u32,
                step,
                layer,
                count,
            )
        }
    }

    /// Embeddings of tokens and positions.
    ///
    /// # Errors
    ///
    /// When an operand does not fit the shape, or the device refuses.
    pub fn embedding_forward(
        &self,
        shape: &EmbeddingShape,
        tokens: Input<'_, u32>,
        token_table: Input<'_, f32>,
        position_table: Input<'_, f32>,
        output: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        shape.check_lens(tokens.len(), token_table.len(), position_table.len())?;
        check_len("output", output.len(), shape.output_len())?;
        count(token_table.len())?;
        let elements = count(output.len())?;
        if elements == 0 {
            return Ok(());
        }
        // SAFETY: a thread below the count writes the element of its number, and reads its token, that token's row if
        // it is in the vocabulary, and the row of a position below the context; the lengths were checked.
        unsafe {
            self.module.embedding_forward(
                Grid::flat(elements),
                tokens.address(),
                token_table.address(),
                position_table.address(),
                output.address(),
                count(shape.context)?,
                count(shape.vocabulary)?,
                count(shape.width)?,
                elements,
            )
        }
    }

    /// The gradients of both tables; the tokens' is added to what is there.
    ///
    /// # Errors
    ///
    /// When an operand does not fit the shape, or the device refuses.
    pub fn embedding_gradient(
        &self,
        shape: &EmbeddingShape,
        tokens: Input<'_, u32>,
        output_gradient: Input<'_, f32>,
        token_gradient: Output<'_, f32>,
        position_gradient: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        shape.check_lens(tokens.len(), token_gradient.len(), position_gradient.len())?;
        check_len("output gradient", output_gradient.len(), shape.output_len())?;
        count(output_gradient.len())?;
        let (in_table, positions) = (count(token_gradient.len())?, count(position_gradient.len())?);
        let (token_count, width) = (count(shape.tokens())?, count(shape.width)?);
        if in_table > 0 {
            // SAFETY: a thread below the count reads all tokens, a column of the gradients above, and touches the
            // element of its number; the lengths were checked.
            unsafe {
                self.module.embedding_token_gradient(
                    Grid::flat(in_table),
                    tokens.address(),
                    output_gradient.address(),
                    token_gradient.address(),
                    token_count,
                    width,
                    in_table,
                )?;
            }
        }
        let (batch, row) = (count(shape.batch)?, count(shape.context * shape.width)?);
        // SAFETY: a thread below the count writes the element of its number; one below `row`, a sequence's elements,
        // reads that element of each sequence.
        unsafe {
            self.module.embedding_position_gradient(
                Grid::flat(positions),
                output_gradient.address(),
                position_gradient.address(),
                batch,
                row,
                positions,
            )
        }
    }

    /// Causal attention.
    ///
    /// # Errors
    ///
    /// When an operand does not fit the shape, or the device refuses.
    pub fn attention_forward(
        &self,
        shape: &AttentionShape,
        input: Input<'_, f32>,
        output: Output<'_, f32>,
        log_sums: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        shape.check()?;
        check_len("input", input.len(), shape.input_len())?;
        check_len("output", output.len(), shape.output_len())?;
        check_len("log sums", log_sums.len(), shape.log_sums_len())?;
        count(input.len())?;
        let queries = count(shape.log_sums_len())?;
        if queries == 0 {
            return Ok(());
        }
        // SAFETY: a thread below the queries reads queries, keys and values of its sequence, and writes the output and
        // the sum of its number; the lengths were checked.
        unsafe {
            self.module.attention_forward(
                Grid::flat(queries),
                input.address(),
                output.address(),
                log_sums.address(),
                shape.scale(),
                count(shape.context)?,
                count(shape.heads)?,
                count(shape.head_width)?,
                queries,
            )
        }
    }

    /// The gradients of queries, keys and values.
    ///
    /// # Errors
    ///
    /// When an operand does not fit the shape, or the device refuses.
    pub fn attention_gradient(
        &self,
        shape: &AttentionShape,
        input: Input<'_, f32>,
        output: Input<'_, f32>,
        log_sums: Input<'_, f32>,
        output_gradient: Input<'_, f32>,
        input_gradient: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        shape.check()?;
        check_len("input", input.len(), shape.input_len())?;
        check_len("output", output.len(), shape.output_len())?;
        check_len("log sums", log_sums.len(), shape.log_sums_len())?;
        check_len("output gradient", output_gradient.len(), shape.output_len())?;
        check_len("input gradient", input_gradient.len(), shape.input_len())?;
        count(input.len())?;
        let queries = count(shape.log_sums_len())?;
        if queries == 0 {
            return Ok(());
        }
        let grid = Grid::flat(queries);
        let (context, heads) = (count(shape.context)?, count(shape.heads)?);
        let (width, scale) = (count(shape.head_width)?, shape.scale());
        let (input, output, log_sums) = (input.address(), output.address(), log_sums.address());
        let (above, gradient) = (output_gradient.address(), input_gradient.address());
        // SAFETY: a thread below the queries reads what belongs to its sequence in all operands, and writes its own
        // query's gradient. The lengths were checked.
        unsafe {
            self.module.attention_query_gradient(
                grid, input, output, log_sums, above, gradient, scale, context, heads, width,
                queries,
            )
        }?;
        // SAFETY: as above, for its own key's and value's.
        unsafe {
            self.module.attention_key_gradient(
                grid, input, output, log_sums, above, gradient, scale, context, heads, width,
                queries,
            )
        }
    }
}
