//! The arithmetic of the network, and where it runs.
//!
//! A [`Backend`] is a device together with the kernels for it. Layers are written once over it:
//! they allocate from the scope, and hand views to the backend, which never allocates.

#[cfg(feature = "_cuda")]
pub mod cuda;
mod decoder;
pub mod host;
mod host_backend;
mod probe_backend;

use arena_scope::{Device, Persistent, Transient, View, ViewMut};

use crate::data::Dataset;
use crate::error::TrainError;
use crate::feed::Feed;
use host::{Activation, AdamConfig, ConvShape, LinearShape, SgdConfig};

#[cfg(feature = "_cuda")]
pub use cuda::CudaBackend;
pub use decoder::{DecoderKernels, Tables};
pub use host_backend::HostBackend;
pub use probe_backend::ProbeBackend;

/// A buffer of a step on a backend's device.
pub type Buffer<'s, B, T = f32> = Transient<'s, T, <B as Backend>::Device>;

/// Read access to a buffer on a backend's device.
pub type In<'v, B, T = f32> = View<'v, T, <B as Backend>::Device>;

/// Write access to a buffer on a backend's device.
pub type Out<'v, B, T = f32> = ViewMut<'v, T, <B as Backend>::Device>;

/// A layer's weights and biases.
#[derive(Debug)]
pub struct Weights<'v, D: Device> {
    /// The weights.
    pub weight: View<'v, f32, D>,
    /// One bias for each output channel or feature.
    pub bias: View<'v, f32, D>,
}

impl<D: Device> Clone for Weights<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for Weights<'_, D> {}

/// Where a layer's gradients go.
#[derive(Debug)]
pub struct WeightsMut<'v, D: Device> {
    /// The gradient of the weights.
    pub weight: ViewMut<'v, f32, D>,
    /// The gradient of the biases.
    pub bias: ViewMut<'v, f32, D>,
}

/// Where the loss goes: one element each.
#[derive(Debug)]
pub struct LossMut<'v, D: Device> {
    /// Mean cross-entropy over the batch, in nats.
    pub mean: ViewMut<'v, f32, D>,
    /// Images whose largest logit is their label's.
    pub hits: ViewMut<'v, u32, D>,
}

/// A device and the kernels of the network for it, each queued on the arena's stream in call order.
///
/// Shapes are those of the functions of the same name in [`host`], which say what is computed. Every
/// kernel writes all of its outputs and reads none of them first. A kernel over an empty batch
/// writes what follows from no image: zero gradients, a loss of 0. The kernels that work on a step's buffers have
/// `#[track_caller]`, so that a recording names the layer as the one that uses them.
pub trait Backend: std::fmt::Debug {
    /// Where the buffers lie.
    type Device: Feed;

    /// Whether the kernels compute anything.
    const COMPUTES: bool = true;

    /// Memory that the libraries behind the kernels work in, in bytes: it is given to them once, as
    /// one persistent buffer, so that they allocate nothing behind the arena's back.
    fn library_workspace_bytes(&self) -> usize {
        0
    }

    /// Takes the memory for the libraries, of [`library_workspace_bytes`] bytes, if that is not 0.
    ///
    /// # Errors
    ///
    /// When the libraries refuse it.
    ///
    /// [`library_workspace_bytes`]: Self::library_workspace_bytes
    fn take_library_workspace(
        &mut self,
        workspace: Persistent<u8, Self::Device>,
    ) -> Result<(), TrainError> {
        drop(workspace);
        Ok(())
    }

    /// Workspace of [`conv_forward`](Self::conv_forward), in elements of `f32`.
    ///
    /// # Errors
    ///
    /// When the kernels do not serve the shape.
    fn conv_forward_workspace_len(&self, shape: &ConvShape) -> Result<usize, TrainError>;

    /// Workspace of [`conv_weight_gradient`](Self::conv_weight_gradient), in elements of `f32`.
    ///
    /// # Errors
    ///
    /// When the kernels do not serve the shape.
    fn conv_weight_gradient_workspace_len(&self, shape: &ConvShape) -> Result<usize, TrainError>;

    /// Workspace of [`conv_input_gradient`](Self::conv_input_gradient), in elements of `f32`.
    ///
    /// # Errors
    ///
    /// When the kernels do not serve the shape.
    fn conv_input_gradient_workspace_len(&self, shape: &ConvShape) -> Result<usize, TrainError>;

    /// Convolution, bias, ReLU and max-pool; and the routes that the gradients need.
    ///
    /// # Errors
    ///
    /// When a view does not fit the shape, or the device refuses.
    #[track_caller]
    fn conv_forward(
        &self,
        shape: &ConvShape,
        input: In<'_, Self>,
        weights: Weights<'_, Self::Device>,
        output: Out<'_, Self>,
        routes: Out<'_, Self, u8>,
        workspace: Out<'_, Self>,
    ) -> Result<(), TrainError>;

    /// The gradients of a convolution's weights and biases.
    ///
    /// # Errors
    ///
    /// When a view does not fit the shape, or the device refuses.
    #[track_caller]
    fn conv_weight_gradient(
        &self,
        shape: &ConvShape,
        input: In<'_, Self>,
        routes: In<'_, Self, u8>,
        output_gradient: In<'_, Self>,
        gradients: WeightsMut<'_, Self::Device>,
        workspace: Out<'_, Self>,
    ) -> Result<(), TrainError>;

    /// The gradient of a convolution's input.
    ///
    /// # Errors
    ///
    /// When a view does not fit the shape, or the device refuses.
    #[track_caller]
    fn conv_input_gradient(
        &self,
        shape: &ConvShape,
        weight: In<'_, Self>,
        routes: In<'_, Self, u8>,
        output_gradient: In<'_, Self>,
        input_gradient: Out<'_, Self>,
        workspace: Out<'_, Self>,
    ) -> Result<(), TrainError>;

    /// A linear layer and its activation.
    ///
    /// # Errors
    ///
    /// When a view does not fit the shape, or the device refuses.
    #[track_caller]
    fn linear_forward(
        &self,
        shape: &LinearShape,
        input: In<'_, Self>,
        weights: Weights<'_, Self::Device>,
        activation: Activation,
        output: Out<'_, Self>,
    ) -> Result<(), TrainError>;

    /// The gradients of a linear layer's weights and biases.
    ///
    /// # Errors
    ///
    /// When a view does not fit the shape, or the device refuses.
    #[track_caller]
    fn linear_weight_gradient(
        &self,
        shape: &LinearShape,
        input: In<'_, Self>,
        output_gradient: In<'_, Self>,
        gradients: WeightsMut<'_, Self::Device>,
    ) -> Result<(), TrainError>;

    /// The gradient of a linear layer's input, and through the ReLU that made that input, if one
    /// did: `relu_output` is the input then.
    ///
    /// # Errors
    ///
    /// When a view does not fit the shape, or the device refuses.
    #[track_caller]
    fn linear_input_gradient(
        &self,
        shape: &LinearShape,
        weight: In<'_, Self>,
        output_gradient: In<'_, Self>,
        relu_output: Option<In<'_, Self>>,
        input_gradient: Out<'_, Self>,
    ) -> Result<(), TrainError>;

    /// Softmax cross-entropy over `[batch, classes]` logits, and its gradient where it is asked for.
    ///
    /// # Errors
    ///
    /// When a view does not fit, a label is no class, or the device refuses. Where the host cannot
    /// see the labels without waiting, one that is no class makes the loss NaN instead.
    #[track_caller]
    fn softmax_cross_entropy(
        &self,
        classes: usize,
        logits: In<'_, Self>,
        labels: In<'_, Self, u32>,
        loss: LossMut<'_, Self::Device>,
        gradient: Option<Out<'_, Self>>,
    ) -> Result<(), TrainError>;

    /// `sum += scale * values`.
    ///
    /// # Errors
    ///
    /// When the lengths differ, or the device refuses.
    fn add_scaled(
        &self,
        sum: Out<'_, Self>,
        scale: f32,
        values: In<'_, Self>,
    ) -> Result<(), TrainError>;

    /// One step of SGD with momentum.
    ///
    /// # Errors
    ///
    /// When the lengths differ, or the device refuses.
    fn sgd_step(
        &self,
        config: &SgdConfig,
        parameters: Out<'_, Self>,
        gradients: In<'_, Self>,
        velocity: Out<'_, Self>,
    ) -> Result<(), TrainError>;

    /// Step number `step`, from 1 on, of Adam.
    ///
    /// # Errors
    ///
    /// When the lengths differ, or the device refuses.
    fn adam_step(
        &self,
        config: &AdamConfig,
        step: u64,
        parameters: Out<'_, Self>,
        gradients: In<'_, Self>,
        moments: [Out<'_, Self>; 2],
    ) -> Result<(), TrainError>;

    /// Workspace of [`load_batch`](Self::load_batch) for `images` images of a dataset, in bytes.
    fn load_batch_workspace_bytes(&self, dataset: &Dataset, images: usize) -> usize {
        let _ = (dataset, images);
        0
    }

    /// Fills a batch: normalised pixels `[indices.len(), rows, columns]` and labels.
    ///
    /// # Errors
    ///
    /// When a view does not fit or an index is beyond the dataset, or the device refuses.
    #[track_caller]
    fn load_batch(
        &self,
        dataset: &Dataset,
        indices: &[u32],
        pixels: Out<'_, Self>,
        labels: Out<'_, Self, u32>,
        workspace: Out<'_, Self, u8>,
    ) -> Result<(), TrainError>;

    /// Normalises a batch that lies on the device as bytes: `[batch, image_len]` pixels, and behind
    /// them `[batch]` labels.
    ///
    /// # Errors
    ///
    /// When a view does not fit, or the device refuses or takes no bytes.
    fn unpack_batch(
        &self,
        image_len: usize,
        bytes: In<'_, Self, u8>,
        pixels: Out<'_, Self>,
        labels: Out<'_, Self, u32>,
    ) -> Result<(), TrainError> {
        let _ = (image_len, bytes, pixels, labels);
        Err(TrainError::OnlyOnCuda { what: "sending batches ahead" })
    }

    /// Counts a step in `steps`, and leaves the rate that SGD takes for it in `rates`, which has
    /// room for three; it falls in a line to 0 over `total` steps.
    ///
    /// # Errors
    ///
    /// When a length does not fit, or the device refuses or does not count steps.
    fn advance_sgd(
        &self,
        config: &SgdConfig,
        total: u64,
        steps: Out<'_, Self, u64>,
        rates: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        let _ = (config, total, steps, rates);
        Err(TrainError::OnlyOnCuda { what: "a count of steps" })
    }

    /// [`advance_sgd`](Self::advance_sgd) for Adam.
    ///
    /// # Errors
    ///
    /// As there.
    fn advance_adam(
        &self,
        config: &AdamConfig,
        total: u64,
        steps: Out<'_, Self, u64>,
        rates: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        let _ = (config, total, steps, rates);
        Err(TrainError::OnlyOnCuda { what: "a count of steps" })
    }

    /// [`sgd_step`](Self::sgd_step) with the rate that [`advance_sgd`](Self::advance_sgd) left.
    ///
    /// # Errors
    ///
    /// When the lengths differ, or the device refuses or does not count steps.
    fn sgd_scheduled(
        &self,
        config: &SgdConfig,
        rates: In<'_, Self>,
        parameters: Out<'_, Self>,
        gradients: In<'_, Self>,
        velocity: Out<'_, Self>,
    ) -> Result<(), TrainError> {
        let _ = (config, rates, parameters, gradients, velocity);
        Err(TrainError::OnlyOnCuda { what: "a count of steps" })
    }

    /// [`adam_step`](Self::adam_step) with the rates that [`advance_adam`](Self::advance_adam)
    /// left.
    ///
    /// # Errors
    ///
    /// As for [`sgd_scheduled`](Self::sgd_scheduled).
    fn adam_scheduled(
        &self,
        config: &AdamConfig,
        rates: In<'_, Self>,
        parameters: Out<'_, Self>,
        gradients: In<'_, Self>,
        moments: [Out<'_, Self>; 2],
    ) -> Result<(), TrainError> {
        let _ = (config, rates, parameters, gradients, moments);
        Err(TrainError::OnlyOnCuda { what: "a count of steps" })
    }
}
