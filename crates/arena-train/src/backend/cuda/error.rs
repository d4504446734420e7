//! What can go wrong between the program and a CUDA device.

use arena_scope::errors::{DeviceError, DeviceErrorKind};
use cudarc::driver::DriverError;
use thiserror::Error;

use crate::backend::host::KernelError;

/// Why a kernel was not queued, or why there are no kernels.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The operands do not fit the shape; nothing was queued.
    #[error(transparent)]
    Operands(#[from] KernelError),
    /// A library that the dynamic loader does not find.
    #[error("{name} is not installed, or not on the loader's path")]
    Library {
        /// The library.
        name: &'static str,
    },
    /// The kernels' source does not compile: NVRTC is too old for the device, or broken.
    #[error("NVRTC does not compile the kernels for {architecture}: {log}")]
    Compile {
        /// What it was asked to compile for.
        architecture: String,
        /// What it said.
        log: String,
    },
    /// The driver refused a call.
    #[error("{call}: CUDA error {code} ({name})")]
    Driver {
        /// What was asked for: a kernel's name, or that of the driver's function.
        call: &'static str,
        /// The `CUresult`.
        code: u32,
        /// Its name.
        name: String,
    },
    /// cuBLAS refused a call.
    #[error(transparent)]
    Blas(DeviceError),
    /// A buffer of an arena that belongs to another stream than the kernels.
    #[error("the buffer's arena belongs to another stream than the kernels")]
    OtherStream,
}

/// What a driver says to machine code that it does not take: no code for this device, code that it
/// cannot read, a version that it does not know.
const OTHER_CODE: [u32; 3] = [209, 218, 222];

impl CudaError {
    /// Whether PTX may do where machine code did not.
    pub(super) fn wants_ptx(&self) -> bool {
        match self {
            Self::Compile { .. } => true,
            Self::Driver { code, .. } => OTHER_CODE.contains(code),
            _ => false,
        }
    }

    /// A refusal of the driver, which is there to be asked for the name, or there was no refusal.
    pub(super) fn driver(call: &'static str) -> impl FnOnce(DriverError) -> Self {
        move |error| {
            let name = error.error_name().map(|name| name.to_string_lossy().into_owned());
            Self::Driver { call, code: error.0 as u32, name: name.unwrap_or_default() }
        }
    }
}

impl From<DeviceError> for CudaError {
    fn from(error: DeviceError) -> Self {
        match error.kind {
            DeviceErrorKind::Unavailable => Self::Library { name: "libcublas" },
            _ => Self::Blas(error),
        }
    }
}

/// `Ok` if the operand has just the length that the shape asks for.
pub(super) fn check_len(
    operand: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), KernelError> {
    if found == expected { Ok(()) } else { Err(KernelError::Length { operand, expected, found }) }
}

/// `Ok` if the workspace is long enough.
pub(super) fn check_workspace(found: usize, needed: usize) -> Result<(), KernelError> {
    if found >= needed { Ok(()) } else { Err(KernelError::Workspace { needed, found }) }
}

/// A number of elements as kernels and cuBLAS take it.
///
/// Kernels count in 32 bits without a sign, cuBLAS with one; the smaller range leaves room for the
/// last block's threads beyond the end.
pub(super) fn count(elements: usize) -> Result<u32, KernelError> {
    match i32::try_from(elements) {
        Ok(count) => Ok(count.unsigned_abs()),
        Err(_) => Err(KernelError::Overflow),
    }
}
