//! Objects behind opaque handles. A handle is never given out twice, so a destroyed one is always recognised.

use crate::abi::{Code, CuResult, Handle};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Handles look like nothing that could be an address on this machine (bit 62 set), and differ between tables.
static NEXT: AtomicU64 = AtomicU64::new(1 << 62);

/// A fresh handle.
pub(crate) fn fresh_handle() -> Handle {
    NEXT.fetch_add(16, Ordering::Relaxed)
}

/// Live objects of one kind, in the order in which they were made.
#[derive(Debug)]
pub(crate) struct Table<T>(BTreeMap<Handle, T>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Table<T> {
    pub(crate) fn add(&mut self, object: T) -> Handle {
        let handle = fresh_handle();
        self.0.insert(handle, object);
        handle
    }

    /// The object; `CUDA_ERROR_INVALID_HANDLE` for a handle that is none, is of another kind or was destroyed.
    pub(crate) fn get(&self, handle: Handle) -> CuResult<&T> {
        self.0.get(&handle).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn get_mut(&mut self, handle: Handle) -> CuResult<&mut T> {
        self.0.get_mut(&handle).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn remove(&mut self, handle: Handle) -> CuResult<T> {
        self.0.remove(&handle).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.0.iter().map(|(handle, object)| (*handle, object))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut()
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(Handle, &T) -> bool) {
        self.0.retain(|handle, object| keep(*handle, object));
    }

    pub(crate) fn count(&self, mut which: impl FnMut(&T) -> bool) -> u64 {
        self.0.values().filter(|object| which(object)).count() as u64
    }
}
