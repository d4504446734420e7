//! What the loop asks of a network.

use std::fmt;

use arena_scope::{Arena, Scope};

use crate::backend::{Backend, Buffer, In, ProbeBackend};
use crate::data::{Examples, Split};
use crate::error::TrainError;
use crate::layers::Loss;
use crate::parameters::Parameters;
use crate::training::{RunConfig, Trainer};

/// The device of a network.
pub type DeviceOf<N> = <<N as Network>::Backend as Backend>::Device;

/// A network that the loop trains: its parameters are persistent, all else is of a step.
pub trait Network: fmt::Debug + Sized {
    /// Its kernels.
    type Backend: Backend;

    /// The same network on a device without memory, to learn what a run asks for.
    type Probe<'b>: Network<Backend = ProbeBackend<'b, Self::Backend>, Sizes = Self::Sizes, Data = Self::Data>
    where
        Self::Backend: 'b;

    /// What there is to choose of it.
    type Sizes: fmt::Debug + Clone + PartialEq;

    /// What it learns from.
    type Data: Examples;

    /// Examples in a step's memory.
    type Batch<'s>;

    /// What it predicts, in the plural.
    const PREDICTIONS: &'static str;

    /// The network with seeded weights, and state for the optimizer, persistent in `arena`.
    ///
    /// # Errors
    ///
    /// When the sizes make no network, the arena has no room, or the device refuses.
    fn new(
        arena: &Arena<DeviceOf<Self>>,
        backend: Self::Backend,
        config: &RunConfig<Self::Sizes>,
    ) -> Result<Self, TrainError>;

    /// Which network this is, and its sizes: a checkpoint is of just this one.
    fn describe(sizes: &Self::Sizes) -> String;

    /// The parameters.
    fn parameters(&self) -> &Parameters<DeviceOf<Self>>;

    /// The kernels, and the parameters to be changed by them.
    fn parts_mut(&mut self) -> (&Self::Backend, &mut Parameters<DeviceOf<Self>>);

    /// Tells steps over examples of one size from steps over other numbers of them, and of other sizes.
    fn variant(data: &Self::Data, examples: &[u32]) -> u64 {
        let _ = data;
        examples.len() as u64
    }

    /// Predictions that are made for these examples.
    fn predictions(data: &Self::Data, examples: &[u32]) -> u64 {
        let _ = data;
        examples.len() as u64
    }

    /// The examples of these numbers, in the scope's memory.
    ///
    /// # Errors
    ///
    /// When the arena has no room, or the device refuses.
    fn load<'s>(
        &self,
        scope: &Scope<'s, '_, DeviceOf<Self>>,
        data: &Self::Data,
        examples: &[u32],
    ) -> Result<Self::Batch<'s>, TrainError>;

    /// The mean loss of a batch, one element; every parameter's gradient is written. `number` tells it from all other
    /// batches of the run.
    ///
    /// # Errors
    ///
    /// When the arena has no room, the batch makes no sense, or the device refuses.
    fn gradients<'s>(
        &mut self,
        scope: &mut Scope<'s, '_, DeviceOf<Self>>,
        number: u64,
        batch: Self::Batch<'s>,
    ) -> Result<Buffer<'s, Self::Backend>, TrainError>;

    /// The loss of a batch, for evaluation.
    ///
    /// # Errors
    ///
    /// As for [`gradients`](Self::gradients).
    fn evaluate<'s>(
        &self,
        scope: &mut Scope<'s, '_, DeviceOf<Self>>,
        batch: Self::Batch<'s>,
    ) -> Result<Loss<'s, Self::Backend>, TrainError>;

    /// Moves every parameter against its gradient, in one call. `step` counts from 1.
    ///
    /// # Errors
    ///
    /// When the device refuses; no parameter has moved then.
    fn update(&mut self, step: u64, rate_factor: f32) -> Result<(), TrainError> {
        let (backend, parameters) = self.parts_mut();
        parameters.update(backend, step, rate_factor)
    }

    /// Something that the trained network makes, for people; `None` where it makes nothing.
    ///
    /// # Errors
    ///
    /// When the arena has no room, or the device refuses.
    fn sample(
        trainer: &mut Trainer<Self>,
        data: &Split<Self::Data>,
    ) -> Result<Option<String>, TrainError> {
        let _ = (trainer, data);
        Ok(None)
    }

    /// Bytes of one example as it is sent ahead of its step.
    fn sent_bytes() -> usize {
        0
    }

    /// Writes these examples as they are sent ahead, [`sent_bytes`](Self::sent_bytes) for each.
    ///
    /// # Errors
    ///
    /// [`TrainError::NotAhead`] where they cannot be sent.
    fn send(data: &Self::Data, examples: &[u32], bytes: &mut [u8]) -> Result<(), TrainError> {
        let _ = (data, examples, bytes);
        Err(TrainError::NotAhead)
    }

    /// The batch of `examples` examples that was sent.
    ///
    /// # Errors
    ///
    /// [`TrainError::NotAhead`] where they cannot be sent; when the arena has no room, or the device refuses.
    fn unpack<'s>(
        &self,
        scope: &Scope<'s, '_, DeviceOf<Self>>,
        examples: usize,
        sent: In<'_, Self::Backend, u8>,
    ) -> Result<Self::Batch<'s>, TrainError> {
        let _ = (scope, examples, sent);
        Err(TrainError::NotAhead)
    }
}
