//! The streams beside the arena's: making them, and ordering their work and the arena's.

use std::ptr;
use std::sync::{Arc, Weak};

use cudarc::driver::CudaStream;

use super::super::code::Failure;
use super::super::event::{Event, record, wait};
use super::Cuda;
use crate::device::Device;
use crate::error::{DeviceError, Error};

impl Cuda {
    /// A new stream of this device, which waits for no other stream. Declare it to the scope or to the buffers
    /// that it uses. Passing a buffer of the arena to a safe call of cudarc on this stream declares it too. A
    /// kernel launch does not, because cudarc does not tell its arguments the stream.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    pub fn new_stream(&self) -> Result<Arc<CudaStream>, Error> {
        let stream = self.call(|| {
            let made = self.context().new_stream();
            made.map_err(|error| Failure::Driver { call: "cuStreamCreate", code: error.0 })
        })?;
        let mut streams = self.streams.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&stream));
        Ok(stream)
    }

    /// The owner of a stream that this device made.
    pub(crate) fn find_stream(&self, stream: &CudaStream) -> Option<Arc<CudaStream>> {
        let streams = self.streams.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        streams.iter().find(|known| ptr::eq(known.as_ptr(), stream)).and_then(Weak::upgrade)
    }

    /// Makes the arena's stream wait for all that is queued on any stream: on the device, or on the host where the
    /// driver is older than CUDA 12.5.
    pub(crate) fn wait_for_every_stream(&self) -> Result<(), DeviceError> {
        self.call(|| {
            let _held = self.not_in_capture("cuCtxRecordEvent")?;
            self.every_stream.wait_on(&self.stream)
        })
    }

    /// A stream to declare for the work of another context, if that is current: a copy to another device is being
    /// queued then. Whoever waits for this stream waits for that context.
    pub(crate) fn stream_for_peers(&self) -> Result<Option<Arc<CudaStream>>, DeviceError> {
        // Not in `call`, which makes the own context current.
        self.peers.note(&self.stream).map_err(|failure| failure.on(&self.name))
    }

    /// Waits for the contexts that [`stream_for_peers`](Self::stream_for_peers) noted.
    pub(super) fn wait_for_peers(&self, stream: &CudaStream) -> Result<(), Failure> {
        if *stream == *self.stream { Ok(()) } else { self.peers.wait() }
    }

    /// Makes a stream, of this context or another one, wait for what is queued on the arena's stream;
    /// on the host if the device cannot.
    pub(crate) fn order_before(&self, stream: &CudaStream) -> Result<(), DeviceError> {
        let on_the_device = self.call(|| {
            let event = Event::new(self.context())?;
            record(&event, &self.stream)?;
            wait(stream, &event)
        });
        on_the_device.or_else(|_| self.synchronise())
    }
}
