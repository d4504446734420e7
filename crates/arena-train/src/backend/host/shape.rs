//! The sizes of a layer, and the element counts that follow from them.

use super::error::KernelError;

/// A convolution without padding and with stride 1, followed by ReLU and a 2x2 max-pool.
///
/// The kernels ask for: in channels 1 or a multiple of 16; out channels a multiple of 32; an even
/// number of output rows and a multiple of 4 output columns before the pool. [`ConvShape::check`]
/// tells; the counts of a shape that it refuses mean nothing and may overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvShape {
    /// Images in the batch.
    pub batch: usize,
    /// Rows of an input image.
    pub in_rows: usize,
    /// Columns of an input image.
    pub in_cols: usize,
    /// Channels of an input image.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Side of the square kernel.
    pub kernel: usize,
}

impl ConvShape {
    /// Rows after the convolution and before the pool.
    pub(super) fn conv_rows(&self) -> usize {
        self.in_rows.saturating_add(1).saturating_sub(self.kernel)
    }

    /// Columns after the convolution and before the pool.
    pub(super) fn conv_cols(&self) -> usize {
        self.in_cols.saturating_add(1).saturating_sub(self.kernel)
    }

    /// Rows of the pooled output.
    #[must_use]
    pub fn out_rows(&self) -> usize {
        self.conv_rows() / 2
    }

    /// Columns of the pooled output.
    #[must_use]
    pub fn out_cols(&self) -> usize {
        self.conv_cols() / 2
    }

    /// Elements of one input image.
    #[must_use]
    pub fn image_len(&self) -> usize {
        self.in_rows * self.in_cols * self.in_channels
    }

    /// Elements of the batch of input images.
    #[must_use]
    pub fn input_len(&self) -> usize {
        self.batch * self.image_len()
    }

    /// Elements of the weights that lead to one output channel.
    #[must_use]
    pub fn filter_len(&self) -> usize {
        self.kernel * self.kernel * self.in_channels
    }

    /// Elements of the weights.
    #[must_use]
    pub fn weight_len(&self) -> usize {
        self.out_channels * self.filter_len()
    }

    /// Elements of one image's pooled output.
    #[must_use]
    pub fn out_image_len(&self) -> usize {
        self.out_rows() * self.out_cols() * self.out_channels
    }

    /// Elements of the pooled output, and bytes of its routes.
    #[must_use]
    pub fn output_len(&self) -> usize {
        self.batch * self.out_image_len()
    }

    /// Contiguous elements that one row of the kernel covers in one row of an image.
    pub(super) fn run_len(&self) -> usize {
        self.kernel * self.in_channels
    }

    /// Elements of one row of an image.
    pub(super) fn row_len(&self) -> usize {
        self.in_cols * self.in_channels
    }

    /// Checks that the kernels serve this shape and that its counts fit the address space.
    ///
    /// # Errors
    ///
    /// [`KernelError::Shape`] or [`KernelError::Overflow`].
    pub fn check(&self) -> Result<(), KernelError> {
        let rule =
            |holds: bool, reason| if holds { Ok(()) } else { Err(KernelError::Shape { reason }) };
        rule(self.kernel >= 1, "the kernel has no element")?;
        rule(
            self.in_rows >= self.kernel && self.in_cols >= self.kernel,
            "the image is smaller than the kernel",
        )?;
        rule(
            self.in_channels == 1 || (self.in_channels > 0 && self.in_channels.is_multiple_of(16)),
            "in channels must be 1 or a multiple of 16",
        )?;
        rule(
            self.out_channels > 0 && self.out_channels.is_multiple_of(32),
            "out channels must be a multiple of 32",
        )?;
        rule(self.conv_rows().is_multiple_of(2), "the convolution's output rows must be even")?;
        rule(
            self.conv_cols().is_multiple_of(4),
            "the convolution's output columns must be a multiple of 4",
        )?;
        // The largest counts; u32 bounds them because the gradients keep offsets in 32 bits.
        let product = |factors: [usize; 4]| {
            factors
                .into_iter()
                .try_fold(1_usize, usize::checked_mul)
                .filter(|count| u32::try_from(*count).is_ok())
                .ok_or(KernelError::Overflow)
        };
        product([self.batch, self.in_rows, self.in_cols, self.in_channels])?;
        product([self.batch, self.out_rows(), self.out_cols(), self.out_channels])?;
        product([self.kernel, self.kernel, self.in_channels, self.out_channels])?;
        Ok(())
    }
}

/// A linear layer. The counts of a shape that [`LinearShape::check`] refuses may overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearShape {
    /// Rows of the input: the images in the batch.
    pub batch: usize,
    /// Features that go in.
    pub in_features: usize,
    /// Features that come out.
    pub out_features: usize,
}

impl LinearShape {
    /// Elements of the input.
    #[must_use]
    pub fn input_len(&self) -> usize {
        self.batch * self.in_features
    }

    /// Elements of the output.
    #[must_use]
    pub fn output_len(&self) -> usize {
        self.batch * self.out_features
    }

    /// Elements of the weights.
    #[must_use]
    pub fn weight_len(&self) -> usize {
        self.in_features * self.out_features
    }

    /// Checks that no size is zero (the batch may be) and that the counts fit the address space.
    ///
    /// # Errors
    ///
    /// [`KernelError::Shape`] or [`KernelError::Overflow`].
    pub fn check(&self) -> Result<(), KernelError> {
        if self.in_features == 0 || self.out_features == 0 {
            return Err(KernelError::Shape {
                reason: "a linear layer needs features on both sides",
            });
        }
        for (a, b) in [
            (self.batch, self.in_features),
            (self.batch, self.out_features),
            (self.in_features, self.out_features),
        ] {
            a.checked_mul(b)
                .filter(|count| isize::try_from(*count).is_ok())
                .ok_or(KernelError::Overflow)?;
        }
        Ok(())
    }
}
