//! Column-major matrices in device memory, whose ranges the driver has checked.

use crate::status::Status;
use half::{bf16, f16};
use std::ffi::c_int;

/// How a number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Half precision.
    F16,
    /// The upper half of a single.
    BF16,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
}

impl Element {
    /// From a `cudaDataType_t`.
    ///
    /// # Errors
    ///
    /// For a type that is not known.
    pub fn from_raw(raw: u32) -> Result<Self, Status> {
        match raw {
            0 => Ok(Self::F32),
            1 => Ok(Self::F64),
            2 => Ok(Self::F16),
            14 => Ok(Self::BF16),
            _ => Err(Status::NOT_SUPPORTED),
        }
    }

    /// Bytes of one number.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Reads the number at an address.
    pub(crate) fn read(self, address: u64) -> f64 {
        let at = std::ptr::with_exposed_provenance::<u8>(address as usize);
        match self {
            // SAFETY: the driver has checked the range of the matrix that this number is of.
            Self::F16 => unsafe { at.cast::<f16>().read_unaligned() }.to_f64(),
            // SAFETY: as above.
            Self::BF16 => unsafe { at.cast::<bf16>().read_unaligned() }.to_f64(),
            // SAFETY: as above.
            Self::F32 => f64::from(unsafe { at.cast::<f32>().read_unaligned() }),
            // SAFETY: as above.
            Self::F64 => unsafe { at.cast::<f64>().read_unaligned() },
        }
    }

    /// Writes a number, rounded once.
    pub(crate) fn write(self, address: u64, value: f64) {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        match self {
            // SAFETY: the driver has checked the range of the matrix that this number is of.
            Self::F16 => unsafe { at.cast::<f16>().write_unaligned(f16::from_f64(value)) },
            // SAFETY: as above.
            Self::BF16 => unsafe { at.cast::<bf16>().write_unaligned(bf16::from_f64(value)) },
            // SAFETY: as above.
            Self::F32 => unsafe { at.cast::<f32>().write_unaligned(value as f32) },
            // SAFETY: as above.
            Self::F64 => unsafe { at.cast::<f64>().write_unaligned(value) },
        }
    }
}

/// A matrix, or a batch of them `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// The address of its first element.
    pub base: u64,
    /// How its elements are stored.
    pub element: Element,
    /// Rows, as it is stored.
    pub rows: u64,
    /// Columns, as it is stored.
    pub cols: u64,
    /// Elements from one column to the next.
    pub leading: u64,
    /// Elements from one matrix of a batch to the next.
    pub stride: i64,
}

impl Matrix {
    /// A matrix as cuBLAS describes it; a leading dimension below the rows is refused.
    pub(crate) fn new(
        base: u64,
        element: Element,
        rows: u64,
        cols: u64,
        leading: c_int,
    ) -> Result<Self, Status> {
        let leading = u64::try_from(leading).map_err(|_| Status::INVALID_VALUE)?;
        if leading < rows.max(1) {
            return Err(Status::INVALID_VALUE);
        }
        Ok(Self { base, element, rows, cols, leading, stride: 0 })
    }

    /// The address of an element of the `batch`-th matrix.
    pub(crate) fn at(&self, batch: i64, row: u64, col: u64) -> u64 {
        let elements = batch * self.stride + (row + col * self.leading) as i64;
        self.base.wrapping_add_signed(elements * self.element.bytes() as i64)
    }

    /// The bytes of the `batch`-th matrix: from its first to its last element.
    pub(crate) fn range(&self, batch: i64) -> [u64; 2] {
        if self.rows == 0 || self.cols == 0 {
            return [self.base, 0];
        }
        let elements = self.rows + (self.cols - 1) * self.leading;
        [self.at(batch, 0, 0), elements * self.element.bytes()]
    }
}

/// A number that scales a product: known at the call, or read from the device when its turn comes.
#[derive(Clone, Copy, Debug)]
pub enum Scalar {
    /// Its value.
    Known(f64),
    /// Its address.
    Device(u64, Element),
}

impl Scalar {
    /// A scalar behind a pointer of the caller, to host memory or to the device.
    ///
    /// # Errors
    ///
    /// For a null pointer.
    pub fn new(pointer: u64, element: Element, on_device: bool) -> Result<Self, Status> {
        match (pointer, on_device) {
            (0, _) => Err(Status::INVALID_VALUE),
            (_, true) => Ok(Self::Device(pointer, element)),
            // By the interface's rule the caller's pointer is to a readable number of this type.
            (_, false) => Ok(Self::Known(element.read(pointer))),
        }
    }

    pub(crate) fn value(self) -> f64 {
        match self {
            Self::Known(value) => value,
            Self::Device(address, element) => element.read(address),
        }
    }

    /// The device range that it is read from.
    pub(crate) fn range(self) -> Option<[u64; 2]> {
        match self {
            Self::Known(_) => None,
            Self::Device(address, element) => Some([address, element.bytes()]),
        }
    }
}
