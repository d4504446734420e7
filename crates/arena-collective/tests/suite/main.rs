//! Ranks: one test program for all of it.

mod local;

#[cfg(all(feature = "nccl", feature = "_cuda"))]
mod launch;
#[cfg(all(feature = "nccl", feature = "_cuda"))]
mod nccl;
#[cfg(all(feature = "nccl", feature = "_cuda"))]
mod nccl_missing;
#[cfg(all(feature = "nccl", feature = "_cuda"))]
mod nccl_ranks;
