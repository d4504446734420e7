//! The record of a step: its requests and drops in order, and where its buffers were used last. It is kept only
//! while the program asks for it.

#![forbid(unsafe_code)]

use crate::bytes::Alignment;
use crate::uses::{RecordedRequest, Recording};

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
    Open,
    /// A scope was closed.
    Close,
    /// A scope ended together with the scope around it, because its guard was forgotten. Its live buffers
    /// belong to the outer scope until that closes.
    Merge,
}

/// Events in order. A log that is cleared and used again allocates nothing for a step that is not longer than
/// the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepLog {
    events: Vec<StepEvent>,
    recording: Recording,
}

impl StepLog {
    /// An empty log, which allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { events: Vec::new(), recording: Recording::new() }
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
        (self.events.capacity() * size_of::<StepEvent>()) as u64 + self.recording.host_bytes()
    }

    /// Forgets everything and keeps the room for it.
    pub fn clear(&mut self) {
        self.events.clear();
        self.recording.clear();
    }

    /// Takes out what is written while the step runs.
    pub(crate) fn take_recording(&mut self) -> Recording {
        std::mem::take(&mut self.recording)
    }

    /// Puts it back.
    pub(crate) fn set_recording(&mut self, recording: Recording) {
        self.recording = recording;
    }

    /// Forgets the last event, of a request that failed after all.
    pub(crate) fn pop(&mut self) {
        self.events.pop();
    }

    pub(crate) fn push(&mut self, event: StepEvent) {
        self.events.push(event);
    }
}
