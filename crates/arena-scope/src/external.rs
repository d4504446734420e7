//! An arena over memory that the program holds.

use arena_core::cudarc::driver::CudaSlice;
use arena_core::{ByteSize, Cuda, Error};

use crate::arena::{Arena, ArenaBuilder};

impl Arena<Cuda> {
    /// Begins to build an arena whose region is `memory`, on the stream of that slice. What the program has queued on
    /// the slice, on any stream, comes before what the arena does with it.
    ///
    /// For another stream, or for memory behind a pointer, build an arena on a device that was made by
    /// [`Cuda::over`] or [`Cuda::over_raw`].
    ///
    /// ```no_run
    /// use arena_scope::cudarc::driver::{CudaContext, CudaSlice};
    /// use arena_scope::Arena;
    ///
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let memory: CudaSlice<u8> = stream.alloc_zeros(1 << 20)?;
    /// let mut arena = Arena::over(memory)?.build()?;
    /// arena.scope(|step| step.upload(&[1.0_f32; 100]).map(drop))?;
    /// let memory = arena.into_slice().expect("no persistent buffer is left");
    /// assert_eq!(memory.len(), 1 << 20);
    /// # arena_scope::Ok(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`](arena_core::ErrorKind::WrongDevice) for a slice of the per-thread default stream.
    pub fn over(memory: CudaSlice<u8>) -> Result<ArenaBuilder<Cuda>, Error> {
        let (stream, bytes) = (memory.stream().clone(), memory.len() as u64);
        let device = Cuda::on(stream)?.over(memory)?;
        Ok(Self::builder(device).capacity(ByteSize::bytes_exact(bytes)))
    }

    /// Ends the arena and gives the slice back that it was built [over](Self::over). The host waits for what the arena
    /// has queued on it.
    ///
    /// `None` if the arena is not over a slice, or if a persistent buffer or a graph still uses its memory: then the
    /// slice is dropped with the last of them.
    #[must_use]
    pub fn into_slice(self) -> Option<CudaSlice<u8>> {
        let external = self.device().external().clone();
        drop(self);
        external.take_slice()
    }
}
