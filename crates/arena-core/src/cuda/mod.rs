//! What a program with CUDA code puts on the arena: its buffers inside cudarc's calls, cuBLAS in the
//! arena's memory, input slots and results that are read later.

mod blas;
mod buffers;
mod slots;
mod transfer;

pub use blas::Blas;
pub use slots::{InputSlots, ResultQueue};
