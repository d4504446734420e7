//! The network, its kernels and its loop: one test program for all of it.

mod checkpoints;
mod common;
mod decoder;
mod decoder_kernels;
mod gpt_program;
mod idx;
mod kernels;
mod network;
mod operations;
mod program;
mod ranks;
mod reference;
mod refusals;
mod seeds;
mod torch;
mod training;
mod transaction;
mod two_networks;

mod cuda_program;

#[cfg(feature = "mpi")]
mod mpi_program;

#[cfg(feature = "_cuda")]
mod cuda_ahead;
#[cfg(feature = "_cuda")]
mod cuda_common;
#[cfg(feature = "_cuda")]
mod cuda_decoder;
#[cfg(feature = "_cuda")]
mod cuda_graph;
#[cfg(feature = "_cuda")]
mod cuda_kernels;
#[cfg(feature = "_cuda")]
mod cuda_ptx;
#[cfg(feature = "_cuda")]
mod cuda_refusals;
#[cfg(feature = "_cuda")]
mod cuda_training;
#[cfg(feature = "_cuda")]
mod cuda_transaction;
#[cfg(feature = "_cuda")]
mod cuda_two_networks;
