//! Page-locked host memory: copies from and to it are read and written when they run, not when they
//! are queued.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{CudaContext, sys};

use super::code::{Failure, done};
use super::context::with_current;

/// `len` initialised elements of page-locked memory. The owner sees to it that no queued copy uses them
/// when a slice is made or they are dropped.
#[derive(Debug)]
pub(crate) struct Pinned<T> {
    start: NonNull<T>,
    len: usize,
    context: Arc<CudaContext>,
}

// SAFETY: it owns its memory as a boxed slice would.
unsafe impl<T: Send> Send for Pinned<T> {}

// SAFETY: as above.
unsafe impl<T: Sync> Sync for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    /// Zeroed memory. The context is current.
    pub(crate) fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self, Failure> {
        let context = Arc::clone(context);
        let Some(bytes) = len.checked_mul(size_of::<T>()).filter(|bytes| *bytes > 0) else {
            return Ok(Self { start: NonNull::dangling(), len: 0, context });
        };
        let mut start = ptr::null_mut();
        // SAFETY: the address goes into a live variable.
        done("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&raw mut start, bytes, 0) })?;
        // SAFETY: the driver gave `bytes` bytes of this process, which nothing else knows.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        // Not null after a success, and at the start of a page, which is aligned for any `Pod`.
        let start = NonNull::new(start.cast()).unwrap_or(NonNull::dangling());
        Ok(Self { start, len, context })
    }

    pub(crate) fn start(&self) -> *mut T {
        self.start.as_ptr()
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// # Safety
    ///
    /// No copy that writes the memory is queued.
    pub(crate) unsafe fn as_slice(&self) -> &[T] {
        // SAFETY: `len` initialised elements of this owner, which nothing writes, as the caller says.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    /// # Safety
    ///
    /// No copy that reads or writes the memory is queued.
    pub(crate) unsafe fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: `len` initialised elements of this owner, borrowed mutably, which nothing else uses,
        // as the caller says.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        // A failure cannot be told to anybody here.
        let _ = with_current(&self.context, || {
            // SAFETY: what `cuMemHostAlloc` gave, freed once; its owner says that no copy uses it.
            done("cuMemFreeHost", unsafe { sys::cuMemFreeHost(self.start.as_ptr().cast()) })
        });
    }
}
