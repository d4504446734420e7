//! For programs with CUDA code: the arena's buffers as arguments of cudarc's calls, cuBLAS in the memory of the
//! arena, input slots, and results that are read later.

mod blas;
mod blas_lt;
pub(crate) mod buffers;
mod lend_as;
pub(crate) mod lending;
mod library;
mod slots;
mod transfer;

pub use blas::Blas;
pub use blas_lt::BlasLt;
pub use lend_as::LendAs;
pub use lending::{Lent, LentMut};
pub use slots::{InputSlots, ResultQueue};
