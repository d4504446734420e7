//! The update of the parameters.

use pulp::Arch;
use rayon::prelude::*;

use super::error::{KernelError, check_len};
use super::split::part_len;

/// Below this many parameters an update is not worth a join.
const SERIAL_BELOW: usize = 1 << 13;

/// Stochastic gradient descent with momentum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdConfig {
    /// Learning rate.
    pub learning_rate: f32,
    /// Share of the velocity that stays from step to step.
    pub momentum: f32,
}

/// Adam (Kingma and Ba, 2015), with the weight decay of AdamW (Loshchilov and Hutter, 2019).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamConfig {
    /// Learning rate.
    pub learning_rate: f32,
    /// Share of the gradient's mean that stays from step to step.
    pub beta1: f32,
    /// Share of the squared gradient's mean that stays from step to step.
    pub beta2: f32,
    /// Added to the root of the squared gradient's mean.
    pub epsilon: f32,
    /// What every parameter loses in a step beside its gradient's part: this share of it, times the learning rate.
    pub weight_decay: f32,
}

impl AdamConfig {
    /// What every parameter is multiplied by before it moves: exactly 1 without decay, so that its bits stay.
    pub(in crate::backend) fn kept_share(&self) -> f32 {
        // In f64: 1 minus a small number.
        (1.0 - f64::from(self.learning_rate) * f64::from(self.weight_decay)) as f32
    }
}

impl Default for AdamConfig {
    fn default() -> Self {
        Self { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }
}

fn parts(count: usize, threads: usize) -> usize {
    part_len(count, if count < SERIAL_BELOW { 1 } else { threads })
}

/// `velocity = momentum * velocity + gradient`, then `parameters -= learning_rate * velocity`.
///
/// # Errors
///
/// [`KernelError::Length`] when the slices differ in length; nothing is written.
pub fn sgd_step(
    config: &SgdConfig,
    parameters: &mut [f32],
    gradients: &[f32],
    velocity: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    check_len("gradients", gradients.len(), parameters.len())?;
    check_len("velocity", velocity.len(), parameters.len())?;
    let arch = Arch::new();
    let SgdConfig { learning_rate, momentum } = *config;
    let part = parts(parameters.len(), threads);
    parameters
        .par_chunks_mut(part)
        .zip(velocity.par_chunks_mut(part))
        .zip(gradients.par_chunks(part))
        .for_each(|((parameters, velocity), gradients)| {
            arch.dispatch(
                #[inline(always)]
                || {
                    for ((p, v), g) in parameters.iter_mut().zip(velocity).zip(gradients) {
                        *v = momentum * *v + g;
                        *p -= learning_rate * *v;
                    }
                },
            );
        });
    Ok(())
}

/// One step of Adam, with the bias correction of step number `step`, which counts from 1.
///
/// The decay comes first, and goes by the learning rate itself, which the bias correction leaves alone.
///
/// # Errors
///
/// [`KernelError::Length`] when the slices differ in length and [`KernelError::Shape`] for step 0;
/// nothing is written.
pub fn adam_step(
    config: &AdamConfig,
    step: u64,
    parameters: &mut [f32],
    gradients: &[f32],
    mean: &mut [f32],
    mean_square: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    check_len("gradients", gradients.len(), parameters.len())?;
    check_len("mean", mean.len(), parameters.len())?;
    check_len("mean square", mean_square.len(), parameters.len())?;
    if step == 0 {
        return Err(KernelError::Shape { reason: "Adam's steps count from 1" });
    }
    // In f64: 1 - beta2^step at step 1 is 0.001, of which f32 would keep four digits.
    let correction = |beta: f32| 1.0 - f64::from(beta).powf(step as f64);
    let root = correction(config.beta2).sqrt();
    // lr * (m / c1) / (sqrt(v / c2) + eps) = rate * m / (sqrt(v) + eps * sqrt(c2))
    let rate = (f64::from(config.learning_rate) * root / correction(config.beta1)) as f32;
    let epsilon = (f64::from(config.epsilon) * root) as f32;

    let arch = Arch::new();
    let part = parts(parameters.len(), threads);
    let (beta1, beta2, kept) = (config.beta1, config.beta2, config.kept_share());
    parameters
        .par_chunks_mut(part)
        .zip(mean.par_chunks_mut(part))
        .zip(mean_square.par_chunks_mut(part))
        .zip(gradients.par_chunks(part))
        .for_each(|(((parameters, mean), mean_square), gradients)| {
            arch.dispatch(
                #[inline(always)]
                || {
                    let moments = mean.iter_mut().zip(mean_square);
                    for ((p, (m, v)), g) in parameters.iter_mut().zip(moments).zip(gradients) {
                        *m = beta1 * *m + (1.0 - beta1) * g;
                        *v = beta2 * *v + (1.0 - beta2) * g * g;
                        *p = kept * *p - rate * *m / (v.sqrt() + epsilon);
                    }
                },
            );
        });
    Ok(())
}
