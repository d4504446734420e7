//! Streams beside the arena's own: declared, they are waited for before anything is reused.
//!
//! The list of declared streams is the region's, not the scope's, so that a forgotten guard loses
//! none. A close, before it clears and puts the cursor back, lets the arena's stream wait for *every*
//! stream that was declared by then, at any depth, and forgets those that were declared at its own
//! depth or deeper.

use arena_core::{Device, Error};

use crate::scope::Scope;

impl<D: Device> Scope<'_, '_, D> {
    /// Declares that `stream` uses buffers of this scope: nothing of it is reused before what was
    /// queued on `stream` by the time it closes. No host waits for that.
    ///
    /// `stream` waits, on the device, for what is queued on the arena's stream now, so that it finds
    /// the buffers as they are. Declare it again after further work on the arena's stream that it
    /// depends on. The arena's own stream needs no declaration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`](arena_core::ErrorKind::WrongDevice) when the stream is of another
    /// device; [`ErrorKind::Device`](arena_core::ErrorKind::Device) when the device refuses the wait.
    pub fn declare_stream(&self, stream: &D::Stream) -> Result<(), Error> {
        self.region().declare(stream, self.depth())
    }

    /// Makes the arena's stream wait, on the device, for what is queued on `stream` now: for a result
    /// that another stream wrote and that this scope goes on with.
    ///
    /// # Errors
    ///
    /// As for [`declare_stream`](Self::declare_stream).
    pub fn wait_for_stream(&self, stream: &D::Stream) -> Result<(), Error> {
        self.region().wait_for(stream)
    }
}
