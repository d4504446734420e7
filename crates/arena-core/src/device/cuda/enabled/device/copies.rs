//! Copies between the host and the arena, and how long host memory must stay.

use std::ffi::c_void;
use std::time::Duration;

use cudarc::driver::sys;

use super::super::code::{Failure, done};
use super::super::event::synchronise;
use super::Cuda;

impl Cuda {
    /// Queues a copy from the host on the arena's stream.
    ///
    /// # Safety
    ///
    /// `to_address` is that of `len` bytes of the region; `from` is readable for as many until the copy has ended.
    pub(super) unsafe fn queue_copy_in(
        &self,
        to_address: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), Failure> {
        let stream = self.stream.cu_stream();
        // SAFETY: by what the caller promises; the stream is alive.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to_address, from.cast(), len, stream) };
        done("cuMemcpyHtoDAsync", code)
    }

    /// Waits for the arena's stream on behalf of host memory that is only borrowed, and that a queued copy
    /// may still use: this returns when that copy has ended. A driver that refuses the wait for a passing
    /// reason is asked again until it knows, for the borrow ends with the call; a lost device runs nothing
    /// any more. The first refusal is returned all the same.
    pub(super) fn wait_for_borrowed(&self) -> Result<(), Failure> {
        let first = synchronise(&self.stream);
        let mut last = first;
        while last.is_err_and(|failure| !failure.runs_nothing_more()) {
            std::thread::sleep(Duration::from_millis(1));
            last = synchronise(&self.stream);
        }
        // It has landed, or the device is lost, which says more than what came before.
        last.and(first)
    }
}

/// Whether the driver knows this host memory, so that copies from it are read only when they run. The
/// call for several attributes is no error where the driver does not, which a checker would report.
pub(super) fn is_pinned(from: &[u8]) -> Result<bool, Failure> {
    let mut kind = 0_u32;
    let mut attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    let mut target = (&raw mut kind).cast::<c_void>();
    let (asked, at) = (&raw mut attribute, from.as_ptr().addr() as u64);
    // SAFETY: one attribute, an `unsigned int`, which goes into a live variable; the address is only
    // looked up.
    let code = unsafe { sys::cuPointerGetAttributes(1, asked, &raw mut target, at) };
    done("cuPointerGetAttributes", code)?;
    Ok(kind != 0)
}
