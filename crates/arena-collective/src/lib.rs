//! Ranks: the processes of one training run, each with an arena on a device of its own.
//!
//! What they do together is a [`Collective`], for which there are engines: [`Local`] for ranks that are threads, `Mpi` for
//! host memory, with the feature `mpi`, and `Nccl` for CUDA devices, with the feature `nccl` and one of the versions of CUDA,
//! such as `cuda`.
//! The gradients of a rank are one block of its arena, so a step is one [all-reduce](Collective::all_reduce_sum). [`gather`]
//! tells every rank what every other one found, or which one failed, and why.
//!
//! A rank that fails tells the others before it ends. One that is gone, or hangs, lets the others wait for no longer than
//! the timeout that the engine was made with; then they name it, if the engine can tell.

#![deny(unsafe_code)]

mod error;
mod gather;
mod local;
#[cfg(feature = "mpi")]
mod on_mpi;
#[cfg(all(feature = "nccl", feature = "_cuda"))]
mod on_nccl;

use std::fmt::Debug;

use arena_scope::{Device, View, ViewMut};

pub use error::{CollectiveError, RankError};
pub use gather::{Found, gather};
pub use local::Local;
#[cfg(feature = "mpi")]
pub use on_mpi::Mpi;
#[cfg(all(feature = "nccl", feature = "_cuda"))]
pub use on_nccl::Nccl;

/// What the ranks of a run do together. Every rank makes the same calls in the same order.
pub trait Collective<D: Device>: Debug {
    /// This process's number, from 0 on.
    fn rank(&self) -> u32;

    /// The number of processes.
    fn size(&self) -> u32;

    /// Adds up `from` over all ranks, element by element, and leaves the sums in `into` on each of them, equal to the bit.
    /// On the arena's stream: an engine for host memory waits for the sums, one for a device queues the call. There the
    /// host must not wait for the stream by itself before the engine has, for a rank that hangs lets it wait for ever.
    ///
    /// # Errors
    ///
    /// When the two are not of one length, when the ranks did not come together within the timeout, or as the engine says.
    /// Where the call is only queued, the next call that waits may be the one that tells.
    fn all_reduce_sum(
        &self,
        from: View<'_, f32, D>,
        into: ViewMut<'_, f32, D>,
    ) -> Result<(), CollectiveError>;

    /// Overwrites `bytes` of the host with those of the rank `root`. It waits for the arena's stream.
    ///
    /// # Errors
    ///
    /// As for [`all_reduce_sum`](Self::all_reduce_sum).
    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<(), CollectiveError>;

    /// Waits, for no longer than the timeout, for calls of all ranks that are queued on the arena's stream. Call it before a
    /// read of what they leave: a device's own waits have no timeout. On engines whose calls return when they are done there
    /// is nothing to wait for.
    ///
    /// # Errors
    ///
    /// As for [`all_reduce_sum`](Self::all_reduce_sum).
    fn wait(&self) -> Result<(), CollectiveError> {
        Ok(())
    }

    /// Waits until every rank has come here.
    ///
    /// # Errors
    ///
    /// As for [`all_reduce_sum`](Self::all_reduce_sum).
    fn barrier(&self) -> Result<(), CollectiveError>;

    /// Ends every rank, this one too, where the engine can: for a rank that can no longer take part. Nothing of this
    /// process runs behind it on an engine that ends processes.
    fn abort(&self);
}
