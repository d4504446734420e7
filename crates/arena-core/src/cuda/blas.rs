//! cuBLAS in the memory of the arena: a handle whose workspace is a persistent buffer.

use std::sync::Arc;

use cudarc::cublas::{result, sys as blas};
use cudarc::driver::{CudaContext, CudaStream};

use super::library::{current, declare_workspace, missing, name, pointer, refused};
use crate::buffer::Persistent;
use crate::device::Cuda;
use crate::device::cuda::enabled::code::Failure;
use crate::device::cuda::enabled::context::with_current;
use crate::error::{DeviceError, Error, ErrorKind};

/// A cuBLAS handle whose workspace is a persistent buffer of an arena.
///
/// Without a workspace, cuBLAS allocates memory from the driver at its first product. This handle keeps its
/// workspace as long as it lives, also when it changes to another stream, where cuBLAS alone would return to
/// its default memory.
///
/// Make the workspace before the mark is set, of [`recommended_bytes`](Self::recommended_bytes).
#[derive(Debug)]
pub struct Blas {
    /// A live handle, made in the stream's context and destroyed by the drop alone, which runs before
    /// the workspace goes.
    handle: blas::cublasHandle_t,
    stream: Arc<CudaStream>,
    workspace: Option<Persistent<u8, Cuda>>,
}

// SAFETY: a handle may be used from any thread, though not from two at once: hence no `Sync`.
unsafe impl Send for Blas {}

impl Drop for Blas {
    fn drop(&mut self) {
        // Not cudarc's own type: it panics here when the device is lost. There is nobody to tell, and
        // nothing but the handle is lost.
        let _ = with_current(self.stream.context(), || {
            // SAFETY: the handle is live and not used again. Work that is queued keeps what it needs;
            // the workspace's bytes are used again in the order of the streams that it was given on.
            let _ = unsafe { result::destroy_handle(self.handle) };
            Ok(())
        });
    }
}

impl Blas {
    /// A handle that queues its work on `stream`, in full `f32` precision, without a workspace.
    ///
    /// # Errors
    ///
    /// [`DeviceErrorKind::Unavailable`](crate::DeviceErrorKind::Unavailable) when the loader finds no cuBLAS; or the refusal of cuBLAS,
    /// which also allocates some memory outside the arena.
    pub fn on(stream: &Arc<CudaStream>) -> Result<Self, DeviceError> {
        let context = stream.context();
        // SAFETY: opening cuBLAS runs no code but its own initialisation.
        if !unsafe { blas::is_culib_present() } {
            return Err(missing(context, "cublasCreate", "libcublas"));
        }
        let made = current(context, || {
            result::create_handle()
                .map_err(|error| refused(context, "cublasCreate", &error.0, error.0 as u32, None))
        })?;
        let this = Self { handle: made, stream: Arc::clone(stream), workspace: None };
        this.bind("cublasSetStream", || {
            // SAFETY: the handle and the stream are live and of one context.
            unsafe { blas::cublasSetStream_v2(made, stream.cu_stream().cast()) }
        })?;
        this.bind("cublasSetMathMode", || {
            // SAFETY: the handle is live. This mode rounds nothing to TF32.
            unsafe { blas::cublasSetMathMode(made, blas::cublasMath_t::CUBLAS_DEFAULT_MATH) }
        })?;
        Ok(this)
    }

    /// What cuBLAS's documentation recommends as a workspace on the stream's device: 32 MiB from compute
    /// capability 9.0 on, and 4 MiB before.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    pub fn recommended_bytes(stream: &CudaStream) -> Result<u64, DeviceError> {
        let context = stream.context();
        let (major, _) = context.compute_capability().map_err(|error| {
            Failure::Driver { call: "cuDeviceGetAttribute", code: error.0 }.on(&name(context))
        })?;
        Ok(if major >= 9 { 32 << 20 } else { 4 << 20 })
    }

    /// Lets cuBLAS work in `workspace` from now on. The previous workspace is dropped; its bytes are reused only
    /// after the queued work.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`] for a buffer on another device than the stream;
    /// [`ErrorKind::Misaligned`] where it is not aligned to [`Alignment::CUBLAS_WORKSPACE`](crate::Alignment::CUBLAS_WORKSPACE); or the refusal
    /// of cuBLAS or of the driver. The workspace is unchanged then.
    pub fn set_workspace(&mut self, workspace: Persistent<u8, Cuda>) -> Result<(), Error> {
        declare_workspace(&workspace, &self.stream)?;
        self.hand_over(&workspace)?;
        self.workspace = Some(workspace);
        Ok(())
    }

    /// Queues the work on `stream` from now on, in the same workspace: `stream` waits, on the device, for
    /// the work that is queued now.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`] for a stream of another device; or the refusal of cuBLAS or of the
    /// driver.
    pub fn set_stream(&mut self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        if stream.context() != self.stream.context() {
            let what = format!("a stream of cuda:{}", stream.context().ordinal());
            return Err(ErrorKind::WrongDevice { what, device: name(self.context()) }.into());
        }
        if let Some(workspace) = &self.workspace {
            // Two products at a time would write each other's workspace.
            workspace.region().wait_for(&self.stream)?;
            workspace.declare_stream(stream)?;
        }
        let handle = self.handle;
        self.bind("cublasSetStream", || {
            // SAFETY: the handle and the stream are live and of one context.
            unsafe { blas::cublasSetStream_v2(handle, stream.cu_stream().cast()) }
        })?;
        self.stream = Arc::clone(stream);
        // cuBLAS is back at a workspace of its own now.
        self.workspace.as_ref().map_or(Ok(()), |workspace| Ok(self.hand_over(workspace)?))
    }

    /// Gives cuBLAS the address.
    fn hand_over(&self, workspace: &Persistent<u8, Cuda>) -> Result<(), DeviceError> {
        let (handle, address, len) = (self.handle, workspace.address(), workspace.len());
        self.bind("cublasSetWorkspace", || {
            // SAFETY: a live handle, and memory that nobody else uses: the buffer is this handle's until
            // it is gone or has another, and the arena orders its bytes behind the stream.
            unsafe { blas::cublasSetWorkspace_v2(handle, pointer(address), len) }
        })
    }

    /// The handle, for calls of cuBLAS with the context of [`stream`](Self::stream) current. It must be
    /// neither destroyed nor given a workspace or a stream.
    #[must_use]
    pub const fn handle(&self) -> blas::cublasHandle_t {
        self.handle
    }

    /// The stream that the work is queued on.
    #[must_use]
    pub const fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Bytes of the workspace; 0 without one.
    #[must_use]
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace.as_ref().map_or(0, |workspace| workspace.len() as u64)
    }

    /// What became of a call on the handle. cuBLAS calls many a failed allocation something else, so the
    /// error tells the arena's size and what the device had free.
    ///
    /// # Errors
    ///
    /// Unless the status is that of success.
    pub fn done(
        &self,
        call: &'static str,
        status: blas::cublasStatus_t,
    ) -> Result<(), DeviceError> {
        let (outcome, workspace) = (status.result(), self.workspace.as_ref());
        outcome.map_err(|_| refused(self.context(), call, &status, status as u32, workspace))
    }

    fn context(&self) -> &CudaContext {
        self.stream.context()
    }

    /// A call on the handle with its context current.
    fn bind(
        &self,
        call: &'static str,
        body: impl FnOnce() -> blas::cublasStatus_t,
    ) -> Result<(), DeviceError> {
        current(self.context(), || self.done(call, body()))
    }
}
