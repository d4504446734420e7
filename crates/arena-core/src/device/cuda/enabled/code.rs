//! What a refused driver call says. Formatting one of cudarc's errors would call the driver, so the
//! code is named here.

#![forbid(unsafe_code)]

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

use crate::error::{DeviceError, DeviceErrorKind, Error, ErrorKind};

/// A call that was refused, before anybody knows for which device.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Failure {
    /// By the driver.
    Driver { call: &'static str, code: CUresult },
    /// By this crate, because a graph is captured.
    InCapture { call: &'static str },
}

/// The outcome of a driver call.
pub(crate) fn done(call: &'static str, code: CUresult) -> Result<(), Failure> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(Failure::Driver { call, code }),
    }
}

/// Whether a context that met this error is broken until it is destroyed: "the process must be
/// terminated and relaunched", as the driver's documentation has it for most of these.
fn is_final(code: CUresult) -> bool {
    matches!(code as u32, 4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719)
}

impl Failure {
    /// Whether a wait that failed like this has nothing to wait for any more: the device is lost to this
    /// process, or its context is gone (not initialised, an invalid context or handle), and the work with it.
    pub(super) fn runs_nothing_more(self) -> bool {
        matches!(self, Self::Driver { code, .. } if is_final(code) || matches!(code as u32, 3 | 201 | 400))
    }

    /// The error, on the device of that name.
    pub(crate) fn on(self, device: &str) -> DeviceError {
        let device = device.to_owned();
        match self {
            Self::InCapture { call } => DeviceError {
                device,
                call,
                reason: "not while a graph is captured on the arena's stream".to_owned(),
                kind: DeviceErrorKind::InCapture,
            },
            Self::Driver { call, code } => {
                let name = format!("{code:?} ({})", code as u32);
                let (reason, kind) = if is_final(code) {
                    let hint = "the device is lost to this process, and its contents with it";
                    (format!("{name}; {hint}"), DeviceErrorKind::Final)
                } else if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                    (name, DeviceErrorKind::OutOfMemory(None))
                } else {
                    (name, DeviceErrorKind::Refused)
                };
                DeviceError { device, call, reason, kind }
            }
        }
    }
}

/// So that `?` works on a call of cudarc in a scope. cudarc's error tells neither the call nor the device.
impl From<DriverError> for ErrorKind {
    fn from(error: DriverError) -> Self {
        Failure::Driver { call: "a call of cudarc", code: error.0 }.on("cuda").into()
    }
}

/// So that `?` works in a program whose functions return cudarc's error. It has room for a code alone: what did not fit
/// is `OUT_OF_MEMORY`, and what only the text of [`Error`] tells is `UNKNOWN`.
impl From<Error> for DriverError {
    fn from(error: Error) -> Self {
        let out_of_memory = |kind| matches!(kind, DeviceErrorKind::OutOfMemory(_));
        Self(match error.kind() {
            ErrorKind::Exhausted(_) | ErrorKind::TooBig { .. } => {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY
            }
            ErrorKind::Device(error) if out_of_memory(error.kind) => {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY
            }
            _ => CUresult::CUDA_ERROR_UNKNOWN,
        })
    }
}
