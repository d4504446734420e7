//! A stand-in for NCCL, for ranks that are processes of one machine, each on a stand-in driver of its own.
//!
//! It runs on the stand-in for the driver (`cuda-standin`), which has to be opened first with its symbols visible:
//! `cuda_standin::Standin::load` opens both. Each call of all ranks is queued on its stream, also into a capture, and
//! range-checked like a kernel. The ranks meet in a folder of files (`folder.rs`), so that no rank waits in a call: work
//! whose other ranks have not come is asked again by whoever waits for the stream.
//!
//! Sums are added up in the order of the ranks, in `f32`. As with the real library, a rank that hangs lets the others wait
//! for ever, until they abort; one that has ended, or has aborted, is an error that `ncclCommGetAsyncError` tells. Unlike
//! it, the stand-in notices ranks whose calls differ, and use of a communicator that is gone.
//!
//! What it does not do: other elements than `f32` in sums, and calls of one communicator on several streams in an order that
//! the ranks do not share. Where the driver runs each operation at its call (`Mode::Eager`), a call of all ranks waits for
//! the others, without end if one does not come.

mod api;
mod communicator;
mod driver;
mod folder;
mod status;
mod work;
