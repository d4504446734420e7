//! On the host: views become slices.

use arena_scope::HostVisible;

use super::{DecoderKernels, Tables};
use crate::backend::host::{self, AttentionShape, Dropout, EmbeddingShape};
use crate::backend::{HostBackend, In, Out, Weights, WeightsMut};
use crate::error::TrainError;
use crate::feed::Feed;

impl<D: HostVisible + Feed> DecoderKernels for HostBackend<D> {
    fn embedding_forward(
        &self,
        shape: &EmbeddingShape,
        tokens: In<'_, Self, u32>,
        tables: Tables<In<'_, Self>>,
        output: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(host::embedding_forward(
            shape,
            tokens.as_slice(),
            tables.tokens.as_slice(),
            tables.positions.as_slice(),
            output.into_mut_slice(),
            self.threads(),
        )?)
    }

    fn embedding_gradient(
        &self,
        shape: &EmbeddingShape,
        tokens: In<'_, Self, u32>,
        output_gradient: In<'_, Self>,
        gradients: Tables<Out<'_, Self>>,
    ) -> Result<(), TrainError> {
        Ok(host::embedding_gradient(
            shape,
            tokens.as_slice(),
            output_gradient.as_slice(),
            gradients.tokens.into_mut_slice(),
            gradients.positions.into_mut_slice(),
            self.threads(),
        )?)
    }

    fn layer_norm_forward(
        &self,
        width: usize,
        input: In<'_, Self>,
        weights: Weights<'_, D>,
        output: Out<'_, Self>,
        statistics: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(host::layer_norm_forward(
            width,
            input.as_slice(),
            weights.weight.as_slice(),
            weights.bias.as_slice(),
            output.into_mut_slice(),
            statistics.into_mut_slice(),
            self.threads(),
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
        Ok(host::layer_norm_input_gradient(
            width,
            input.as_slice(),
            statistics.as_slice(),
            weight.as_slice(),
            output_gradient.as_slice(),
            residual_gradient.map(|residual| residual.as_slice()),
            input_gradient.into_mut_slice(),
            self.threads(),
        )?)
    }

    fn layer_norm_weight_gradient(
        &self,
        width: usize,
        input: In<'_, Self>,
        statistics: In<'_, Self>,
        output_gradient: In<'_, Self>,
        gradients: WeightsMut<'_, D>,
    ) -> Result<(), TrainError> {
        Ok(host::layer_norm_weight_gradient(
            width,
            input.as_slice(),
            statistics.as_slice(),
            output_gradient.as_slice(),
            gradients.weight.into_mut_slice(),
            gradients.bias.into_mut_slice(),
            self.threads(),
        )?)
    }

    fn gelu_forward(&self, input: In<'_, Self>, output: Out<'_, Self>) -> Result<(), TrainError> {
        Ok(host::gelu_forward(input.as_slice(), output.into_mut_slice(), self.threads())?)
    }

    fn gelu_input_gradient(
        &self,
        input: In<'_, Self>,
        output_gradient: In<'_, Self>,
        input_gradient: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        let (input, above) = (input.as_slice(), output_gradient.as_slice());
        let gradient = input_gradient.into_mut_slice();
        Ok(host::gelu_input_gradient(input, above, gradient, self.threads())?)
    }

    fn attention_forward(
        &self,
        shape: &AttentionShape,
        input: In<'_, Self>,
        output: Out<'_, Self>,
        log_sums: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        let (output, log_sums) = (output.into_mut_slice(), log_sums.into_mut_slice());
        Ok(host::attention_forward(shape, input.as_slice(), output, log_sums)?)
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
        Ok(host::attention_gradient(
            shape,
            input.as_slice(),
            output.as_slice(),
            log_sums.as_slice(),
            output_gradient.as_slice(),
            input_gradient.into_mut_slice(),
        )?)
    }

    fn dropout(&self, dropout: Dropout, values: Out<'_, Self>) -> Result<(), TrainError> {
        Ok(host::dropout(dropout, values.into_mut_slice(), self.threads())?)
    }

    fn add(
        &self,
        left: In<'_, Self>,
        right: In<'_, Self>,
        sum: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        let (left, right) = (left.as_slice(), right.as_slice());
        Ok(host::add(left, right, sum.into_mut_slice(), self.threads())?)
    }
}
