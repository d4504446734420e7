//! The benches' programs on a CUDA device: one test program for all of it.

mod cuda_allocators;
