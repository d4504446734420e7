//! The order of requests, drops and scopes in a step that was as planned.
//!
//! A step that repeats it event by event is at each moment where that step was: what was free then is
//! free now. So it needs no counts, only to be compared, and is read from front to back.
//!
//! Requests are in the plan's order. The other events are kept in a list of their own: each says how many
//! requests come before it, and each slot how many events come before its request. Two positions that
//! wait for each other would make a processor wait for each event in turn; so they move apart.

use std::cell::{Cell, RefCell};
use std::mem;

use super::slots::{Moment, Slot};
use crate::bytes::Alignment;
use crate::signature::StepSignature;

/// A drop or a scope, and how many requests come before it: in one word, which is compared as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedEvent(u64);

/// What such an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Drop(u32),
    Open,
    Close,
}

/// No slot has as large a number.
const OPEN: u32 = u32::MAX;
const CLOSE: u32 = u32::MAX - 1;

impl PackedEvent {
    /// The handle of a slot is dropped after this many requests.
    #[inline]
    pub(super) const fn drop(slot: u32, requests: usize) -> Self {
        Self((requests as u64) << 32 | slot as u64)
    }

    pub(super) const fn open(requests: usize) -> Self {
        Self::drop(OPEN, requests)
    }

    pub(super) const fn close(requests: usize) -> Self {
        Self::drop(CLOSE, requests)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the halves are taken apart")]
    pub(super) const fn kind(self) -> Kind {
        match self.0 as u32 {
            OPEN => Kind::Open,
            CLOSE => Kind::Close,
            slot => Kind::Drop(slot),
        }
    }

    /// Requests that come before it.
    pub(super) const fn requests(self) -> usize {
        (self.0 >> 32) as usize
    }
}

/// A step to compare others with, and perhaps the next such step while it is being recorded.
#[derive(Debug, Default)]
pub(super) struct Script {
    /// Its drops and scopes; none if there is no such step.
    events: Vec<PackedEvent>,
    signature: StepSignature,
    /// How many of them a step has repeated that repeats the script.
    at: Cell<u32>,
    record: RefCell<Record>,
    recording: Cell<bool>,
    /// The step that was recorded can take the script's place.
    is_ready: Cell<bool>,
    /// Counted steps in a row.
    counted_in_a_row: Cell<u32>,
}

/// A step that is being recorded.
#[derive(Debug, Default)]
struct Record {
    events: Vec<PackedEvent>,
    /// For each request, when it came.
    moments: Vec<Moment>,
    signature: StepSignature,
}

/// Scopes of a step for which there is room in a record, beside its drops. A step that opens more is
/// never recorded, for it must not allocate.
const SCOPES: usize = 512;

impl Script {
    /// An empty script, with room for a step of this many slots.
    pub(super) fn new(slots: usize) -> Self {
        let room = || Vec::with_capacity(slots + 2 * SCOPES);
        let moments = Vec::with_capacity(slots);
        let record = Record { events: room(), moments, ..Record::default() };
        Self { events: room(), record: RefCell::new(record), ..Self::default() }
    }

    /// The host memory that it takes.
    pub(super) fn host_bytes(&self) -> u64 {
        let Record { events, moments, .. } = &*self.record.borrow();
        let events = (self.events.capacity() + events.capacity()) * size_of::<PackedEvent>();
        (events + moments.capacity() * size_of::<Moment>()) as u64
    }

    /// Whether there is no step to compare with.
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The signature of a step that repeats it.
    pub(super) fn signature(&self) -> StepSignature {
        self.signature
    }

    /// Between two steps: a recorded step takes the script's place if there is none, or if steps have
    /// differed from it twice in a row.
    pub(super) fn prepare(&mut self, slots: &mut [Slot]) {
        if self.is_ready.take() && (self.is_empty() || self.counted_in_a_row.get() > 1) {
            let record = self.record.get_mut();
            mem::swap(&mut self.events, &mut record.events);
            self.signature = record.signature;
            for (slot, &moment) in slots.iter_mut().zip(&record.moments) {
                slot.moment = moment;
            }
            self.counted_in_a_row.set(0);
        }
    }

    /// A step begins.
    pub(super) fn begin(&self) {
        let mut record = self.record.borrow_mut();
        record.events.clear();
        record.moments.clear();
        self.recording.set(self.is_empty() || self.counted_in_a_row.get() > 0);
        self.at.set(0);
    }

    // --- a step that repeats it -------------------------------------------------------------------

    /// The moment of a request of this alignment that came now.
    #[inline(always)]
    pub(super) fn moment(&self, alignment: Alignment) -> Moment {
        Moment::new(self.at.get(), alignment)
    }

    /// Whether the script goes on with this event; it is passed then.
    #[inline(always)]
    pub(super) fn follow(&self, event: PackedEvent) -> bool {
        let at = self.at.get();
        let follows = self.events.get(at as usize) == Some(&event);
        if follows {
            self.at.set(at + 1);
        }
        follows
    }

    /// Whether the step has repeated all events of the script.
    pub(super) fn is_done(&self) -> bool {
        self.at.get() as usize == self.events.len()
    }

    /// A step ends that repeated the script.
    pub(super) fn end_repeated(&self) {
        self.counted_in_a_row.set(0);
    }

    /// The events that the step has in common with the script; they come with the first requests of the
    /// plan.
    pub(super) fn common(&self) -> &[PackedEvent] {
        self.events.get(..self.at.get() as usize).unwrap_or_default()
    }

    // --- a step that is counted -------------------------------------------------------------------

    /// A request in the step that is being recorded.
    pub(super) fn record_request(&self, alignment: Alignment) {
        if self.recording.get() {
            let Record { events, moments, .. } = &mut *self.record.borrow_mut();
            // There is no room for more events than a moment counts.
            let events = u32::try_from(events.len()).unwrap_or(u32::MAX);
            moments.push(Moment::new(events, alignment));
        }
    }

    /// The last request in the step that is being recorded was taken back.
    pub(super) fn take_back_request(&self) {
        self.record.borrow_mut().moments.pop();
    }

    /// An event in the step that is being recorded.
    pub(super) fn record(&self, event: PackedEvent) {
        if self.recording.get() {
            let events = &mut self.record.borrow_mut().events;
            if events.len() == events.capacity() {
                self.recording.set(false);
            } else {
                events.push(event);
            }
        }
    }

    /// A counted step ends; `as_planned` says that it can be the script.
    pub(super) fn end_counted(&self, as_planned: bool, signature: StepSignature) {
        self.record.borrow_mut().signature = signature;
        self.is_ready.set(self.recording.get() && as_planned);
        self.counted_in_a_row.set(self.counted_in_a_row.get().saturating_add(1));
    }
}
