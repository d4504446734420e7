//! The algorithm for a product, and the product.

use crate::descriptors::{DESCRIPTIONS, LAYOUTS, Layout, PREFERENCES, check_handle};
use cublas_standin::for_lt::{
    Epilogue, Matrix, Out, Outcome, Product, Scalar, Status, WORKSPACE_ALIGN, framed,
};
use std::ffi::c_int;

/// What the algorithm likes to work in. With less it works in what it may have.
const WISHED_BYTES: u64 = 1 << 20;

/// An algorithm: the bytes that it works in, and a mark of this library's.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Algorithm {
    workspace_bytes: u64,
    mark: u64,
    rest: [u64; 6],
}

const MARK: u64 = 0x4C54;

/// A `cublasLtMatmulHeuristicResult_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Choice {
    algorithm: Algorithm,
    workspace_bytes: usize,
    status: u32,
    waves: f32,
    reserved: [c_int; 4],
}

/// An algorithm of the caller's: null, or valid for a read. Only foreign callers make one.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Chosen(*const Algorithm);

impl Chosen {
    /// Null has the library choose, which then has the whole workspace.
    fn workspace_bytes(self, given: u64) -> Result<u64, Status> {
        if self.0.is_null() {
            return Ok(given);
        }
        // SAFETY: not null, and by the type's rule the foreign caller passed a pointer to an algorithm.
        let algorithm = unsafe { self.0.read() };
        if algorithm.mark == MARK {
            Ok(algorithm.workspace_bytes)
        } else {
            Err(Status::INVALID_VALUE)
        }
    }
}

/// A product whose matrices have no addresses yet.
fn described(description: u64, layouts: [u64; 4]) -> Result<Product, Status> {
    let description = DESCRIPTIONS.get(description)?;
    let [a, b, c, d] = layouts.map(|layout| LAYOUTS.get(layout));
    let layouts @ [a, b, c, d] = [a?, b?, c?, d?];
    let batch = d.batch;
    let shape = |Layout { matrix, .. }: Layout, transposed| {
        if transposed { [matrix.cols, matrix.rows] } else { [matrix.rows, matrix.cols] }
    };
    let [ta, tb] = description.transposed;
    let ([m, k], [inner, n]) = (shape(a, ta), shape(b, tb));
    let fits = k == inner
        && shape(c, false) == [m, n]
        && shape(d, false) == [m, n]
        && batch >= 0
        && layouts.iter().all(|layout| {
            layout.batch == batch && layout.matrix.leading >= layout.matrix.rows.max(1)
        });
    if !fits {
        return Err(Status::INVALID_VALUE);
    }
    let (relu, has_bias) = match description.epilogue {
        1 => (false, false),
        2 => (true, false),
        4 => (false, true),
        6 => (true, true),
        _ => return Err(Status::NOT_SUPPORTED),
    };
    let bias =
        Matrix { base: description.bias, stride: description.bias_stride, cols: 1, ..d.matrix };
    Ok(Product {
        a: a.matrix,
        b: b.matrix,
        c: c.matrix,
        d: d.matrix,
        transposed: [ta, tb],
        alpha: Scalar::Known(1.0),
        beta: Scalar::Known(0.0),
        scalar: description.scalar,
        batch: batch.into(),
        epilogue: Epilogue { bias: has_bias.then_some(bias), relu },
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    handle: u64,
    description: u64,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    preference: u64,
    wanted: c_int,
    choices: Out<Choice>,
    found: Out<c_int>,
) -> u32 {
    framed("cublasLtMatmulAlgoGetHeuristic", || {
        check_handle(handle)?;
        described(description, [a, b, c, d])?;
        if wanted < 1 {
            return Err(Status::INVALID_VALUE);
        }
        let bytes = PREFERENCES.get(preference)?.workspace_bytes.min(WISHED_BYTES);
        choices.set(Choice {
            algorithm: Algorithm { workspace_bytes: bytes, mark: MARK, rest: [0; 6] },
            workspace_bytes: bytes as usize,
            status: 0,
            waves: 1.0,
            reserved: [0; 4],
        })?;
        found.set(1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmul(
    handle: u64,
    description: u64,
    alpha: u64,
    a: u64,
    a_layout: u64,
    b: u64,
    b_layout: u64,
    beta: u64,
    c: u64,
    c_layout: u64,
    d: u64,
    d_layout: u64,
    algorithm: Chosen,
    workspace: u64,
    workspace_bytes: usize,
    stream: u64,
) -> u32 {
    let name = "cublasLtMatmul";
    framed(name, || -> Outcome {
        check_handle(handle)?;
        let mut product = described(description, [a_layout, b_layout, c_layout, d_layout])?;
        let needed = algorithm.workspace_bytes(workspace_bytes as u64)?;
        if needed > workspace_bytes as u64
            || (needed > 0 && (workspace == 0 || !workspace.is_multiple_of(WORKSPACE_ALIGN)))
        {
            return Err(Status::INVALID_VALUE);
        }
        let on_device = DESCRIPTIONS.get(description)?.device_scalars;
        product.alpha = Scalar::new(alpha, product.scalar, on_device)?;
        product.beta = Scalar::new(beta, product.scalar, on_device)?;
        let matrices = [&mut product.a, &mut product.b, &mut product.c, &mut product.d];
        for (matrix, address) in matrices.into_iter().zip([a, b, c, d]) {
            matrix.base = address;
        }
        if product.is_empty() {
            return Ok(());
        }
        product.queue(name, stream, [workspace, needed])
    })
}
