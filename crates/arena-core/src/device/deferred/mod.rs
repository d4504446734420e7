//! A device in host memory whose work runs late, in any order that its streams allow: for tests.
//!
//! To the arena [`Deferred`] looks like a GPU. Fills and copies are queued, and run when the host waits. A seed
//! decides which stream runs next. So a missing wait gives wrong bytes under some seeds, and the same wrong
//! bytes each time. Its addresses are only numbers: the host cannot dereference them. Work on released memory, or on
//! addresses to which no memory is committed, is detected ([`Stream::fault`]).
//!
//! ```
//! use arena_core::device::{Deferred, Device};
//! use arena_core::{ByteSize, RawArena};
//!
//! let arena = RawArena::new(Deferred::new(7), ByteSize::kib(4))?;
//! let side = arena.device().new_stream();
//! let x = arena.persistent_from(&[1_u8; 16])?;
//! x.declare_stream(&side)?;                       // without this line some seeds read too early
//! let seen = side.read(x.address(), 16);
//! assert_eq!(seen.wait(), Some(vec![1; 16]));
//! # Ok::<(), arena_core::Error>(())
//! ```

mod work;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Captures, Device, Obtained, Pattern};
use crate::bytes::Alignment;
use crate::error::{DeviceError, DeviceErrorKind};
use work::{GRANULARITY_BYTES, Landing, Recording, SPACING_BYTES, StreamId, Ticket, Work, World};

/// The device; see the [module](self).
#[derive(Debug)]
pub struct Deferred {
    stream: Stream,
}

impl Deferred {
    /// A device whose streams run in an order drawn from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut world = World::new(seed);
        let id = world.new_stream();
        Self { stream: Stream { id, world: Arc::new(Mutex::new(world)) } }
    }

    /// A new stream of this device, which waits for no other.
    #[must_use]
    pub fn new_stream(&self) -> Stream {
        self.stream.another()
    }

    fn error(call: &'static str, reason: impl fmt::Display) -> DeviceError {
        let (device, reason) = ("deferred".to_owned(), reason.to_string());
        DeviceError { device, call, reason, kind: DeviceErrorKind::Refused }
    }

    /// The world, unless a graph is captured.
    fn outside_capture(&self, call: &'static str) -> Result<MutexGuard<'_, World>, DeviceError> {
        let world = self.stream.world();
        if world.is_recording() {
            let reason = "not while a graph is captured";
            return Err(DeviceError {
                kind: DeviceErrorKind::InCapture,
                ..Self::error(call, reason)
            });
        }
        Ok(world)
    }
}

/// A queue of a [`Deferred`] device. Its methods stand for the kernels of a program on a GPU: they declare
/// nothing to the arena and accept any address.
#[derive(Clone)]
pub struct Stream {
    id: StreamId,
    world: Arc<Mutex<World>>,
}

impl Stream {
    /// Each change of it is whole before anything can panic.
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new stream of the same device, where that is inside a wrapper.
    #[must_use]
    pub fn another(&self) -> Self {
        Self { id: self.world().new_stream(), world: Arc::clone(&self.world) }
    }

    /// Queues a fill.
    pub fn fill(&self, address: u64, bytes: u64, pattern: impl Into<Pattern>) {
        let pattern = pattern.into();
        self.world().push(self.id, Work::Fill { at: address, bytes, pattern });
    }

    /// Queues a copy on the device.
    pub fn copy(&self, to_address: u64, from_address: u64, bytes: u64) {
        self.world().push(self.id, Work::Copy { to: to_address, from: from_address, bytes });
    }

    /// Queues a read.
    #[must_use]
    pub fn read(&self, address: u64, bytes: u64) -> Reading {
        let into = Landing::default();
        self.world().push(self.id, Work::Read { from: address, bytes, into: Arc::clone(&into) });
        Reading { stream: self.clone(), into }
    }

    /// Bytes of memory that exist on the device now: of regions, and of what is committed to reserved addresses.
    #[must_use]
    pub fn physical_bytes(&self) -> u64 {
        self.world().physical_bytes()
    }

    /// The first work on any stream that used an address without memory. It means that memory was released
    /// before that work was waited for, or was never there.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.world().fault()
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && Arc::ptr_eq(&self.world, &other.world)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {} of a deferred device", self.id)
    }
}

/// The result of a read that is queued.
#[derive(Debug)]
pub struct Reading {
    stream: Stream,
    into: Landing,
}

impl Reading {
    /// Waits for the stream; gives the bytes as they were when the read ran, or `None` if there was no such
    /// memory any more.
    #[must_use]
    pub fn wait(&self) -> Option<Vec<u8>> {
        self.stream.world().run(self.stream.id);
        self.into.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A point in a stream.
#[derive(Debug, Default)]
pub struct Event(Mutex<Option<Ticket>>);

/// Recorded work.
#[derive(Debug)]
pub struct Graph(Recording);

// SAFETY: by the duties' numbers. 1: each piece of memory has addresses that no other ever had, or are reserved for
// it, and bytes that only the work queued here reaches; the device is not host visible. 2: bases are multiples of
// the spacing, from a multiple on, and reserved ones of the granularity; there are no guard pages. 3: work goes through slices of just its range. 4:
// nothing outside this folder is called, and work owns only bytes. 5 and 6: what is refused is refused
// before anything is queued or taken; queueing is one push. 7: work has its own copy of host bytes, and `copy_out` copies
// the result itself. 8: a stream is a queue. 9: a wait runs after the record that it names, and streams of
// another device are not owned. 10: it wraps nothing.
unsafe impl Device for Deferred {
    type Memory = ();
    type Stream = Stream;
    type Event = Event;

    const CAPTURES: bool = true;

    fn name(&self) -> String {
        "deferred".to_owned()
    }

    fn base_alignment(&self) -> Alignment {
        const { assert!(SPACING_BYTES == Alignment::DEFAULT.bytes()) }
        Alignment::DEFAULT
    }

    fn obtain(&self, bytes: u64) -> Result<Obtained<()>, DeviceError> {
        let base = self.outside_capture("obtain")?.obtain(bytes);
        let base_address = base.ok_or_else(|| {
            Self::error("obtain", format!("{bytes} bytes are more than a test needs"))
        })?;
        Ok(Obtained { base_address, handle: () })
    }

    unsafe fn release(&self, memory: Obtained<()>, _bytes: u64) -> Result<(), DeviceError> {
        let mut world = self.stream.world();
        world.run(self.stream.id);
        let released = world.release(memory.base_address);
        released.then_some(()).ok_or_else(|| Self::error("release", "there is no such memory"))
    }

    unsafe fn give_back(&self, _address: u64, _bytes: u64) -> Result<u64, DeviceError> {
        let reason = "memory goes back as a whole: use a region of the kind Virtual";
        let kind = DeviceErrorKind::Unsupported;
        Err(DeviceError { kind, ..Self::error("give_back", reason) })
    }

    fn commit_granularity(&self) -> Option<Alignment> {
        Alignment::new(GRANULARITY_BYTES).ok()
    }

    fn reserve(&self, bytes: u64) -> Result<Obtained<()>, DeviceError> {
        let base_address = self.outside_capture("reserve")?.reserve(bytes);
        Ok(Obtained { base_address, handle: () })
    }

    unsafe fn unreserve(&self, memory: Obtained<()>, _bytes: u64) -> Result<(), DeviceError> {
        let mut world = self.stream.world();
        world.run(self.stream.id);
        let known = world.unreserve(memory.base_address);
        known.then_some(()).ok_or_else(|| Self::error("unreserve", "there are no such addresses"))
    }

    unsafe fn commit(&self, _memory: &(), address: u64, bytes: u64) -> Result<(), DeviceError> {
        let committed = self.outside_capture("commit")?.commit(address, bytes);
        committed.map_err(|reason| Self::error("commit", reason))
    }

    unsafe fn decommit(&self, _memory: &(), address: u64, bytes: u64) -> Result<(), DeviceError> {
        let mut world = self.outside_capture("decommit")?;
        world.run(self.stream.id);
        let taken = world.decommit(address, bytes);
        taken.then_some(()).ok_or_else(|| Self::error("decommit", "no call committed that range"))
    }

    unsafe fn fill(&self, address: u64, bytes: u64, pattern: Pattern) -> Result<(), DeviceError> {
        self.stream.fill(address, bytes, pattern);
        Ok(())
    }

    unsafe fn copy_in(&self, to_address: u64, from: &[u8]) -> Result<(), DeviceError> {
        let work = Work::Write { at: to_address, contents: from.into() };
        self.outside_capture("copy_in")?.push(self.stream.id, work);
        Ok(())
    }

    unsafe fn copy_out(&self, to: &mut [u8], from_address: u64) -> Result<(), DeviceError> {
        let (into, bytes) = (Landing::default(), to.len() as u64);
        let mut world = self.outside_capture("copy_out")?;
        world.push(
            self.stream.id,
            Work::Read { from: from_address, bytes, into: Arc::clone(&into) },
        );
        world.run(self.stream.id);
        let read = into.lock().unwrap_or_else(PoisonError::into_inner);
        let contents = read.as_deref();
        let missing = || Self::error("copy_out", "there is no such memory");
        to.copy_from_slice(contents.ok_or_else(missing)?);
        Ok(())
    }

    unsafe fn copy_within(
        &self,
        to_address: u64,
        from_address: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        self.stream.copy(to_address, from_address, bytes);
        Ok(())
    }

    fn synchronise(&self) -> Result<(), DeviceError> {
        self.synchronise_stream(&self.stream)
    }

    fn synchronise_all(&self) -> Result<(), DeviceError> {
        self.outside_capture("synchronise_all")?.run_all();
        Ok(())
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn owns_stream(&self, stream: &Stream) -> bool {
        Arc::ptr_eq(&stream.world, &self.stream.world)
    }

    fn refuse_in_capture(&self, call: &'static str) -> Result<(), DeviceError> {
        self.outside_capture(call).map(drop)
    }

    fn new_event(&self) -> Result<Event, DeviceError> {
        Ok(Event::default())
    }

    fn record(&self, event: &Event, stream: &Stream) -> Result<(), DeviceError> {
        let ticket = stream.world().record(stream.id);
        *event.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticket);
        Ok(())
    }

    fn wait(&self, stream: &Stream, event: &Event) -> Result<(), DeviceError> {
        let ticket = *event.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ticket) = ticket else { return Ok(()) };
        let waits = stream.world().wait(stream.id, ticket);
        waits.map_err(|reason| Self::error("wait", reason))
    }

    fn synchronise_stream(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.outside_capture("synchronise_stream")?.run(stream.id);
        Ok(())
    }
}

// SAFETY: by the duties' numbers. 1: `World::push` and `World::wait` record what goes to the stream, and to
// those that wait for it, and queue none of it. 2: `outside_capture`. 3: a launch queues the work on the
// stream; further streams of it begin by waiting for this one and are waited for by it. What is queued owns
// all that it needs. 4: it is not. 5: the recording is dropped.
unsafe impl Captures for Deferred {
    type Graph = Graph;

    fn begin_capture(&self) -> Result<(), DeviceError> {
        self.outside_capture("begin_capture")?.begin(self.stream.id);
        Ok(())
    }

    fn end_capture(&self) -> Result<Graph, DeviceError> {
        let recording = self.stream.world().end();
        let recording =
            recording.ok_or_else(|| Self::error("end_capture", "nothing is captured"))?;
        if !recording.is_joined() {
            let reason = "a stream that the captured work was handed to was not waited for";
            return Err(Self::error("end_capture", reason));
        }
        Ok(Graph(recording))
    }

    fn abandon_capture(&self) {
        drop(self.stream.world().end());
    }

    unsafe fn launch(&self, graph: &Graph) -> Result<(), DeviceError> {
        self.outside_capture("launch")?.launch(&graph.0);
        Ok(())
    }
}
