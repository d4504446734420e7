//! For programs with CUDA code: the arena's buffers as arguments of cudarc's calls, cuBLAS in the memory of the
//! arena, input slots, and results that are read later.

mod blas;
pub(crate) mod buffers;
pub(crate) mod lending;
mod slots;
mod transfer;

pub use blas::Blas;
pub use lending::{Lent, LentMut};
pub use slots::{InputSlots, ResultQueue};
