//! What a refused driver call says. Formatting one of cudarc's errors would call the driver, so the
//! code is named here.

#![forbid(unsafe_code)]

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

use crate::error::{DeviceError, DeviceErrorKind, ErrorKind};

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

/// The errors that a context, or the process, does not come back from. cuda.h says of most of them that "the process
/// must be terminated and relaunched", of 710 that the context must be destroyed; of 214 and 220 it says that the
/// hardware has lost data.
const FINAL: [u32; 17] = [
    4,   // the driver is shutting down
    214, // an ECC error that could not be corrected
    220, // the same on NVLink
    226, // an exception that the hardware has contained
    700, // an illegal address
    702, // a launch that took too long
    709, // the context was destroyed
    710, // an assertion in a kernel
    714, 715, 716, 717, 718, 719, // a kernel that went wrong in another way
    721, // tensor memory that a kernel has not given back
    810, // the MPS client was terminated
    911, // an error of a device outside of the GPU
];

fn is_final(code: CUresult) -> bool {
    FINAL.contains(&(code as u32))
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

#[cfg(test)]
mod tests {
    use super::*;
    use CUresult::*;

    /// The codes that every version of the bindings knows.
    const LOST: &[CUresult] = &[
        CUDA_ERROR_DEINITIALIZED,
        CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_NVLINK_UNCORRECTABLE,
        CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_LAUNCH_TIMEOUT,
        CUDA_ERROR_CONTEXT_IS_DESTROYED,
        CUDA_ERROR_ASSERT,
        CUDA_ERROR_HARDWARE_STACK_ERROR,
        CUDA_ERROR_ILLEGAL_INSTRUCTION,
        CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_INVALID_ADDRESS_SPACE,
        CUDA_ERROR_INVALID_PC,
        CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_MPS_CLIENT_TERMINATED,
        CUDA_ERROR_EXTERNAL_DEVICE,
    ];
    const PASSING: &[CUresult] = &[
        CUDA_SUCCESS,
        CUDA_ERROR_INVALID_VALUE,
        CUDA_ERROR_OUT_OF_MEMORY,
        CUDA_ERROR_NOT_INITIALIZED,
        CUDA_ERROR_PROFILER_DISABLED,
        CUDA_ERROR_PROFILER_NOT_INITIALIZED,
        CUDA_ERROR_PROFILER_ALREADY_STARTED,
        CUDA_ERROR_PROFILER_ALREADY_STOPPED,
        CUDA_ERROR_STUB_LIBRARY,
        CUDA_ERROR_DEVICE_UNAVAILABLE,
        CUDA_ERROR_NO_DEVICE,
        CUDA_ERROR_INVALID_DEVICE,
        CUDA_ERROR_DEVICE_NOT_LICENSED,
        CUDA_ERROR_INVALID_IMAGE,
        CUDA_ERROR_INVALID_CONTEXT,
        CUDA_ERROR_CONTEXT_ALREADY_CURRENT,
        CUDA_ERROR_MAP_FAILED,
        CUDA_ERROR_UNMAP_FAILED,
        CUDA_ERROR_ARRAY_IS_MAPPED,
        CUDA_ERROR_ALREADY_MAPPED,
        CUDA_ERROR_NO_BINARY_FOR_GPU,
        CUDA_ERROR_ALREADY_ACQUIRED,
        CUDA_ERROR_NOT_MAPPED,
        CUDA_ERROR_NOT_MAPPED_AS_ARRAY,
        CUDA_ERROR_NOT_MAPPED_AS_POINTER,
        CUDA_ERROR_UNSUPPORTED_LIMIT,
        CUDA_ERROR_CONTEXT_ALREADY_IN_USE,
        CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        CUDA_ERROR_INVALID_PTX,
        CUDA_ERROR_INVALID_GRAPHICS_CONTEXT,
        CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        CUDA_ERROR_JIT_COMPILATION_DISABLED,
        CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY,
        CUDA_ERROR_INVALID_SOURCE,
        CUDA_ERROR_FILE_NOT_FOUND,
        CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND,
        CUDA_ERROR_SHARED_OBJECT_INIT_FAILED,
        CUDA_ERROR_OPERATING_SYSTEM,
        CUDA_ERROR_INVALID_HANDLE,
        CUDA_ERROR_ILLEGAL_STATE,
        CUDA_ERROR_NOT_FOUND,
        CUDA_ERROR_NOT_READY,
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING,
        CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
        CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
        CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
        CUDA_ERROR_TOO_MANY_PEERS,
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
        CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        CUDA_ERROR_NOT_PERMITTED,
        CUDA_ERROR_NOT_SUPPORTED,
        CUDA_ERROR_SYSTEM_NOT_READY,
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
        CUDA_ERROR_MPS_CONNECTION_FAILED,
        CUDA_ERROR_MPS_RPC_FAILURE,
        CUDA_ERROR_MPS_SERVER_NOT_READY,
        CUDA_ERROR_MPS_MAX_CLIENTS_REACHED,
        CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED,
        CUDA_ERROR_CDP_NOT_SUPPORTED,
        CUDA_ERROR_CDP_VERSION_MISMATCH,
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        CUDA_ERROR_STREAM_CAPTURE_MERGE,
        CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
        CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
        CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        CUDA_ERROR_CAPTURED_EVENT,
        CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
        CUDA_ERROR_TIMEOUT,
        CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
        CUDA_ERROR_INVALID_CLUSTER_SIZE,
        CUDA_ERROR_UNKNOWN,
    ];
    /// Those that came with CUDA 12.8.
    #[cfg(not(feature = "cuda-12000"))]
    const LOST_SINCE: &[CUresult] = &[CUDA_ERROR_CONTAINED, CUDA_ERROR_TENSOR_MEMORY_LEAK];
    #[cfg(feature = "cuda-12000")]
    const LOST_SINCE: &[CUresult] = &[];

    #[test]
    fn a_code_after_which_nothing_runs_is_final_and_no_other() {
        let kept: Vec<_> = LOST.iter().chain(LOST_SINCE).filter(|code| !is_final(**code)).collect();
        assert!(kept.is_empty(), "{kept:?} are final");
        let given_up: Vec<_> = PASSING.iter().filter(|code| is_final(**code)).collect();
        assert!(given_up.is_empty(), "{given_up:?} pass");
    }
}
