//! Softmax cross-entropy.

use arena_scope::Scope;

use crate::backend::{Backend, Buffer, In, LossMut};
use crate::error::TrainError;

/// The loss of a batch, on the device: one element each.
#[derive(Debug)]
pub struct Loss<'s, B: Backend> {
    /// Mean cross-entropy, in nats.
    pub mean: Buffer<'s, B>,
    /// Images whose largest logit is their label's.
    pub hits: Buffer<'s, B, u32>,
}

impl<'s, B: Backend> Loss<'s, B> {
    fn alloc(step: &Scope<'s, '_, B::Device>) -> Result<Self, TrainError> {
        Ok(Self { mean: step.alloc(1)?, hits: step.alloc(1)? })
    }

    fn view_mut(&mut self) -> LossMut<'_, B::Device> {
        LossMut { mean: self.mean.view_mut(), hits: self.hits.view_mut() }
    }
}

/// The loss alone, for evaluation.
///
/// # Errors
///
/// When the arena has no room, an operand does not fit, or the device refuses.
pub fn loss<'s, B: Backend>(
    backend: &B,
    step: &Scope<'s, '_, B::Device>,
    classes: usize,
    logits: In<'_, B>,
    labels: In<'_, B, u32>,
) -> Result<Loss<'s, B>, TrainError> {
    let mut loss = Loss::alloc(step)?;
    backend.softmax_cross_entropy(classes, logits, labels, loss.view_mut(), None)?;
    Ok(loss)
}

/// The loss, and the gradient of its mean with respect to the logits.
///
/// # Errors
///
/// When the arena has no room, an operand does not fit, or the device refuses.
pub fn loss_and_gradient<'s, B: Backend>(
    backend: &B,
    step: &Scope<'s, '_, B::Device>,
    classes: usize,
    logits: In<'_, B>,
    labels: In<'_, B, u32>,
) -> Result<(Loss<'s, B>, Buffer<'s, B>), TrainError> {
    let mut loss = Loss::alloc(step)?;
    let mut gradient = step.alloc(logits.len())?;
    let wanted = Some(gradient.view_mut());
    backend.softmax_cross_entropy(classes, logits, labels, loss.view_mut(), wanted)?;
    Ok((loss, gradient))
}
