//! A linear layer and its activation.

use arena_scope::{PartId, Scope};

use crate::backend::host::{Activation, LinearShape};
use crate::backend::{Backend, Buffer, In};
use crate::error::TrainError;
use crate::init::Initial;
use crate::parameters::{NewParameters, Parameters};

/// `activation(input · weightᵀ + bias)`.
#[derive(Debug, Clone, Copy)]
pub struct Linear {
    in_features: usize,
    out_features: usize,
    activation: Activation,
    /// Weights and biases.
    parts: [PartId; 2],
}

impl Linear {
    /// A layer from `features.0` to `features.1` features, with He-uniform weights times `scale` and
    /// zero biases, which are added to `parameters`. `stream` tells its random numbers from those of other
    /// layers.
    ///
    /// # Errors
    ///
    /// When the kernels do not serve the shape, or the parameters are too large.
    pub fn new(
        parameters: &mut NewParameters,
        name: &str,
        (in_features, out_features): (usize, usize),
        activation: Activation,
        (seed, stream, scale): (u64, u64, f32),
    ) -> Result<Self, TrainError> {
        let shape = LinearShape { batch: 0, in_features, out_features };
        shape.check()?;
        let initial = Initial::HeUniform { seed, stream, fan_in: in_features, scale };
        let weight = parameters.add(format!("{name}.weight"), shape.weight_len(), initial)?;
        let bias = parameters.add(format!("{name}.bias"), out_features, Initial::Value(0.0))?;
        Ok(Self { in_features, out_features, activation, parts: [weight, bias] })
    }

    const fn shape(&self, batch: usize) -> LinearShape {
        LinearShape { batch, in_features: self.in_features, out_features: self.out_features }
    }

    /// The activations of `batch` rows.
    ///
    /// # Errors
    ///
    /// When the arena has no room, the input does not fit, or the device refuses.
    pub fn forward<'s, B: Backend>(
        &self,
        backend: &B,
        parameters: &Parameters<B::Device>,
        step: &Scope<'s, '_, B::Device>,
        batch: usize,
        input: In<'_, B>,
    ) -> Result<Buffer<'s, B>, TrainError> {
        let shape = self.shape(batch);
        let mut output = step.alloc(shape.output_len())?;
        let weights = parameters.weights(self.parts)?;
        backend.linear_forward(&shape, input, weights, self.activation, output.view_mut())?;
        Ok(output)
    }

    /// Writes the gradients of weights and biases.
    ///
    /// # Errors
    ///
    /// When an operand does not fit, or the device refuses.
    pub fn weight_gradient<B: Backend>(
        &self,
        backend: &B,
        parameters: &mut Parameters<B::Device>,
        batch: usize,
        input: In<'_, B>,
        output_gradient: In<'_, B>,
    ) -> Result<(), TrainError> {
        let shape = self.shape(batch);
        let gradients = parameters.gradients_mut(self.parts)?;
        backend.linear_weight_gradient(&shape, input, output_gradient, gradients)
    }

    /// The gradient of the layer's input; through the ReLU before it too, if `relu_output`, the
    /// input, is given.
    ///
    /// # Errors
    ///
    /// When the arena has no room, an operand does not fit, or the device refuses.
    pub fn input_gradient<'s, B: Backend>(
        &self,
        backend: &B,
        parameters: &Parameters<B::Device>,
        step: &Scope<'s, '_, B::Device>,
        batch: usize,
        output_gradient: In<'_, B>,
        relu_output: Option<In<'_, B>>,
    ) -> Result<Buffer<'s, B>, TrainError> {
        let shape = self.shape(batch);
        let mut input_gradient = step.alloc(shape.input_len())?;
        backend.linear_input_gradient(
            &shape,
            parameters.value(self.parts[0])?,
            output_gradient,
            relu_output,
            input_gradient.view_mut(),
        )?;
        Ok(input_gradient)
    }
}
