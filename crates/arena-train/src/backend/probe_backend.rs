//! No arithmetic at all: the network's shapes alone, to learn what memory they need.

use arena_scope::Probe;

use super::host::{Activation, AdamConfig, ConvShape, LinearShape, SgdConfig};
use super::{Backend, In, LossMut, Out, Weights, WeightsMut};
use crate::data::Dataset;
use crate::error::TrainError;

/// Stands for a kernel on these buffers of a step, the last of which it may be called without: a recording sees
/// that it uses them.
macro_rules! mark_used {
    ($($operand:expr),+ $(; $optional:ident)?) => {{
        $($operand.mark_used();)+
        $(if let Some($optional) = $optional {
            $optional.mark_used();
        })?
        Ok(())
    }};
}

pub(super) use mark_used as used;

/// Stands for another backend: it asks for the same workspaces and computes nothing.
#[derive(Debug, Clone, Copy)]
pub struct ProbeBackend<'b, B> {
    real: &'b B,
}

impl<'b, B: Backend> ProbeBackend<'b, B> {
    /// A backend that stands for `real`.
    #[must_use]
    pub const fn of(real: &'b B) -> Self {
        Self { real }
    }
}

impl<B: Backend> Backend for ProbeBackend<'_, B> {
    type Device = Probe;

    const COMPUTES: bool = false;

    fn library_workspace_bytes(&self) -> usize {
        self.real.library_workspace_bytes()
    }

    fn conv_forward_workspace_len(&self, shape: &ConvShape) -> Result<usize, TrainError> {
        self.real.conv_forward_workspace_len(shape)
    }

    fn conv_weight_gradient_workspace_len(&self, shape: &ConvShape) -> Result<usize, TrainError> {
        self.real.conv_weight_gradient_workspace_len(shape)
    }

    fn conv_input_gradient_workspace_len(&self, shape: &ConvShape) -> Result<usize, TrainError> {
        self.real.conv_input_gradient_workspace_len(shape)
    }

    fn conv_forward(
        &self,
        _shape: &ConvShape,
        input: In<'_, Self>,
        _weights: Weights<'_, Probe>,
        output: Out<'_, Self>,
        routes: Out<'_, Self, u8>,
        workspace: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        used!(input, output, routes, workspace)
    }

    fn conv_weight_gradient(
        &self,
        _shape: &ConvShape,
        input: In<'_, Self>,
        routes: In<'_, Self, u8>,
        output_gradient: In<'_, Self>,
        _gradients: WeightsMut<'_, Probe>,
        workspace: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        used!(input, routes, output_gradient, workspace)
    }

    fn conv_input_gradient(
        &self,
        _shape: &ConvShape,
        _weight: In<'_, Self>,
        routes: In<'_, Self, u8>,
        output_gradient: In<'_, Self>,
        input_gradient: Out<'_, Self>,
        workspace: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        used!(routes, output_gradient, input_gradient, workspace)
    }

    fn linear_forward(
        &self,
        _shape: &LinearShape,
        input: In<'_, Self>,
        _weights: Weights<'_, Probe>,
        _activation: Activation,
        output: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        used!(input, output)
    }

    fn linear_weight_gradient(
        &self,
        _shape: &LinearShape,
        input: In<'_, Self>,
        output_gradient: In<'_, Self>,
        _gradients: WeightsMut<'_, Probe>,
    ) -> Result<(), TrainError> {
        used!(input, output_gradient)
    }

    fn linear_input_gradient(
        &self,
        _shape: &LinearShape,
        _weight: In<'_, Self>,
        output_gradient: In<'_, Self>,
        relu_output: Option<In<'_, Self>>,
        input_gradient: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        used!(output_gradient, input_gradient; relu_output)
    }

    fn softmax_cross_entropy(
        &self,
        _classes: usize,
        logits: In<'_, Self>,
        labels: In<'_, Self, u32>,
        loss: LossMut<'_, Probe>,
        gradient: Option<Out<'_, Self>>,
    ) -> Result<(), TrainError> {
        used!(logits, labels, loss.mean, loss.hits; gradient)
    }

    fn add_scaled(
        &self,
        _sum: Out<'_, Self>,
        _scale: f32,
        _values: In<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(())
    }

    fn sgd_step(
        &self,
        _config: &SgdConfig,
        _parameters: Out<'_, Self>,
        _gradients: In<'_, Self>,
        _velocity: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(())
    }

    fn adam_step(
        &self,
        _config: &AdamConfig,
        _step: u64,
        _parameters: Out<'_, Self>,
        _gradients: In<'_, Self>,
        _moments: [Out<'_, Self>; 2],
    ) -> Result<(), TrainError> {
        Ok(())
    }

    fn load_batch_workspace_bytes(&self, dataset: &Dataset, images: usize) -> usize {
        self.real.load_batch_workspace_bytes(dataset, images)
    }

    fn load_batch(
        &self,
        _dataset: &Dataset,
        _indices: &[u32],
        pixels: Out<'_, Self>,
        labels: Out<'_, Self, u32>,
        workspace: Out<'_, Self, u8>,
    ) -> Result<(), TrainError> {
        used!(pixels, labels, workspace)
    }

    fn unpack_batch(
        &self,
        _image_len: usize,
        bytes: In<'_, Self, u8>,
        pixels: Out<'_, Self>,
        labels: Out<'_, Self, u32>,
    ) -> Result<(), TrainError> {
        used!(bytes, pixels, labels)
    }

    fn advance_sgd(
        &self,
        _config: &SgdConfig,
        _total: u64,
        _steps: Out<'_, Self, u64>,
        _rates: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(())
    }

    fn advance_adam(
        &self,
        _config: &AdamConfig,
        _total: u64,
        _steps: Out<'_, Self, u64>,
        _rates: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(())
    }

    fn sgd_scheduled(
        &self,
        _config: &SgdConfig,
        _rates: In<'_, Self>,
        _parameters: Out<'_, Self>,
        _gradients: In<'_, Self>,
        _velocity: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(())
    }

    fn adam_scheduled(
        &self,
        _config: &AdamConfig,
        _rates: In<'_, Self>,
        _parameters: Out<'_, Self>,
        _gradients: In<'_, Self>,
        _moments: [Out<'_, Self>; 2],
    ) -> Result<(), TrainError> {
        Ok(())
    }
}
