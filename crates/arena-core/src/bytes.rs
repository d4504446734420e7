//! Sizes and alignments: the two numbers that every request is made of.

#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

/// The largest size of one buffer or region in bytes: what a Rust slice may span.
pub const MAX_BYTES: u64 = isize::MAX as u64;

/// A size in bytes that prints itself in binary units.
///
/// ```
/// use arena_core::ByteSize;
/// assert_eq!(ByteSize::mib(3).bytes(), 3 * 1024 * 1024);
/// assert_eq!(ByteSize::mib(3).to_string(), "3.00 MiB");
/// assert_eq!("1536KiB".parse::<ByteSize>(), Ok(ByteSize::bytes_exact(1_572_864)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(u64);

impl ByteSize {
    /// Exactly `bytes` bytes.
    #[must_use]
    pub const fn bytes_exact(bytes: u64) -> Self {
        Self(bytes)
    }

    /// `kib` times 1024 bytes; saturates at `u64::MAX`, which no device can serve.
    #[must_use]
    pub const fn kib(kib: u64) -> Self {
        Self(kib.saturating_mul(1 << 10))
    }

    /// `mib` times 1024² bytes; saturates at `u64::MAX`.
    #[must_use]
    pub const fn mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// `gib` times 1024³ bytes; saturates at `u64::MAX`.
    #[must_use]
    pub const fn gib(gib: u64) -> Self {
        Self(gib.saturating_mul(1 << 30))
    }

    /// The size in bytes.
    ///
    /// ```
    /// # use arena_core::{ByteSize};
    /// assert_eq!(ByteSize::kib(3).bytes(), 3072);
    /// ```
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 4] =
            [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        for (unit, unit_bytes) in UNITS {
            if self.0 >= unit_bytes {
                #[expect(clippy::cast_precision_loss, reason = "two decimals are shown")]
                return write!(f, "{:.2} {unit}", self.0 as f64 / unit_bytes as f64);
            }
        }
        write!(f, "{} byte{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a size: write bytes (1048576) or a whole number of KiB, MiB, GiB or TiB")]
pub struct ParseByteSizeError {
    text: String,
}

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const UNITS: [(&str, u64); 5] =
            [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];
        let parse = || {
            let trimmed = text.trim();
            let (digits, unit_bytes) = UNITS
                .iter()
                .find_map(|(unit, bytes)| Some((trimmed.strip_suffix(unit)?, *bytes)))?;
            digits.trim_end().parse::<u64>().ok()?.checked_mul(unit_bytes).map(Self)
        };
        parse().ok_or_else(|| ParseByteSizeError { text: text.to_owned() })
    }
}

/// An alignment in bytes: a power of two, at most 2⁶¹.
///
/// The default is 256 bytes, which is what CUDA's own allocator gives and what cuBLAS workspaces
/// and vectorised loads need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alignment {
    /// The alignment less one: the bits that an aligned address has not set. As a mask it needs no
    /// subtraction on the hot path, and the larger of two alignments is an `or`.
    low_bits: u64,
}

impl Alignment {
    /// One byte: every address is aligned.
    pub const ONE: Self = Self { low_bits: 0 };
    /// 256 bytes, the default.
    pub const DEFAULT: Self = Self { low_bits: 255 };
    /// 16 bytes: the widest load or store of one thread (`float4`, `ld.global.v4.f32`). "Device Memory
    /// Accesses" in the CUDA C++ Programming Guide: a word of 16 bytes must lie at a multiple of 16. On a
    /// device an address that does not is an error of the kernel, which ends the context.
    pub const VECTOR_LOAD: Self = Self { low_bits: 15 };
    /// 16 bytes: where cuBLAS asks operands of a product to start, so that it can use tensor cores at
    /// full speed ("Tensor Core Usage" in its documentation). Other operands are right, and slower.
    pub const CUBLAS_OPERAND: Self = Self::VECTOR_LOAD;
    /// 256 bytes: where cuBLAS asks its workspace to start (`cublasSetWorkspace`).
    pub const CUBLAS_WORKSPACE: Self = Self { low_bits: 255 };
    /// 16 bytes: where the tensor memory accelerator asks a tensor to start (CUDA driver API,
    /// `cuTensorMapEncodeTiled`).
    pub const TENSOR_MAP: Self = Self { low_bits: 15 };
    /// 512 bytes: where linear memory that is bound to a texture starts on the devices so far. A device
    /// says its own number as `CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT`. It is more than the default.
    pub const TEXTURE: Self = Self { low_bits: 511 };
    /// 2⁶¹ bytes, the largest: a region ends at or below 2⁶², a multiple of it, so that rounding an
    /// address up never passes 2⁶².
    pub const MAX: Self = Self { low_bits: (1 << 61) - 1 };

    /// An alignment of `bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`BadAlignment`] when `bytes` is zero, not a power of two, or above 2⁶¹.
    ///
    /// ```
    /// # use arena_core::{Alignment};
    /// assert_eq!(Alignment::new(64).map(Alignment::bytes), Ok(64));
    /// assert!(Alignment::new(0).is_err() && Alignment::new(48).is_err());
    /// ```
    pub const fn new(bytes: u64) -> Result<Self, BadAlignment> {
        if bytes.is_power_of_two() && bytes <= Self::MAX.bytes() {
            Ok(Self { low_bits: bytes - 1 })
        } else {
            Err(BadAlignment { asked: bytes })
        }
    }

    /// The alignment of the type `T`.
    ///
    /// ```
    /// # use arena_core::{Alignment};
    /// assert_eq!(Alignment::of::<f64>().bytes(), 8);
    /// ```
    #[must_use]
    pub const fn of<T>() -> Self {
        Self { low_bits: align_of::<T>() as u64 - 1 }
    }

    /// The alignment in bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.low_bits + 1
    }

    /// The bits that an aligned address has not set: the alignment less one.
    #[must_use]
    #[inline]
    pub const fn low_bits(self) -> u64 {
        self.low_bits
    }

    /// The alignment of 2 to this power, which is at most 61.
    #[must_use]
    pub(crate) const fn from_log2(log2: u32) -> Self {
        Self { low_bits: (1 << log2) - 1 }
    }

    /// The power of two that it is.
    #[must_use]
    #[inline]
    pub(crate) const fn log2(self) -> u32 {
        self.low_bits.trailing_ones()
    }

    /// The larger of two alignments, which satisfies both.
    ///
    /// ```
    /// # use arena_core::{Alignment};
    /// assert_eq!(Alignment::of::<f32>().max(Alignment::DEFAULT), Alignment::DEFAULT);
    /// ```
    #[must_use]
    #[inline]
    pub const fn max(self, other: Self) -> Self {
        Self { low_bits: self.low_bits | other.low_bits }
    }

    /// Whether `address` is a multiple of this alignment.
    ///
    /// ```
    /// # use arena_core::{Alignment};
    /// assert!(Alignment::DEFAULT.divides(512));
    /// assert!(!Alignment::DEFAULT.divides(640));
    /// ```
    #[must_use]
    #[inline]
    pub const fn divides(self, address: u64) -> bool {
        address & self.low_bits == 0
    }
}

impl Default for Alignment {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// A number that was asked for as an alignment and cannot be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{asked} is not an alignment: an alignment is a power of two from 1 to 2^61")]
pub struct BadAlignment {
    /// What was asked for, in bytes.
    pub asked: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(0, "0 bytes")]
    #[case(1, "1 byte")]
    #[case(1023, "1023 bytes")]
    #[case(1024, "1.00 KiB")]
    #[case(1_572_864, "1.50 MiB")]
    #[case(5 << 30, "5.00 GiB")]
    fn sizes_print_in_binary_units(#[case] bytes: u64, #[case] text: &str) {
        assert_eq!(ByteSize::bytes_exact(bytes).to_string(), text);
    }

    #[rstest]
    #[case("4096", Some(4096))]
    #[case("4 KiB", Some(4096))]
    #[case("2GiB", Some(2 << 30))]
    #[case("", None)]
    #[case("1.5GiB", None)]
    #[case("-1", None)]
    #[case("20000000TiB", None)]
    fn sizes_are_read_or_refused(#[case] text: &str, #[case] bytes: Option<u64>) {
        assert_eq!(text.parse::<ByteSize>().ok().map(ByteSize::bytes), bytes);
    }

    // B003
    #[rstest]
    #[case(0)]
    #[case(3)]
    #[case(1 << 62)]
    #[case(u64::MAX)]
    fn what_is_not_a_power_of_two_is_no_alignment(#[case] bytes: u64) {
        assert_eq!(Alignment::new(bytes), Err(BadAlignment { asked: bytes }));
    }
}
