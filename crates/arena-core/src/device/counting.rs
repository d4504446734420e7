//! A device that counts its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Call, DeviceMemory, calls::wrap_device};
use crate::error::DeviceError;

/// Wraps a device and counts its calls and their bytes. The counts outlive the device.
#[derive(Debug)]
pub struct Counting<D> {
    inner: D,
    counts: CallCounts,
}

impl<D> Counting<D> {
    /// Counts the calls of `inner` from zero.
    pub fn new(inner: D) -> Self {
        Self { inner, counts: CallCounts::default() }
    }

    /// A shared handle to the counts. It still works after the device has moved into an arena.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// use arena_core::device::{Call, Counting};
    ///
    /// let device = Counting::new(Host::new());
    /// let counts = device.counts();
    /// let arena = RawArena::new(device, ByteSize::kib(4))?;
    /// arena.persistent_from(&[1.0_f32; 10])?;
    /// assert_eq!((counts.calls(Call::Obtain), counts.bytes(Call::CopyIn)), (1, 40));
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    pub fn counts(&self) -> CallCounts {
        self.counts.clone()
    }

    #[expect(clippy::unnecessary_wraps, reason = "the signature that every wrapper has")]
    fn before(&self, call: Call, bytes: u64) -> Result<(), DeviceError> {
        let (calls, total_bytes) = &self.counts.by_call[call as usize];
        calls.fetch_add(1, Ordering::Relaxed);
        total_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn not_obtained(&self, _bytes: u64) {}

    fn decommitted(&self, _bytes: u64) {}

    fn memory_left(&self, memory: DeviceMemory) -> DeviceMemory {
        memory
    }
}

wrap_device!(Counting);

/// How often each call was made, and for how many bytes in total.
#[derive(Debug, Clone, Default)]
pub struct CallCounts {
    by_call: Arc<[(AtomicU64, AtomicU64); Call::ALL.len()]>,
}

impl CallCounts {
    /// Calls so far, those that the device refused included.
    #[must_use]
    pub fn calls(&self, call: Call) -> u64 {
        self.by_call[call as usize].0.load(Ordering::Relaxed)
    }

    /// Bytes of those calls.
    #[must_use]
    pub fn bytes(&self, call: Call) -> u64 {
        self.by_call[call as usize].1.load(Ordering::Relaxed)
    }
}
