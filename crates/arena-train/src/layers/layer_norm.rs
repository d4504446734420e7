//! Layer normalisation.

use arena_scope::{PartId, Scope};

use crate::backend::host::LAYER_NORM_STATISTICS;
use crate::backend::{Buffer, DecoderKernels, In, Out};
use crate::error::TrainError;
use crate::init::Initial;
use crate::parameters::{NewParameters, Parameters};

/// Rows with mean 0 and variance 1, times weights, plus biases.
#[derive(Debug, Clone, Copy)]
pub struct LayerNorm {
    width: usize,
    /// Weights and biases.
    parts: [PartId; 2],
}

/// What the layer made of its input.
#[derive(Debug)]
pub struct Normed<'s, B: DecoderKernels> {
    /// `[rows, width]`.
    pub values: Buffer<'s, B>,
    /// Mean and scale of each row, for the backward pass.
    pub statistics: Buffer<'s, B>,
}

impl LayerNorm {
    /// A layer with weights of 1 and biases of 0, which are added to `parameters`.
    ///
    /// # Errors
    ///
    /// When the parameters are too large.
    pub fn new(
        parameters: &mut NewParameters,
        name: &str,
        width: usize,
    ) -> Result<Self, TrainError> {
        let weight = parameters.add(format!("{name}.weight"), width, Initial::Value(1.0))?;
        let bias = parameters.add(format!("{name}.bias"), width, Initial::Value(0.0))?;
        Ok(Self { width, parts: [weight, bias] })
    }

    /// The normalised rows.
    ///
    /// # Errors
    ///
    /// When the arena has no room, the input does not fit, or the device refuses.
    pub fn forward<'s, B: DecoderKernels>(
        &self,
        backend: &B,
        parameters: &Parameters<B::Device>,
        step: &Scope<'s, '_, B::Device>,
        input: In<'_, B>,
    ) -> Result<Normed<'s, B>, TrainError> {
        let rows = input.len() / self.width;
        let mut values = step.alloc(input.len())?;
        let mut statistics = step.alloc(rows * LAYER_NORM_STATISTICS)?;
        let weights = parameters.weights(self.parts)?;
        let (to, kept) = (values.view_mut(), statistics.view_mut());
        backend.layer_norm_forward(self.width, input, weights, to, kept)?;
        Ok(Normed { values, statistics })
    }

    /// Writes the gradients of weights and biases, and to `input_gradient` that of the input, with the gradient of the
    /// residual connection round the layer added, if there is one.
    ///
    /// # Errors
    ///
    /// When an operand does not fit, or the device refuses.
    #[expect(clippy::too_many_arguments, reason = "each is an operand of the formula")]
    pub fn backward<B: DecoderKernels>(
        &self,
        backend: &B,
        parameters: &mut Parameters<B::Device>,
        input: In<'_, B>,
        statistics: In<'_, B>,
        output_gradient: In<'_, B>,
        residual_gradient: Option<In<'_, B>>,
        input_gradient: Out<'_, B>,
    ) -> Result<(), TrainError> {
        let gradients = parameters.gradients_mut(self.parts)?;
        let width = self.width;
        backend.layer_norm_weight_gradient(width, input, statistics, output_gradient, gradients)?;
        backend.layer_norm_input_gradient(
            width,
            input,
            statistics,
            parameters.value(self.parts[0])?,
            output_gradient,
            residual_gradient,
            input_gradient,
        )
    }
}
