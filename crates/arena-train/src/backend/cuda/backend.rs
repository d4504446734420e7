//! The kernels on buffers of an arena: views become addresses.

use std::cell::RefCell;

use arena_scope::cuda::Blas;
use arena_scope::cudarc::driver::DeviceSlice;
use arena_scope::{Cuda, Persistent, Pod, View, ViewMut};

use super::error::CudaError;
use super::kernels::Kernels;
use super::loss::LossOutput;
use super::optimizer::StepCounter;
use super::range::{Input, Output};
use crate::backend::host::{Activation, AdamConfig, ConvShape, LinearShape, SgdConfig};
use crate::backend::{Backend, In, LossMut, Out, Weights, WeightsMut};
use crate::data::{Dataset, gather_batch};
use crate::error::TrainError;

/// The network's arithmetic on a CUDA device, queued on the arena's stream.
///
/// cuBLAS works in a persistent buffer of the arena; nothing else is allocated on the device. A
/// label that is no class makes the loss NaN instead of an error: the device does not wait to be
/// asked.
#[derive(Debug)]
pub struct CudaBackend {
    kernels: Kernels,
    blas_workspace_bytes: usize,
    /// A batch as it is sent. Its memory is used again for each batch.
    bytes: RefCell<Vec<u8>>,
}

impl CudaBackend {
    /// Compiles the kernels for the device.
    ///
    /// # Errors
    ///
    /// [`CudaError`] when NVRTC or cuBLAS are not there, or one of them or the driver refuses.
    pub fn new(device: &Cuda) -> Result<Self, CudaError> {
        Self::with(Kernels::new(device.stream())?)
    }

    /// Takes kernels that were compiled before: see [`Kernels::from_ptx`].
    ///
    /// # Errors
    ///
    /// [`CudaError`] when cuBLAS is not there, or it or the driver refuses.
    pub fn from_ptx(device: &Cuda, ptx: &str) -> Result<Self, CudaError> {
        Self::with(Kernels::from_ptx(device.stream(), ptx)?)
    }

    fn with(kernels: Kernels) -> Result<Self, CudaError> {
        let recommended = Blas::recommended_bytes(kernels.stream())?;
        let blas_workspace_bytes = usize::try_from(recommended).unwrap_or(usize::MAX);
        let bytes = RefCell::new(Vec::new());
        Ok(Self { kernels, blas_workspace_bytes, bytes })
    }

    pub(in crate::backend) const fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// A view as the kernels read it.
    pub(in crate::backend) fn input<'v, T: Pod>(
        &self,
        view: View<'v, T, Cuda>,
    ) -> Result<Input<'v, T>, CudaError> {
        if view.stream() != self.kernels.stream() {
            return Err(CudaError::OtherStream);
        }
        // SAFETY: 1: the view's elements lie inside its region, in the context of its stream, which
        // is the kernels'. 2: work on the arena's own stream needs no order but that: the region is
        // released after its stream has been waited for, and the bytes are used again by work that
        // is queued later on that stream; nobody writes them meanwhile, by the view's invariant.
        Ok(unsafe { Input::new(view.address(), view.len()) })
    }

    /// A view as the kernels write it.
    pub(in crate::backend) fn output<'v, T: Pod>(
        &self,
        view: ViewMut<'v, T, Cuda>,
    ) -> Result<Output<'v, T>, CudaError> {
        if view.stream() != self.kernels.stream() {
            return Err(CudaError::OtherStream);
        }
        // SAFETY: as for `input`; the view is exclusive.
        Ok(unsafe { Output::new(view.address(), view.len()) })
    }
}

impl Backend for CudaBackend {
    type Device = Cuda;

    fn library_workspace_bytes(&self) -> usize {
        self.blas_workspace_bytes
    }

    fn take_library_workspace(
        &mut self,
        workspace: Persistent<u8, Cuda>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels.set_blas_workspace(workspace)?)
    }

    fn conv_forward_workspace_len(&self, shape: &ConvShape) -> Result<usize, TrainError> {
        Ok(self.kernels.conv_forward_workspace_len(shape)?)
    }

    fn conv_weight_gradient_workspace_len(&self, shape: &ConvShape) -> Result<usize, TrainError> {
        Ok(self.kernels.conv_weight_gradient_workspace_len(shape)?)
    }

    fn conv_input_gradient_workspace_len(&self, shape: &ConvShape) -> Result<usize, TrainError> {
        Ok(self.kernels.conv_input_gradient_workspace_len(shape)?)
    }

    fn conv_forward(
        &self,
        shape: &ConvShape,
        input: In<'_, Self>,
        weights: Weights<'_, Cuda>,
        output: Out<'_, Self>,
        routes: Out<'_, Self, u8>,
        workspace: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels.conv_forward(
            shape,
            self.input(input)?,
            self.input(weights.weight)?,
            self.input(weights.bias)?,
            self.output(output)?,
            self.output(routes)?,
            self.output(workspace)?,
        )?)
    }

    fn conv_weight_gradient(
        &self,
        shape: &ConvShape,
        input: In<'_, Self>,
        routes: In<'_, Self, u8>,
        output_gradient: In<'_, Self>,
        gradients: WeightsMut<'_, Cuda>,
        workspace: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels.conv_weight_gradient(
            shape,
            self.input(input)?,
            self.input(routes)?,
            self.input(output_gradient)?,
            self.output(gradients.weight)?,
            self.output(gradients.bias)?,
            self.output(workspace)?,
        )?)
    }

    fn conv_input_gradient(
        &self,
        shape: &ConvShape,
        weight: In<'_, Self>,
        routes: In<'_, Self, u8>,
        output_gradient: In<'_, Self>,
        input_gradient: Out<'_, Self>,
        workspace: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels.conv_input_gradient(
            shape,
            self.input(weight)?,
            self.input(routes)?,
            self.input(output_gradient)?,
            self.output(input_gradient)?,
            self.output(workspace)?,
        )?)
    }

    fn linear_forward(
        &self,
        shape: &LinearShape,
        input: In<'_, Self>,
        weights: Weights<'_, Cuda>,
        activation: Activation,
        output: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels.linear_forward(
            shape,
            self.input(input)?,
            self.input(weights.weight)?,
            self.input(weights.bias)?,
            activation,
            self.output(output)?,
        )?)
    }

    fn linear_weight_gradient(
        &self,
        shape: &LinearShape,
        input: In<'_, Self>,
        output_gradient: In<'_, Self>,
        gradients: WeightsMut<'_, Cuda>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels.linear_weight_gradient(
            shape,
            self.input(input)?,
            self.input(output_gradient)?,
            self.output(gradients.weight)?,
            self.output(gradients.bias)?,
        )?)
    }

    fn linear_input_gradient(
        &self,
        shape: &LinearShape,
        weight: In<'_, Self>,
        output_gradient: In<'_, Self>,
        relu_output: Option<In<'_, Self>>,
        input_gradient: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels.linear_input_gradient(
            shape,
            self.input(weight)?,
            self.input(output_gradient)?,
            relu_output.map(|output| self.input(output)).transpose()?,
            self.output(input_gradient)?,
        )?)
    }

    fn softmax_cross_entropy(
        &self,
        classes: usize,
        logits: In<'_, Self>,
        labels: In<'_, Self, u32>,
        loss: LossMut<'_, Cuda>,
        gradient: Option<Out<'_, Self>>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels.softmax_cross_entropy(
            classes,
            self.input(logits)?,
            self.input(labels)?,
            LossOutput { mean: self.output(loss.mean)?, hits: self.output(loss.hits)? },
            gradient.map(|gradient| self.output(gradient)).transpose()?,
        )?)
    }

    fn add_scaled(
        &self,
        sum: Out<'_, Self>,
        scale: f32,
        values: In<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(self.kernels.add_scaled(self.output(sum)?, scale, self.input(values)?)?)
    }

    fn sgd_step(
        &self,
        config: &SgdConfig,
        parameters: Out<'_, Self>,
        gradients: In<'_, Self>,
        velocity: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        let (parameters, velocity) = (self.output(parameters)?, self.output(velocity)?);
        Ok(self.kernels.sgd_step(config, parameters, self.input(gradients)?, velocity)?)
    }

    fn adam_step(
        &self,
        config: &AdamConfig,
        step: u64,
        parameters: Out<'_, Self>,
        gradients: In<'_, Self>,
        moments: [Out<'_, Self>; 2],
    ) -> Result<(), TrainError> {
        let [mean, mean_square] = moments;
        let moments = [self.output(mean)?, self.output(mean_square)?];
        let (parameters, gradients) = (self.output(parameters)?, self.input(gradients)?);
        Ok(self.kernels.adam_step(config, step, parameters, gradients, moments)?)
    }

    fn load_batch_workspace_bytes(&self, dataset: &Dataset, images: usize) -> usize {
        // A pixel and a label are a byte each, as in the dataset itself.
        images.saturating_mul(dataset.rows.saturating_mul(dataset.cols).saturating_add(1))
    }

    fn load_batch(
        &self,
        dataset: &Dataset,
        indices: &[u32],
        pixels: Out<'_, Self>,
        labels: Out<'_, Self, u32>,
        mut workspace: Out<'_, Self, u8>,
    ) -> Result<(), TrainError> {
        let mut bytes = self.bytes.borrow_mut();
        bytes.resize(workspace.len(), 0);
        gather_batch(dataset, indices, &mut bytes)?;
        // The bytes are taken at the call, so they can be written again for the next batch.
        workspace.write(&bytes)?;
        let (pixels, labels) = (self.output(pixels)?, self.output(labels)?);
        let sent = self.input(workspace.view())?;
        Ok(self.kernels.load_batch(dataset.image_len(), sent, pixels, labels)?)
    }

    fn unpack_batch(
        &self,
        image_len: usize,
        bytes: In<'_, Self, u8>,
        pixels: Out<'_, Self>,
        labels: Out<'_, Self, u32>,
    ) -> Result<(), TrainError> {
        let (pixels, labels) = (self.output(pixels)?, self.output(labels)?);
        Ok(self.kernels.load_batch(image_len, self.input(bytes)?, pixels, labels)?)
    }

    fn advance_sgd(
        &self,
        config: &SgdConfig,
        total: u64,
        steps: Out<'_, Self, u64>,
        rates: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        let counter = StepCounter { steps: self.output(steps)?, rates: self.output(rates)? };
        Ok(self.kernels.advance_sgd(config, total, counter)?)
    }

    fn advance_adam(
        &self,
        config: &AdamConfig,
        total: u64,
        steps: Out<'_, Self, u64>,
        rates: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        let counter = StepCounter { steps: self.output(steps)?, rates: self.output(rates)? };
        Ok(self.kernels.advance_adam(config, total, counter)?)
    }

    fn sgd_scheduled(
        &self,
        config: &SgdConfig,
        rates: In<'_, Self>,
        parameters: Out<'_, Self>,
        gradients: In<'_, Self>,
        velocity: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        let (parameters, velocity) = (self.output(parameters)?, self.output(velocity)?);
        let (rates, gradients) = (self.input(rates)?, self.input(gradients)?);
        Ok(self.kernels.sgd_scheduled(config.momentum, rates, parameters, gradients, velocity)?)
    }

    fn adam_scheduled(
        &self,
        config: &AdamConfig,
        rates: In<'_, Self>,
        parameters: Out<'_, Self>,
        gradients: In<'_, Self>,
        moments: [Out<'_, Self>; 2],
    ) -> Result<(), TrainError> {
        let [mean, mean_square] = moments;
        let moments = [self.output(mean)?, self.output(mean_square)?];
        let (rates, parameters) = (self.input(rates)?, self.output(parameters)?);
        let gradients = self.input(gradients)?;
        Ok(self.kernels.adam_scheduled(config, rates, parameters, gradients, moments)?)
    }
}
