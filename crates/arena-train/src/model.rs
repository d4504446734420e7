//! The network: two convolutions, two linear layers.

use arena_scope::{Arena, Scope};

use crate::backend::host::{Activation, ConvShape};
use crate::backend::{Backend, Buffer, In, ProbeBackend};
use crate::data::{Dataset, IMAGE_SIDE, gather_batch};
use crate::error::TrainError;
use crate::init::LOGITS_SCALE;
use crate::layers::{Conv, Linear, Loss, Pooled, loss, loss_and_gradient};
use crate::network::Network;
use crate::parameters::{NewParameters, Parameters};
use crate::training::RunConfig;

/// Digits.
pub const CLASSES: usize = 10;

/// Pixels of an image.
pub const IMAGE_LEN: usize = IMAGE_SIDE * IMAGE_SIDE;

/// The MNIST CNN: conv 5x5 1->32, ReLU, max-pool 2, conv 5x5 32->64, ReLU, max-pool 2, linear
/// 1024->128, ReLU, linear 128->10.
#[derive(Debug)]
pub struct Cnn<B: Backend> {
    backend: B,
    parameters: Parameters<B::Device>,
    layers: Layers,
}

#[derive(Debug, Clone, Copy)]
struct Layers {
    conv1: Conv,
    conv2: Conv,
    hidden: Linear,
    logits: Linear,
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
        run: &RunConfig,
    ) -> Result<Self, TrainError> {
        let seed = run.seed;
        let workspace_bytes = backend.library_workspace_bytes();
        if workspace_bytes > 0 {
            backend.take_library_workspace(arena.persistent(workspace_bytes)?)?;
        }
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
        let mut new = NewParameters::new();
        let layers = Layers {
            conv1: Conv::new(&mut new, "conv1", conv1, (seed, 0))?,
            conv2: Conv::new(&mut new, "conv2", conv2, (seed, 2))?,
            hidden: Linear::new(&mut new, "hidden", (features, width), relu, (seed, 4, 1.0))?,
            logits: {
                let (features, random) = ((width, CLASSES), (seed, 6, LOGITS_SCALE));
                Linear::new(&mut new, "logits", features, identity, random)?
            },
        };
        let parameters = new.build::<B>(arena, run)?;
        Ok(Self { backend, parameters, layers })
    }

    /// The kernels.
    #[must_use]
    pub const fn backend(&self) -> &B {
        &self.backend
    }

    /// The parameters.
    #[must_use]
    pub const fn parameters(&self) -> &Parameters<B::Device> {
        &self.parameters
    }

    /// The parameters, to be changed.
    pub const fn parameters_mut(&mut self) -> &mut Parameters<B::Device> {
        &mut self.parameters
    }

    fn forward<'s>(
        &self,
        step: &Scope<'s, '_, B::Device>,
        batch: usize,
        images: In<'_, B>,
    ) -> Result<Activations<'s, B>, TrainError> {
        let Self { backend, parameters, layers } = self;
        let pooled1 = layers.conv1.forward(backend, parameters, step, batch, images)?;
        let pooled2 =
            layers.conv2.forward(backend, parameters, step, batch, pooled1.values.view())?;
        let hidden =
            layers.hidden.forward(backend, parameters, step, batch, pooled2.values.view())?;
        let logits = layers.logits.forward(backend, parameters, step, batch, hidden.view())?;
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
        let Self { backend, parameters, layers } = self;
        // Each layer's input is dropped as soon as its output is there.
        let pooled = layers.conv1.forward(backend, parameters, step, batch, images.view())?.values;
        drop(images);
        let pooled = layers.conv2.forward(backend, parameters, step, batch, pooled.view())?.values;
        let hidden = layers.hidden.forward(backend, parameters, step, batch, pooled.view())?;
        drop(pooled);
        layers.logits.forward(backend, parameters, step, batch, hidden.view())
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
        let Self { backend, parameters, layers } = self;
        let Layers { conv1, conv2, hidden: hidden_layer, logits: logits_layer } = layers;

        let (loss, gradient) =
            loss_and_gradient(backend, step, CLASSES, logits.view(), labels.view())?;
        drop((logits, labels));

        // From the last layer to the first: a layer's own gradients first, then its input's. What
        // the layers before do not need any more is dropped on the way.
        logits_layer.weight_gradient(backend, parameters, batch, hidden.view(), gradient.view())?;
        let relu = Some(hidden.view());
        let gradient =
            logits_layer.input_gradient(backend, parameters, step, batch, gradient.view(), relu)?;
        drop(hidden);

        let input = pooled2.values.view();
        hidden_layer.weight_gradient(backend, parameters, batch, input, gradient.view())?;
        drop(pooled2.values);
        let gradient =
            hidden_layer.input_gradient(backend, parameters, step, batch, gradient.view(), None)?;

        let (routes, input) = (pooled2.routes.view(), pooled1.values.view());
        let output = (routes, gradient.view());
        conv2.weight_gradient(backend, parameters, step, batch, input, output)?;
        drop(pooled1.values);
        let gradient = conv2.input_gradient(backend, parameters, step, batch, output)?;
        drop(pooled2.routes);

        let (routes, input) = (pooled1.routes.view(), images.view());
        let output = (routes, gradient.view());
        conv1.weight_gradient(backend, parameters, step, batch, input, output)?;
        Ok(loss)
    }
}

impl<B: Backend> Network for Cnn<B> {
    type Backend = B;
    type Probe<'b>
        = Cnn<ProbeBackend<'b, B>>
    where
        B: 'b;
    type Sizes = ();
    type Data = Dataset;
    /// Pixels and labels.
    type Batch<'s> = (Buffer<'s, B>, Buffer<'s, B, u32>);

    const PREDICTIONS: &'static str = "images";

    fn new(arena: &Arena<B::Device>, backend: B, config: &RunConfig) -> Result<Self, TrainError> {
        Self::new(arena, backend, config)
    }

    fn describe((): &()) -> String {
        "cnn".to_owned()
    }

    fn parameters(&self) -> &Parameters<B::Device> {
        &self.parameters
    }

    fn parts_mut(&mut self) -> (&B, &mut Parameters<B::Device>) {
        (&self.backend, &mut self.parameters)
    }

    fn load<'s>(
        &self,
        scope: &Scope<'s, '_, B::Device>,
        data: &Dataset,
        examples: &[u32],
    ) -> Result<Self::Batch<'s>, TrainError> {
        let mut images = scope.alloc(examples.len() * IMAGE_LEN)?;
        let mut labels = scope.alloc(examples.len())?;
        let workspace_bytes = self.backend.load_batch_workspace_bytes(data, examples.len());
        let mut workspace = scope.alloc(workspace_bytes)?;
        let (to_images, to_labels) = (images.view_mut(), labels.view_mut());
        self.backend.load_batch(data, examples, to_images, to_labels, workspace.view_mut())?;
        Ok((images, labels))
    }

    fn gradients<'s>(
        &mut self,
        scope: &mut Scope<'s, '_, B::Device>,
        _number: u64,
        (images, labels): Self::Batch<'s>,
    ) -> Result<Buffer<'s, B>, TrainError> {
        Ok(self.gradients(scope, images, labels)?.mean)
    }

    fn evaluate<'s>(
        &self,
        scope: &mut Scope<'s, '_, B::Device>,
        (images, labels): Self::Batch<'s>,
    ) -> Result<Loss<'s, B>, TrainError> {
        self.evaluate(scope, images, labels.view())
    }

    fn sent_bytes() -> usize {
        // A pixel and a label are a byte each, as in the dataset itself.
        IMAGE_LEN + 1
    }

    fn send(data: &Dataset, examples: &[u32], bytes: &mut [u8]) -> Result<(), TrainError> {
        Ok(gather_batch(data, examples, bytes)?)
    }

    fn unpack<'s>(
        &self,
        scope: &Scope<'s, '_, B::Device>,
        examples: usize,
        sent: In<'_, B, u8>,
    ) -> Result<Self::Batch<'s>, TrainError> {
        let mut pixels = scope.alloc(examples * IMAGE_LEN)?;
        let mut labels = scope.alloc(examples)?;
        self.backend.unpack_batch(IMAGE_LEN, sent, pixels.view_mut(), labels.view_mut())?;
        Ok((pixels, labels))
    }
}
