//! The host's kernels on buffers of the host device: views become slices.

use std::fmt;
use std::marker::PhantomData;

use arena_scope::{Host, HostVisible};

use super::host::{
    self, Activation, AdamConfig, ConvShape, LinearShape, SgdConfig, adam_step, sgd_step,
};
use super::{Backend, In, LossMut, Out, Weights, WeightsMut};
use crate::data::{Dataset, fill_batch};
use crate::error::TrainError;
use crate::feed::Feed;

/// The network's arithmetic on the CPU, cut into parts for a number of threads; the buffers lie on the host, or on
/// another device whose memory the host can use.
///
/// Call it inside [`rayon::ThreadPool::install`]: a join from outside a pool allocates.
pub struct HostBackend<D = Host> {
    threads: usize,
    device: PhantomData<fn() -> D>,
}

impl HostBackend {
    /// A backend that cuts its work into `threads` parts.
    #[must_use]
    pub const fn new(threads: usize) -> Self {
        Self::of(threads)
    }
}

impl<D> HostBackend<D> {
    /// [`new`](HostBackend::new) for buffers of another device.
    #[must_use]
    pub const fn of(threads: usize) -> Self {
        Self { threads, device: PhantomData }
    }

    pub(super) const fn threads(&self) -> usize {
        self.threads
    }
}

impl<D> fmt::Debug for HostBackend<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBackend").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl<D: HostVisible + Feed> Backend for HostBackend<D> {
    type Device = D;

    fn conv_forward_workspace_len(&self, shape: &ConvShape) -> Result<usize, TrainError> {
        Ok(host::conv_relu_pool_workspace_len(shape, self.threads)?)
    }

    fn conv_weight_gradient_workspace_len(&self, shape: &ConvShape) -> Result<usize, TrainError> {
        Ok(host::conv_weight_gradient_workspace_len(shape, self.threads)?)
    }

    fn conv_input_gradient_workspace_len(&self, shape: &ConvShape) -> Result<usize, TrainError> {
        Ok(host::conv_input_gradient_workspace_len(shape, self.threads)?)
    }

    fn conv_forward(
        &self,
        shape: &ConvShape,
        input: In<'_, Self>,
        weights: Weights<'_, D>,
        output: Out<'_, Self>,
        routes: Out<'_, Self, u8>,
        workspace: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(host::conv_relu_pool_forward(
            shape,
            input.as_slice(),
            weights.weight.as_slice(),
            weights.bias.as_slice(),
            output.into_mut_slice(),
            routes.into_mut_slice(),
            workspace.into_mut_slice(),
            self.threads,
        )?)
    }

    fn conv_weight_gradient(
        &self,
        shape: &ConvShape,
        input: In<'_, Self>,
        routes: In<'_, Self, u8>,
        output_gradient: In<'_, Self>,
        gradients: WeightsMut<'_, D>,
        workspace: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(host::conv_weight_gradient(
            shape,
            input.as_slice(),
            routes.as_slice(),
            output_gradient.as_slice(),
            gradients.weight.into_mut_slice(),
            gradients.bias.into_mut_slice(),
            workspace.into_mut_slice(),
            self.threads,
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
        Ok(host::conv_input_gradient(
            shape,
            weight.as_slice(),
            routes.as_slice(),
            output_gradient.as_slice(),
            input_gradient.into_mut_slice(),
            workspace.into_mut_slice(),
            self.threads,
        )?)
    }

    fn linear_forward(
        &self,
        shape: &LinearShape,
        input: In<'_, Self>,
        weights: Weights<'_, D>,
        activation: Activation,
        output: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(host::linear_forward(
            shape,
            input.as_slice(),
            weights.weight.as_slice(),
            weights.bias.as_slice(),
            activation,
            output.into_mut_slice(),
            self.threads,
        )?)
    }

    fn linear_weight_gradient(
        &self,
        shape: &LinearShape,
        input: In<'_, Self>,
        output_gradient: In<'_, Self>,
        gradients: WeightsMut<'_, D>,
    ) -> Result<(), TrainError> {
        Ok(host::linear_weight_gradient(
            shape,
            input.as_slice(),
            output_gradient.as_slice(),
            gradients.weight.into_mut_slice(),
            gradients.bias.into_mut_slice(),
            self.threads,
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
        Ok(host::linear_input_gradient(
            shape,
            weight.as_slice(),
            output_gradient.as_slice(),
            relu_output.map(|output| output.as_slice()),
            input_gradient.into_mut_slice(),
            self.threads,
        )?)
    }

    fn softmax_cross_entropy(
        &self,
        classes: usize,
        logits: In<'_, Self>,
        labels: In<'_, Self, u32>,
        mut loss: LossMut<'_, D>,
        gradient: Option<Out<'_, Self>>,
    ) -> Result<(), TrainError> {
        let (logits, labels) = (logits.as_slice(), labels.as_slice());
        let result = match gradient {
            Some(gradient) => {
                let gradient = gradient.into_mut_slice();
                host::softmax_cross_entropy_gradient(classes, logits, labels, gradient)?
            }
            None => host::softmax_cross_entropy(classes, logits, labels)?,
        };
        // At most as many as the labels, which are indexed by `u32` themselves.
        let hits = u32::try_from(result.hits).unwrap_or(u32::MAX);
        loss.mean.write(&[result.mean])?;
        loss.hits.write(&[hits])?;
        Ok(())
    }

    fn add_scaled(
        &self,
        sum: Out<'_, Self>,
        scale: f32,
        values: In<'_, Self>,
    ) -> Result<(), TrainError> {
        Ok(host::add_scaled(sum.into_mut_slice(), scale, values.as_slice(), self.threads)?)
    }

    fn sgd_step(
        &self,
        config: &SgdConfig,
        parameters: Out<'_, Self>,
        gradients: In<'_, Self>,
        velocity: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        let (parameters, velocity) = (parameters.into_mut_slice(), velocity.into_mut_slice());
        Ok(sgd_step(config, parameters, gradients.as_slice(), velocity, self.threads)?)
    }

    fn adam_step(
        &self,
        config: &AdamConfig,
        step: u64,
        parameters: Out<'_, Self>,
        gradients: In<'_, Self>,
        moments: [Out<'_, Self>; 2],
    ) -> Result<(), TrainError> {
        let [mean, mean_square] = moments.map(|moment| moment.into_mut_slice());
        let (parameters, gradients) = (parameters.into_mut_slice(), gradients.as_slice());
        Ok(adam_step(config, step, parameters, gradients, mean, mean_square, self.threads)?)
    }

    fn load_batch(
        &self,
        dataset: &Dataset,
        indices: &[u32],
        pixels: Out<'_, Self>,
        labels: Out<'_, Self, u32>,
        _workspace: Out<'_, Self, u8>,
    ) -> Result<(), TrainError> {
        Ok(fill_batch(dataset, indices, pixels.into_mut_slice(), labels.into_mut_slice())?)
    }
}
