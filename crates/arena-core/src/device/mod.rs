//! Devices: the only part of the arena that touches memory.
//!
//! A [`Device`] obtains one region, fills and copies bytes in it, and lets it go. Everything above
//! decides *where* and is generic over it, so the same allocator code runs on the host, on a probe
//! without memory, and on a GPU. The wrappers change one thing of the device inside them:
//! [`Limited`] its size, [`Counting`] nothing but a count of its calls, [`Failing`] its `n`-th call.

mod calls;
mod counting;
pub mod cuda;
mod failing;
mod host;
mod limited;
mod probe;

use std::fmt;

use crate::bytes::Alignment;
use crate::error::DeviceError;

pub use calls::Call;
pub use counting::{CallCounts, Counting};
pub use cuda::Cuda;
pub use failing::{FailSwitch, Failing};
pub use host::Host;
pub use limited::Limited;
pub use probe::Probe;

/// Memory that a device obtained: its address, and what the device needs to release it.
#[derive(Debug)]
pub struct Obtained<M> {
    /// Address of the first byte, a multiple of the device's
    /// [`base_alignment`](Device::base_alignment).
    pub base_address: u64,
    /// The device's own handle.
    pub handle: M,
}

/// One kind of memory: where a region comes from, and who moves bytes in it.
///
/// A device carries the stream that the arena belongs to; where calls are done when they return,
/// the stream is `()`. Fill and copies are queued on that stream
/// in call order and may return before they are done, except that
/// [`copy_out`](Self::copy_out) returns when the bytes have arrived.
///
/// The arena never makes a call for zero bytes, and never one that reaches outside the region.
///
/// # Safety
///
/// `obtain` and `obtain_guarded` return `bytes` bytes at `base_address` that belong to the caller alone until
/// `release`; they are initialised, or the device is not [`HostVisible`].
pub unsafe trait Device: fmt::Debug + Send + Sync + 'static {
    /// What `release` needs beside the address.
    type Memory: fmt::Debug + Send + Sync;

    /// A queue of the device's work: what is put on one runs in order, two of them run in any order
    /// unless one waits for the other. Equal values are the same queue.
    type Stream: Clone + PartialEq + fmt::Debug + Send + Sync + 'static;

    /// A point in a stream that another stream can wait for.
    type Event: fmt::Debug + Send + Sync + 'static;

    /// Whether the device only measures: it has no memory, so arithmetic on it is skipped.
    const MEASURES_ONLY: bool = false;

    /// Whether it [captures](Captures) graphs: steps on it are observed, so that one can be seen to repeat.
    const CAPTURES: bool = false;

    /// Its name, for messages.
    fn name(&self) -> String;

    /// The alignment of each region's base address.
    fn base_alignment(&self) -> Alignment;

    /// Obtains memory of exactly `bytes` bytes, which may be zero.
    ///
    /// # Errors
    ///
    /// The device's refusal; nothing was obtained then.
    fn obtain(&self, bytes: u64) -> Result<Obtained<Self::Memory>, DeviceError>;

    /// Whether [`obtain_guarded`](Self::obtain_guarded) puts memory between guard pages, and then what
    /// the memory's end is a multiple of.
    fn guard_pages(&self) -> Option<Alignment> {
        None
    }

    /// Obtains memory for a hunt for overruns: as [`obtain`](Self::obtain) does, but where there are
    /// [`guard_pages`](Self::guard_pages) the byte right behind it is in an inaccessible page, at most a
    /// page less a byte lies before it up to another one, and its base has any alignment.
    ///
    /// # Errors
    ///
    /// The device's refusal; nothing was obtained then.
    fn obtain_guarded(&self, bytes: u64) -> Result<Obtained<Self::Memory>, DeviceError> {
        self.obtain(bytes)
    }

    /// Lets memory go after the work that is queued on it.
    ///
    /// # Errors
    ///
    /// The device's refusal; the memory is lost then, but nothing else.
    ///
    /// # Safety
    ///
    /// `memory` came from [`obtain`](Self::obtain) or [`obtain_guarded`](Self::obtain_guarded) of this
    /// device with these `bytes`, and nothing uses it any more.
    unsafe fn release(&self, memory: Obtained<Self::Memory>, bytes: u64)
    -> Result<(), DeviceError>;

    /// Gives the physical memory behind a range back while the addresses stay. The range reads as
    /// zero afterwards, or as before where the device gives nothing back. Returns the bytes given
    /// back.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    ///
    /// # Safety
    ///
    /// The range lies in memory that this device obtained, and no live buffer lies in it.
    unsafe fn give_back(&self, address: u64, bytes: u64) -> Result<u64, DeviceError>;

    /// Sets each byte of a range to `value`.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    ///
    /// # Safety
    ///
    /// The range lies in memory that this device obtained, and nobody else reads or writes it until
    /// the stream has passed this call.
    unsafe fn fill(&self, address: u64, bytes: u64, value: u8) -> Result<(), DeviceError>;

    /// Copies from the host to `to_address`. `from` may be changed as soon as the call returns.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    ///
    /// # Safety
    ///
    /// As for [`fill`](Self::fill), for the range of `from.len()` bytes.
    unsafe fn copy_in(&self, to_address: u64, from: &[u8]) -> Result<(), DeviceError>;

    /// Copies to the host, after the work queued on the stream, and returns when it is done. A
    /// device that only measures writes zeros.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    ///
    /// # Safety
    ///
    /// The range lies in memory that this device obtained, and nobody writes it meanwhile outside
    /// the stream.
    unsafe fn copy_out(&self, to: &mut [u8], from_address: u64) -> Result<(), DeviceError>;

    /// Copies between two ranges that do not overlap.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    ///
    /// # Safety
    ///
    /// As for [`fill`](Self::fill) for the destination, and as for [`copy_out`](Self::copy_out) for
    /// the source; the two do not overlap.
    unsafe fn copy_within(
        &self,
        to_address: u64,
        from_address: u64,
        bytes: u64,
    ) -> Result<(), DeviceError>;

    /// Waits until the work queued on the stream is done.
    ///
    /// # Errors
    ///
    /// The device's refusal, or an error of the work itself.
    fn synchronise(&self) -> Result<(), DeviceError>;

    /// The stream that the arena belongs to, on which this device queues fills and copies.
    fn stream(&self) -> &Self::Stream;

    /// Whether work on `stream` can be ordered with this device's: it is on the same device, and it
    /// means the same queue on every thread.
    fn owns_stream(&self, stream: &Self::Stream) -> bool;

    /// Whether the device can still be used. Asked at each step, so it calls no driver.
    ///
    /// # Errors
    ///
    /// The error after which every other call fails as well.
    fn health(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Refuses `call` while a graph is captured on the arena's stream, for the layers above: what they
    /// would do then would be lost, or would be done with what a replay does not own.
    ///
    /// # Errors
    ///
    /// [`DeviceErrorKind::InCapture`](crate::DeviceErrorKind::InCapture), or the device's refusal to
    /// tell.
    fn refuse_in_capture(&self, call: &'static str) -> Result<(), DeviceError> {
        let _ = call;
        Ok(())
    }

    /// Begins a range called `name` on a profiler's timeline and returns its id; `None` where nobody
    /// asked for ranges. A range may end on another thread than it began on.
    fn begin_range(&self, name: &'static str) -> Option<u64> {
        let _ = name;
        None
    }

    /// Ends the range that [`begin_range`](Self::begin_range) gave this id.
    fn end_range(&self, id: u64) {
        let _ = id;
    }

    /// An event that stands for nothing yet. It can be recorded again and again; a wait is for the
    /// record before it.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    fn new_event(&self) -> Result<Self::Event, DeviceError>;

    /// Lets `event` stand for the work that is queued on `stream` now.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<(), DeviceError>;

    /// Makes what is queued on `stream` from now on wait for `event`, on the device.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), DeviceError>;

    /// Waits on the host until the work queued on `stream` is done.
    ///
    /// # Errors
    ///
    /// The device's refusal, or an error of the work itself.
    fn synchronise_stream(&self, stream: &Self::Stream) -> Result<(), DeviceError>;
}

/// A device that can record the work of its stream and run it again.
///
/// While it records nothing runs, and calls that would wait or read on the host are refused.
pub trait Captures: Device {
    /// Recorded work. It holds addresses, and keeps no memory alive.
    type Graph: fmt::Debug;

    /// Records from now on what is queued on the device's stream.
    ///
    /// # Errors
    ///
    /// The device's refusal; nothing is recorded then.
    fn begin_capture(&self) -> Result<(), DeviceError>;

    /// Ends the recording.
    ///
    /// # Errors
    ///
    /// The device's refusal; call [`abandon_capture`](Self::abandon_capture) then.
    fn end_capture(&self) -> Result<Self::Graph, DeviceError>;

    /// Ends a recording, if one is going on, and throws it away.
    fn abandon_capture(&self);

    /// Queues the recorded work on the device's stream.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    fn launch(&self, graph: &Self::Graph) -> Result<(), DeviceError>;
}

/// A device whose memory the host reads and writes as ordinary Rust slices.
///
/// # Safety
///
/// Every address in a region that the device obtained can be dereferenced by the host, the bytes
/// are initialised from the start, and each call of the device is done when it returns.
pub unsafe trait HostVisible: Device {}
