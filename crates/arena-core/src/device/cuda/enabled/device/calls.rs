//! Calls of the driver: with the device's context current, not when the device is lost, and not into a capture.

use std::sync::{RwLockReadGuard, RwLockWriteGuard};
use std::thread::ThreadId;

use cudarc::driver::sys;

use super::super::code::{Failure, done};
use super::super::context::with_current;
use super::Cuda;
use crate::device::Device;
use crate::error::{DeviceError, DeviceErrorKind};

impl Cuda {
    /// Runs driver calls with the device current, unless it is lost.
    pub(crate) fn call<R>(
        &self,
        body: impl FnOnce() -> Result<R, Failure>,
    ) -> Result<R, DeviceError> {
        self.health()?;
        self.call_even_if_lost(body)
    }

    pub(crate) fn call_even_if_lost<R>(
        &self,
        body: impl FnOnce() -> Result<R, Failure>,
    ) -> Result<R, DeviceError> {
        with_current(self.context(), body).map_err(|failure| {
            let error = failure.on(&self.name);
            if error.kind == DeviceErrorKind::Final {
                return self.lost.get_or_init(|| error).clone();
            }
            error
        })
    }

    /// Refuses `call` while a graph is captured on the arena's stream: the driver would refuse it too,
    /// and throw the capture away. While what is returned lives no capture of this device begins, so that
    /// a call of another thread is not captured half way, with the address of its host memory.
    pub(crate) fn not_in_capture(
        &self,
        call: &'static str,
    ) -> Result<RwLockReadGuard<'_, Option<ThreadId>>, Failure> {
        let held = self.capturing.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive, and the status goes into a live variable.
        let code = unsafe { sys::cuStreamIsCapturing(self.stream.cu_stream(), &raw mut status) };
        done("cuStreamIsCapturing", code)?;
        match status {
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(held),
            _ => Err(Failure::InCapture { call }),
        }
    }

    /// [`not_in_capture`](Self::not_in_capture) for a call that queues nothing on the arena's stream: it may also come
    /// from another thread than the one that captures, because captures of this device are thread-local.
    pub(crate) fn not_captured_here(
        &self,
        call: &'static str,
    ) -> Result<RwLockReadGuard<'_, Option<ThreadId>>, Failure> {
        let held = self.capturing.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        if held.is_some_and(|thread| thread != std::thread::current().id()) {
            return Ok(held);
        }
        drop(held);
        self.not_in_capture(call)
    }

    /// Held while a capture begins, with the thread that captures from then on: no thread is between
    /// [`not_in_capture`](Self::not_in_capture) and the end of its call.
    pub(crate) fn no_call_is_under_way(&self) -> RwLockWriteGuard<'_, Option<ThreadId>> {
        self.capturing.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
