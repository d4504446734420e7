//! A stand-in for cuBLASLt on host memory: one matrix product, with a bias and a rectifier, in a workspace of the
//! caller's.
//!
//! It runs on the stand-in for the driver, as `cublas-standin` does, of which it uses the product.
//! `cuda_standin::Standin::load` opens it. Like cuBLASLt it takes no device memory: what it may work in comes with each
//! call, and is refused where it is smaller than the algorithm asks for, or not aligned.

mod descriptors;
mod matmul;
