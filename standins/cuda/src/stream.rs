//! Streams and events: in which order operations are queued.

use crate::abi::{Code, CuResult, Handle};
use crate::capture::CaptureId;
use crate::driver::Driver;
use crate::schedule::{Mode, OpId, Queued};
use crate::work::Work;

/// Stream flag: takes no part in the null stream's implicit ordering.
const NON_BLOCKING: u32 = 1;
/// Event flag: no time stamps.
pub(crate) const DISABLE_TIMING: u32 = 2;
/// The handle that names the null stream explicitly.
const LEGACY: Handle = 1;
/// The handle of the calling thread's own stream.
const PER_THREAD: Handle = 2;

/// A queue of operations.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: Handle,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// Made by the driver itself: the null stream and the per-thread streams.
    pub(crate) implicit: bool,
    pub(crate) last: Option<OpId>,
    pub(crate) capture: Option<CaptureId>,
    /// While capturing: the nodes that the next one follows.
    pub(crate) tail: Vec<usize>,
}

impl Stream {
    pub(crate) fn new(context: Handle, flags: u32, priority: i32, implicit: bool) -> Self {
        Self { context, flags, priority, implicit, last: None, capture: None, tail: Vec::new() }
    }

    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }
}

/// What an event was last recorded as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    Never,
    Queued(OpId),
    Captured(CaptureId, Vec<usize>),
}

/// A point in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: Handle,
    pub(crate) flags: u32,
    pub(crate) recorded: Recorded,
    /// Count of operations that had run when the record ran.
    pub(crate) stamp: u64,
}

/// What became of an operation that was handed to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enqueued {
    Op(OpId),
    Captured,
}

impl Driver {
    /// The stream behind a handle, the special ones included.
    pub(crate) fn stream_key(&mut self, handle: Handle) -> CuResult<Handle> {
        match handle {
            0 | LEGACY => {
                let context = self.current()?;
                Ok(self.contexts.get(context)?.null_stream)
            }
            PER_THREAD => {
                let context = self.current()?;
                let thread = std::thread::current().id();
                if let Some(stream) = self.contexts.get(context)?.thread_streams.get(&thread) {
                    return Ok(*stream);
                }
                let stream = self.streams.add(Stream::new(context, 0, 0, true));
                self.contexts.get_mut(context)?.thread_streams.insert(thread, stream);
                Ok(stream)
            }
            other => {
                self.streams.get(other)?;
                Ok(other)
            }
        }
    }

    /// The same for a call that a driver refuses while another context than the stream's is current: all but copies,
    /// waits and queries, which the documentation says work on streams of other devices.
    pub(crate) fn own_stream_key(&mut self, handle: Handle) -> CuResult<Handle> {
        let key = self.stream_key(handle)?;
        if self.streams.get(key)?.context != self.current()? {
            self.last_fault = "the stream belongs to a context that is not current".to_owned();
            return Err(Code::INVALID_HANDLE);
        }
        Ok(key)
    }

    fn is_null_stream(&self, key: Handle) -> CuResult<bool> {
        let stream = self.streams.get(key)?;
        Ok(self.contexts.get(stream.context)?.null_stream == key)
    }

    /// Refuses the null stream while a stream that it would have to wait for is capturing.
    pub(crate) fn refuse_implicit_dependency(&mut self, key: Handle) -> CuResult<()> {
        if !self.is_null_stream(key)? {
            return Ok(());
        }
        let context = self.streams.get(key)?.context;
        let capturing: Vec<CaptureId> = (self.streams.iter())
            .filter(|(_, s)| s.context == context && s.is_blocking())
            .filter_map(|(_, s)| s.capture)
            .collect();
        if capturing.is_empty() {
            return Ok(());
        }
        capturing.into_iter().for_each(|id| self.invalidate(id));
        Err(Code::STREAM_CAPTURE_IMPLICIT)
    }

    /// What an operation of this stream has to wait for besides its own dependencies.
    pub(crate) fn stream_order(&self, key: Handle) -> CuResult<Vec<OpId>> {
        let stream = self.streams.get(key)?;
        let mut after: Vec<OpId> = stream.last.into_iter().collect();
        if self.is_null_stream(key)? {
            let others =
                self.streams.iter().filter(|(_, s)| s.context == stream.context && s.is_blocking());
            after.extend(others.filter_map(|(_, s)| s.last));
        } else if stream.is_blocking() {
            let null = self.contexts.get(stream.context)?.null_stream;
            after.extend(self.streams.get(null)?.last);
        }
        Ok(after)
    }

    /// Appends an operation to a stream, or to the graph that the stream is capturing.
    pub(crate) fn enqueue(
        &mut self,
        key: Handle,
        work: Work,
        after: &[OpId],
    ) -> CuResult<Enqueued> {
        self.refuse_implicit_dependency(key)?;
        if self.streams.get(key)?.capture.is_some() {
            self.capture_node(key, work)?;
            return Ok(Enqueued::Captured);
        }
        let context = self.streams.get(key)?.context;
        self.sound(context)?;
        let mut order = self.stream_order(key)?;
        order.extend_from_slice(after);
        let op = self.schedule.submit(Queued { context, stream: key, work }, order);
        self.streams.get_mut(key)?.last = Some(op);
        self.settle(op);
        Ok(Enqueued::Op(op))
    }

    /// In eager mode, runs the operation at once.
    pub(crate) fn settle(&mut self, op: OpId) {
        if self.schedule.mode == Mode::Eager {
            self.run_until(|d| d.schedule.is_done(op));
        }
    }

    /// Waits for one operation and reports what its device met on the way.
    pub(crate) fn wait_for(&mut self, op: OpId, context: Handle) -> CuResult<()> {
        self.run_until(|d| d.schedule.is_done(op));
        self.sound(context)
    }

    /// Waits for everything that was queued on a stream.
    pub(crate) fn synchronize_stream(&mut self, key: Handle) -> CuResult<()> {
        if let Some(id) = self.streams.get(key)?.capture {
            self.invalidate(id);
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        self.refuse_implicit_dependency(key)?;
        let context = self.streams.get(key)?.context;
        for op in self.stream_order(key)? {
            self.wait_for(op, context)?;
        }
        self.trim_pools();
        self.sound(context)
    }

    /// Waits for everything that was queued in a context.
    pub(crate) fn synchronize_context(&mut self, context: Handle) -> CuResult<()> {
        let capturing: Vec<CaptureId> = self
            .streams
            .iter()
            .filter(|(_, s)| s.context == context)
            .filter_map(|(_, s)| s.capture)
            .collect();
        if !capturing.is_empty() {
            capturing.into_iter().for_each(|id| self.invalidate(id));
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        self.run_until(|d| !d.schedule.is_busy(context));
        self.trim_pools();
        self.sound(context)
    }

    /// Whether the operation is done; while nobody waits, the device may or may not get on.
    pub(crate) fn poll(&mut self, op: OpId, context: Handle) -> CuResult<()> {
        if !self.schedule.is_done(op) && self.schedule.moves_on_a_query() {
            self.step_unwaited();
        }
        self.sound(context)?;
        if self.schedule.is_done(op) { Ok(()) } else { Err(Code::NOT_READY) }
    }

    /// Records an event: the work so far of the stream.
    pub(crate) fn record_event(&mut self, handle: Handle, key: Handle) -> CuResult<()> {
        let event = self.events.get(handle)?;
        if event.context != self.streams.get(key)?.context {
            return Err(Code::INVALID_HANDLE);
        }
        let recorded = match self.streams.get(key)?.capture {
            Some(id) => {
                self.capture(id)?;
                Recorded::Captured(id, self.streams.get(key)?.tail.clone())
            }
            None => match self.enqueue(key, Work::Record { event: handle }, &[])? {
                Enqueued::Op(op) => Recorded::Queued(op),
                Enqueued::Captured => return Err(Code::ILLEGAL_STATE),
            },
        };
        self.events.get_mut(handle)?.recorded = recorded;
        Ok(())
    }

    /// Makes later work of the stream wait for what the event was last recorded as.
    pub(crate) fn wait_event(&mut self, key: Handle, handle: Handle) -> CuResult<()> {
        let recorded = self.events.get(handle)?.recorded.clone();
        let capture = self.streams.get(key)?.capture;
        match (recorded, capture) {
            (Recorded::Never, _) => Ok(()),
            (Recorded::Queued(op), None) => self.enqueue(key, Work::Marker, &[op]).map(|_| ()),
            (Recorded::Queued(_), Some(id)) => {
                self.invalidate(id);
                Err(Code::STREAM_CAPTURE_ISOLATION)
            }
            (Recorded::Captured(id, nodes), None) => self.join_capture(key, id, nodes),
            (Recorded::Captured(theirs, nodes), Some(ours)) if theirs == ours => {
                self.capture(ours)?;
                let tail = &mut self.streams.get_mut(key)?.tail;
                tail.extend(
                    nodes.into_iter().filter(|node| !tail.contains(node)).collect::<Vec<_>>(),
                );
                Ok(())
            }
            (Recorded::Captured(theirs, _), Some(ours)) => {
                self.invalidate(theirs);
                self.invalidate(ours);
                Err(Code::STREAM_CAPTURE_MERGE)
            }
        }
    }
}
