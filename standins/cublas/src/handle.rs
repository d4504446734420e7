//! Handles and their settings.

use crate::driver::{allocate, check_stream, count_handle, framed, note, release};
use crate::status::{Outcome, Status, code};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// What a handle remembers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) stream: u64,
    /// Scalars are read from device memory, in stream order.
    pub(crate) device_scalars: bool,
    math_mode: u32,
    /// What the caller gave on this stream: address and bytes.
    given: Option<[u64; 2]>,
    /// Memory of the library's own, for products on a stream without a given workspace.
    own: Option<u64>,
}

/// cuBLAS 12.8.
const VERSION: c_int = 120_804;
/// What a workspace has to be aligned to, in bytes.
pub const WORKSPACE_ALIGN: u64 = 256;
/// Bytes of the workspace that a handle takes from the driver when it is given none.
const OWN_WORKSPACE_BYTES: u64 = 4 << 20;

static HANDLES: Mutex<(u64, BTreeMap<u64, Settings>)> = Mutex::new((0x5B1A_5000, BTreeMap::new()));

fn with<R>(body: impl FnOnce(&mut BTreeMap<u64, Settings>) -> R) -> R {
    body(&mut HANDLES.lock().unwrap_or_else(PoisonError::into_inner).1)
}

/// The settings of a live handle.
pub(crate) fn settings(handle: u64) -> Result<Settings, Status> {
    with(|handles| handles.get(&handle).copied()).ok_or(Status::NOT_INITIALIZED)
}

/// The workspace that a product works in: what was given, or the library's own, which is taken from the driver at the
/// first product that needs it.
pub(crate) fn workspace(handle: u64) -> Result<[u64; 2], Status> {
    let settings = settings(handle)?;
    if let Some(given) = settings.given {
        return Ok(given);
    }
    let own = match settings.own {
        Some(own) => own,
        None => allocate(OWN_WORKSPACE_BYTES)?,
    };
    change(handle, |settings| settings.own = Some(own))?;
    Ok([own, OWN_WORKSPACE_BYTES])
}

fn change(handle: u64, change: impl FnOnce(&mut Settings)) -> Outcome {
    with(|handles| handles.get_mut(&handle).map(change)).ok_or(Status::NOT_INITIALIZED)
}

/// A result that the caller takes through a pointer: null, or valid for one write of `T`. Only foreign callers make one.
#[derive(Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes it.
    ///
    /// # Errors
    ///
    /// For a null pointer.
    pub fn set(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and by the type's rule the foreign caller passed a pointer that is valid for this write.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn cublasCreate_v2(handle: Out<u64>) -> u32 {
    framed("cublasCreate_v2", || {
        let mut table = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
        table.0 += 16;
        let fresh = table.0;
        handle.set(fresh)?;
        table.1.insert(fresh, Settings::default());
        count_handle(1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasDestroy_v2(handle: u64) -> u32 {
    // The handle goes even when the call is told to fail, as a driver's release does. A broken context does not matter:
    // the only failure that the interface knows here is a handle that is none.
    let removed = with(|handles| handles.remove(&handle));
    if let Some(own) = removed.and_then(|settings| settings.own) {
        // A context that is gone has taken the memory along.
        let _ = release(own);
    }
    let outcome = if removed.is_some() { count_handle(-1) } else { Err(Status::NOT_INITIALIZED) };
    code(note("cublasDestroy_v2").and(outcome))
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetStream_v2(handle: u64, stream: u64) -> u32 {
    framed("cublasSetStream_v2", || {
        check_stream(stream)?;
        // As the documentation has it, the workspace is the library's own again.
        change(handle, |settings| (settings.stream, settings.given) = (stream, None))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetStream_v2(handle: u64, stream: Out<u64>) -> u32 {
    framed("cublasGetStream_v2", || stream.set(settings(handle)?.stream))
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetWorkspace_v2(handle: u64, workspace: u64, bytes: usize) -> u32 {
    framed("cublasSetWorkspace_v2", || {
        if !workspace.is_multiple_of(WORKSPACE_ALIGN) || (workspace == 0 && bytes > 0) {
            return Err(Status::INVALID_VALUE);
        }
        change(handle, |settings| settings.given = Some([workspace, bytes as u64]))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetPointerMode_v2(handle: u64, mode: u32) -> u32 {
    framed("cublasSetPointerMode_v2", || match mode {
        0 | 1 => change(handle, |settings| settings.device_scalars = mode == 1),
        _ => Err(Status::INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetPointerMode_v2(handle: u64, mode: Out<u32>) -> u32 {
    framed("cublasGetPointerMode_v2", || mode.set(u32::from(settings(handle)?.device_scalars)))
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetMathMode(handle: u64, mode: u32) -> u32 {
    framed("cublasSetMathMode", || change(handle, |settings| settings.math_mode = mode))
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetMathMode(handle: u64, mode: Out<u32>) -> u32 {
    framed("cublasGetMathMode", || mode.set(settings(handle)?.math_mode))
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetVersion_v2(handle: u64, version: Out<c_int>) -> u32 {
    framed("cublasGetVersion_v2", || {
        settings(handle)?;
        version.set(VERSION)
    })
}

/// Major version, minor version, patch level.
#[unsafe(no_mangle)]
extern "C" fn cublasGetProperty(property: u32, value: Out<c_int>) -> u32 {
    code(match property {
        0 => value.set(VERSION / 10_000),
        1 => value.set(VERSION / 100 % 100),
        2 => value.set(VERSION % 100),
        _ => Err(Status::INVALID_VALUE),
    })
}
