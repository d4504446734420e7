//! Where a recorded step asks for its buffers, and where it uses each of them last.
//!
//! A buffer can be used on several threads, so what a use writes lies behind a lock. In a step that is not
//! recorded a use reads one flag, and a request or a drop reads nothing.

#![forbid(unsafe_code)]

use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::ordered::OrderedSet;

/// A request of a recorded step, beside its [`StepEvent::Alloc`](crate::StepEvent::Alloc).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedRequest {
    /// The call that made it. For a helper with `#[track_caller]` it is the call of the helper.
    pub call_site: &'static Location<'static>,
    /// The last use of its buffer; `None` if it was never used after the request.
    pub last_use: Option<LastUse>,
}

/// The last time that a step used a buffer.
///
/// A use is a call that takes a view, a slice, the address or a kernel's argument of the buffer, or a call on
/// such a view that reads, writes, copies or narrows it. A view or a slice may be used after the call that
/// made it, and a kept slice leaves no trace of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastUse {
    /// It came before this event of the step ([`StepLog::events`](crate::StepLog::events)) and after the one
    /// before that.
    pub before_event: usize,
    /// The call. If a view was taken and then used without an event in between, it is the call that took the
    /// view.
    pub call_site: &'static Location<'static>,
}

/// The recording of one region's open step.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// Whether a step is recorded. Who uses one of its buffers got that after this was set, which is all the
    /// order that reading it needs.
    records: AtomicBool,
    /// Events of the step so far. A thread that uses a buffer sees at least the buffer's own request.
    events: AtomicUsize,
    recording: Mutex<Recording>,
}

impl Uses {
    fn lock(&self) -> MutexGuard<'_, Recording> {
        self.recording.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A recorded step begins; it is written to `recording`.
    pub(crate) fn begin(&self, recording: Recording) {
        *self.lock() = recording;
        self.records.store(true, Ordering::Relaxed);
    }

    /// It ends. `None` if none was open.
    pub(crate) fn end(&self) -> Option<Recording> {
        let ended = self.records.swap(false, Ordering::Relaxed);
        ended.then(|| std::mem::take(&mut *self.lock()))
    }

    /// So many events were logged.
    pub(crate) fn set_events(&self, events: usize) {
        self.events.store(events, Ordering::Relaxed);
    }

    /// A request was served with `bytes` bytes from `address` on.
    pub(crate) fn note_request(
        &self,
        address: u64,
        bytes: u64,
        call_site: &'static Location<'static>,
    ) {
        if self.records.load(Ordering::Relaxed) {
            self.lock().push(address, bytes, call_site);
        }
    }

    /// The last request is taken back, which leaves so many events.
    pub(crate) fn take_back(&self, events: usize) {
        if self.records.load(Ordering::Relaxed) {
            self.lock().pop();
            self.set_events(events);
        }
    }

    /// These bytes are now those of a buffer that is no part of the step.
    pub(crate) fn forget(&self, address: u64, bytes: u64) {
        if self.records.load(Ordering::Relaxed) {
            self.lock().forget(address, address + bytes);
        }
    }

    /// A view, a slice or an argument of a buffer is taken.
    #[inline]
    #[track_caller]
    pub(crate) fn note_taken(&self, address: u64, bytes: u64) {
        if self.records.load(Ordering::Relaxed) {
            self.note(address, bytes, Location::caller(), true);
        }
    }

    /// A view is used. If no event came after it was taken, the call that took it stays the one that is named:
    /// it lies in the program, and this one often in a library.
    #[inline]
    #[track_caller]
    pub(crate) fn note_used(&self, address: u64, bytes: u64) {
        if self.records.load(Ordering::Relaxed) {
            self.note(address, bytes, Location::caller(), false);
        }
    }

    #[cold]
    #[inline(never)]
    fn note(&self, address: u64, bytes: u64, call_site: &'static Location<'static>, taken: bool) {
        if bytes == 0 {
            return; // An empty buffer's address may be another's.
        }
        let mut recording = self.lock();
        let Some(request) = recording.find(address) else { return };
        let before_event = self.events.load(Ordering::Relaxed);
        // Of two threads the later one may know fewer events.
        let known = request.last_use.map_or(0, |last| last.before_event);
        if taken || before_event > known {
            request.last_use = Some(LastUse { before_event: before_event.max(known), call_site });
        }
    }
}

/// The requests of a recorded step, and where each lies.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    requests: Vec<RecordedRequest>,
    /// First byte, and the one after the last, of each.
    spans: Vec<(u64, u64)>,
    /// Of the first so many requests those whose bytes no later one has, by (first byte, number). It is made
    /// when a use asks for it, so that a request is quick.
    index: OrderedSet,
    indexed: usize,
}

impl Recording {
    pub(crate) const fn new() -> Self {
        Self { requests: Vec::new(), spans: Vec::new(), index: OrderedSet::new(), indexed: 0 }
    }

    /// The host memory of a record that is kept.
    pub(crate) fn host_bytes(&self) -> u64 {
        (self.requests.capacity() * size_of::<RecordedRequest>()) as u64
    }

    pub(crate) fn requests(&self) -> &[RecordedRequest] {
        &self.requests
    }

    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.spans.clear();
        self.index.clear();
        self.indexed = 0;
    }

    fn push(&mut self, address: u64, bytes: u64, call_site: &'static Location<'static>) {
        self.requests.push(RecordedRequest { call_site, last_use: None });
        self.spans.push((address, address + bytes));
    }

    fn pop(&mut self) {
        self.requests.pop();
        let last = self.spans.pop();
        if let Some((start, end)) = last.filter(|_| self.indexed > self.spans.len()) {
            self.forget(start, end);
            self.indexed = self.spans.len();
        }
    }

    /// The newest request that has the byte at `address`. A buffer that is alive shares no byte with a newer
    /// one.
    fn find(&mut self, address: u64) -> Option<&mut RecordedRequest> {
        self.index_all();
        let (_, number) = self.index.last_before((address, u64::MAX))?;
        let number = place(number);
        if address < self.spans[number].1 { self.requests.get_mut(number) } else { None }
    }

    fn index_all(&mut self) {
        while let Some(&(start, end)) = self.spans.get(self.indexed) {
            self.remove(start, end);
            if start < end {
                self.index.insert((start, self.indexed as u64), 0);
            }
            self.indexed += 1;
        }
    }

    fn forget(&mut self, start: u64, end: u64) {
        self.index_all();
        self.remove(start, end);
    }

    /// Takes the requests that have one of these bytes out of the index.
    fn remove(&mut self, start: u64, end: u64) {
        if start == end {
            return; // It has no byte.
        }
        if let Some(before) = self.index.last_before((start, 0))
            && self.spans[place(before.1)].1 > start
        {
            self.index.remove(before);
        }
        while let Some(first) = self.index.first_from((start, 0))
            && first.0 < end
        {
            self.index.remove(first);
        }
    }
}

impl Clone for Recording {
    /// The requests alone: where they lay is of no use once the step has ended.
    fn clone(&self) -> Self {
        Self { requests: self.requests.clone(), ..Self::default() }
    }
}

impl PartialEq for Recording {
    fn eq(&self, other: &Self) -> bool {
        self.requests == other.requests
    }
}

impl Eq for Recording {}

#[expect(clippy::cast_possible_truncation, reason = "it came from an index")]
const fn place(number: u64) -> usize {
    number as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Change {
        Push(u64, u64),
        Pop,
        Forget(u64, u64),
        Find,
    }

    fn change() -> impl Strategy<Value = Change> {
        let (start, bytes) = (1..60_u64, 0..12_u64);
        prop_oneof![
            4 => (start.clone(), bytes.clone()).prop_map(|(start, bytes)| Change::Push(start, bytes)),
            1 => Just(Change::Pop),
            1 => (start, bytes).prop_map(|(start, bytes)| Change::Forget(start, start + bytes)),
            4 => Just(Change::Find),
        ]
    }

    proptest! {
        // A request may reach into older ones in any way: those are dead then.
        #[test]
        fn the_newest_request_that_shares_no_byte_with_a_newer_one_is_found(
            changes in prop::collection::vec(change(), 1..80),
        ) {
            let (mut recording, mut alive) = (Recording::default(), Vec::<(usize, u64, u64)>::new());
            // A request that is taken back took no byte of a buffer that was alive.
            let (mut requests, mut may_pop) = (0, false);
            let apart = |start: u64, end: u64| move |&(_, from, to): &(usize, u64, u64)| {
                to <= start || end <= from || start == end
            };
            for change in changes {
                match change {
                    Change::Push(start, bytes) => {
                        recording.push(start, bytes, Location::caller());
                        let before = alive.len();
                        alive.retain(apart(start, start + bytes));
                        may_pop = alive.len() == before;
                        alive.push((requests, start, start + bytes));
                        requests += 1;
                    }
                    Change::Pop if std::mem::take(&mut may_pop) => {
                        recording.pop();
                        requests -= 1;
                        alive.retain(|&(number, ..)| number < requests);
                    }
                    Change::Forget(start, end) => {
                        recording.forget(start, end);
                        alive.retain(apart(start, end));
                    }
                    Change::Pop => {}
                    Change::Find => for address in 0..75 {
                        let has = |&&(_, from, to): &&(usize, u64, u64)| from <= address && address < to;
                        let expected = alive.iter().find(has).map(|&(number, ..)| number);
                        let found = recording.find(address).map(|found| &raw const *found);
                        let place = |number: usize| &raw const recording.requests[number];
                        prop_assert_eq!(found, expected.map(place), "{} in {:?}", address, alive);
                    }
                }
            }
        }
    }
}
