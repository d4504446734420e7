//! For programs with CUDA code: the arena's buffers as arguments of cudarc's calls, cuBLAS in the memory of the
//! arena, input slots, and results that are read later.

mod blas;
pub(crate) mod buffers;
mod slots;
mod transfer;

pub use blas::Blas;
pub use slots::{InputSlots, ResultQueue};
