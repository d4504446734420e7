//! Other streams than the arena's own: a declared stream is waited for before memory is reused.
//!
//! The list of declared streams belongs to the region, not to the scope, so that a forgotten guard loses
//! no stream. A close, before it clears and puts the cursor back, lets the arena's stream wait for *every*
//! stream that was declared by then, at any depth, and forgets those that were declared at its own
//! depth or deeper.

use arena_core::{Device, Error};

use crate::scope::Scope;

impl<D: Device> Scope<'_, '_, D> {
    /// Declares that `stream` uses buffers of this scope. No byte of the scope is reused before the device has
    /// done what is queued on `stream` when the scope closes. The host does not wait.
    ///
    /// `stream` waits, on the device, for the work that is queued on the arena's stream now, so it sees what
    /// that work writes. If `stream` also needs later work of the arena's stream, declare it again after that
    /// work. The arena's own stream needs no declaration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`](arena_core::ErrorKind::WrongDevice) when the stream is of another
    /// device; [`ErrorKind::Device`](arena_core::ErrorKind::Device) when the device refuses the wait.
    pub fn declare_stream(&self, stream: &D::Stream) -> Result<(), Error> {
        self.region().declare(stream, self.depth())
    }

    /// Makes the arena's stream wait, on the device, for the work that is queued on `stream` now. Use it before
    /// the arena's stream reads what `stream` writes.
    ///
    /// # Errors
    ///
    /// As for [`declare_stream`](Self::declare_stream).
    pub fn wait_for_stream(&self, stream: &D::Stream) -> Result<(), Error> {
        self.region().wait_for(stream)
    }
}
