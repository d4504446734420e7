//! Memory that the program holds, as the region of an arena.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::CudaSlice;

/// What a device needs to release memory: nothing for its own, what keeps that of the program, and which pieces of
/// reserved addresses have memory.
#[derive(Debug, Default)]
pub struct CudaMemory {
    pub(super) held: Option<Held>,
    /// Addresses and bytes.
    mapped: Mutex<Vec<(u64, u64)>>,
}

impl CudaMemory {
    pub(super) fn of_the_program(held: Held) -> Self {
        Self { held: Some(held), mapped: Mutex::default() }
    }

    /// The pieces that have memory.
    pub(super) fn mapped(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.mapped.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Memory of the program's.
pub(super) struct Held {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) keeper: Box<dyn Any + Send + Sync>,
}

/// The memory is smaller than the region: how many bytes it has.
#[derive(Debug)]
pub(super) struct TooSmall(pub(super) u64);

/// Where a device has the program's memory before it is the region, and again after that.
#[derive(Debug, Clone, Default)]
pub struct External(Arc<Mutex<Option<Held>>>);

impl External {
    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The slice, if the memory is one, and no arena has it.
    #[must_use]
    pub fn take_slice(&self) -> Option<CudaSlice<u8>> {
        let mut held = self.lock();
        let Held { address, bytes, keeper } = held.take()?;
        match keeper.downcast() {
            Ok(slice) => Some(*slice),
            Err(keeper) => {
                *held = Some(Held { address, bytes, keeper });
                None
            }
        }
    }

    /// The memory that the program gave, for a region of `bytes` bytes; `None` if it gave none.
    pub(super) fn take(&self, bytes: u64) -> Result<Option<Held>, TooSmall> {
        let mut held = self.lock();
        match &*held {
            Some(Held { bytes: held_bytes, .. }) if bytes > *held_bytes => {
                Err(TooSmall(*held_bytes))
            }
            _ => Ok(held.take()),
        }
    }

    /// Whether the program gave memory, which no arena has yet.
    pub(super) fn is_given(&self) -> bool {
        self.lock().is_some()
    }

    pub(super) fn put_back(&self, memory: Held) {
        *self.lock() = Some(memory);
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes@{:#x}", self.bytes, self.address)
    }
}
