//! What is asked of the driver itself: the current context, whether a stream has ended its work, and the memory through
//! which the bytes of a broadcast go.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, sys};

/// The driver's refusal, in words. Formatting one of cudarc's errors would call the driver.
fn done(call: &str, code: sys::CUresult) -> Result<(), String> {
    match code {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(format!("{call}: {code:?} ({})", code as u32)),
    }
}

/// Runs `body` with `context` current, and then makes the one current again that was.
pub(super) fn with_current<R>(
    context: &CudaContext,
    body: impl FnOnce() -> Result<R, String>,
) -> Result<R, String> {
    let own = context.cu_ctx();
    let mut before = ptr::null_mut();
    // SAFETY: the handle goes into a live variable.
    done("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&raw mut before) })?;
    if before == own {
        return body();
    }
    // SAFETY: the handle of a live context.
    done("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(own) })?;
    let result = body();
    if !before.is_null() {
        // SAFETY: the driver checks the handle, which was current on this thread. That it refuses says nothing of the call.
        let _ = unsafe { sys::cuCtxSetCurrent(before) };
    }
    result
}

/// Whether a stream has ended all its work. Its context is current.
pub(super) fn is_idle(stream: &CudaStream) -> Result<bool, String> {
    // SAFETY: the stream is alive.
    match unsafe { sys::cuStreamQuery(stream.cu_stream()) } {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        code => done("cuStreamQuery", code).map(|()| true),
    }
}

/// A block of device memory, and page-locked memory of the host for copies from and to it. All calls have its stream's
/// context current.
///
/// A call queues at most one copy each way; the owner waits for the stream before it makes the next one.
#[derive(Debug)]
pub(super) struct Staging {
    /// [`Self::BYTES`] of device memory, as `host` is of the host's.
    device: sys::CUdeviceptr,
    host: NonNull<u8>,
    stream: Arc<CudaStream>,
    /// The length of the copy to the host that is queued, or was.
    fetched: usize,
}

impl Staging {
    /// The most bytes of one copy.
    pub(super) const BYTES: usize = 256 << 10;

    pub(super) fn new(stream: &Arc<CudaStream>) -> Result<Self, String> {
        let mut host = ptr::null_mut();
        // SAFETY: the address goes into a live variable.
        let code = unsafe { sys::cuMemHostAlloc(&raw mut host, Self::BYTES, 0) };
        done("cuMemHostAlloc", code)?;
        let host = NonNull::new(host.cast::<u8>()).ok_or("cuMemHostAlloc gave no memory")?;
        // SAFETY: the driver gave so many bytes of this process, which nothing else knows.
        unsafe { host.write_bytes(0, Self::BYTES) };
        let mut device = 0;
        // SAFETY: the address goes into a live variable.
        let code = unsafe { sys::cuMemAlloc_v2(&raw mut device, Self::BYTES) };
        if let Err(reason) = done("cuMemAlloc", code) {
            // SAFETY: allocated above, and used by nothing.
            let _ = unsafe { sys::cuMemFreeHost(host.as_ptr().cast()) };
            return Err(reason);
        }
        Ok(Self { device, host, stream: Arc::clone(stream), fetched: 0 })
    }

    /// The stream of the copies.
    pub(super) fn stream(&self) -> &CudaStream {
        &self.stream
    }

    /// The address of [`Self::BYTES`] on the device, which this owns.
    pub(super) fn device(&self) -> u64 {
        self.device
    }

    /// Queues a copy to the device. The stream has ended all earlier copies.
    ///
    /// # Panics
    ///
    /// For more than [`Self::BYTES`].
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        assert!(bytes.len() <= Self::BYTES, "{} bytes at once", bytes.len());
        // SAFETY: both have that many bytes; the host's are this owner's alone, and no queued copy uses them.
        unsafe { self.host.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let (to, from) = (self.device, self.host.as_ptr().cast_const().cast());
        // SAFETY: both have that many bytes, which live until the owner has found the stream idle.
        let code =
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes.len(), self.stream.cu_stream()) };
        done("cuMemcpyHtoDAsync", code)
    }

    /// Queues a copy to the host.
    ///
    /// # Panics
    ///
    /// For more than [`Self::BYTES`].
    pub(super) fn fetch(&mut self, len: usize) -> Result<(), String> {
        assert!(len <= Self::BYTES, "{len} bytes at once");
        self.fetched = len;
        let (to, from) = (self.host.as_ptr().cast(), self.device);
        // SAFETY: both have that many bytes, which live until the owner has found the stream idle.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, len, self.stream.cu_stream()) };
        done("cuMemcpyDtoHAsync", code)
    }

    /// Takes what the last copy brought. The stream has ended it.
    ///
    /// # Panics
    ///
    /// For more than it had.
    pub(super) fn take(&self, bytes: &mut [u8]) {
        assert!(bytes.len() <= self.fetched, "{} bytes of {}", bytes.len(), self.fetched);
        // SAFETY: both have that many bytes, initialised by `new` at the latest; no queued copy writes the host's.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(self.host.as_ptr(), bytes.len()) };
    }

    /// Gives the memory back. The stream is idle. A refusal says that the context is broken, which has lost it.
    pub(super) fn free(self) {
        // SAFETY: allocated in `new`, freed here alone, and used by no queued work.
        let _ = unsafe { sys::cuMemFree_v2(self.device) };
        // SAFETY: as above.
        let _ = unsafe { sys::cuMemFreeHost(self.host.as_ptr().cast()) };
    }
}
