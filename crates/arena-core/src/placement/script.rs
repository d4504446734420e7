//! The requests, drops and scopes of a step that was as planned, in order.
//!
//! A step that repeats it event by event is at each moment where that step was: what was free then is
//! free now. So it needs no counts, only to be compared, and is read from front to back.

use std::cell::{Cell, RefCell};

use super::slots::SlotTable;

/// An event, and for a request where it was placed, counted from the plan's start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    key: u64,
    pub(super) offset_bytes: u64,
}

/// What an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Drop(u32),
    Open,
    Close,
}

/// Keys above all sizes in bytes: the drop of slot `n` is `!n`, and there are fewer than 2³² slots.
const LEAST_DROP: u64 = !(u32::MAX as u64);
const OPEN: u64 = LEAST_DROP - 1;
const CLOSE: u64 = LEAST_DROP - 2;

impl Event {
    const OPEN: Self = Self { key: OPEN, offset_bytes: 0 };
    const CLOSE: Self = Self { key: CLOSE, offset_bytes: 0 };

    const fn request(bytes: u64, offset_bytes: u64) -> Self {
        Self { key: bytes, offset_bytes }
    }

    const fn drop(slot: u32) -> Self {
        Self { key: !(slot as u64), offset_bytes: 0 }
    }

    pub(super) const fn kind(self) -> Kind {
        match self.key {
            OPEN => Kind::Open,
            CLOSE => Kind::Close,
            #[expect(clippy::cast_possible_truncation, reason = "only the low bits are set")]
            key if key >= LEAST_DROP => Kind::Drop(!key as u32),
            _ => Kind::Request,
        }
    }
}

/// A step to compare others with, and perhaps the next such step while it is being recorded.
#[derive(Debug)]
pub(super) struct Script {
    events: Vec<Event>,
    /// The next event, or [`LEFT`] once the step has not gone on as the script does.
    at: Cell<usize>,
    /// The step that is being recorded.
    record: RefCell<Vec<Event>>,
    recording: Cell<bool>,
    /// The step that was recorded can take the script's place.
    is_ready: Cell<bool>,
    /// Steps in a row that left the script.
    left_in_a_row: Cell<u32>,
}

/// No script is as long.
const LEFT: usize = usize::MAX;

/// Scopes of a step for which there is room in a record, beside its requests and drops. A step that
/// opens more is never recorded, for it must not allocate.
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
    /// None yet, with room for a step of that plan.
    pub(super) fn new(table: &SlotTable) -> Self {
        let room = || Vec::with_capacity(2 * (table.len() + SCOPES));
        Self { events: room(), record: RefCell::new(room()), ..Self::default() }
    }

    /// Between two steps: a recorded step takes the script's place if there is none, or if steps have
    /// left it twice in a row.
    pub(super) fn prepare(&mut self) {
        if self.is_ready.take() && (self.events.is_empty() || self.left_in_a_row.get() > 1) {
            std::mem::swap(&mut self.events, self.record.get_mut());
            self.left_in_a_row.set(0);
        }
    }

    /// A step begins.
    pub(super) fn begin(&self) {
        self.record.borrow_mut().clear();
        self.recording.set(self.events.is_empty() || self.left_in_a_row.get() > 0);
        self.at.set(if self.events.is_empty() { LEFT } else { 0 });
    }

    /// The next event of the script, if the step has not left it.
    #[inline]
    pub(super) fn next(&self) -> Option<&Event> {
        self.events.get(self.at.get())
    }

    /// Whether the next event is a request of so many bytes; it is not passed yet.
    #[inline]
    pub(super) fn next_request(&self, bytes: u64) -> Option<&Event> {
        self.next().filter(|event| event.key == bytes)
    }

    /// Goes on to the event after the next one.
    #[inline]
    pub(super) fn advance(&self) {
        self.at.set(self.at.get() + 1);
    }

    /// Whether the script goes on with the drop of this slot; it is passed then.
    #[inline]
    pub(super) fn follow_drop(&self, slot: u32) -> bool {
        self.follow(Event::drop(slot))
    }

    /// Whether the script goes on with a scope that opens; it is passed then.
    pub(super) fn follow_open(&self) -> bool {
        self.follow(Event::OPEN)
    }

    /// Whether the script goes on with a scope that closes; it is passed then.
    pub(super) fn follow_close(&self) -> bool {
        self.follow(Event::CLOSE)
    }

    #[inline]
    fn follow(&self, event: Event) -> bool {
        let follows = self.next().is_some_and(|next| next.key == event.key);
        if follows {
            self.advance();
        }
        follows
    }

    /// Whether the step is all that the script is.
    pub(super) fn is_done(&self) -> bool {
        self.at.get() == self.events.len()
    }

    /// A step ends that never left the script.
    pub(super) fn end_done(&self) {
        self.left_in_a_row.set(0);
    }

    /// The step does not go on as the script does. What it has in common with it, if it only leaves it
    /// now.
    pub(super) fn leave(&self) -> Option<&[Event]> {
        let common = self.events.get(..self.at.replace(LEFT))?;
        if self.recording.get() {
            self.record.borrow_mut().extend_from_slice(common);
        }
        Some(common)
    }

    pub(super) fn record_request(&self, bytes: u64, offset_bytes: u64) {
        self.record(Event::request(bytes, offset_bytes));
    }

    pub(super) fn record_drop(&self, slot: u32) {
        self.record(Event::drop(slot));
    }

    pub(super) fn record_open(&self) {
        self.record(Event::OPEN);
    }

    pub(super) fn record_close(&self) {
        self.record(Event::CLOSE);
    }

    fn record(&self, event: Event) {
        if self.recording.get() {
            let mut record = self.record.borrow_mut();
            if record.len() == record.capacity() {
                self.recording.set(false);
            } else {
                record.push(event);
            }
        }
    }

    /// A step ends that left the script; `as_planned` says that it can be one.
    pub(super) fn end_left(&self, as_planned: bool) {
        self.is_ready.set(self.recording.get() && as_planned);
        self.left_in_a_row.set(self.left_in_a_row.get().saturating_add(1));
    }
}
