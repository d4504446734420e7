//! Matrix products by cuBLAS.

use std::sync::Arc;

use cudarc::cublas::result;
use cudarc::cublas::sys::{
    cublasHandle_t, cublasMath_t, cublasOperation_t, cublasSetMathMode, cublasSetWorkspace_v2,
};
use cudarc::driver::CudaStream;

use super::error::{CudaError, check_len, count};
use super::kernels::Kernels;
use super::range::{Input, Output};
use crate::backend::host::KernelError;

/// What a cuBLAS workspace has to be aligned to, in bytes.
const WORKSPACE_ALIGNMENT_BYTES: u64 = 256;

/// cuBLAS on one stream.
#[derive(Debug)]
pub(super) struct Blas {
    /// A live handle, made in the stream's context and destroyed by the drop alone.
    handle: cublasHandle_t,
    stream: Arc<CudaStream>,
}

// SAFETY: a handle may be used from any thread, though not from two at once: hence no `Sync`.
unsafe impl Send for Blas {}

impl Drop for Blas {
    fn drop(&mut self) {
        // Not cudarc's own type: it panics here when the device is lost. There is nobody to tell,
        // and nothing but the handle is lost.
        let _ = self.stream.context().bind_to_thread();
        // SAFETY: the handle is live and not used again.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// A row-major matrix without gaps, to be read as it is or with rows and columns exchanged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    values: Input<'a, f32>,
    rows: usize,
    cols: usize,
    transposed: bool,
}

impl<'a> Matrix<'a> {
    pub(super) fn new(
        values: Input<'a, f32>,
        rows: usize,
        cols: usize,
    ) -> Result<Self, KernelError> {
        check_len("matrix", values.len(), rows.checked_mul(cols).ok_or(KernelError::Overflow)?)?;
        Ok(Self { values, rows, cols, transposed: false })
    }

    pub(super) const fn transposed(self) -> Self {
        Self { rows: self.cols, cols: self.rows, transposed: !self.transposed, ..self }
    }

    /// How cuBLAS is to read it: column by column, the rows lie there as columns.
    const fn operation(&self) -> cublasOperation_t {
        if self.transposed {
            cublasOperation_t::CUBLAS_OP_T
        } else {
            cublasOperation_t::CUBLAS_OP_N
        }
    }

    /// Elements from one row to the next as they lie in memory.
    const fn stride(&self) -> usize {
        if self.transposed { self.rows } else { self.cols }
    }
}

impl Blas {
    /// A handle on the stream, in full `f32` precision.
    pub(super) fn new(stream: Arc<CudaStream>) -> Result<Self, CudaError> {
        // SAFETY: opening cuBLAS runs no code but its own initialisation.
        if !unsafe { cudarc::cublas::sys::is_culib_present() } {
            return Err(CudaError::Library { name: "libcublas" });
        }
        stream.context().bind_to_thread().map_err(CudaError::driver("cuCtxSetCurrent"))?;
        let handle = result::create_handle().map_err(CudaError::blas("cublasCreate"))?;
        let blas = Self { handle, stream };
        // SAFETY: the handle and the stream are live and of one context.
        unsafe { result::set_stream(handle, blas.stream.cu_stream().cast()) }
            .map_err(CudaError::blas("cublasSetStream"))?;
        // SAFETY: the handle is live. This mode rounds nothing to TF32.
        let status = unsafe { cublasSetMathMode(handle, cublasMath_t::CUBLAS_DEFAULT_MATH) };
        status.result().map_err(CudaError::blas("cublasSetMathMode"))?;
        Ok(blas)
    }

    /// Gives cuBLAS memory to work in, so that it uses none of its own.
    ///
    /// # Safety
    ///
    /// `workspace` stays allocated, and nobody else uses it, until another is given or the handle
    /// is gone and the stream has passed its work.
    pub(super) unsafe fn set_workspace(
        &mut self,
        workspace: Output<'_, u8>,
    ) -> Result<(), CudaError> {
        let address = workspace.address();
        if !address.is_multiple_of(WORKSPACE_ALIGNMENT_BYTES) {
            return Err(CudaError::Workspace { address });
        }
        // SAFETY: a live handle; the memory is as the caller says, and aligned as cuBLAS asks.
        let status =
            unsafe { cublasSetWorkspace_v2(self.handle, pointer(address).cast(), workspace.len()) };
        status.result().map_err(CudaError::blas("cublasSetWorkspace"))
    }

    /// Queues `c = a * b`; `c` is not read. Neither side of the product nor the sum may be empty.
    fn multiply(&self, a: Matrix<'_>, b: Matrix<'_>, c: Output<'_, f32>) -> Result<(), CudaError> {
        let int = |value| count(value).map(u32::cast_signed);
        let (rows, cols, inner) = (int(a.rows)?, int(b.cols)?, int(a.cols)?);
        let (a_stride, b_stride) = (int(a.stride())?, int(b.stride())?);
        let context = self.stream.context();
        context.bind_to_thread().map_err(CudaError::driver("cublasSgemm"))?;
        // cuBLAS counts along columns. Read that way our matrices are transposed, so the product's
        // transpose is asked for: c^T = b^T * a^T.
        // SAFETY: the handle is live and takes its scalars from the host, at the call. Each matrix
        // has rows * cols elements: `Matrix::new` and `Kernels::multiply` checked. They are live,
        // as `Input::new` and `Output::new` ask, and nothing overlaps `c`, which is exclusive.
        unsafe {
            result::sgemm(
                self.handle,
                b.operation(),
                a.operation(),
                cols,
                rows,
                inner,
                &1.0,
                pointer(b.values.address()),
                b_stride,
                pointer(a.values.address()),
                a_stride,
                &0.0,
                pointer(c.address()),
                cols,
            )
        }
        .map_err(CudaError::blas("cublasSgemm"))
    }
}

impl Kernels {
    /// Queues `c = a * b`; `c` is not read.
    pub(super) fn multiply(
        &self,
        a: Matrix<'_>,
        b: Matrix<'_>,
        c: Output<'_, f32>,
    ) -> Result<(), CudaError> {
        if a.cols != b.rows {
            return Err(KernelError::Shape { reason: "the matrices' sizes do not match" }.into());
        }
        check_len("product", c.len(), a.rows.checked_mul(b.cols).ok_or(KernelError::Overflow)?)?;
        if a.cols == 0 || c.is_empty() {
            // A sum of nothing, for which cuBLAS says nothing about `c`.
            return self.fill(c, 0.0);
        }
        self.blas.multiply(a, b, c)
    }
}

/// A device address as cuBLAS takes it.
#[expect(clippy::cast_possible_truncation, reason = "cudarc asks for 64-bit addresses")]
const fn pointer(address: u64) -> *mut f32 {
    std::ptr::without_provenance_mut(address as usize)
}
