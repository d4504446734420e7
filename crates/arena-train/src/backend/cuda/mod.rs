//! The network's arithmetic on a CUDA device.
//!
//! [`Kernels`] has a function for each of [`host`](super::host)'s, with the same layouts, shapes and
//! meaning, over device memory that the caller owns: they only queue work on one stream. The
//! convolutions are im2col and a matrix product; products are cuBLAS's, everything else is compiled
//! by NVRTC when the program starts, from [`SOURCE`].
//!
//! Every sum has a fixed order, so a run repeats to the bit on the same device and libraries. The
//! host sums in another order: losses and gradients agree with it within a relative 1e-4.

mod backend;
mod batch;
mod compile;
mod conv;
mod decoder;
mod error;
mod gemm;
mod kernels;
mod linear;
mod loss;
mod module;
mod optimizer;
mod range;

pub use backend::CudaBackend;
pub use compile::{SOURCE, compile, compile_cubin, ptx_architecture};
pub use error::CudaError;
pub use kernels::Kernels;
pub use loss::LossOutput;
pub use module::SIGNATURES;
pub use optimizer::StepCounter;
pub use range::{Input, Output};
