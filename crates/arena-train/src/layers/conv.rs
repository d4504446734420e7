//! Convolution, bias, ReLU and max-pool as one layer.

use arena_scope::{PartId, Scope};

use crate::backend::host::ConvShape;
use crate::backend::{Backend, Buffer, In};
use crate::error::TrainError;
use crate::init::Initial;
use crate::parameters::{NewParameters, Parameters};

/// What the layer made of a batch: the pooled values, and where each of them came from.
#[derive(Debug)]
pub struct Pooled<'s, B: Backend> {
    /// `[batch, rows, columns, channels]`.
    pub values: Buffer<'s, B>,
    /// For each value the place in its window, or that no gradient passes.
    pub routes: Buffer<'s, B, u8>,
}

/// A convolution without padding, its ReLU, and a 2x2 max-pool.
#[derive(Debug, Clone, Copy)]
pub struct Conv {
    /// The shape for a batch of 0, to be completed by each batch.
    shape: ConvShape,
    /// Weights and biases.
    parts: [PartId; 2],
}

impl Conv {
    /// A layer with He-uniform weights and zero biases, which are added to `parameters`. `stream` tells its
    /// random numbers from those of other layers.
    ///
    /// # Errors
    ///
    /// When the kernels do not serve the shape, or the parameters are too large.
    pub fn new(
        parameters: &mut NewParameters,
        name: &str,
        shape: ConvShape,
        (seed, stream): (u64, u64),
    ) -> Result<Self, TrainError> {
        shape.check()?;
        let initial = Initial::HeUniform { seed, stream, fan_in: shape.filter_len(), scale: 1.0 };
        let weight = parameters.add(format!("{name}.weight"), shape.weight_len(), initial)?;
        let bias = shape.out_channels;
        let bias = parameters.add(format!("{name}.bias"), bias, Initial::Value(0.0))?;
        Ok(Self { shape, parts: [weight, bias] })
    }

    /// The layer's shape for `batch` images.
    #[must_use]
    pub const fn shape(&self, batch: usize) -> ConvShape {
        ConvShape { batch, ..self.shape }
    }

    /// The pooled activations of `batch` images, and their routes.
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
    ) -> Result<Pooled<'s, B>, TrainError> {
        let shape = self.shape(batch);
        let mut values = step.alloc(shape.output_len())?;
        let mut routes = step.alloc(shape.output_len())?;
        let mut workspace = step.alloc(backend.conv_forward_workspace_len(&shape)?)?;
        backend.conv_forward(
            &shape,
            input,
            parameters.weights(self.parts)?,
            values.view_mut(),
            routes.view_mut(),
            workspace.view_mut(),
        )?;
        Ok(Pooled { values, routes })
    }

    /// Writes the gradients of weights and biases, from the routes and the gradient of the output.
    ///
    /// # Errors
    ///
    /// When the arena has no room, an operand does not fit, or the device refuses.
    pub fn weight_gradient<B: Backend>(
        &self,
        backend: &B,
        parameters: &mut Parameters<B::Device>,
        step: &Scope<'_, '_, B::Device>,
        batch: usize,
        input: In<'_, B>,
        (routes, output_gradient): (In<'_, B, u8>, In<'_, B>),
    ) -> Result<(), TrainError> {
        let shape = self.shape(batch);
        let mut workspace = step.alloc(backend.conv_weight_gradient_workspace_len(&shape)?)?;
        let gradients = parameters.gradients_mut(self.parts)?;
        let workspace = workspace.view_mut();
        backend.conv_weight_gradient(&shape, input, routes, output_gradient, gradients, workspace)
    }

    /// The gradient of the layer's input, from the routes and the gradient of the output.
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
        (routes, output_gradient): (In<'_, B, u8>, In<'_, B>),
    ) -> Result<Buffer<'s, B>, TrainError> {
        let shape = self.shape(batch);
        let mut input_gradient = step.alloc(shape.input_len())?;
        let mut workspace = step.alloc(backend.conv_input_gradient_workspace_len(&shape)?)?;
        backend.conv_input_gradient(
            &shape,
            parameters.value(self.parts[0])?,
            routes,
            output_gradient,
            input_gradient.view_mut(),
            workspace.view_mut(),
        )?;
        Ok(input_gradient)
    }
}
