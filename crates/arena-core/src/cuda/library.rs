//! What the handles of NVIDIA's libraries have in common: a context, a workspace in the arena, and how they refuse.

use std::ffi::c_void;
use std::fmt::Debug;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use crate::buffer::Persistent;
use crate::bytes::Alignment;
use crate::device::Cuda;
use crate::device::cuda::enabled::context::with_current;
use crate::device::cuda::enabled::device::memory_info;
use crate::error::{DeviceError, DeviceErrorKind, Error, ErrorKind};

/// Runs `body` with `context` current.
pub(super) fn current<R>(
    context: &CudaContext,
    body: impl FnOnce() -> Result<R, DeviceError>,
) -> Result<R, DeviceError> {
    with_current(context, || Ok(body())).map_err(|failure| failure.on(&name(context)))?
}

pub(super) fn name(context: &CudaContext) -> String {
    format!("cuda:{}", context.ordinal())
}

/// Lets the work of `stream` use a workspace, which may lie in the arena of another stream.
///
/// # Errors
///
/// [`ErrorKind::WrongDevice`] for a buffer on another device; [`ErrorKind::Misaligned`] where it is not aligned to
/// [`Alignment::CUBLAS_WORKSPACE`]; or the refusal of the driver.
pub(super) fn declare_workspace(
    workspace: &Persistent<u8, Cuda>,
    stream: &Arc<CudaStream>,
) -> Result<(), Error> {
    workspace.view().aligned(Alignment::CUBLAS_WORKSPACE.bytes())?;
    let owner = workspace.region().device();
    if owner.context() != stream.context() {
        let what = format!("a stream of {}", name(stream.context()));
        return Err(ErrorKind::WrongDevice { what, device: name(owner.context()) }.into());
    }
    // On another stream than the arena's, every close waits for it from now on.
    workspace.declare_stream(stream)
}

/// The loader does not find a library.
pub(super) fn missing(context: &CudaContext, call: &'static str, library: &str) -> DeviceError {
    DeviceError {
        device: name(context),
        call,
        reason: format!("{library} is not installed, or not on the loader's path"),
        kind: DeviceErrorKind::Unavailable,
    }
}

/// A library refused a call. They call many a failed allocation something else, so the error tells the arena's size and
/// what the device has free.
pub(super) fn refused(
    context: &CudaContext,
    call: &'static str,
    status: &dyn Debug,
    code: u32,
    workspace: Option<&Persistent<u8, Cuda>>,
) -> DeviceError {
    let mut reason = format!("{status:?} ({code})");
    if let Ok((free, total)) = with_current(context, memory_info) {
        reason += &format!("; {free} of the device's {total} bytes are free");
        if let Some(workspace) = workspace {
            let arena = workspace.region().capacity_bytes();
            reason += &format!(" beside an arena of {arena}: libraries need headroom");
        }
    }
    DeviceError { device: name(context), call, reason, kind: DeviceErrorKind::Refused }
}

/// A device address as the libraries take it.
#[expect(clippy::cast_possible_truncation, reason = "cudarc asks for 64-bit addresses")]
pub(super) const fn pointer(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}
