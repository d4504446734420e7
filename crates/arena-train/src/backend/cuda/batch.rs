//! A batch that was uploaded as bytes.

use super::error::{CudaError, check_len, count};
use super::kernels::Kernels;
use super::module::Grid;
use super::range::{Input, Output};
use crate::backend::host::KernelError;
use crate::data::{PIXEL_MEAN, PIXEL_STD};

impl Kernels {
    /// Normalises the pixels of a batch and widens its labels, as
    /// [`fill_batch`](crate::data::fill_batch) does, to the bit.
    ///
    /// Shapes: `bytes` `[batch, image_len]` pixels and behind them `[batch]` labels, `pixels`
    /// `[batch, image_len]`, `labels` `[batch]`.
    ///
    /// # Errors
    ///
    /// When a length does not fit, or the device refuses.
    pub fn load_batch(
        &self,
        image_len: usize,
        bytes: Input<'_, u8>,
        pixels: Output<'_, f32>,
        labels: Output<'_, u32>,
    ) -> Result<(), CudaError> {
        let batch = labels.len();
        let pixel_count = batch.checked_mul(image_len).ok_or(KernelError::Overflow)?;
        let total = pixel_count.checked_add(batch).ok_or(KernelError::Overflow)?;
        check_len("bytes", bytes.len(), total)?;
        check_len("pixels", pixels.len(), pixel_count)?;
        let (pixel_count, total) = (count(pixel_count)?, count(total)?);
        if total == 0 {
            return Ok(());
        }
        // (p / 255 - mean) / std as one multiplication and one addition.
        let (scale, shift) = (1.0 / (255.0 * PIXEL_STD), -PIXEL_MEAN / PIXEL_STD);
        // SAFETY: each thread below `total` reads the byte of its number; those below
        // `pixel_count` write the pixel of their number, the others the label after that many. The
        // lengths were checked.
        unsafe {
            self.module.load_batch(
                Grid::flat(total),
                bytes.address(),
                pixels.address(),
                labels.address(),
                scale,
                shift,
                pixel_count,
                total,
            )
        }
    }
}
