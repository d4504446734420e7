//! Devices: the only part of the arena that touches memory.
//!
//! A [`Device`] obtains one region, fills and copies bytes in it, and releases it. The code above it decides
//! only *where* a buffer lies and is generic over the device. So the same allocator code runs on the host, on a
//! probe without memory, on a test device that delays its work, and on a GPU. Each wrapper adds one thing to
//! the device inside it: [`Limited`] a limit, [`Counting`] a count of the calls, [`Failing`] a call that fails.

mod calls;
mod counting;
pub mod cuda;
pub mod deferred;
mod failing;
mod host;
mod limited;
mod pattern;
mod probe;

use std::fmt;

use crate::bytes::Alignment;
use crate::error::{DeviceError, DeviceErrorKind};
use crate::shortage::{LimitedBy, Shortage};

pub use calls::Call;
pub use counting::{CallCounts, Counting};
pub use cuda::Cuda;
pub use deferred::Deferred;
pub use failing::{FailSwitch, Failing};
pub use host::Host;
pub use limited::Limited;
pub use pattern::Pattern;
pub use probe::Probe;

/// Memory that a device obtained: its address, and what the device needs to release it.
///
/// It is a receipt, not an owner: dropping it releases nothing. Only [`release`](Device::release) gives the
/// memory back, and it needs the unchanged receipt.
#[derive(Debug)]
pub struct Obtained<M> {
    /// Address of the first byte; never zero, also for memory of zero bytes.
    pub base_address: u64,
    /// The device's own handle.
    pub handle: M,
}

/// How much memory a device has at one moment. Other programs may use it too, so `free_bytes` can change at
/// any time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The device's name, for messages.
    pub device: String,
    /// Bytes that this process can still have.
    pub free_bytes: u64,
    /// Bytes of the device in all.
    pub total_bytes: u64,
    /// Bytes that who limits allows in all: `total_bytes` where that is the device.
    pub limit_bytes: u64,
    /// Who limits what is free.
    pub limited_by: LimitedBy,
}

impl DeviceMemory {
    /// That of a device which nothing but its own size limits.
    #[must_use]
    pub const fn new(device: String, free_bytes: u64, total_bytes: u64) -> Self {
        let (limit_bytes, limited_by) = (total_bytes, LimitedBy::Device);
        Self { device, free_bytes, total_bytes, limit_bytes, limited_by }
    }

    /// What is missing for `asked_bytes`.
    #[must_use]
    pub const fn shortage(&self, asked_bytes: u64) -> Shortage {
        let Self { free_bytes, total_bytes, limit_bytes, limited_by, .. } = *self;
        Shortage { asked_bytes, free_bytes, total_bytes, limit_bytes, limited_by }
    }
}

/// One kind of memory: where a region comes from, and who moves bytes in it.
///
/// A device contains the stream that the arena belongs to. If every call is complete when it returns, the
/// stream is `()`. Fills and copies are queued on that stream in call order and may return before they are
/// complete. Only [`copy_out`](Self::copy_out) returns when its bytes have arrived.
///
/// The arena never makes a call for zero bytes, and never one that reaches outside the region.
///
/// # Safety
///
/// The arena proves its own `unsafe` code from these duties, so an implementor keeps all of them:
///
/// 1. **Memory is the caller's alone.** What [`obtain`](Self::obtain) and
///    [`obtain_guarded`](Self::obtain_guarded) return is `bytes` bytes at `base_address` that nobody else
///    reads, writes or obtains until [`release`](Self::release). They are initialised and stay so,
///    after [`give_back`](Self::give_back) too, or the device is not [`HostVisible`]. The addresses of
///    [`reserve`](Self::reserve) are the caller's alone in the same way until
///    [`unreserve`](Self::unreserve), and what is [committed](Self::commit) of them is memory like this until
///    [`decommit`](Self::decommit).
/// 2. **What it says of itself is true, and stays the same.** Each base is a multiple of
///    [`base_alignment`](Self::base_alignment), reserved ones of the
///    [granularity](Self::commit_granularity) as well, and not zero. Where there are
///    [`guard_pages`](Self::guard_pages), the end of memory from `obtain_guarded` is a multiple of theirs
///    instead. [`MEASURES_ONLY`](Self::MEASURES_ONLY) is set only where there is no memory at all, and
///    [`HOST_VISIBLE`](Self::HOST_VISIBLE) only where the duties of [`HostVisible`] are kept.
/// 3. **A call writes the range that it names, and no other byte.** It reads nothing but its source. A fill
///    repeats its [`Pattern`] from the range's start to its end.
/// 4. **No way back into an arena.** No method, and no `drop` of its types, uses an arena, a scope or a
///    buffer that lies on this device: it makes no request, opens and closes nothing, and drops no
///    buffer. The arena calls the device in the middle of its own changes.
/// 5. **A failure is an end.** After an `Err`, `obtain` has obtained nothing, `reserve` and `commit` likewise;
///    `release` and `unreserve` have lost the memory or released it, and that memory is not used; `decommit` has
///    left the range committed, with any contents; `fill` and the copies may have written a part of their
///    destination, and may still write to it in stream order, but nowhere else; `record` and `wait` may have
///    ordered nothing; `synchronise` and `synchronise_stream` say nothing about what still runs.
/// 6. **A panic is a failure.** A method that unwinds has the effects that duty 5 allows it. Each later
///    call works, or fails. The same holds where a method returns no `Result`.
/// 7. **Host memory is borrowed for the call and no longer.** However a copy returns, `Ok`, `Err` or
///    unwinding, no work is left that reads `from` or writes to `to`.
/// 8. **One stream, in call order.** [`stream`](Self::stream) is always the same. `fill`, the three copies,
///    `release`, `unreserve` and `decommit` take effect in the order of their calls, as if on that stream, or are recorded there
///    ([`Captures`]). After an `Ok`, what was queued before `copy_out` or `synchronise` on that stream, or
///    before `synchronise_stream` on its stream, has been done.
/// 9. **Events order streams.** Work that is queued on a stream after an `Ok` of [`wait`](Self::wait) begins
///    after all that was on the recorded stream at the last `Ok` of [`record`](Self::record) before it.
///    [`owns_stream`](Self::owns_stream) is true only for streams of which this holds.
/// 10. **A wrapper forwards everything**, with what has a default here, or keeps the duty by itself.
///
/// An untrue alignment or end (2) is found when memory is obtained, and is an error. The rest is not
/// checked.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a device",
    label = "not a device",
    note = "devices are `Host`, `Cuda`, `Probe`, and wrappers of them such as `Counting<Host>`; they are made by \
            `Host::new()`, `Cuda::new(0)?`, `Probe::new()`"
)]
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

    /// Whether the host can use its memory as slices, as that of a [`HostVisible`] device: so a view has a
    /// [`host`](crate::View::host) slice in code that is generic over the device.
    const HOST_VISIBLE: bool = false;

    /// Whether it [captures](Captures) graphs: steps on it are observed, so that one can be seen to repeat.
    const CAPTURES: bool = false;

    /// Its name, for messages.
    fn name(&self) -> String;

    /// How much memory the device has, and how much of it is free now.
    ///
    /// # Errors
    ///
    /// [`DeviceErrorKind::Refused`] where the device does not know, as here; or the device's refusal.
    fn memory(&self) -> Result<DeviceMemory, DeviceError> {
        Err(DeviceError {
            device: self.name(),
            call: "memory",
            reason: "it does not know how much memory it has: name a capacity in bytes".to_owned(),
            kind: DeviceErrorKind::Refused,
        })
    }

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

    /// Releases memory after the work that is queued on the stream.
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

    /// Gives the physical memory of a range back to the system; the addresses stay valid. Afterwards the range
    /// reads as zero, or as before if the device gives nothing back. Returns the number of bytes given back.
    ///
    /// # Errors
    ///
    /// [`DeviceErrorKind::Unsupported`] where the device never can; or its refusal.
    ///
    /// # Safety
    ///
    /// The range lies in memory that this device obtained, and no live buffer lies in it.
    unsafe fn give_back(&self, address: u64, bytes: u64) -> Result<u64, DeviceError>;

    /// The unit in which physical memory is [committed](Self::commit) to reserved addresses. `None`: addresses
    /// cannot be had without memory, as here.
    fn commit_granularity(&self) -> Option<Alignment> {
        None
    }

    /// Reserves addresses for `bytes` bytes, without memory: a multiple of the
    /// [granularity](Self::commit_granularity), which may be zero. The base is a multiple of the granularity too.
    ///
    /// # Errors
    ///
    /// [`DeviceErrorKind::Unsupported`] where addresses cannot be had without memory, as here; or the device's
    /// refusal. Nothing was reserved then.
    fn reserve(&self, bytes: u64) -> Result<Obtained<Self::Memory>, DeviceError> {
        let _ = bytes;
        Err(unsupported(self, "reserve"))
    }

    /// Gives reserved addresses back, after the work that is queued on the stream, with the memory that is still
    /// committed to them. By default it is [`release`](Self::release).
    ///
    /// # Errors
    ///
    /// The device's refusal; the addresses are lost then, but nothing else.
    ///
    /// # Safety
    ///
    /// `memory` came from [`reserve`](Self::reserve) of this device with these `bytes`, and nothing uses it any
    /// more.
    unsafe fn unreserve(
        &self,
        memory: Obtained<Self::Memory>,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise; a device that reserves says what it releases.
        unsafe { self.release(memory, bytes) }
    }

    /// Puts physical memory behind a range of reserved addresses: from then on it is memory like any other, with any
    /// contents. Work that is queued from now on can use it.
    ///
    /// # Errors
    ///
    /// The device's refusal, [`DeviceErrorKind::OutOfMemory`] where it has too little; nothing was committed then.
    ///
    /// # Safety
    ///
    /// `memory` is the handle of what [`reserve`](Self::reserve) of this device returned. The range lies in it, no
    /// byte of it is committed, and it begins and ends at multiples of the
    /// [granularity](Self::commit_granularity).
    unsafe fn commit(
        &self,
        memory: &Self::Memory,
        address: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let _ = (memory, address, bytes);
        Err(unsupported(self, "commit"))
    }

    /// Takes the physical memory from a range again, after the work that is queued on the stream. The addresses stay
    /// reserved.
    ///
    /// # Errors
    ///
    /// The device's refusal; the range is still committed then, with any contents.
    ///
    /// # Safety
    ///
    /// As for [`commit`](Self::commit), but that the range is exactly one that an earlier call of it committed and
    /// that was not taken again since; no live buffer lies in it.
    unsafe fn decommit(
        &self,
        memory: &Self::Memory,
        address: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let _ = (memory, address, bytes);
        Err(unsupported(self, "decommit"))
    }

    /// Repeats `pattern` over a range, from its start on.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    ///
    /// # Safety
    ///
    /// The range lies in memory that this device obtained, its address and `bytes` are multiples of the
    /// pattern's bytes. No other code reads or writes the range before the stream has finished this call.
    unsafe fn fill(&self, address: u64, bytes: u64, pattern: Pattern) -> Result<(), DeviceError>;

    /// Copies from the host to `to_address`. `from` may be changed as soon as the call returns.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    ///
    /// # Safety
    ///
    /// As for [`fill`](Self::fill) with a pattern of one byte, for the range of `from.len()` bytes.
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
    /// As for [`fill`](Self::fill) with a pattern of one byte for the destination, and as for [`copy_out`](Self::copy_out) for
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

    /// Waits on the host until all work is done that is queued on any stream and may use memory of this device. By
    /// default it waits for the device's own stream, which is enough where there is no other that the arena does not
    /// know of.
    ///
    /// # Errors
    ///
    /// As for [`synchronise`](Self::synchronise).
    fn synchronise_all(&self) -> Result<(), DeviceError> {
        self.synchronise()
    }

    /// The stream that the arena belongs to, on which this device queues fills and copies.
    fn stream(&self) -> &Self::Stream;

    /// Whether work on `stream` can be ordered with this device's: it is on the same device, and it
    /// means the same queue on every thread.
    fn owns_stream(&self, stream: &Self::Stream) -> bool;

    /// Whether the device can still be used. It is asked at each step, so it must not call a driver.
    ///
    /// # Errors
    ///
    /// The error after which every other call fails as well.
    fn health(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Refuses `call` while a graph is captured on the arena's stream. The layers above ask this before work
    /// that a replay could not repeat.
    ///
    /// # Errors
    ///
    /// [`DeviceErrorKind::InCapture`], or the device's refusal to
    /// tell.
    fn refuse_in_capture(&self, call: &'static str) -> Result<(), DeviceError> {
        let _ = call;
        Ok(())
    }

    /// Begins a range called `name` on a profiler's timeline and returns its id; `None` if ranges are not shown.
    /// A range may end on another thread than it began on.
    fn begin_range(&self, name: &'static str) -> Option<u64> {
        let _ = name;
        None
    }

    /// Ends the range that [`begin_range`](Self::begin_range) gave this id.
    fn end_range(&self, id: u64) {
        let _ = id;
    }

    /// An event that is not recorded yet. It can be recorded many times; a wait is for the last record before
    /// the wait.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    fn new_event(&self) -> Result<Self::Event, DeviceError>;

    /// Records `event`: from now on it stands for the work that is queued on `stream` now.
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

/// The refusal of a device that cannot do this at all.
fn unsupported<D: Device + ?Sized>(device: &D, call: &'static str) -> DeviceError {
    DeviceError {
        device: device.name(),
        call,
        reason: "the device has no addresses without memory: use a region of the kind Fixed"
            .to_owned(),
        kind: DeviceErrorKind::Unsupported,
    }
}

/// A device that can record the work of its stream and run it again.
///
/// # Safety
///
/// 1. **A graph is what was queued.** It holds exactly the work that was queued on the device's stream
///    between [`begin_capture`](Self::begin_capture) and [`end_capture`](Self::end_capture), and on streams
///    that were made to wait for that work, with the addresses and values of those calls. None of it runs
///    before [`launch`](Self::launch).
/// 2. **What needs the host is refused meanwhile**, with
///    [`DeviceErrorKind::InCapture`]: obtaining memory, copies from and to
///    the host, both kinds of synchronising, and
///    [`refuse_in_capture`](Device::refuse_in_capture). So a graph holds no host address.
/// 3. **A launch is a call in stream order** (duties 3 to 8 of [`Device`]): it does the work once, as one
///    piece. A graph can be dropped at any time; what was launched goes on to its end.
/// 4. **The device is not [`HostVisible`].** A graph writes to persistent buffers at a launch, while somebody
///    may hold a slice of one.
/// 5. After [`abandon_capture`](Self::abandon_capture), which may be called at any time, nothing is
///    recorded, and nothing of what was runs.
pub unsafe trait Captures: Device {
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

    /// Ends a recording, if there is one, and discards it.
    fn abandon_capture(&self);

    /// Queues the recorded work on the device's stream. `arena-scope` has the safe form,
    /// `StepGraph::replay`.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    ///
    /// # Safety
    ///
    /// Each address that the graph holds is still what it was when it was captured:
    ///
    /// 1. The graph was captured on this device, and the memory that it reads and writes was not released
    ///    since then.
    /// 2. No other buffer has come to lie in the bytes that it writes: no transient buffer of a later scope,
    ///    no kept buffer in the place of a dropped one.
    /// 3. Nobody else uses those bytes until the stream has passed the launch; other streams that do are
    ///    waited for before it.
    ///
    /// A safe call does not compile:
    ///
    /// ```compile_fail,E0133
    /// use arena_core::device::{Captures, Deferred, Device};
    ///
    /// let device = Deferred::new(0);
    /// device.begin_capture()?;
    /// let graph = device.end_capture()?;
    /// device.launch(&graph)?;
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    unsafe fn launch(&self, graph: &Self::Graph) -> Result<(), DeviceError>;
}

/// A device whose memory the host reads and writes as ordinary Rust slices. It sets
/// [`Device::HOST_VISIBLE`] as well.
///
/// # Safety
///
/// 1. The host can dereference every address in memory that the device obtained, on any thread, until it
///    is released.
/// 2. Its bytes are initialised from the start, and after each call, however that returns.
/// 3. Each call is done when it returns, however it does: nothing is queued.
#[diagnostic::on_unimplemented(
    message = "the host cannot read the memory of `{Self}` as a slice",
    label = "memory that the host does not see",
    note = "copy instead: `read` and `read_one` of a scope, or `to_vec` of a view; to the device with `upload`, or \
            `write` of a view"
)]
pub unsafe trait HostVisible: Device {}
