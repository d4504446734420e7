//! A device that holds no more than a given number of bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Call, DeviceMemory, calls::wrap_device};
use crate::bytes::ByteSize;
use crate::error::DeviceError;
use crate::shortage::LimitedBy;

/// Wraps a device and limits the sum of the bytes that it holds at one time. Reserved addresses cost nothing, only
/// what is committed to them.
#[derive(Debug)]
pub struct Limited<D> {
    inner: D,
    limit_bytes: u64,
    held_bytes: AtomicU64,
}

impl<D> Limited<D> {
    /// A device that holds at most `limit` at one time.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// use arena_core::device::Limited;
    ///
    /// let device = Limited::new(Host::new(), ByteSize::kib(4));
    /// assert!(RawArena::new(device, ByteSize::kib(5)).is_err());
    /// ```
    pub fn new(inner: D, limit: ByteSize) -> Self {
        Self { inner, limit_bytes: limit.bytes(), held_bytes: AtomicU64::new(0) }
    }
}

impl<D: super::Device> Limited<D> {
    fn before(&self, call: Call, bytes: u64) -> Result<(), DeviceError> {
        match call {
            Call::Obtain | Call::Commit => {
                let within =
                    |held: u64| held.checked_add(bytes).filter(|total| *total <= self.limit_bytes);
                self.held_bytes
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
                    .map(drop)
                    .map_err(|held_bytes| {
                        let (limit, device) = (self.limit_bytes, self.inner.name());
                        let memory = DeviceMemory::new(device, limit - held_bytes, limit);
                        let memory = DeviceMemory { limited_by: LimitedBy::Program, ..memory };
                        memory.shortage(bytes).refuse(memory.device, call.name())
                    })
            }
            Call::Release => {
                self.not_obtained(bytes);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn not_obtained(&self, bytes: u64) {
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn decommitted(&self, bytes: u64) {
        self.not_obtained(bytes);
    }

    fn memory_left(&self, memory: DeviceMemory) -> DeviceMemory {
        let left_bytes = self.limit_bytes.saturating_sub(self.held_bytes.load(Ordering::Relaxed));
        if memory.free_bytes <= left_bytes {
            return memory;
        }
        let (limit_bytes, limited_by) = (self.limit_bytes, LimitedBy::Program);
        DeviceMemory { free_bytes: left_bytes, limit_bytes, limited_by, ..memory }
    }
}

wrap_device!(Limited);
