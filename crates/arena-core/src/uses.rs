//! Where a recorded step asks for its buffers, and where it uses each of them last.
//!
//! A buffer can be used on several threads, so what a use writes lies behind a lock. A request takes no lock. In a
//! step that is not recorded a use reads one flag, and a request or a drop reads nothing.

#![forbid(unsafe_code)]

use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::ordered::OrderedSet;
use crate::spans::Spans;

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

/// The uses in one region's open step.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// Whether a step is recorded. Who uses one of its buffers got that after this was set, which is all the
    /// order that reading it needs.
    records: AtomicBool,
    /// Events of the step so far. A thread that uses a buffer sees at least the buffer's own request.
    events: AtomicUsize,
    finder: Mutex<Finder>,
}

impl Uses {
    fn lock(&self) -> MutexGuard<'_, Finder> {
        self.finder.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A recorded step begins.
    pub(crate) fn begin(&self, finder: Finder) {
        *self.lock() = finder;
        self.records.store(true, Ordering::Relaxed);
    }

    /// It ends. `None` if none was open.
    pub(crate) fn end(&self) -> Option<Finder> {
        let ended = self.records.swap(false, Ordering::Relaxed);
        ended.then(|| std::mem::take(&mut *self.lock()))
    }

    /// So many events were logged.
    #[inline]
    pub(crate) fn set_events(&self, events: usize) {
        self.events.store(events, Ordering::Relaxed);
    }

    /// The last request is taken back. It had this number and these bytes.
    pub(crate) fn take_back(&self, number: usize, span: (u64, u64)) {
        self.lock().take_back(number, span);
    }

    /// These bytes are now those of a buffer that is no part of the step.
    pub(crate) fn forget(&self, address: u64, bytes: u64) {
        if self.records.load(Ordering::Relaxed) {
            let mut finder = self.lock();
            finder.index_all();
            finder.remove(address, address + bytes);
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

    /// A use that began with this call ends.
    #[cfg(feature = "_cuda")]
    pub(crate) fn note_until(
        &self,
        address: u64,
        bytes: u64,
        call_site: &'static Location<'static>,
    ) {
        if self.records.load(Ordering::Relaxed) {
            self.note(address, bytes, call_site, false);
        }
    }

    #[cold]
    #[inline(never)]
    fn note(&self, address: u64, bytes: u64, call_site: &'static Location<'static>, taken: bool) {
        if bytes == 0 {
            return; // An empty buffer's address may be another's.
        }
        let mut finder = self.lock();
        let Some(last_use) = finder.find(address) else { return };
        let before_event = self.events.load(Ordering::Relaxed);
        // Of two threads the later one may know fewer events.
        let known = last_use.map_or(0, |last| last.before_event);
        if taken || before_event > known {
            *last_use = Some(LastUse { before_event: before_event.max(known), call_site });
        }
    }
}

/// Which request has a byte, and the last uses so far.
#[derive(Debug, Default)]
pub(crate) struct Finder {
    /// Of each request; there is none before the first step is recorded.
    spans: Option<Arc<Spans>>,
    /// Of the first so many requests those whose bytes no later one has, by (first byte, number). It is made
    /// when a use asks for it.
    index: OrderedSet,
    indexed: usize,
    last_uses: Vec<Option<LastUse>>,
}

impl Finder {
    const fn new() -> Self {
        Self { spans: None, index: OrderedSet::new(), indexed: 0, last_uses: Vec::new() }
    }

    /// The last use of the newest request that has the byte at `address`. A buffer that is alive shares no byte
    /// with a newer one.
    fn find(&mut self, address: u64) -> Option<&mut Option<LastUse>> {
        self.index_all();
        let (_, number) = self.index.last_before((address, u64::MAX))?;
        let number = place(number);
        if address < self.end_of(number) { Some(&mut self.last_uses[number]) } else { None }
    }

    fn span(&self, number: usize) -> Option<(u64, u64)> {
        self.spans.as_ref()?.get(number)
    }

    fn end_of(&self, number: usize) -> u64 {
        self.span(number).map_or(0, |(_, end)| end)
    }

    fn index_all(&mut self) {
        while let Some((start, end)) = self.span(self.indexed) {
            self.remove(start, end);
            if start < end {
                self.index.insert((start, self.indexed as u64), 0);
            }
            self.indexed += 1;
        }
        self.last_uses.resize(self.indexed, None);
    }

    fn take_back(&mut self, number: usize, (start, end): (u64, u64)) {
        if number < self.indexed {
            self.remove(start, end);
            self.indexed = number;
            self.last_uses.truncate(number);
        }
    }

    /// Takes the requests that have one of these bytes out of the index.
    fn remove(&mut self, start: u64, end: u64) {
        if start == end {
            return; // It has no byte.
        }
        if let Some(before) = self.index.last_before((start, 0))
            && self.end_of(place(before.1)) > start
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

/// The requests of a recorded step, as its log has them.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    requests: Vec<RecordedRequest>,
    /// Room for the next step that is recorded here; while one runs, another has the finder.
    finder: Finder,
}

impl Recording {
    pub(crate) const fn new() -> Self {
        Self { requests: Vec::new(), finder: Finder::new() }
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
    }

    /// A step begins. What finds its uses shares the places of its requests.
    pub(crate) fn begin(&mut self) -> Finder {
        self.requests.clear();
        let mut finder = std::mem::take(&mut self.finder);
        let spans = finder.spans.get_or_insert_default();
        spans.truncate(0);
        self.finder.spans = Some(Arc::clone(spans));
        finder.index.clear();
        finder.indexed = 0;
        finder.last_uses.clear();
        finder
    }

    /// It ends.
    pub(crate) fn end(&mut self, finder: Finder) {
        for (request, last_use) in self.requests.iter_mut().zip(&finder.last_uses) {
            request.last_use = *last_use;
        }
        self.finder = finder;
    }

    /// A request was served with `bytes` bytes from `address` on.
    pub(crate) fn push(&mut self, address: u64, bytes: u64, call_site: &'static Location<'static>) {
        self.requests.push(RecordedRequest { call_site, last_use: None });
        if let Some(spans) = &self.finder.spans {
            spans.push(address, address + bytes);
        }
    }

    /// The last request is taken back: its number and its bytes.
    pub(crate) fn pop(&mut self) -> Option<(usize, (u64, u64))> {
        self.requests.pop()?;
        let (number, spans) = (self.requests.len(), self.finder.spans.as_ref()?);
        let span = spans.get(number)?;
        spans.truncate(number);
        Some((number, span))
    }
}

impl Clone for Recording {
    /// The requests alone: where they lay is of no use once the step has ended.
    fn clone(&self) -> Self {
        Self { requests: self.requests.clone(), finder: Finder::new() }
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
            let mut finder = recording.begin();
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
                        let (number, span) = recording.pop().unwrap();
                        finder.take_back(number, span);
                        requests -= 1;
                        alive.retain(|&(number, ..)| number < requests);
                    }
                    Change::Forget(start, end) => {
                        finder.index_all();
                        finder.remove(start, end);
                        alive.retain(apart(start, end));
                    }
                    Change::Pop => {}
                    Change::Find => for address in 0..75 {
                        let has = |&&(_, from, to): &&(usize, u64, u64)| from <= address && address < to;
                        let expected = alive.iter().find(has).map(|&(number, ..)| number);
                        let found = finder.find(address).map(|found| &raw const *found);
                        let place = |number: usize| &raw const finder.last_uses[number];
                        prop_assert_eq!(found, expected.map(place), "{} in {:?}", address, alive);
                    }
                }
            }
        }
    }
}
