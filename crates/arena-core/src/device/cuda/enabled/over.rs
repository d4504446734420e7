//! A device whose first region is memory that the program holds.

use cudarc::driver::{CudaSlice, DevicePtr};

use super::Cuda;
use super::external::{CudaMemory, External, Held, TooSmall};
use crate::bytes::Alignment;
use crate::device::{Device, Obtained};
use crate::error::{DeviceError, DeviceErrorKind, Error, ErrorKind};

impl Cuda {
    /// The same device, whose first region is `memory` instead of memory from the driver. It must be of this device's
    /// context. When the region ends, the host waits for what is queued on it, and the slice is dropped; an arena of
    /// `arena-scope` can give it back.
    ///
    /// ```no_run
    /// use arena_core::cudarc::driver::CudaContext;
    /// use arena_core::{ByteSize, Cuda, RawArena};
    ///
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let memory = stream.alloc_zeros::<u8>(1 << 20)?;
    /// let arena = RawArena::new(Cuda::on(stream)?.over(memory)?, ByteSize::mib(1))?;
    /// assert_eq!(arena.persistent_from(&[0.5_f32; 25])?.view().to_vec()?[24], 0.5);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`] for a slice of another context; it is dropped then.
    pub fn over(self, memory: CudaSlice<u8>) -> Result<Self, Error> {
        if memory.context() != self.context() {
            let what = format!("a slice of cuda:{}", memory.ordinal());
            return Err(ErrorKind::WrongDevice { what, device: self.name() }.into());
        }
        let (address, bytes) = (cu_address(&memory), memory.len() as u64);
        // SAFETY: the slice owns its bytes, and is kept.
        Ok(unsafe { self.over_raw(address, bytes, memory) })
    }

    /// The same device, whose first region is at `address` instead of in memory from the driver. `keeper` is dropped
    /// when the region has ended and the host has waited for what is queued on it.
    ///
    /// # Safety
    ///
    /// 1. The `bytes` bytes at `address` are memory of this device's context, until `keeper` is dropped.
    /// 2. Until then no other code reads or writes them, except for work that a stream has queued already.
    #[must_use]
    pub unsafe fn over_raw<K: Send + Sync + 'static>(
        mut self,
        address: u64,
        bytes: u64,
        keeper: K,
    ) -> Self {
        self.alignment = alignment_of(address);
        self.external.put_back(Held { address, bytes, keeper: Box::new(keeper) });
        self
    }

    /// Where the memory is that the program gave.
    #[must_use]
    pub fn external(&self) -> &External {
        &self.external
    }

    /// The memory that the program gave, for a region of `bytes` bytes; `None` if it gave none.
    pub(super) fn obtain_external(
        &self,
        bytes: u64,
    ) -> Result<Option<Obtained<CudaMemory>>, DeviceError> {
        let held = self.external.take(bytes).map_err(|TooSmall(held_bytes)| DeviceError {
            device: self.name(),
            call: "obtain",
            reason: format!("the memory that was given has {held_bytes} bytes, not {bytes}"),
            kind: DeviceErrorKind::Refused,
        })?;
        let Some(held) = held else { return Ok(None) };
        // Whatever the program has queued on it comes first.
        if let Err(error) = self.wait_for_every_stream() {
            self.external.put_back(held);
            return Err(error);
        }
        Ok(Some(Obtained { base_address: held.address, handle: CudaMemory::of_the_program(held) }))
    }
}

fn cu_address(memory: &CudaSlice<u8>) -> u64 {
    memory.device_ptr(memory.stream()).0
}

/// What an address is a multiple of, up to the alignment of memory from the driver.
fn alignment_of(address: u64) -> Alignment {
    let low_bit = (address & address.wrapping_neg()).clamp(1, Alignment::DEFAULT.bytes());
    Alignment::new(low_bit).unwrap_or(Alignment::ONE)
}
