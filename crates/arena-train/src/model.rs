//! The network: two convolutions, two linear layers.

use arena_scope::{Arena, Scope};

use crate::backend::host::{Activation, ConvShape};
use crate::backend::{Backend, Buffer, In};
use crate::error::TrainError;
use crate::init::LOGITS_SCALE;
use crate::layers::{Conv, Linear, Loss, Pooled, loss, loss_and_gradient};
use crate::optimizer::Optimizer;
use crate::parameter::Parameter;

/// Digits.
pub const CLASSES: usize = 10;

/// Rows, and columns, of an image.
pub const IMAGE_SIDE: usize = 28;

/// Pixels of an image.
pub const IMAGE_LEN: usize = IMAGE_SIDE * IMAGE_SIDE;

/// The MNIST CNN: conv 5x5 1->32, ReLU, max-pool 2, conv 5x5 32->64, ReLU, max-pool 2, linear
/// 1024->128, ReLU, linear 128->10.
#[derive(Debug)]
pub struct Cnn<B: Backend> {
    backend: B,
    layers: Layers<B>,
}

#[derive(Debug)]
struct Layers<B: Backend> {
    conv1: Conv<B>,
    conv2: Conv<B>,
    hidden: Linear<B>,
    logits: Linear<B>,
}

/// What the forward pass leaves for the backward pass.
#[derive(Debug)]
struct Activations<'s, B: Backend> {
    pooled1: Pooled<'s, B>,
    pooled2: Pooled<'s, B>,
    hidden: Buffer<'s, B>,
    logits: Buffer<'s, B>,
}

impl<B: Backend> Cnn<B> {
    /// The network with seeded weights, and state for the optimizer, persistent in `arena`.
    ///
    /// # Errors
    ///
    /// When the arena has no room, or the device refuses.
    pub fn new(
        arena: &Arena<B::Device>,
        mut backend: B,
        optimizer: &Optimizer,
        seed: u64,
    ) -> Result<Self, TrainError> {
        let workspace_bytes = backend.library_workspace_bytes();
        if workspace_bytes > 0 {
            backend.take_library_workspace(arena.persistent(workspace_bytes)?)?;
        }
        let state = optimizer.state_tensors();
        let conv1 = ConvShape {
            batch: 0,
            in_rows: IMAGE_SIDE,
            in_cols: IMAGE_SIDE,
            in_channels: 1,
            out_channels: 32,
            kernel: 5,
        };
        let conv2 = ConvShape {
            batch: 0,
            in_rows: conv1.out_rows(),
            in_cols: conv1.out_cols(),
            in_channels: conv1.out_channels,
            out_channels: 64,
            kernel: 5,
        };
        let (features, width) = (conv2.out_image_len(), 128);
        let (relu, identity) = (Activation::Relu, Activation::Identity);
        let names = ["conv1.weight", "conv1.bias"];
        let conv1 = Conv::new(arena, names, conv1, (seed, 0), state)?;
        let names = ["conv2.weight", "conv2.bias"];
        let conv2 = Conv::new(arena, names, conv2, (seed, 2), state)?;
        let names = ["hidden.weight", "hidden.bias"];
        let hidden = Linear::new(arena, names, (features, width), relu, (seed, 4, 1.0), state)?;
        let names = ["logits.weight", "logits.bias"];
        let scale = LOGITS_SCALE;
        let logits =
            Linear::new(arena, names, (width, CLASSES), identity, (seed, 6, scale), state)?;
        Ok(Self { backend, layers: Layers { conv1, conv2, hidden, logits } })
    }

    /// The kernels.
    #[must_use]
    pub const fn backend(&self) -> &B {
        &self.backend
    }

    /// The parameters, in the order of the layers.
    #[must_use]
    pub fn parameters(&self) -> [&Parameter<B::Device>; 8] {
        let Layers { conv1, conv2, hidden, logits } = &self.layers;
        [
            &conv1.weight,
            &conv1.bias,
            &conv2.weight,
            &conv2.bias,
            &hidden.weight,
            &hidden.bias,
            &logits.weight,
            &logits.bias,
        ]
    }

    /// The parameters, in the order of the layers, to be changed.
    pub fn parameters_mut(&mut self) -> [&mut Parameter<B::Device>; 8] {
        self.layers.parameters_mut()
    }

    fn forward<'s>(
        &self,
        step: &Scope<'s, '_, B::Device>,
        batch: usize,
        images: In<'_, B>,
    ) -> Result<Activations<'s, B>, TrainError> {
        let Self { backend, layers } = self;
        let pooled1 = layers.conv1.forward(backend, step, batch, images)?;
        let pooled2 = layers.conv2.forward(backend, step, batch, pooled1.values.view())?;
        let hidden = layers.hidden.forward(backend, step, batch, pooled2.values.view())?;
        let logits = layers.logits.forward(backend, step, batch, hidden.view())?;
        Ok(Activations { pooled1, pooled2, hidden, logits })
    }

    /// The logits `[batch, CLASSES]` of `batch` images; nothing is kept for a backward pass, nor the images.
    ///
    /// # Errors
    ///
    /// When the arena has no room, the images do not fit, or the device refuses.
    pub fn predict<'s>(
        &self,
        step: &Scope<'s, '_, B::Device>,
        batch: usize,
        images: Buffer<'s, B>,
    ) -> Result<Buffer<'s, B>, TrainError> {
        let Self { backend, layers } = self;
        // Each layer's input is dropped as soon as its output is there.
        let pooled = layers.conv1.forward(backend, step, batch, images.view())?.values;
        drop(images);
        let pooled = layers.conv2.forward(backend, step, batch, pooled.view())?.values;
        let hidden = layers.hidden.forward(backend, step, batch, pooled.view())?;
        drop(pooled);
        layers.logits.forward(backend, step, batch, hidden.view())
    }

    /// The loss of a batch of images, for evaluation. Takes the images, so that they are gone when the first layer
    /// has seen them.
    ///
    /// # Errors
    ///
    /// As for [`predict`](Self::predict), or when a label is no class.
    pub fn evaluate<'s>(
        &self,
        step: &Scope<'s, '_, B::Device>,
        images: Buffer<'s, B>,
        labels: In<'_, B, u32>,
    ) -> Result<Loss<'s, B>, TrainError> {
        let logits = self.predict(step, labels.len(), images)?;
        loss(&self.backend, step, CLASSES, logits.view(), labels)
    }

    /// The loss of a batch of images; every parameter's gradient is written. Takes the images, so
    /// that they are gone when the first layer has seen its gradient.
    ///
    /// # Errors
    ///
    /// As for [`evaluate`](Self::evaluate).
    pub fn gradients<'s>(
        &mut self,
        step: &Scope<'s, '_, B::Device>,
        images: Buffer<'s, B>,
        labels: Buffer<'s, B, u32>,
    ) -> Result<Loss<'s, B>, TrainError> {
        let batch = labels.len();
        let Activations { pooled1, pooled2, hidden, logits } =
            self.forward(step, batch, images.view())?;
        let Self { backend, layers } = self;
        let Layers { conv1, conv2, hidden: hidden_layer, logits: logits_layer } = layers;

        let (loss, gradient) =
            loss_and_gradient(backend, step, CLASSES, logits.view(), labels.view())?;
        drop((logits, labels));

        // From the last layer to the first: a layer's own gradients first, then its input's. What
        // the layers before do not need any more is dropped on the way.
        logits_layer.weight_gradient(backend, batch, hidden.view(), gradient.view())?;
        let relu = Some(hidden.view());
        let gradient = logits_layer.input_gradient(backend, step, batch, gradient.view(), relu)?;
        drop(hidden);

        let input = pooled2.values.view();
        hidden_layer.weight_gradient(backend, batch, input, gradient.view())?;
        drop(pooled2.values);
        let gradient = hidden_layer.input_gradient(backend, step, batch, gradient.view(), None)?;

        let (routes, input) = (pooled2.routes.view(), pooled1.values.view());
        conv2.weight_gradient(backend, step, batch, input, routes, gradient.view())?;
        drop(pooled1.values);
        let gradient = conv2.input_gradient(backend, step, batch, routes, gradient.view())?;
        drop(pooled2.routes);

        let (routes, input) = (pooled1.routes.view(), images.view());
        conv1.weight_gradient(backend, step, batch, input, routes, gradient.view())?;
        Ok(loss)
    }

    /// Moves every parameter against its gradient. `step` counts from 1.
    ///
    /// # Errors
    ///
    /// When the device refuses.
    pub fn update(
        &mut self,
        optimizer: &Optimizer,
        step: u64,
        rate_factor: f32,
    ) -> Result<(), TrainError> {
        for parameter in self.layers.parameters_mut() {
            optimizer.update(&self.backend, parameter, step, rate_factor)?;
        }
        Ok(())
    }

    /// [`update`](Self::update) with the rates that [`Optimizer::advance`] left on the device.
    ///
    /// # Errors
    ///
    /// When the device refuses.
    pub fn update_scheduled(
        &mut self,
        optimizer: &Optimizer,
        rates: In<'_, B>,
    ) -> Result<(), TrainError> {
        for parameter in self.layers.parameters_mut() {
            optimizer.update_scheduled(&self.backend, parameter, rates)?;
        }
        Ok(())
    }
}

impl<B: Backend> Layers<B> {
    fn parameters_mut(&mut self) -> [&mut Parameter<B::Device>; 8] {
        let Self { conv1, conv2, hidden, logits } = self;
        [
            &mut conv1.weight,
            &mut conv1.bias,
            &mut conv2.weight,
            &mut conv2.bias,
            &mut hidden.weight,
            &mut hidden.bias,
            &mut logits.weight,
            &mut logits.bias,
        ]
    }
}
