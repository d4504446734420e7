//! The optimizers, and how their rate falls.

use crate::backend::host::{AdamConfig, SgdConfig};
use crate::backend::{Backend, In, Out};
use crate::error::TrainError;
use crate::parameter::Parameter;

/// How parameters move against their gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Optimizer {
    /// Stochastic gradient descent with momentum.
    Sgd(SgdConfig),
    /// Adam.
    Adam(AdamConfig),
}

impl Optimizer {
    /// Tensors of state for each parameter tensor.
    #[must_use]
    pub const fn state_tensors(&self) -> usize {
        match self {
            Self::Sgd(_) => 1,
            Self::Adam(_) => 2,
        }
    }

    /// The learning rate at the start of the run.
    #[must_use]
    pub const fn learning_rate(&self) -> f32 {
        match self {
            Self::Sgd(config) => config.learning_rate,
            Self::Adam(config) => config.learning_rate,
        }
    }

    /// Moves one parameter, with the rate times `rate_factor`. `step` counts from 1.
    ///
    /// # Errors
    ///
    /// When the parameter's state is not this optimizer's, or the device refuses.
    pub fn update<B: Backend>(
        &self,
        backend: &B,
        parameter: &mut Parameter<B::Device>,
        step: u64,
        rate_factor: f32,
    ) -> Result<(), TrainError> {
        let Parameter { value, gradient, state, .. } = parameter;
        let (value, gradient) = (value.view_mut(), gradient.view());
        match (self, state.as_mut_slice()) {
            (Self::Sgd(config), [velocity]) => {
                let learning_rate = config.learning_rate * rate_factor;
                let config = SgdConfig { learning_rate, ..*config };
                backend.sgd_step(&config, value, gradient, velocity.view_mut())
            }
            (Self::Adam(config), [mean, mean_square]) => {
                let learning_rate = config.learning_rate * rate_factor;
                let config = AdamConfig { learning_rate, ..*config };
                let moments = [mean.view_mut(), mean_square.view_mut()];
                backend.adam_step(&config, step, value, gradient, moments)
            }
            _ => Err(TrainError::OptimizerState { parameter: parameter.name }),
        }
    }

    /// Counts a step on the device, and leaves its rates there, for
    /// [`update_scheduled`](Self::update_scheduled). The rate falls in a line to 0 over
    /// `steps_in_all` steps.
    ///
    /// # Errors
    ///
    /// When a length does not fit, or the device refuses or does not count steps.
    pub fn advance<B: Backend>(
        &self,
        backend: &B,
        steps_in_all: u64,
        steps: Out<'_, B, u64>,
        rates: Out<'_, B>,
    ) -> Result<(), TrainError> {
        match self {
            Self::Sgd(config) => backend.advance_sgd(config, steps_in_all, steps, rates),
            Self::Adam(config) => backend.advance_adam(config, steps_in_all, steps, rates),
        }
    }

    /// Moves one parameter, with the rates that [`advance`](Self::advance) left.
    ///
    /// # Errors
    ///
    /// As for [`update`](Self::update).
    pub fn update_scheduled<B: Backend>(
        &self,
        backend: &B,
        parameter: &mut Parameter<B::Device>,
        rates: In<'_, B>,
    ) -> Result<(), TrainError> {
        let Parameter { value, gradient, state, .. } = parameter;
        let (value, gradient) = (value.view_mut(), gradient.view());
        match (self, state.as_mut_slice()) {
            (Self::Sgd(config), [velocity]) => {
                let velocity = velocity.view_mut();
                backend.sgd_scheduled(config, rates, value, gradient, velocity)
            }
            (Self::Adam(config), [mean, mean_square]) => {
                let moments = [mean.view_mut(), mean_square.view_mut()];
                backend.adam_scheduled(config, rates, value, gradient, moments)
            }
            _ => Err(TrainError::OptimizerState { parameter: parameter.name }),
        }
    }
}
