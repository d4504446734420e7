//! A linear layer and its activation.

use arena_scope::{Arena, Scope};

use crate::backend::host::{Activation, LinearShape};
use crate::backend::{Backend, Buffer, In, Weights, WeightsMut};
use crate::error::TrainError;
use crate::init::he_uniform;
use crate::parameter::Parameter;

/// `activation(input · weightᵀ + bias)`.
#[derive(Debug)]
pub struct Linear<B: Backend> {
    in_features: usize,
    out_features: usize,
    activation: Activation,
    pub(crate) weight: Parameter<B::Device>,
    pub(crate) bias: Parameter<B::Device>,
}

impl<B: Backend> Linear<B> {
    /// A layer from `features.0` to `features.1` features, with He-uniform weights times `scale` and
    /// zero biases, persistent in `arena`. `stream` tells its random numbers from those of other
    /// layers.
    ///
    /// # Errors
    ///
    /// When the kernels do not serve the shape, or the arena has no room.
    pub fn new(
        arena: &Arena<B::Device>,
        names: [&'static str; 2],
        (in_features, out_features): (usize, usize),
        activation: Activation,
        (seed, stream, scale): (u64, u64, f32),
        state_tensors: usize,
    ) -> Result<Self, TrainError> {
        let shape = LinearShape { batch: 0, in_features, out_features };
        shape.check()?;
        let mut weight = vec![0.0; shape.weight_len()];
        he_uniform(seed, stream, in_features, scale, &mut weight);
        let bias = vec![0.0; out_features];
        Ok(Self {
            in_features,
            out_features,
            activation,
            weight: Parameter::new(arena, names[0], &weight, state_tensors)?,
            bias: Parameter::new(arena, names[1], &bias, state_tensors)?,
        })
    }

    const fn shape(&self, batch: usize) -> LinearShape {
        LinearShape { batch, in_features: self.in_features, out_features: self.out_features }
    }

    /// The activations of `batch` rows.
    ///
    /// # Errors
    ///
    /// When the arena has no room, the input does not fit, or the device refuses.
    pub fn forward<'s>(
        &self,
        backend: &B,
        step: &Scope<'s, '_, B::Device>,
        batch: usize,
        input: In<'_, B>,
    ) -> Result<Buffer<'s, B>, TrainError> {
        let shape = self.shape(batch);
        let mut output = step.alloc(shape.output_len())?;
        let weights = Weights { weight: self.weight.view(), bias: self.bias.view() };
        backend.linear_forward(&shape, input, weights, self.activation, output.view_mut())?;
        Ok(output)
    }

    /// Writes the gradients of weights and biases.
    ///
    /// # Errors
    ///
    /// When an operand does not fit, or the device refuses.
    pub fn weight_gradient(
        &mut self,
        backend: &B,
        batch: usize,
        input: In<'_, B>,
        output_gradient: In<'_, B>,
    ) -> Result<(), TrainError> {
        let shape = self.shape(batch);
        let gradients = WeightsMut {
            weight: self.weight.gradient.view_mut(),
            bias: self.bias.gradient.view_mut(),
        };
        backend.linear_weight_gradient(&shape, input, output_gradient, gradients)
    }

    /// The gradient of the layer's input; through the ReLU before it too, if `relu_output`, the
    /// input, is given.
    ///
    /// # Errors
    ///
    /// When the arena has no room, an operand does not fit, or the device refuses.
    pub fn input_gradient<'s>(
        &self,
        backend: &B,
        step: &Scope<'s, '_, B::Device>,
        batch: usize,
        output_gradient: In<'_, B>,
        relu_output: Option<In<'_, B>>,
    ) -> Result<Buffer<'s, B>, TrainError> {
        let shape = self.shape(batch);
        let mut input_gradient = step.alloc(shape.input_len())?;
        backend.linear_input_gradient(
            &shape,
            self.weight.view(),
            output_gradient,
            relu_output,
            input_gradient.view_mut(),
        )?;
        Ok(input_gradient)
    }
}
