//! Vectors: `y = alpha * x + y`, scaling, and a matrix with a vector.

use crate::driver::{framed, submit};
use crate::handle::settings;
use crate::matrix::{Element, Matrix, Scalar};
use crate::status::Status;
use std::ffi::c_int;

const SINGLE: Element = Element::F32;

/// A vector as the row of a matrix whose columns are `step` elements apart. Negative steps are not supported.
fn vector(base: u64, len: u64, step: c_int) -> Result<Matrix, Status> {
    if step <= 0 {
        return Err(if step == 0 { Status::INVALID_VALUE } else { Status::NOT_SUPPORTED });
    }
    Matrix::new(base, SINGLE, 1.min(len), len, step)
}

fn length(n: c_int) -> Result<u64, Status> {
    u64::try_from(n).map_err(|_| Status::INVALID_VALUE)
}

fn touched(ranges: impl IntoIterator<Item = [u64; 2]>) -> Vec<[u64; 2]> {
    ranges.into_iter().filter(|range| range[1] > 0).collect()
}

#[unsafe(no_mangle)]
extern "C" fn cublasSaxpy_v2(
    handle: u64,
    n: c_int,
    alpha: u64,
    x: u64,
    incx: c_int,
    y: u64,
    incy: c_int,
) -> u32 {
    framed("cublasSaxpy_v2", || {
        let settings = settings(handle)?;
        let n = length(n)?;
        let (x, y) = (vector(x, n, incx)?, vector(y, n, incy)?);
        let alpha = Scalar::new(alpha, SINGLE, settings.device_scalars)?;
        let work = move || {
            let alpha = alpha.value();
            for i in 0..n {
                let at = y.at(0, 0, i);
                SINGLE.write(at, alpha * SINGLE.read(x.at(0, 0, i)) + SINGLE.read(at));
            }
        };
        let ranges = touched([x.range(0), y.range(0)].into_iter().chain(alpha.range()));
        submit(settings.stream, "cublasSaxpy_v2", &ranges, Box::new(work))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasSscal_v2(handle: u64, n: c_int, alpha: u64, x: u64, incx: c_int) -> u32 {
    framed("cublasSscal_v2", || {
        let settings = settings(handle)?;
        let n = length(n)?;
        let x = vector(x, n, incx)?;
        let alpha = Scalar::new(alpha, SINGLE, settings.device_scalars)?;
        let work = move || {
            let alpha = alpha.value();
            for i in 0..n {
                SINGLE.write(x.at(0, 0, i), alpha * SINGLE.read(x.at(0, 0, i)));
            }
        };
        let ranges = touched(std::iter::once(x.range(0)).chain(alpha.range()));
        submit(settings.stream, "cublasSscal_v2", &ranges, Box::new(work))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasSgemv_v2(
    handle: u64,
    trans: u32,
    m: c_int,
    n: c_int,
    alpha: u64,
    a: u64,
    lda: c_int,
    x: u64,
    incx: c_int,
    beta: u64,
    y: u64,
    incy: c_int,
) -> u32 {
    framed("cublasSgemv_v2", || {
        let settings = settings(handle)?;
        let transposed = match trans {
            0 => false,
            1 | 2 => true,
            _ => return Err(Status::INVALID_VALUE),
        };
        let (m, n) = (length(m)?, length(n)?);
        let a = Matrix::new(a, SINGLE, m, n, lda)?;
        let (outs, ins) = if transposed { (n, m) } else { (m, n) };
        let (x, y) = (vector(x, ins, incx)?, vector(y, outs, incy)?);
        let alpha = Scalar::new(alpha, SINGLE, settings.device_scalars)?;
        let beta = Scalar::new(beta, SINGLE, settings.device_scalars)?;
        let work = move || {
            let (alpha, beta) = (alpha.value(), beta.value());
            for out in 0..outs {
                let of_a = |i| if transposed { a.at(0, i, out) } else { a.at(0, out, i) };
                let sum: f64 =
                    (0..ins).map(|i| SINGLE.read(of_a(i)) * SINGLE.read(x.at(0, 0, i))).sum();
                let at = y.at(0, 0, out);
                let old = if beta == 0.0 { 0.0 } else { beta * SINGLE.read(at) };
                SINGLE.write(at, alpha * sum + old);
            }
        };
        let scalars = alpha.range().into_iter().chain(beta.range());
        let ranges = touched([a.range(0), x.range(0), y.range(0)].into_iter().chain(scalars));
        submit(settings.stream, "cublasSgemv_v2", &ranges, Box::new(work))
    })
}
