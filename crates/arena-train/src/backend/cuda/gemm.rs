//! Matrix products by cuBLAS.

use arena_scope::cuda::Blas;
use cudarc::cublas::sys::{cublasOperation_t, cublasSgemm_v2};

use super::error::{CudaError, check_len, count};
use super::kernels::Kernels;
use super::range::{Input, Output};
use crate::backend::host::KernelError;

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

/// Queues `c = a * b`; `c` is not read. Neither side of the product nor the sum may be empty.
fn queue(blas: &Blas, a: Matrix<'_>, b: Matrix<'_>, c: Output<'_, f32>) -> Result<(), CudaError> {
    let int = |value| count(value).map(u32::cast_signed);
    let (rows, cols, inner) = (int(a.rows)?, int(b.cols)?, int(a.cols)?);
    let (a_stride, b_stride) = (int(a.stride())?, int(b.stride())?);
    let context = blas.stream().context();
    context.bind_to_thread().map_err(CudaError::driver("cublasSgemm"))?;
    // cuBLAS counts along columns. Read that way our matrices are transposed, so the product's
    // transpose is asked for: c^T = b^T * a^T.
    // SAFETY: the handle is live and takes its scalars from the host, at the call. Each matrix has
    // rows * cols elements: `Matrix::new` and `Kernels::multiply` checked. They are live, as
    // `Input::new` and `Output::new` ask, and nothing overlaps `c`, which is exclusive.
    let status = unsafe {
        cublasSgemm_v2(
            blas.handle(),
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
    };
    Ok(blas.done("cublasSgemm", status)?)
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
        queue(&self.blas, a, b, c)
    }
}

/// A device address as cuBLAS takes it.
#[expect(clippy::cast_possible_truncation, reason = "cudarc asks for 64-bit addresses")]
const fn pointer(address: u64) -> *mut f32 {
    std::ptr::without_provenance_mut(address as usize)
}
