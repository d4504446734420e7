//! A stand-in for cuBLAS on host memory: the matrix products that a small network needs, and what goes with them.
//!
//! It runs on the stand-in for the driver (`cuda-standin`), which has to be opened first with its symbols visible:
//! `cuda_standin::Standin::load` opens both. Each product is queued on the handle's stream, in order and range-checked
//! like a kernel, and shares no code with any host backend: plain loops over column-major matrices that add up in `f64`
//! and round once, or, where a test asks for it, as another device would add up. Workspaces are kept and checked for
//! alignment; a product leaves rubbish in their beginning.

mod driver;
mod gemm;
mod grouped;
mod handle;
mod level1;
mod matrix;
mod rounding;
mod status;

/// What the stand-in for cuBLASLt (`cublaslt-standin`), a library of its own, is made of.
pub mod for_lt {
    pub use crate::driver::{count_handle, framed, note};
    pub use crate::gemm::{Epilogue, Product, scalar_of, transposes};
    pub use crate::handle::{Out, WORKSPACE_ALIGN};
    pub use crate::matrix::{Element, Matrix, Scalar};
    pub use crate::status::{Outcome, Status, code};
}
