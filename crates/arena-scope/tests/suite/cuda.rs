//! A second stream, and what it saw.

use std::sync::Arc;

use arena_scope::cudarc::driver::{CudaContext, CudaStream, PinnedHostSlice, sys};
use arena_scope::{Arena, ByteSize, Cuda, Device, Reset};

pub(crate) const CAPACITY: ByteSize = ByteSize::kib(64);

pub(crate) fn arena_of(capacity: ByteSize) -> Arena<Cuda> {
    Arena::builder(Cuda::new(0).unwrap()).capacity(capacity).build().unwrap()
}

pub(crate) fn arena_with(reset: Reset) -> Arena<Cuda> {
    Arena::builder(Cuda::new(0).unwrap()).capacity(CAPACITY).reset(reset).build().unwrap()
}

pub(crate) fn arena() -> Arena<Cuda> {
    arena_with(Reset::Keep)
}

/// A stream of the arena's device that nobody has declared.
pub(crate) fn side_stream(arena: &Arena<Cuda>) -> Arc<CudaStream> {
    arena.device().new_stream().unwrap()
}

/// Four floats of pinned memory that copies from the device are queued to.
pub(crate) struct Seen(PinnedHostSlice<f32>);

impl Seen {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Self {
        // SAFETY: it is written right below, before anything reads it.
        let pinned = unsafe { context.alloc_pinned::<f32>(4) };
        let mut pinned = pinned.map_err(|error| error.0).unwrap();
        pinned.as_mut_slice().map_err(|error| error.0).unwrap().fill(-1.0);
        Self(pinned)
    }

    /// Queues a copy as a program of its own would, without telling the arena.
    pub(crate) fn copy_raw(&mut self, stream: &CudaStream, address: u64) {
        let to = self.0.as_mut_ptr().map_err(|error| error.0).unwrap().cast();
        // SAFETY: four live floats on both sides; the copy has ended before the memory is read or
        // freed, for the tests wait for the stream.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(to, address, 16, stream.cu_stream()) };
        code.result().map_err(|error| error.0).unwrap();
    }

    /// Queues a copy by cudarc's safe call.
    pub(crate) fn copy(
        &mut self,
        stream: &Arc<CudaStream>,
        from: &impl arena_scope::cudarc::driver::DevicePtr<f32>,
    ) {
        stream.memcpy_dtoh(from, &mut self.0).map_err(|error| error.0).unwrap();
    }

    /// What has arrived when `stream` has ended.
    pub(crate) fn after(&self, stream: &CudaStream) -> [f32; 4] {
        stream.synchronize().map_err(|error| error.0).unwrap();
        let seen = self.0.as_slice().map_err(|error| error.0).unwrap();
        seen.try_into().unwrap()
    }
}

/// Waits for the arena's own stream, so that a test is about the other one alone.
pub(crate) fn settle(arena: &impl HasDevice) {
    arena.device().synchronise().unwrap();
}

/// An arena or a scope.
pub(crate) trait HasDevice {
    fn device(&self) -> &Cuda;
}

impl HasDevice for Arena<Cuda> {
    fn device(&self) -> &Cuda {
        self.device()
    }
}

impl HasDevice for arena_scope::Scope<'_, '_, Cuda> {
    fn device(&self) -> &Cuda {
        arena_scope::Scope::device(self)
    }
}
