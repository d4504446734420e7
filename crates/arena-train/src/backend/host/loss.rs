//! Softmax cross-entropy.

use super::error::{KernelError, check_len};

/// What a batch's loss comes to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchLoss {
    /// Mean of the cross-entropy over the batch, in nats; 0 for an empty batch.
    pub mean: f32,
    /// Images whose largest logit is their label's (the first of equals counts).
    pub hits: usize,
}

/// The loss alone, for evaluation.
///
/// Shapes: `logits` `[batch, classes]`, `labels` `[batch]`.
///
/// # Errors
///
/// [`KernelError`] when `logits` is not `labels.len() * classes` long or a label is not a class.
pub fn softmax_cross_entropy(
    classes: usize,
    logits: &[f32],
    labels: &[u32],
) -> Result<BatchLoss, KernelError> {
    check(classes, logits, labels)?;
    Ok(evaluate(classes, logits, labels, |_, _, _, _| ()))
}

/// The loss, and the gradient of its mean with respect to the logits.
///
/// Shapes: `logits` and `gradient` `[batch, classes]`, `labels` `[batch]`.
///
/// # Errors
///
/// [`KernelError`] when a slice's length does not fit or a label is not a class; nothing is
/// written.
pub fn softmax_cross_entropy_gradient(
    classes: usize,
    logits: &[f32],
    labels: &[u32],
    gradient: &mut [f32],
) -> Result<BatchLoss, KernelError> {
    check(classes, logits, labels)?;
    check_len("gradient", gradient.len(), logits.len())?;
    let batch = labels.len() as f32;
    let loss = evaluate(classes, logits, labels, |index, row, label, log_sum| {
        let gradient = &mut gradient[index * classes..][..classes];
        for (class, (gradient, logit)) in gradient.iter_mut().zip(row).enumerate() {
            let target = if class == label { 1.0 } else { 0.0 };
            *gradient = ((logit - log_sum).exp() - target) / batch;
        }
    });
    Ok(loss)
}

fn check(classes: usize, logits: &[f32], labels: &[u32]) -> Result<(), KernelError> {
    let expected = labels.len().checked_mul(classes).ok_or(KernelError::Overflow)?;
    check_len("logits", logits.len(), expected)?;
    match labels.iter().position(|label| usize::try_from(*label).is_ok_and(|l| l >= classes)) {
        Some(index) => Err(KernelError::Label { index, label: labels[index], classes }),
        None => Ok(()),
    }
}

/// Calls `each(index, logits, label, log of the sum of the exponentials)` for each image.
fn evaluate(
    classes: usize,
    logits: &[f32],
    labels: &[u32],
    mut each: impl FnMut(usize, &[f32], usize, f32),
) -> BatchLoss {
    // In f64 and in order: the mean of thousands of small terms, the same on each run.
    let mut sum = 0.0_f64;
    let mut hits = 0;
    if labels.is_empty() {
        return BatchLoss { mean: 0.0, hits };
    }
    for (index, (row, label)) in logits.chunks_exact(classes).zip(labels).enumerate() {
        let label = *label as usize;
        let mut best = 0;
        for (class, logit) in row.iter().enumerate() {
            if *logit > row[best] {
                best = class;
            }
        }
        // With the largest logit taken out no exponential overflows and one of them is 1.
        let largest = row[best];
        let exponentials: f32 = row.iter().map(|logit| (logit - largest).exp()).sum();
        let log_sum = largest + exponentials.ln();
        sum += f64::from(log_sum - row[label]);
        hits += usize::from(best == label);
        each(index, row, label, log_sum);
    }
    BatchLoss { mean: (sum / labels.len() as f64) as f32, hits }
}
