//! What a decoder of tokens needs beside linear layers, the loss and an optimizer.

#[cfg(feature = "_cuda")]
mod cuda;
mod host;
mod probe;

use super::host::{AttentionShape, Dropout, EmbeddingShape};
use super::{Backend, In, Out, Weights, WeightsMut};
use crate::error::TrainError;

/// The tables of an embedding.
#[derive(Debug, Clone, Copy)]
pub struct Tables<T> {
    /// A row for each token of the vocabulary.
    pub tokens: T,
    /// A row for each position of the longest sequence.
    pub positions: T,
}

/// The kernels of a decoder, as [`Backend`] has those of every network.
///
/// Shapes are those of the functions of the same name in [`host`](super::host), which say what is computed.
pub trait DecoderKernels: Backend {
    /// The rows of tokens and positions, added.
    ///
    /// # Errors
    ///
    /// When a view does not fit the shape, a token is not in the vocabulary, or the device refuses. Where the host
    /// cannot see the tokens without waiting, one that is not becomes NaN instead.
    #[track_caller]
    fn embedding_forward(
        &self,
        shape: &EmbeddingShape,
        tokens: In<'_, Self, u32>,
        tables: Tables<In<'_, Self>>,
        output: Out<'_, Self>,
    ) -> Result<(), TrainError>;

    /// The gradients of an embedding's tables; the tokens' is added to what is there.
    ///
    /// # Errors
    ///
    /// As for [`embedding_forward`](Self::embedding_forward).
    #[track_caller]
    fn embedding_gradient(
        &self,
        shape: &EmbeddingShape,
        tokens: In<'_, Self, u32>,
        output_gradient: In<'_, Self>,
        gradients: Tables<Out<'_, Self>>,
    ) -> Result<(), TrainError>;

    /// Layer normalisation of rows of `width` elements.
    ///
    /// # Errors
    ///
    /// When a view does not fit, or the device refuses.
    #[track_caller]
    fn layer_norm_forward(
        &self,
        width: usize,
        input: In<'_, Self>,
        weights: Weights<'_, Self::Device>,
        output: Out<'_, Self>,
        statistics: Out<'_, Self>,
    ) -> Result<(), TrainError>;

    /// The gradient of layer normalisation's input, with that of the residual connection added.
    ///
    /// # Errors
    ///
    /// When a view does not fit, or the device refuses.
    #[track_caller]
    #[expect(clippy::too_many_arguments, reason = "each is an operand of the formula")]
    fn layer_norm_input_gradient(
        &self,
        width: usize,
        input: In<'_, Self>,
        statistics: In<'_, Self>,
        weight: In<'_, Self>,
        output_gradient: In<'_, Self>,
        residual_gradient: Option<In<'_, Self>>,
        input_gradient: Out<'_, Self>,
    ) -> Result<(), TrainError>;

    /// The gradients of layer normalisation's weights and biases.
    ///
    /// # Errors
    ///
    /// When a view does not fit, or the device refuses.
    #[track_caller]
    fn layer_norm_weight_gradient(
        &self,
        width: usize,
        input: In<'_, Self>,
        statistics: In<'_, Self>,
        output_gradient: In<'_, Self>,
        gradients: WeightsMut<'_, Self::Device>,
    ) -> Result<(), TrainError>;

    /// GELU.
    ///
    /// # Errors
    ///
    /// When a view does not fit, or the device refuses.
    #[track_caller]
    fn gelu_forward(&self, input: In<'_, Self>, output: Out<'_, Self>) -> Result<(), TrainError>;

    /// The gradient of GELU's input.
    ///
    /// # Errors
    ///
    /// When a view does not fit, or the device refuses.
    #[track_caller]
    fn gelu_input_gradient(
        &self,
        input: In<'_, Self>,
        output_gradient: In<'_, Self>,
        input_gradient: Out<'_, Self>,
    ) -> Result<(), TrainError>;

    /// Causal attention.
    ///
    /// # Errors
    ///
    /// When a view does not fit the shape, or the device refuses.
    #[track_caller]
    fn attention_forward(
        &self,
        shape: &AttentionShape,
        input: In<'_, Self>,
        output: Out<'_, Self>,
        log_sums: Out<'_, Self>,
    ) -> Result<(), TrainError>;

    /// The gradients of attention's queries, keys and values.
    ///
    /// # Errors
    ///
    /// When a view does not fit the shape, or the device refuses.
    #[track_caller]
    fn attention_gradient(
        &self,
        shape: &AttentionShape,
        input: In<'_, Self>,
        output: In<'_, Self>,
        log_sums: In<'_, Self>,
        output_gradient: In<'_, Self>,
        input_gradient: Out<'_, Self>,
    ) -> Result<(), TrainError>;

    /// Drops a share of the values, and scales the others.
    ///
    /// # Errors
    ///
    /// When the probability is not at least 0 and below 1, or the device refuses.
    #[track_caller]
    fn dropout(&self, dropout: Dropout, values: Out<'_, Self>) -> Result<(), TrainError>;

    /// `sum = left + right`.
    ///
    /// # Errors
    ///
    /// When the lengths differ, or the device refuses.
    #[track_caller]
    fn add(
        &self,
        left: In<'_, Self>,
        right: In<'_, Self>,
        sum: Out<'_, Self>,
    ) -> Result<(), TrainError>;
}
