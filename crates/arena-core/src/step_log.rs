//! The record of a step: its requests and drops in order, and where its buffers were used last. It is kept only
//! while the program asks for it.

#![forbid(unsafe_code)]

use std::panic::Location;
use std::time::Instant;

use crate::bytes::Alignment;
use crate::uses::{Finder, RecordedRequest, Recording};

/// One thing that happened to the transient part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepEvent {
    /// A buffer was placed.
    Alloc {
        /// Its first byte, from the base.
        offset_bytes: u64,
        /// Its size.
        bytes: u64,
        /// Its alignment.
        alignment: Alignment,
    },
    /// The handle of the buffer at this offset was dropped.
    Drop {
        /// Its first byte, from the base.
        offset_bytes: u64,
    },
    /// A scope was opened.
    Open {
        /// Its name.
        name: &'static str,
    },
    /// The program named what it asks for from here on: until the next tag, or the end of the scope.
    Tag {
        /// The name.
        name: &'static str,
    },
    /// A scope was closed.
    Close,
    /// A scope ended together with the scope around it, because its guard was forgotten. Its live buffers
    /// belong to the outer scope until that closes.
    Merge,
}

/// Events in order. A log that is cleared and used again allocates nothing for a step that is not longer than
/// the last one. Two logs are equal if the same was done at the same places, at whatever times.
#[derive(Debug, Clone, Default)]
pub struct StepLog {
    events: Vec<StepEvent>,
    /// Of the events that are no requests and no drops: two readings of a clock take longer than such a pair.
    times: Vec<Instant>,
    recording: Recording,
}

impl PartialEq for StepLog {
    fn eq(&self, other: &Self) -> bool {
        self.events == other.events && self.recording == other.recording
    }
}

impl Eq for StepLog {}

impl StepLog {
    /// An empty log, which allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { events: Vec::new(), times: Vec::new(), recording: Recording::new() }
    }

    /// Whether it has no event.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The events in order.
    #[must_use]
    pub fn events(&self) -> &[StepEvent] {
        &self.events
    }

    /// When the host came to each event that is neither a request nor a drop, in their order.
    #[must_use]
    pub fn times(&self) -> &[Instant] {
        &self.times
    }

    /// Where each request was made and its buffer used last, in the order of the [`StepEvent::Alloc`]s.
    ///
    /// The handle of a buffer is usually dropped where it goes out of scope, which is no call, so a drop has no
    /// site. It came after the event before it.
    #[must_use]
    pub fn requests(&self) -> &[RecordedRequest] {
        self.recording.requests()
    }

    /// The host memory that it takes.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        let own = self.events.capacity() * size_of::<StepEvent>()
            + self.times.capacity() * size_of::<Instant>();
        own as u64 + self.recording.host_bytes()
    }

    /// Forgets everything and keeps the room for it.
    pub fn clear(&mut self) {
        self.events.clear();
        self.times.clear();
        self.recording.clear();
    }

    /// A step begins; this finds out whom its uses are of.
    pub(crate) fn begin(&mut self) -> Finder {
        self.events.clear();
        self.times.clear();
        self.recording.begin()
    }

    /// It has ended.
    pub(crate) fn end(&mut self, finder: Finder) {
        self.recording.end(finder);
    }

    /// A request was served at this address, which is this offset. The event is put together where it is kept: one
    /// that is written and then copied as a whole waits for the writes.
    #[inline]
    pub(crate) fn push_request(
        &mut self,
        address: u64,
        (offset_bytes, bytes, alignment): (u64, u64, Alignment),
        call_site: &'static Location<'static>,
    ) {
        self.events.push(StepEvent::Alloc { offset_bytes, bytes, alignment });
        self.recording.push(address, bytes, call_site);
    }

    /// Forgets the last event, a request that failed after all: its number and its bytes.
    pub(crate) fn pop_request(&mut self) -> Option<(usize, (u64, u64))> {
        self.events.pop();
        self.recording.pop()
    }

    pub(crate) fn push(&mut self, event: StepEvent) {
        if !matches!(event, StepEvent::Alloc { .. } | StepEvent::Drop { .. }) {
            self.times.push(Instant::now());
        }
        self.events.push(event);
    }
}
