//! One copy between page-locked host memory and the device, and whether it is still in flight.

use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys;

use crate::device::Cuda;
use crate::device::Device;
use crate::device::cuda::enabled::code::{Failure, done};
use crate::device::cuda::enabled::event::Event;
use crate::device::cuda::enabled::pinned::Pinned;
use crate::error::{DeviceError, DeviceErrorKind, Error, ErrorKind};
use crate::region::Region;

/// Host memory that a queued copy may still use. It is never touched, and never freed, before the copy
/// has ended, and a copy whose end is not known counts as in flight.
#[derive(Debug)]
pub(super) struct Transfer<T> {
    /// `None` only while it is dropped.
    host: Option<Pinned<T>>,
    ended: Event,
    flight: Flight,
    region: Arc<Region<Cuda>>,
}

/// What is known of the last copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flight {
    /// It has ended, or there was none.
    Landed,
    /// It ends no later than the event.
    UntilEvent,
    /// The event could not be recorded behind it, nor the stream waited for: its end is not known, and
    /// the event says nothing about it.
    Unknown,
}

const HOST_MEMORY: &str = "the host memory of a copy";
const IN_FLIGHT: ErrorKind =
    ErrorKind::InUse { what: HOST_MEMORY, by: "a copy that has not ended" };
const GONE: ErrorKind = ErrorKind::InUse { what: HOST_MEMORY, by: "its own release" };

impl<T: Pod> Transfer<T> {
    pub(super) fn new(region: &Arc<Region<Cuda>>, len: usize) -> Result<Self, DeviceError> {
        let device = region.device();
        let (host, ended) = device.call(|| {
            let _held = device.not_captured_here("cuMemHostAlloc")?;
            Ok((Pinned::new(device.context(), len)?, Event::new(device.context())?))
        })?;
        Ok(Self { host: Some(host), ended, flight: Flight::Landed, region: Arc::clone(region) })
    }

    fn host(&self) -> Result<&Pinned<T>, Error> {
        self.host.as_ref().ok_or_else(|| GONE.into())
    }

    /// Whether the copy has ended, without waiting.
    pub(super) fn has_ended(&mut self) -> Result<bool, Error> {
        if self.flight == Flight::UntilEvent {
            let event = self.ended.handle();
            let device = self.region.device();
            let ended = device.call(|| {
                let _held = device.not_captured_here("cuEventQuery")?;
                // SAFETY: the event is alive.
                match unsafe { sys::cuEventQuery(event) } {
                    sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
                    code => done("cuEventQuery", code).map(|()| true),
                }
            })?;
            if ended {
                self.flight = Flight::Landed;
            }
        }
        Ok(self.flight == Flight::Landed)
    }

    /// Waits for the copy; says whether it had to.
    pub(super) fn wait(&mut self) -> Result<bool, Error> {
        if self.has_ended()? {
            return Ok(false);
        }
        if self.flight == Flight::Unknown {
            let by = "a copy whose end is not known";
            return Err(ErrorKind::InUse { what: HOST_MEMORY, by }.into());
        }
        let (device, event) = (self.region.device(), self.ended.handle());
        device.call(|| {
            let _held = device.not_captured_here("cuEventSynchronize")?;
            // SAFETY: the event is alive.
            done("cuEventSynchronize", unsafe { sys::cuEventSynchronize(event) })
        })?;
        self.flight = Flight::Landed;
        Ok(true)
    }

    /// The memory, when no copy is in flight.
    pub(super) fn as_slice(&self) -> Result<&[T], Error> {
        if self.flight != Flight::Landed {
            return Err(IN_FLIGHT.into());
        }
        // SAFETY: no copy is in flight.
        Ok(unsafe { self.host()?.as_slice() })
    }

    /// The memory, when no copy is in flight.
    pub(super) fn as_mut_slice(&mut self) -> Result<&mut [T], Error> {
        if self.flight != Flight::Landed {
            return Err(IN_FLIGHT.into());
        }
        let host = self.host.as_mut().ok_or(GONE)?;
        // SAFETY: no copy is in flight.
        Ok(unsafe { host.as_mut_slice() })
    }

    /// Queues `copy` on `stream`, and the event that tells its end.
    pub(super) fn start(
        &mut self,
        stream: &Arc<cudarc::driver::CudaStream>,
        copy: impl FnOnce(*mut T, usize) -> Result<(), Failure>,
    ) -> Result<(), Error> {
        self.as_slice()?;
        let (host, bytes) = (self.host()?.start(), self.host()?.len_bytes());
        if bytes == 0 {
            return Ok(());
        }
        let device = self.region.device();
        device.call(|| {
            // A captured copy would keep this memory's address.
            let _held = if stream == device.stream() {
                device.not_in_capture("cuMemcpyAsync")?
            } else {
                device.not_captured_here("cuMemcpyAsync")?
            };
            copy(host, bytes)
        })?;
        if let Err(error) = device.record(&self.ended, stream) {
            // Its end cannot be told, so it is waited for here; if that fails it is never touched again.
            if device.synchronise_stream(stream).is_err() {
                self.flight = Flight::Unknown;
            }
            return Err(error.into());
        }
        self.flight = Flight::UntilEvent;
        Ok(())
    }

    pub(super) fn ended(&self) -> &Event {
        &self.ended
    }
}

impl<T> Drop for Transfer<T> {
    fn drop(&mut self) {
        let device = self.region.device();
        let lost =
            || matches!(device.health(), Err(DeviceError { kind: DeviceErrorKind::Final, .. }));
        if self.flight == Flight::Landed || lost() {
            return;
        }
        let event = self.ended.handle();
        let waited = self.flight == Flight::UntilEvent
            && device
                .call(|| {
                    // SAFETY: the event is alive.
                    done("cuEventSynchronize", unsafe { sys::cuEventSynchronize(event) })
                })
                .is_ok();
        if !waited && !lost() {
            // A copy may still use the memory: it is given up, not freed.
            std::mem::forget(self.host.take());
        }
    }
}
