//! The matrix product: a checked call of the `matrixmultiply` crate.

use super::error::KernelError;
use crate::library_mark;

/// A matrix to read: element `(row, col)` is `values[row * row_stride + col * col_stride]`.
#[derive(Debug, Clone, Copy)]
pub struct MatrixRef<'a> {
    values: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: isize,
    col_stride: isize,
}

impl<'a> MatrixRef<'a> {
    /// A matrix whose rows lie one after another without gaps.
    ///
    /// # Errors
    ///
    /// [`KernelError::Length`] unless `values` has just `rows * cols` elements.
    pub fn row_major(values: &'a [f32], rows: usize, cols: usize) -> Result<Self, KernelError> {
        let stride = check_dense(values.len(), rows, cols)?;
        Ok(Self { values, rows, cols, row_stride: stride, col_stride: 1 })
    }

    /// The same elements with rows and columns exchanged.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            values: self.values,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }

    /// The columns from `first` up to `first + count`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Shape`] where the matrix has fewer columns.
    pub fn columns(self, first: usize, count: usize) -> Result<Self, KernelError> {
        if first.checked_add(count).is_none_or(|end| end > self.cols) {
            return Err(KernelError::Shape { reason: "columns beyond the matrix's end" });
        }
        if count == 0 || self.rows == 0 {
            return Ok(Self { values: &[], cols: count, ..self });
        }
        // Not negative and within the slice: it is the offset of element (0, first).
        let start = first * self.col_stride.unsigned_abs();
        Ok(Self { values: &self.values[start..], cols: count, ..self })
    }

    /// One more than the largest index that an element has.
    fn extent(&self) -> usize {
        extent(self.rows, self.cols, self.row_stride, self.col_stride)
    }
}

/// A row-major matrix without gaps, to write.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    values: &'a mut [f32],
    rows: usize,
    cols: usize,
    row_stride: isize,
}

impl<'a> MatrixMut<'a> {
    /// A matrix whose rows lie one after another without gaps.
    ///
    /// # Errors
    ///
    /// [`KernelError::Length`] unless `values` has just `rows * cols` elements.
    pub fn row_major(values: &'a mut [f32], rows: usize, cols: usize) -> Result<Self, KernelError> {
        let stride = check_dense(values.len(), rows, cols)?;
        Ok(Self { values, rows, cols, row_stride: stride })
    }
}

/// Checks the length of a dense matrix and gives its row stride.
fn check_dense(len: usize, rows: usize, cols: usize) -> Result<isize, KernelError> {
    let expected = rows.checked_mul(cols).ok_or(KernelError::Overflow)?;
    super::error::check_len("matrix", len, expected)?;
    isize::try_from(cols).map_err(|_| KernelError::Overflow)
}

/// One more than the largest index of an element, for strides that are not negative.
fn extent(rows: usize, cols: usize, row_stride: isize, col_stride: isize) -> usize {
    if rows == 0 || cols == 0 {
        return 0;
    }
    (rows - 1) * row_stride.unsigned_abs() + (cols - 1) * col_stride.unsigned_abs() + 1
}

/// `c = a * b`, or `c = a * b + c` where `accumulate` is set. Without it `c` is not read.
///
/// # Errors
///
/// [`KernelError::Shape`] when the sizes do not match; `c` is not written then.
pub fn sgemm(
    a: MatrixRef<'_>,
    b: MatrixRef<'_>,
    c: &mut MatrixMut<'_>,
    accumulate: bool,
) -> Result<(), KernelError> {
    if a.cols != b.rows || a.rows != c.rows || b.cols != c.cols {
        return Err(KernelError::Shape { reason: "the matrices' sizes do not match" });
    }
    // True by construction; checked again because the call below rests on it.
    let c_extent = extent(c.rows, c.cols, c.row_stride, 1);
    if a.extent() > a.values.len() || b.extent() > b.values.len() || c_extent > c.values.len() {
        return Err(KernelError::Shape { reason: "a matrix reaches beyond its slice" });
    }
    let beta = if accumulate { 1.0 } else { 0.0 };
    let _mark = library_mark::enter();
    // SAFETY: the function reads a (m x k) and b (k x n) and writes c (m x n) at the offsets that
    // the strides give, and with beta 0 does not read c.
    // 1. In bounds: every stride is 1 or the column count of a dense matrix, so not negative; the
    //    largest offset of each matrix is its extent - 1, checked above against its slice.
    // 2. No alias: c's slice is borrowed uniquely, a's and b's are shared.
    // 3. c's elements are distinct in memory: its row stride is its column count, or it has one
    //    row or column.
    unsafe {
        matrixmultiply::sgemm(
            a.rows,
            a.cols,
            b.cols,
            1.0,
            a.values.as_ptr(),
            a.row_stride,
            a.col_stride,
            b.values.as_ptr(),
            b.row_stride,
            b.col_stride,
            beta,
            c.values.as_mut_ptr(),
            c.row_stride,
            1,
        );
    }
    Ok(())
}
