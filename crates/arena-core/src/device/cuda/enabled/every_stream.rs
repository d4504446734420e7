//! Waiting for every stream that there is: those of the arena's context, and of the primary contexts of the other
//! devices, whose copies can read this one's memory. Streams of further contexts cannot be found.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaContext, CudaStream, sys};

use super::code::{Failure, done};
use super::context::{Restore, with_current};
use super::event::{Event, wait};
use super::presence;

/// What the waits keep from one to the next.
#[derive(Debug, Default)]
pub(super) struct EveryStream(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Whether the driver records a whole context in an event, once it was asked.
    records: Option<bool>,
    /// Of the arena's context. One of another context would have to keep that in use.
    own: Option<Event>,
}

impl EveryStream {
    /// Makes `stream` wait for all that is queued on any stream. Its context is current.
    pub(super) fn wait_on(&self, stream: &CudaStream) -> Result<(), Failure> {
        let mut kept = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Kept { records, own } = &mut *kept;
        let _restore = Restore::remember();
        let records = match *records {
            Some(records) => records,
            None => *records.insert(records_contexts()?),
        };
        wait_for_context(stream, stream.context(), records, own)?;
        for ordinal in 0..device_count()? {
            if let Some(other) = other_context(stream.context(), ordinal)? {
                wait_for_context(stream, &other, records, &mut None)?;
            }
        }
        Ok(())
    }
}

fn wait_for_context(
    stream: &CudaStream,
    context: &Arc<CudaContext>,
    records: bool,
    event: &mut Option<Event>,
) -> Result<(), Failure> {
    let on_the_device = || {
        let event = match event {
            Some(event) => event,
            none => none.insert(with_current(context, || Event::new(context))?),
        };
        record_context(context, event)?;
        wait(stream, event)
    };
    if records && on_the_device().is_ok() {
        return Ok(());
    }
    // SAFETY: the context is current.
    let wait_on_the_host = || done("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() });
    with_current(context, wait_on_the_host)
}

/// The primary context of the device with this number, if it is in use and not the arena's own.
fn other_context(own: &CudaContext, ordinal: usize) -> Result<Option<Arc<CudaContext>>, Failure> {
    if own.is_primary() && own.ordinal() == ordinal {
        return Ok(None);
    }
    let (mut device, mut flags, mut active) = (0, 0, 0);
    let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
    // SAFETY: the device goes into a live variable.
    done("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut device, number) })?;
    // SAFETY: both numbers go into live variables.
    let code = unsafe { sys::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    done("cuDevicePrimaryCtxGetState", code)?;
    if active == 0 {
        return Ok(None);
    }
    let retained = CudaContext::new(ordinal);
    let call = "cuDevicePrimaryCtxRetain";
    retained.map(Some).map_err(|error| Failure::Driver { call, code: error.0 })
}

/// Lets `event` stand for all that is queued in its context.
#[cfg(any(feature = "cuda-12080", feature = "cuda-13000", feature = "cuda-13040"))]
fn record_context(context: &CudaContext, event: &Event) -> Result<(), Failure> {
    // SAFETY: context and event are alive, and the event is of that context. The driver is new enough to have the
    // function: see `records_contexts`.
    let code = unsafe { sys::cuCtxRecordEvent(context.cu_ctx(), event.handle()) };
    done("cuCtxRecordEvent", code)
}

/// The bindings do not know the function.
#[cfg(not(any(feature = "cuda-12080", feature = "cuda-13000", feature = "cuda-13040")))]
fn record_context(_: &CudaContext, _: &Event) -> Result<(), Failure> {
    let code = sys::CUresult::CUDA_ERROR_NOT_FOUND;
    done("cuCtxRecordEvent", code)
}

/// Whether bindings and driver have `cuCtxRecordEvent`.
fn records_contexts() -> Result<bool, Failure> {
    let bindings =
        cfg!(any(feature = "cuda-12080", feature = "cuda-13000", feature = "cuda-13040"));
    Ok(bindings && presence::driver_version()? >= 12_050)
}

fn device_count() -> Result<usize, Failure> {
    let mut count = 0;
    // SAFETY: the number goes into a live variable.
    done("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}
