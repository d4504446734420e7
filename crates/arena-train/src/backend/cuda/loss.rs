//! Softmax cross-entropy.

use super::error::{CudaError, check_len, count};
use super::kernels::Kernels;
use super::module::Grid;
use super::range::{Input, Output};
use crate::backend::host::KernelError;

/// Threads of the one block: as the kernel's source has it.
const THREADS: u32 = 256;

/// Where a batch's loss goes: one element each.
#[derive(Debug)]
pub struct LossOutput<'a> {
    /// Mean of the cross-entropy over the batch, in nats; 0 for an empty batch.
    pub mean: Output<'a, f32>,
    /// Images whose largest logit is their label's (the first of equals counts).
    pub hits: Output<'a, u32>,
}

impl Kernels {
    /// The loss, and its gradient where that is asked for: see
    /// [`softmax_cross_entropy_gradient`](crate::backend::host::softmax_cross_entropy_gradient).
    ///
    /// Shapes: `logits` and `gradient` `[batch, classes]`, `labels` `[batch]`.
    ///
    /// A label that is no class is not refused, because the host would have to wait for the device
    /// to see it: the loss and that image's gradient are NaN then, and nothing beyond the logits is
    /// read.
    ///
    /// # Errors
    ///
    /// When a length does not fit, or the device refuses.
    pub fn softmax_cross_entropy(
        &self,
        classes: usize,
        logits: Input<'_, f32>,
        labels: Input<'_, u32>,
        loss: LossOutput<'_>,
        gradient: Option<Output<'_, f32>>,
    ) -> Result<(), CudaError> {
        let batch = labels.len();
        check_len(
            "logits",
            logits.len(),
            batch.checked_mul(classes).ok_or(KernelError::Overflow)?,
        )?;
        if classes == 0 && batch > 0 {
            return Err(KernelError::Shape { reason: "a loss needs classes" }.into());
        }
        check_len("loss", loss.mean.len(), 1)?;
        check_len("hits", loss.hits.len(), 1)?;
        if let Some(gradient) = &gradient {
            check_len("gradient", gradient.len(), logits.len())?;
        }
        count(logits.len())?;
        let gradient = gradient.map_or(0, |gradient| gradient.address());
        // SAFETY: each thread reads whole rows of `logits`, below the batch, and the labels of
        // these, and writes the same rows of the gradient unless that address is null; a label
        // outside the classes is not used as an index. The first thread writes the loss and the
        // hits. The lengths were checked, and the block has as many threads as its memory serves.
        unsafe {
            self.module.softmax_cross_entropy(
                Grid::block(THREADS),
                logits.address(),
                labels.address(),
                loss.mean.address(),
                loss.hits.address(),
                gradient,
                count(batch)?,
                count(classes)?,
            )
        }
    }
}
