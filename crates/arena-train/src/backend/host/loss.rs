//! Softmax cross-entropy.

use pulp::Arch;

use super::error::{KernelError, check_len};
use super::math::{exp, largest, sum};

/// Below this many logits a pass is not worth a join.
const SERIAL_BELOW: usize = 1 << 14;

/// From this many classes on, a row of logits is worth vectors.
const WIDE: usize = 64;

/// The logarithm of a probability that is taken as 0: far below what the sum of all, 1, can show, and so far above the
/// smallest normal number that a share of it is one too.
const NEVER: f32 = -60.0;

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
    Ok(evaluate(classes, logits, labels, None))
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
    Ok(evaluate(classes, logits, labels, Some(gradient)))
}

fn check(classes: usize, logits: &[f32], labels: &[u32]) -> Result<(), KernelError> {
    let expected = labels.len().checked_mul(classes).ok_or(KernelError::Overflow)?;
    check_len("logits", logits.len(), expected)?;
    match labels.iter().position(|label| usize::try_from(*label).is_ok_and(|l| l >= classes)) {
        Some(index) => Err(KernelError::Label { index, label: labels[index], classes }),
        None => Ok(()),
    }
}

fn evaluate(
    classes: usize,
    logits: &[f32],
    labels: &[u32],
    gradient: Option<&mut [f32]>,
) -> BatchLoss {
    if labels.is_empty() {
        return BatchLoss { mean: 0.0, hits: 0 };
    }
    let count = labels.len() as f64;
    let rows = Rows { classes, logits, labels, gradient, batch: labels.len() as f32 };
    let Sums { loss, hits } = rows.evaluate(Arch::new());
    BatchLoss { mean: (loss / count) as f32, hits }
}

/// Of some rows. The loss in f64: the mean of thousands of small terms.
struct Sums {
    loss: f64,
    hits: usize,
}

/// Some rows of a batch.
struct Rows<'a> {
    classes: usize,
    logits: &'a [f32],
    labels: &'a [u32],
    gradient: Option<&'a mut [f32]>,
    /// Rows of the batch.
    batch: f32,
}

impl Rows<'_> {
    /// Cut in halves until a part is small: where depends on the sizes alone, so the sum has the same order on each run.
    fn evaluate(self, arch: Arch) -> Sums {
        let Self { classes, logits, labels, mut gradient, batch } = self;
        if labels.len() > 1 && logits.len() > SERIAL_BELOW {
            let middle = labels.len() / 2;
            let (first_logits, logits) = logits.split_at(middle * classes);
            let (first_labels, labels) = labels.split_at(middle);
            let (first_gradient, gradient) =
                gradient.map(|gradient| gradient.split_at_mut(middle * classes)).unzip();
            let part = |logits, labels, gradient| Rows { classes, logits, labels, gradient, batch };
            let first = part(first_logits, first_labels, first_gradient);
            let second = part(logits, labels, gradient);
            let (first, second) = rayon::join(|| first.evaluate(arch), || second.evaluate(arch));
            return Sums { loss: first.loss + second.loss, hits: first.hits + second.hits };
        }
        let mut sums = Sums { loss: 0.0, hits: 0 };
        for (row, (logits, label)) in logits.chunks_exact(classes).zip(labels).enumerate() {
            let label = *label as usize;
            let gradient =
                gradient.as_mut().map(|gradient| &mut gradient[row * classes..][..classes]);
            let (best, loss) = if classes < WIDE {
                evaluate_row(logits, label, gradient, batch)
            } else {
                arch.dispatch(
                    #[inline(always)]
                    || evaluate_wide_row(logits, label, gradient, batch),
                )
            };
            sums.loss += f64::from(loss);
            sums.hits += usize::from(best == label);
        }
        sums
    }
}

/// The class with the largest logit, and the loss. Writes the gradient.
fn evaluate_row(
    logits: &[f32],
    label: usize,
    gradient: Option<&mut [f32]>,
    batch: f32,
) -> (usize, f32) {
    let mut best = 0;
    for (class, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = class;
        }
    }
    // With the largest logit taken out no exponential overflows and one of them is 1.
    let largest = logits[best];
    let exponentials: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    let log_sum = largest + exponentials.ln();
    if let Some(gradient) = gradient {
        for (class, (gradient, logit)) in gradient.iter_mut().zip(logits).enumerate() {
            let target = if class == label { 1.0 } else { 0.0 };
            *gradient = ((logit - log_sum).exp() - target) / batch;
        }
    }
    (best, log_sum - logits[label])
}

/// [`evaluate_row`] in vectors.
#[inline(always)]
fn evaluate_wide_row(
    logits: &[f32],
    label: usize,
    gradient: Option<&mut [f32]>,
    batch: f32,
) -> (usize, f32) {
    let largest = largest(logits);
    // None is where the first one is no number.
    let best = logits.iter().position(|logit| *logit == largest).unwrap_or(0);
    let log_sum = largest + sum([logits], |[logit]| exp(logit - largest)).ln();
    if let Some(gradient) = gradient {
        let share = 1.0 / batch;
        for (gradient, logit) in gradient.iter_mut().zip(logits) {
            let logarithm = logit - log_sum;
            *gradient = if logarithm < NEVER { 0.0 } else { exp(logarithm) * share };
        }
        gradient[label] -= share;
    }
    (best, log_sum - logits[label])
}
