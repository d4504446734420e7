//! Matrix products: `C = alpha * op(A) * op(B) + beta * C`, column-major, one or a batch.

use crate::driver::{framed, rounding, submit};
use crate::handle::{settings, workspace};
use crate::matrix::{Element, Matrix, Scalar};
use crate::rounding::Summation;
use crate::status::{Outcome, Status};
use std::ffi::{c_int, c_longlong};

/// What a product leaves in its workspace, so that somebody who keeps anything else there finds out.
const SCRATCH: f64 = -6.5e4;

/// Bytes of a workspace that are written.
const SCRATCH_BYTES: u64 = 256;

/// An operand of a product: address, type, leading dimension, stride between the matrices of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Operand(
    pub(crate) u64,
    pub(crate) Element,
    pub(crate) c_int,
    pub(crate) c_longlong,
);

/// A product as the interface asks for it.
pub(crate) struct Request {
    pub(crate) name: &'static str,
    pub(crate) handle: u64,
    pub(crate) operations: [u32; 2],
    /// m, n, k.
    pub(crate) shape: [c_int; 3],
    pub(crate) alpha: u64,
    pub(crate) beta: u64,
    pub(crate) scalar: Element,
    pub(crate) a: Operand,
    pub(crate) b: Operand,
    pub(crate) c: Operand,
    pub(crate) batch: c_int,
}

/// Whether an operation transposes.
///
/// # Errors
///
/// For a number that is no operation.
pub fn transposes(operation: u32) -> Result<bool, Status> {
    match operation {
        0 => Ok(false),
        // The conjugate of a real matrix is itself.
        1 | 2 => Ok(true),
        _ => Err(Status::INVALID_VALUE),
    }
}

fn stored(operand: Operand, transposed: bool, rows: u64, cols: u64) -> Result<Matrix, Status> {
    let Operand(base, element, leading, stride) = operand;
    let (rows, cols) = if transposed { (cols, rows) } else { (rows, cols) };
    Ok(Matrix { stride, ..Matrix::new(base, element, rows, cols, leading)? })
}

/// Queues a product.
pub(crate) fn product(request: Request) -> Outcome {
    let settings = settings(request.handle)?;
    let [ta, tb] = [transposes(request.operations[0])?, transposes(request.operations[1])?];
    let mut sizes = [0u64; 3];
    for (size, wanted) in sizes.iter_mut().zip(request.shape) {
        *size = u64::try_from(wanted).map_err(|_| Status::INVALID_VALUE)?;
    }
    let [m, n, k] = sizes;
    if request.batch < 0 {
        return Err(Status::INVALID_VALUE);
    }
    let c = stored(request.c, false, m, n)?;
    let product = Product {
        a: stored(request.a, ta, m, k)?,
        b: stored(request.b, tb, k, n)?,
        c,
        d: c,
        transposed: [ta, tb],
        alpha: Scalar::new(request.alpha, request.scalar, settings.device_scalars)?,
        beta: Scalar::new(request.beta, request.scalar, settings.device_scalars)?,
        scalar: request.scalar,
        batch: request.batch.into(),
        epilogue: Epilogue::default(),
    };
    if product.is_empty() {
        return Ok(());
    }
    product.queue(request.name, settings.stream, workspace(request.handle)?)
}

/// What is done with a sum before it is written: a bias for each row is added, and then what is negative becomes zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue {
    /// A column; those of a batch are a stride apart.
    pub bias: Option<Matrix>,
    /// Whether negative values become zero.
    pub relu: bool,
}

impl Epilogue {
    fn of(&self, batch: i64, row: u64, value: f64) -> f64 {
        let bias = self.bias.map_or(0.0, |bias| bias.element.read(bias.at(batch, row, 0)));
        let sum = value + bias;
        if self.relu && sum < 0.0 { 0.0 } else { sum }
    }
}

/// `D = epilogue(alpha * op(A) * op(B) + beta * C)`, of matrices that fit together.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// The left operand.
    pub a: Matrix,
    /// The right operand.
    pub b: Matrix,
    /// What is added.
    pub c: Matrix,
    /// The result, which may be `c`.
    pub d: Matrix,
    /// Whether `a` and `b` are stored transposed.
    pub transposed: [bool; 2],
    /// The factor of the product.
    pub alpha: Scalar,
    /// The factor of `c`.
    pub beta: Scalar,
    /// The type of the factors.
    pub scalar: Element,
    /// How many products.
    pub batch: i64,
    /// What is done with each sum.
    pub epilogue: Epilogue,
}

impl Product {
    /// How many products a sum has.
    fn depth(&self) -> u64 {
        if self.transposed[0] { self.a.rows } else { self.a.cols }
    }

    /// Whether there is nothing to be written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.d.rows == 0 || self.d.cols == 0 || self.batch == 0
    }

    /// Queues it on a stream, with a workspace: an address and bytes.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    pub fn queue(self, name: &str, stream: u64, workspace: [u64; 2]) -> Outcome {
        let Self { a, b, c, d, alpha, beta, epilogue, .. } = self;
        let ranges: Vec<[u64; 2]> = (0..self.batch)
            .flat_map(|i| [a.range(i), b.range(i), c.range(i), d.range(i)])
            .chain((0..self.batch).flat_map(|i| epilogue.bias.map(|bias| bias.range(i))))
            .chain([workspace])
            .chain(alpha.range())
            .chain(beta.range())
            .filter(|range| range[1] > 0)
            .collect();
        let summation = Summation::new(rounding()?, self.scalar, [d.rows, d.cols, self.depth()]);
        let work = move || {
            let [scratch, bytes] = workspace;
            for at in (0..bytes.min(SCRATCH_BYTES) / 2).map(|n| scratch + 2 * n) {
                Element::F16.write(at, SCRATCH);
            }
            for i in 0..self.batch {
                self.multiply(i, summation);
            }
        };
        submit(stream, name, &ranges, Box::new(work))
    }

    /// One product of a batch. A `beta` of zero never reads C, whatever it holds; an `alpha` of zero reads neither A nor
    /// B.
    fn multiply(&self, batch: i64, summation: Summation) {
        let Self { a, b, c, d, transposed: [ta, tb], .. } = self;
        let (alpha, beta) = (self.alpha.value(), self.beta.value());
        // The panel of A that all columns use, and one column of B, as doubles.
        let left = |row: u64, i: u64| if *ta { a.at(batch, i, row) } else { a.at(batch, row, i) };
        let right = |i: u64, col: u64| if *tb { b.at(batch, col, i) } else { b.at(batch, i, col) };
        let k = if alpha == 0.0 { 0 } else { self.depth() };
        let rows: Vec<f64> = (0..d.rows)
            .flat_map(|r| (0..k).map(move |i| (r, i)))
            .map(|(r, i)| a.element.read(left(r, i)))
            .collect();
        for col in 0..d.cols {
            let column: Vec<f64> = (0..k).map(|i| b.element.read(right(i, col))).collect();
            for row in 0..d.rows {
                let of_a = &rows[(row * k) as usize..][..k as usize];
                let sum = summation.dot(of_a.iter().copied(), column.iter().copied());
                let old =
                    if beta == 0.0 { 0.0 } else { beta * c.element.read(c.at(batch, row, col)) };
                let value = self.epilogue.of(batch, row, alpha * sum + old);
                d.element.write(d.at(batch, row, col), value);
            }
        }
    }
}

/// The type of the scalars for a compute type; accumulation is in `f64` in any case.
///
/// # Errors
///
/// For a type that is not known.
pub fn scalar_of(compute: u32) -> Result<Element, Status> {
    match compute {
        64 | 65 => Ok(Element::F16),
        68 | 69 | 74 | 75 | 77 => Ok(Element::F32),
        70 | 71 => Ok(Element::F64),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

macro_rules! typed_gemm {
    ($plain:ident, $batched:ident, $element:expr) => {
        #[unsafe(no_mangle)]
        extern "C" fn $plain(
            handle: u64,
            transa: u32,
            transb: u32,
            m: c_int,
            n: c_int,
            k: c_int,
            alpha: u64,
            a: u64,
            lda: c_int,
            b: u64,
            ldb: c_int,
            beta: u64,
            c: u64,
            ldc: c_int,
        ) -> u32 {
            let name = stringify!($plain);
            framed(name, || {
                product(Request {
                    name,
                    handle,
                    operations: [transa, transb],
                    shape: [m, n, k],
                    alpha,
                    beta,
                    scalar: $element,
                    a: Operand(a, $element, lda, 0),
                    b: Operand(b, $element, ldb, 0),
                    c: Operand(c, $element, ldc, 0),
                    batch: 1,
                })
            })
        }

        #[unsafe(no_mangle)]
        extern "C" fn $batched(
            handle: u64,
            transa: u32,
            transb: u32,
            m: c_int,
            n: c_int,
            k: c_int,
            alpha: u64,
            a: u64,
            lda: c_int,
            stride_a: c_longlong,
            b: u64,
            ldb: c_int,
            stride_b: c_longlong,
            beta: u64,
            c: u64,
            ldc: c_int,
            stride_c: c_longlong,
            batch: c_int,
        ) -> u32 {
            let name = stringify!($batched);
            framed(name, || {
                product(Request {
                    name,
                    handle,
                    operations: [transa, transb],
                    shape: [m, n, k],
                    alpha,
                    beta,
                    scalar: $element,
                    a: Operand(a, $element, lda, stride_a),
                    b: Operand(b, $element, ldb, stride_b),
                    c: Operand(c, $element, ldc, stride_c),
                    batch,
                })
            })
        }
    };
}

typed_gemm!(cublasSgemm_v2, cublasSgemmStridedBatched, Element::F32);
typed_gemm!(cublasDgemm_v2, cublasDgemmStridedBatched, Element::F64);

#[unsafe(no_mangle)]
extern "C" fn cublasGemmEx(
    handle: u64,
    transa: u32,
    transb: u32,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: u64,
    a: u64,
    type_a: u32,
    lda: c_int,
    b: u64,
    type_b: u32,
    ldb: c_int,
    beta: u64,
    c: u64,
    type_c: u32,
    ldc: c_int,
    compute: u32,
    _algorithm: c_int,
) -> u32 {
    let name = "cublasGemmEx";
    framed(name, || {
        product(Request {
            name,
            handle,
            operations: [transa, transb],
            shape: [m, n, k],
            alpha,
            beta,
            scalar: scalar_of(compute)?,
            a: Operand(a, Element::from_raw(type_a)?, lda, 0),
            b: Operand(b, Element::from_raw(type_b)?, ldb, 0),
            c: Operand(c, Element::from_raw(type_c)?, ldc, 0),
            batch: 1,
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasGemmStridedBatchedEx(
    handle: u64,
    transa: u32,
    transb: u32,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: u64,
    a: u64,
    type_a: u32,
    lda: c_int,
    stride_a: c_longlong,
    b: u64,
    type_b: u32,
    ldb: c_int,
    stride_b: c_longlong,
    beta: u64,
    c: u64,
    type_c: u32,
    ldc: c_int,
    stride_c: c_longlong,
    batch: c_int,
    compute: u32,
    _algorithm: c_int,
) -> u32 {
    let name = "cublasGemmStridedBatchedEx";
    framed(name, || {
        product(Request {
            name,
            handle,
            operations: [transa, transb],
            shape: [m, n, k],
            alpha,
            beta,
            scalar: scalar_of(compute)?,
            a: Operand(a, Element::from_raw(type_a)?, lda, stride_a),
            b: Operand(b, Element::from_raw(type_b)?, ldb, stride_b),
            c: Operand(c, Element::from_raw(type_c)?, ldc, stride_c),
            batch,
        })
    })
}
