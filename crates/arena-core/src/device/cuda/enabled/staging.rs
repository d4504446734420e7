//! Page-locked memory on the way to the device.
//!
//! NVIDIA promises that pageable memory was read when a copy returns for synchronous copies only; of asynchronous ones
//! its documentation says that they *might* be. So what is uploaded is copied here first, by the host, and goes on from
//! here in stream order. Two parts take turns; a part is written again when the event behind its last copy has come.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, sys};

use super::code::{Failure, done};
use super::event::Event;
use super::pinned::Pinned;

/// Bytes in a part: some steps' small uploads, or a piece of a large one.
const PART_BYTES: usize = 1 << 20;

/// The two parts.
#[derive(Debug)]
pub(super) struct Staging {
    parts: [Part; 2],
    /// The part that is being filled.
    current: usize,
}

#[derive(Debug)]
struct Part {
    memory: Pinned<u8>,
    used_bytes: usize,
    /// Behind the last copy out of it, once the other part is used.
    left: Event,
}

impl Part {
    fn new(context: &Arc<CudaContext>) -> Result<Self, Failure> {
        let (memory, left) = (Pinned::new(context, PART_BYTES)?, Event::new(context)?);
        Ok(Self { memory, used_bytes: 0, left })
    }
}

impl Staging {
    /// Memory that nothing uses. The context is current.
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, Failure> {
        Ok(Self { parts: [Part::new(context)?, Part::new(context)?], current: 0 })
    }

    /// Takes the next bytes of `from`, as many as there is room for and at least one; the copy of what it gives is to
    /// be queued on `stream` at once. The context is current.
    pub(super) fn take(&mut self, from: &[u8], stream: &CudaStream) -> Result<Staged, Failure> {
        if self.parts[self.current].used_bytes == PART_BYTES {
            self.turn(stream)?;
        }
        let part = &mut self.parts[self.current];
        let start_bytes = part.used_bytes;
        let len = from.len().min(PART_BYTES - start_bytes);
        part.used_bytes += len;
        // SAFETY: the part has as many bytes as `PART_BYTES`, and these lie among them.
        let to = unsafe { part.memory.start().add(start_bytes) };
        // SAFETY: these bytes lie behind those that were taken since the part was free, and before it is free again
        // nobody else gets them; `from` is not ours.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), len) };
        Ok(Staged { from: to, len })
    }

    /// Leaves a full part, and waits until the other one is free.
    fn turn(&mut self, stream: &CudaStream) -> Result<(), Failure> {
        let (full, next) = (&self.parts[self.current].left, 1 - self.current);
        // SAFETY: the event and the stream are alive and of one context.
        let code = unsafe { sys::cuEventRecord(full.handle(), stream.cu_stream()) };
        done("cuEventRecord", code)?;
        if self.parts[next].used_bytes > 0 {
            // SAFETY: the event is alive. It was recorded when its part was left.
            let code = unsafe { sys::cuEventSynchronize(self.parts[next].left.handle()) };
            done("cuEventSynchronize", code)?;
        }
        self.parts[next].used_bytes = 0;
        self.current = next;
        Ok(())
    }

    /// Gives the memory up, because a copy may use it for ever.
    pub(super) fn leak(self) {
        let [one, two] = self.parts;
        std::mem::forget((one.memory, two.memory));
    }
}

/// What was taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Staged {
    pub(super) from: *const u8,
    pub(super) len: usize,
}
