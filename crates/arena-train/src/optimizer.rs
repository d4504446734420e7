//! The optimizers.

use crate::backend::host::{AdamConfig, SgdConfig};

/// How parameters move against their gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Optimizer {
    /// Stochastic gradient descent with momentum.
    Sgd(SgdConfig),
    /// Adam.
    Adam(AdamConfig),
}

impl Optimizer {
    /// The learning rate at the start of the run.
    #[must_use]
    pub const fn learning_rate(&self) -> f32 {
        match self {
            Self::Sgd(config) => config.learning_rate,
            Self::Adam(config) => config.learning_rate,
        }
    }
}
