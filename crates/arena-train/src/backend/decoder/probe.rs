//! Without memory: what is used, and nothing else.

use super::{DecoderKernels, Tables};
use crate::backend::host::{AttentionShape, Dropout, EmbeddingShape};
use crate::backend::probe_backend::used;
use crate::backend::{In, Out, ProbeBackend, Weights, WeightsMut};
use crate::error::TrainError;
use arena_scope::Probe;

impl<B: DecoderKernels> DecoderKernels for ProbeBackend<'_, B> {
    fn embedding_forward(
        &self,
        _shape: &EmbeddingShape,
        tokens: In<'_, Self, u32>,
        _tables: Tables<In<'_, Self>>,
        output: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        used!(tokens, output)
    }

    fn embedding_gradient(
        &self,
        _shape: &EmbeddingShape,
        tokens: In<'_, Self, u32>,
        output_gradient: In<'_, Self>,
        _gradients: Tables<Out<'_, Self>>,
    ) -> Result<(), TrainError> {
        used!(tokens, output_gradient)
    }

    fn layer_norm_forward(
        &self,
        _width: usize,
        input: In<'_, Self>,
        _weights: Weights<'_, Probe>,
        output: Out<'_, Self>,
        statistics: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        used!(input, output, statistics)
    }

    fn layer_norm_input_gradient(
        &self,
        _width: usize,
        input: In<'_, Self>,
        statistics: In<'_, Self>,
        _weight: In<'_, Self>,
        output_gradient: In<'_, Self>,
        residual_gradient: Option<In<'_, Self>>,
        input_gradient: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        used!(input, statistics, output_gradient, input_gradient; residual_gradient)
    }

    fn layer_norm_weight_gradient(
        &self,
        _width: usize,
        input: In<'_, Self>,
        statistics: In<'_, Self>,
        output_gradient: In<'_, Self>,
        _gradients: WeightsMut<'_, Probe>,
    ) -> Result<(), TrainError> {
        used!(input, statistics, output_gradient)
    }

    fn gelu_forward(&self, input: In<'_, Self>, output: Out<'_, Self>) -> Result<(), TrainError> {
        used!(input, output)
    }

    fn gelu_input_gradient(
        &self,
        input: In<'_, Self>,
        output_gradient: In<'_, Self>,
        input_gradient: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        used!(input, output_gradient, input_gradient)
    }

    fn attention_forward(
        &self,
        _shape: &AttentionShape,
        input: In<'_, Self>,
        output: Out<'_, Self>,
        log_sums: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        used!(input, output, log_sums)
    }

    fn attention_gradient(
        &self,
        _shape: &AttentionShape,
        input: In<'_, Self>,
        output: In<'_, Self>,
        log_sums: In<'_, Self>,
        output_gradient: In<'_, Self>,
        input_gradient: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        used!(input, output, log_sums, output_gradient, input_gradient)
    }

    fn dropout(&self, _dropout: Dropout, values: Out<'_, Self>) -> Result<(), TrainError> {
        used!(values)
    }

    fn add(
        &self,
        left: In<'_, Self>,
        right: In<'_, Self>,
        sum: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        used!(left, right, sum)
    }
}
