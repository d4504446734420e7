//! On a CUDA device: views become addresses.

use super::{DecoderKernels, Tables};
use crate::backend::cuda::CudaBackend;
use crate::backend::host::{AttentionShape, Dropout, EmbeddingShape};
use crate::backend::{In, Out, Weights, WeightsMut};
use crate::error::TrainError;
use arena_scope::Cuda;

impl DecoderKernels for CudaBackend {
    fn embedding_forward(
        &self,
        shape: &EmbeddingShape,
        tokens: In<'_, Self, u32>,
        tables: Tables<In<'_, Self>>,
        output: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels().embedding_forward(
            shape,
            self.input(tokens)?,
            self.input(tables.tokens)?,
            self.input(tables.positions)?,
            self.output(output)?,
        )?)
    }

    fn embedding_gradient(
        &self,
        shape: &EmbeddingShape,
        tokens: In<'_, Self, u32>,
        output_gradient: In<'_, Self>,
        gradients: Tables<Out<'_, Self>>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels().embedding_gradient(
            shape,
            self.input(tokens)?,
            self.input(output_gradient)?,
            self.output(gradients.tokens)?,
            self.output(gradients.positions)?,
        )?)
    }

    fn layer_norm_forward(
        &self,
        width: usize,
        input: In<'_, Self>,
        weights: Weights<'_, Cuda>,
        output: Out<'_, Self>,
        statistics: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels().layer_norm_forward(
            width,
            self.input(input)?,
            [self.input(weights.weight)?, self.input(weights.bias)?],
            self.output(output)?,
            self.output(statistics)?,
        )?)
    }

    fn layer_norm_input_gradient(
        &self,
        width: usize,
        input: In<'_, Self>,
        statistics: In<'_, Self>,
        weight: In<'_, Self>,
        output_gradient: In<'_, Self>,
        residual_gradient: Option<In<'_, Self>>,
        input_gradient: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels().layer_norm_input_gradient(
            width,
            self.input(input)?,
            self.input(statistics)?,
            self.input(weight)?,
            self.input(output_gradient)?,
            residual_gradient.map(|residual| self.input(residual)).transpose()?,
            self.output(input_gradient)?,
        )?)
    }

    fn layer_norm_weight_gradient(
        &self,
        width: usize,
        input: In<'_, Self>,
        statistics: In<'_, Self>,
        output_gradient: In<'_, Self>,
        gradients: WeightsMut<'_, Cuda>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels().layer_norm_weight_gradient(
            width,
            self.input(input)?,
            self.input(statistics)?,
            self.input(output_gradient)?,
            [self.output(gradients.weight)?, self.output(gradients.bias)?],
        )?)
    }

    fn gelu_forward(&self, input: In<'_, Self>, output: Out<'_, Self>) -> Result<(), TrainError> {
        Ok(self.kernels().gelu_forward(self.input(input)?, self.output(output)?)?)
    }

    fn gelu_input_gradient(
        &self,
        input: In<'_, Self>,
        output_gradient: In<'_, Self>,
        input_gradient: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        let (input, above) = (self.input(input)?, self.input(output_gradient)?);
        let gradient = self.output(input_gradient)?;
        Ok(self.kernels().gelu_input_gradient(input, above, gradient)?)
    }

    fn attention_forward(
        &self,
        shape: &AttentionShape,
        input: In<'_, Self>,
        output: Out<'_, Self>,
        log_sums: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        let (output, log_sums) = (self.output(output)?, self.output(log_sums)?);
        Ok(self.kernels().attention_forward(shape, self.input(input)?, output, log_sums)?)
    }

    fn attention_gradient(
        &self,
        shape: &AttentionShape,
        input: In<'_, Self>,
        output: In<'_, Self>,
        log_sums: In<'_, Self>,
        output_gradient: In<'_, Self>,
        input_gradient: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels().attention_gradient(
            shape,
            self.input(input)?,
            self.input(output)?,
            self.input(log_sums)?,
            self.input(output_gradient)?,
            self.output(input_gradient)?,
        )?)
    }

    fn dropout(&self, dropout: Dropout, values: Out<'_, Self>) -> Result<(), TrainError> {
        Ok(self.kernels().dropout(dropout, self.output(values)?)?)
    }

    fn add(
        &self,
        left: In<'_, Self>,
        right: In<'_, Self>,
        sum: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        let (left, right) = (self.input(left)?, self.input(right)?);
        Ok(self.kernels().add(left, right, self.output(sum)?)?)
    }
}
