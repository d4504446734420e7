//! The update of the parameters: with a step that the host counts, or one that the device counts.

use super::error::{CudaError, check_len, count};
use super::kernels::Kernels;
use super::module::Grid;
use super::range::{Input, Output};
use crate::backend::host::{AdamConfig, KernelError, SgdConfig};

/// What a step takes from its schedule: Adam its rate, its epsilon and the share that decay leaves; SGD its rate alone.
const RATES: usize = 3;

/// A count of steps on the device, and the rates of the step that it is at.
///
/// A graph replays its kernels with the arguments that they were captured with, so what changes
/// from step to step must lie in memory. An `advance_...` counts the step and leaves its rates, and
/// the `..._scheduled` updates behind it read them.
#[derive(Debug)]
pub struct StepCounter<'a> {
    /// Steps done: one element.
    pub steps: Output<'a, u64>,
    /// The rates of the step: three elements.
    pub rates: Output<'a, f32>,
}

impl StepCounter<'_> {
    fn check(&self) -> Result<(), KernelError> {
        check_len("steps", self.steps.len(), 1)?;
        check_len("rates", self.rates.len(), RATES)
    }
}

impl Kernels {
    /// One step of SGD with momentum: see [`sgd_step`](crate::backend::host::sgd_step), to the bit.
    ///
    /// # Errors
    ///
    /// When the lengths differ, or the device refuses.
    pub fn sgd_step(
        &self,
        config: &SgdConfig,
        parameters: Output<'_, f32>,
        gradients: Input<'_, f32>,
        velocity: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        let count = check(parameters.len(), &gradients, &[("velocity", velocity.len())])?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: a thread below `count` touches the elements of its number; the lengths are equal.
        unsafe {
            self.module.sgd(
                Grid::flat(count),
                parameters.address(),
                gradients.address(),
                velocity.address(),
                config.learning_rate,
                config.momentum,
                count,
            )
        }
    }

    /// Step number `step` of Adam: see [`adam_step`](crate::backend::host::adam_step), to the bit.
    ///
    /// # Errors
    ///
    /// When the lengths differ, for step 0, or when the device refuses.
    pub fn adam_step(
        &self,
        config: &AdamConfig,
        step: u64,
        parameters: Output<'_, f32>,
        gradients: Input<'_, f32>,
        moments: [Output<'_, f32>; 2],
    ) -> Result<(), CudaError> {
        let [mean, mean_square] = moments;
        let lens = [("mean", mean.len()), ("mean square", mean_square.len())];
        let count = check(parameters.len(), &gradients, &lens)?;
        if step == 0 {
            return Err(KernelError::Shape { reason: "Adam's steps count from 1" }.into());
        }
        if count == 0 {
            return Ok(());
        }
        let (rate, epsilon) = corrected(config, step);
        // SAFETY: a thread below `count` touches the elements of its number; the lengths are equal.
        unsafe {
            self.module.adam(
                Grid::flat(count),
                parameters.address(),
                gradients.address(),
                mean.address(),
                mean_square.address(),
                rate,
                config.beta1,
                config.beta2,
                epsilon,
                config.kept_share(),
                count,
            )
        }
    }

    /// Counts a step, and leaves the rate that SGD takes for it. The rate falls in a line from the
    /// configuration's to 0 over `total` steps, or stays where `total` is 0.
    ///
    /// # Errors
    ///
    /// When a length does not fit, or the device refuses.
    pub fn advance_sgd(
        &self,
        config: &SgdConfig,
        total: u64,
        counter: StepCounter<'_>,
    ) -> Result<(), CudaError> {
        counter.check()?;
        let (steps, rates) = (counter.steps.address(), counter.rates.address());
        // SAFETY: one thread touches one step and one rate, which are there.
        unsafe {
            self.module.advance_sgd(Grid::block(1), steps, rates, config.learning_rate, total)
        }
    }

    /// Counts a step, and leaves the rates that Adam takes for it; `total` as for
    /// [`advance_sgd`](Self::advance_sgd).
    ///
    /// # Errors
    ///
    /// When a length does not fit, or the device refuses.
    pub fn advance_adam(
        &self,
        config: &AdamConfig,
        total: u64,
        counter: StepCounter<'_>,
    ) -> Result<(), CudaError> {
        counter.check()?;
        let AdamConfig { learning_rate, beta1, beta2, epsilon, weight_decay } = *config;
        let (steps, rates) = (counter.steps.address(), counter.rates.address());
        let grid = Grid::block(1);
        // SAFETY: one thread touches one step and three rates, which are there.
        unsafe {
            self.module.advance_adam(
                grid,
                steps,
                rates,
                learning_rate,
                beta1,
                beta2,
                epsilon,
                weight_decay,
                total,
            )
        }
    }

    /// [`sgd_step`](Self::sgd_step) with the rate that [`advance_sgd`](Self::advance_sgd) left.
    ///
    /// # Errors
    ///
    /// When the lengths differ, or the device refuses.
    pub fn sgd_scheduled(
        &self,
        momentum: f32,
        rates: Input<'_, f32>,
        parameters: Output<'_, f32>,
        gradients: Input<'_, f32>,
        velocity: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        check_len("rates", rates.len(), RATES)?;
        let count = check(parameters.len(), &gradients, &[("velocity", velocity.len())])?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: a thread below `count` touches the elements of its number and reads the first
        // rate; the lengths were checked.
        unsafe {
            self.module.sgd_scheduled(
                Grid::flat(count),
                parameters.address(),
                gradients.address(),
                velocity.address(),
                rates.address(),
                momentum,
                count,
            )
        }
    }

    /// [`adam_step`](Self::adam_step) with the rates that [`advance_adam`](Self::advance_adam)
    /// left. Of the configuration only the two betas count here.
    ///
    /// # Errors
    ///
    /// When the lengths differ, or the device refuses.
    pub fn adam_scheduled(
        &self,
        config: &AdamConfig,
        rates: Input<'_, f32>,
        parameters: Output<'_, f32>,
        gradients: Input<'_, f32>,
        moments: [Output<'_, f32>; 2],
    ) -> Result<(), CudaError> {
        check_len("rates", rates.len(), RATES)?;
        let [mean, mean_square] = moments;
        let lens = [("mean", mean.len()), ("mean square", mean_square.len())];
        let count = check(parameters.len(), &gradients, &lens)?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: a thread below `count` touches the elements of its number and reads the rates;
        // the lengths were checked.
        unsafe {
            self.module.adam_scheduled(
                Grid::flat(count),
                parameters.address(),
                gradients.address(),
                mean.address(),
                mean_square.address(),
                rates.address(),
                config.beta1,
                config.beta2,
                count,
            )
        }
    }
}

/// Checks that all have the parameters' length, and gives it.
fn check(
    parameters: usize,
    gradients: &Input<'_, f32>,
    state: &[(&'static str, usize)],
) -> Result<u32, KernelError> {
    check_len("gradients", gradients.len(), parameters)?;
    for (operand, len) in state {
        check_len(operand, *len, parameters)?;
    }
    count(parameters)
}

/// The rate and the epsilon that hold the bias corrections of a step:
/// `lr * (m / c1) / (sqrt(v / c2) + eps) = rate * m / (sqrt(v) + eps * sqrt(c2))`.
#[expect(clippy::cast_precision_loss, reason = "the powers are zero long before that")]
#[expect(clippy::cast_possible_truncation, reason = "the kernels compute in f32")]
fn corrected(config: &AdamConfig, step: u64) -> (f32, f32) {
    // In f64: 1 - beta2^step at step 1 is 0.001, of which f32 would keep four digits.
    let correction = |beta: f32| 1.0 - f64::from(beta).powf(step as f64);
    let root = correction(config.beta2).sqrt();
    let rate = f64::from(config.learning_rate) * root / correction(config.beta1);
    (rate as f32, (f64::from(config.epsilon) * root) as f32)
}
