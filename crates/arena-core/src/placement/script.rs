//! The order of requests, drops and scopes in a step that was as planned.
//!
//! A step that repeats it event by event is at each moment where that step was: what was free then is
//! free now. So it needs no counts, only to be compared, and is read from front to back.
//!
//! Requests are in the plan's order. The other events are kept in a list of their own: each says how many
//! requests come before it, and each slot how many of them come before its request. Two positions that
//! wait for each other would make a processor wait for each event in turn; so they move apart.

use std::cell::{Cell, RefCell};
use std::mem;

use super::slots::Slot;

/// A drop or a scope, and how many requests come before it: in one word, which is compared as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event(u64);

/// What an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Drop(u32),
    Open,
    Close,
}

/// No slot has as large a number.
const OPEN: u32 = u32::MAX;
const CLOSE: u32 = u32::MAX - 1;

impl Event {
    /// The handle of a slot is dropped after so many requests.
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
#[derive(Debug)]
pub(super) struct Script {
    /// Its drops and scopes.
    events: Vec<Event>,
    /// How many of them the step has repeated, or [`LEFT`] once it has not gone on as the script does.
    at: Cell<u32>,
    record: RefCell<Record>,
    recording: Cell<bool>,
    /// The step that was recorded can take the script's place.
    is_ready: Cell<bool>,
    /// Steps in a row that left the script.
    left_in_a_row: Cell<u32>,
}

/// A step that is being recorded.
#[derive(Debug, Default)]
struct Record {
    events: Vec<Event>,
    /// For each request, how many events came before it.
    events_before: Vec<u32>,
}

/// No script is as long.
const LEFT: u32 = u32::MAX;

/// Scopes of a step for which there is room in a record, beside its drops. A step that opens more is
/// never recorded, for it must not allocate.
const SCOPES: usize = 512;

impl Default for Script {
    /// None, and no room for one.
    fn default() -> Self {
        Self {
            events: Vec::new(),
            at: Cell::new(LEFT),
            record: RefCell::default(),
            recording: Cell::default(),
            is_ready: Cell::default(),
            left_in_a_row: Cell::default(),
        }
    }
}

impl Script {
    /// None yet, with room for a step of so many slots.
    pub(super) fn new(slots: usize) -> Self {
        let room = || Vec::with_capacity(slots + 2 * SCOPES);
        let record = Record { events: room(), events_before: Vec::with_capacity(slots) };
        Self { events: room(), record: RefCell::new(record), ..Self::default() }
    }

    /// Between two steps: a recorded step takes the script's place if there is none, or if steps have
    /// left it twice in a row.
    pub(super) fn prepare(&mut self, slots: &mut [Slot]) {
        if self.is_ready.take() && (self.events.is_empty() || self.left_in_a_row.get() > 1) {
            let record = self.record.get_mut();
            mem::swap(&mut self.events, &mut record.events);
            for (slot, &events) in slots.iter_mut().zip(&record.events_before) {
                slot.events_before = events;
            }
            self.left_in_a_row.set(0);
        }
    }

    /// A step begins.
    pub(super) fn begin(&self) {
        let mut record = self.record.borrow_mut();
        record.events.clear();
        record.events_before.clear();
        self.recording.set(self.events.is_empty() || self.left_in_a_row.get() > 0);
        self.at.set(if self.events.is_empty() { LEFT } else { 0 });
    }

    /// Whether the script goes on with the request of this slot.
    #[inline]
    pub(super) fn goes_on_with(&self, slot: &Slot) -> bool {
        slot.events_before == self.at.get()
    }

    /// Whether the script goes on with this event; it is passed then.
    #[inline]
    pub(super) fn follow(&self, event: Event) -> bool {
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

    /// A step ends that never left the script.
    pub(super) fn end_done(&self) {
        self.left_in_a_row.set(0);
    }

    /// The step does not go on as the script does, if it only leaves it now: the events that they have
    /// in common, which come with the first requests of the plan.
    pub(super) fn leave(&self) -> Option<&[Event]> {
        self.events.get(..self.at.replace(LEFT) as usize)
    }

    /// A request in the step that is being recorded.
    pub(super) fn record_request(&self) {
        if self.recording.get() {
            let mut record = self.record.borrow_mut();
            // There are fewer events than a word counts, since there is no room for as many.
            let events = u32::try_from(record.events.len()).unwrap_or(LEFT);
            record.events_before.push(events);
        }
    }

    /// The last request in the step that is being recorded was taken back.
    pub(super) fn take_back_request(&self) {
        self.record.borrow_mut().events_before.pop();
    }

    /// An event in the step that is being recorded.
    pub(super) fn record(&self, event: Event) {
        if self.recording.get() {
            let events = &mut self.record.borrow_mut().events;
            if events.len() == events.capacity() {
                self.recording.set(false);
            } else {
                events.push(event);
            }
        }
    }

    /// A step ends that left the script; `as_planned` says that it can be one.
    pub(super) fn end_left(&self, as_planned: bool) {
        self.is_ready.set(self.recording.get() && as_planned);
        self.left_in_a_row.set(self.left_in_a_row.get().saturating_add(1));
    }
}
