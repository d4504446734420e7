//! Vectors: `y = alpha * x + y`, scaling, sums of magnitudes, and a matrix with a vector; in single and double precision.

use crate::driver::{framed, rounding, submit, synchronize};
use crate::handle::settings;
use crate::matrix::{Element, Matrix, Scalar};
use crate::rounding::Summation;
use crate::status::{Outcome, Status};
use std::ffi::c_int;

/// A vector as the row of a matrix whose columns are `step` elements apart. Negative steps are not supported.
fn vector(element: Element, base: u64, len: u64, step: c_int) -> Result<Matrix, Status> {
    if step <= 0 {
        return Err(if step == 0 { Status::INVALID_VALUE } else { Status::NOT_SUPPORTED });
    }
    Matrix::new(base, element, 1.min(len), len, step)
}

fn length(n: c_int) -> Result<u64, Status> {
    u64::try_from(n).map_err(|_| Status::INVALID_VALUE)
}

fn touched(ranges: impl IntoIterator<Item = [u64; 2]>) -> Vec<[u64; 2]> {
    ranges.into_iter().filter(|range| range[1] > 0).collect()
}

/// Where a vector lies: its address and the elements from one to the next.
type Place = (u64, c_int);

fn add(name: &str, of: Element, handle: u64, n: c_int, alpha: u64, x: Place, y: Place) -> Outcome {
    let settings = settings(handle)?;
    let n = length(n)?;
    let (x, y) = (vector(of, x.0, n, x.1)?, vector(of, y.0, n, y.1)?);
    let alpha = Scalar::new(alpha, of, settings.device_scalars)?;
    let work = move || {
        let alpha = alpha.value();
        for i in 0..n {
            let at = y.at(0, 0, i);
            of.write(at, alpha * of.read(x.at(0, 0, i)) + of.read(at));
        }
    };
    let ranges = touched([x.range(0), y.range(0)].into_iter().chain(alpha.range()));
    submit(settings.stream, name, &ranges, Box::new(work))
}

fn scale(name: &str, of: Element, handle: u64, n: c_int, alpha: u64, x: Place) -> Outcome {
    let settings = settings(handle)?;
    let n = length(n)?;
    let x = vector(of, x.0, n, x.1)?;
    let alpha = Scalar::new(alpha, of, settings.device_scalars)?;
    let work = move || {
        let alpha = alpha.value();
        for i in 0..n {
            of.write(x.at(0, 0, i), alpha * of.read(x.at(0, 0, i)));
        }
    };
    let ranges = touched(std::iter::once(x.range(0)).chain(alpha.range()));
    submit(settings.stream, name, &ranges, Box::new(work))
}

/// A result in host memory is there when the call returns; one in device memory comes in stream order.
fn magnitudes(name: &str, of: Element, handle: u64, n: c_int, x: Place, result: u64) -> Outcome {
    let settings = settings(handle)?;
    let n = length(n)?;
    let x = vector(of, x.0, n, x.1)?;
    if result == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let work = move || {
        let sum: f64 = (0..n).map(|i| of.read(x.at(0, 0, i)).abs()).sum();
        of.write(result, sum);
    };
    let on_device = settings.device_scalars.then_some([result, of.bytes()]);
    let ranges = touched(std::iter::once(x.range(0)).chain(on_device));
    submit(settings.stream, name, &ranges, Box::new(work))?;
    if settings.device_scalars { Ok(()) } else { synchronize(settings.stream) }
}

/// A matrix with a vector.
struct Product {
    handle: u64,
    operation: u32,
    shape: [c_int; 2],
    alpha: u64,
    a: u64,
    lda: c_int,
    x: Place,
    beta: u64,
    y: Place,
}

fn multiply(name: &str, of: Element, request: Product) -> Outcome {
    let settings = settings(request.handle)?;
    let transposed = match request.operation {
        0 => false,
        1 | 2 => true,
        _ => return Err(Status::INVALID_VALUE),
    };
    let [m, n] = [length(request.shape[0])?, length(request.shape[1])?];
    let a = Matrix::new(request.a, of, m, n, request.lda)?;
    let (outs, ins) = if transposed { (n, m) } else { (m, n) };
    let x = vector(of, request.x.0, ins, request.x.1)?;
    let y = vector(of, request.y.0, outs, request.y.1)?;
    let alpha = Scalar::new(request.alpha, of, settings.device_scalars)?;
    let beta = Scalar::new(request.beta, of, settings.device_scalars)?;
    let summation = Summation::new(rounding()?, of, [outs, 1, ins]);
    let work = move || {
        let (alpha, beta) = (alpha.value(), beta.value());
        for out in 0..outs {
            let of_a = |i| if transposed { a.at(0, i, out) } else { a.at(0, out, i) };
            let left = (0..ins).map(|i| of.read(of_a(i)));
            let sum = summation.dot(left, (0..ins).map(|i| of.read(x.at(0, 0, i))));
            let at = y.at(0, 0, out);
            let old = if beta == 0.0 { 0.0 } else { beta * of.read(at) };
            of.write(at, alpha * sum + old);
        }
    };
    let scalars = alpha.range().into_iter().chain(beta.range());
    let ranges = touched([a.range(0), x.range(0), y.range(0)].into_iter().chain(scalars));
    submit(settings.stream, name, &ranges, Box::new(work))
}

macro_rules! typed_vectors {
    ($axpy:ident, $scal:ident, $asum:ident, $gemv:ident, $element:expr) => {
        #[unsafe(no_mangle)]
        extern "C" fn $axpy(
            handle: u64,
            n: c_int,
            alpha: u64,
            x: u64,
            incx: c_int,
            y: u64,
            incy: c_int,
        ) -> u32 {
            let name = stringify!($axpy);
            framed(name, || add(name, $element, handle, n, alpha, (x, incx), (y, incy)))
        }

        #[unsafe(no_mangle)]
        extern "C" fn $scal(handle: u64, n: c_int, alpha: u64, x: u64, incx: c_int) -> u32 {
            let name = stringify!($scal);
            framed(name, || scale(name, $element, handle, n, alpha, (x, incx)))
        }

        #[unsafe(no_mangle)]
        extern "C" fn $asum(handle: u64, n: c_int, x: u64, incx: c_int, result: u64) -> u32 {
            let name = stringify!($asum);
            framed(name, || magnitudes(name, $element, handle, n, (x, incx), result))
        }

        #[unsafe(no_mangle)]
        extern "C" fn $gemv(
            handle: u64,
            operation: u32,
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
            let name = stringify!($gemv);
            let (shape, x, y) = ([m, n], (x, incx), (y, incy));
            framed(name, || {
                let product = Product { handle, operation, shape, alpha, a, lda, x, beta, y };
                multiply(name, $element, product)
            })
        }
    };
}

typed_vectors!(cublasSaxpy_v2, cublasSscal_v2, cublasSasum_v2, cublasSgemv_v2, Element::F32);
typed_vectors!(cublasDaxpy_v2, cublasDscal_v2, cublasDasum_v2, cublasDgemv_v2, Element::F64);
