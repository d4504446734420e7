//! A trained tensor, with its gradient and its optimizer state: all persistent.

use arena_scope::{Arena, Device, Persistent, View};

use crate::error::TrainError;

/// A parameter tensor. Everything in it lies below the mark and never moves.
#[derive(Debug)]
pub struct Parameter<D: Device> {
    /// Its name in a checkpoint.
    pub name: &'static str,
    /// The values that are trained.
    pub value: Persistent<f32, D>,
    /// The gradient of the last step; every step overwrites it whole.
    pub gradient: Persistent<f32, D>,
    /// The optimizer's state: one tensor for SGD with momentum, two for Adam.
    pub state: Vec<Persistent<f32, D>>,
}

impl<D: Device> Parameter<D> {
    /// A parameter with these values, a zero gradient and `state_tensors` zero tensors of state.
    ///
    /// # Errors
    ///
    /// When the arena has no room, or the device refuses.
    pub fn new(
        arena: &Arena<D>,
        name: &'static str,
        values: &[f32],
        state_tensors: usize,
    ) -> Result<Self, TrainError> {
        let value = arena.persistent_from(values)?;
        let gradient = arena.persistent_zeroed(values.len())?;
        let state = (0..state_tensors).map(|_| arena.persistent_zeroed(values.len()));
        Ok(Self { name, value, gradient, state: state.collect::<Result<_, _>>()? })
    }

    /// Shared access to the values.
    #[must_use]
    pub fn view(&self) -> View<'_, f32, D> {
        self.value.view()
    }
}
