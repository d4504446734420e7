//! What is queued, what it does to the memory, and in which order it runs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::Pattern;
use crate::random::SplitMix64;

/// One stream, by its number.
pub(super) type StreamId = u64;

/// One record of an event. Those that were made in a capture stand for nothing outside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    number: u64,
    captured: bool,
}

/// Host bytes that a read puts its result into; `None` before.
pub(super) type Landing = Arc<Mutex<Option<Vec<u8>>>>;

/// A piece of work. It owns what it uses of the host, so it can run at any time.
#[derive(Debug, Clone)]
pub(super) enum Work {
    Fill { at: u64, bytes: u64, pattern: Pattern },
    Write { at: u64, contents: Arc<[u8]> },
    Copy { to: u64, from: u64, bytes: u64 },
    Read { from: u64, bytes: u64, into: Landing },
    Record(Ticket),
    Wait(Ticket),
}

/// Recorded work of several streams, in the order of the calls.
#[derive(Debug)]
pub(super) struct Recording {
    origin: StreamId,
    /// The origin, and what was made to wait for it.
    streams: BTreeSet<StreamId>,
    steps: Vec<(StreamId, Work)>,
}

/// Everything behind one device.
#[derive(Debug)]
pub(super) struct World {
    /// Contents by first address. Pieces of one region may lie side by side; between two regions lie addresses
    /// without memory.
    memory: BTreeMap<u64, Vec<u8>>,
    /// Reserved addresses: their ends by their bases.
    reserved: BTreeMap<u64, u64>,
    next_base: u64,
    queues: BTreeMap<StreamId, VecDeque<Work>>,
    streams: StreamId,
    tickets: u64,
    /// Records that are queued and were not reached yet.
    unreached: BTreeSet<Ticket>,
    random: SplitMix64,
    recording: Option<Recording>,
    fault: Option<String>,
}

/// What fresh memory holds: no likely value, so that who relies on zeros is found out.
const FRESH_BYTE: u8 = 0xee;

/// Bytes of a base's alignment, and of the least distance between two pieces of memory.
pub(super) const SPACING_BYTES: u64 = 256;

/// What is committed to reserved addresses at a time: small, so that small tests have several pieces.
pub(super) const GRANULARITY_BYTES: u64 = 1024;

/// Memory is really there, all of it, so a mistaken size is refused.
const MOST_BYTES: u64 = 1 << 30;

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            memory: BTreeMap::new(),
            reserved: BTreeMap::new(),
            next_base: 1 << 40,
            queues: BTreeMap::new(),
            streams: 0,
            tickets: 0,
            unreached: BTreeSet::new(),
            random: SplitMix64::new(seed),
            recording: None,
            fault: None,
        }
    }

    pub(super) fn new_stream(&mut self) -> StreamId {
        self.streams += 1;
        self.streams
    }

    pub(super) fn fault(&self) -> Option<String> {
        self.fault.clone()
    }

    // --- memory -------------------------------------------------------------------------------

    /// The base of so much new memory; `None` for more than there is.
    pub(super) fn obtain(&mut self, bytes: u64) -> Option<u64> {
        let len = usize::try_from(bytes).ok().filter(|_| bytes <= MOST_BYTES)?;
        let base = self.next_base;
        self.next_base += bytes.next_multiple_of(SPACING_BYTES) + SPACING_BYTES;
        self.memory.insert(base, vec![FRESH_BYTE; len]);
        Some(base)
    }

    /// Whether there was memory with this base.
    pub(super) fn release(&mut self, base: u64) -> bool {
        self.memory.remove(&base).is_some()
    }

    /// The base of so many new addresses.
    pub(super) fn reserve(&mut self, bytes: u64) -> u64 {
        let base = self.next_base.next_multiple_of(GRANULARITY_BYTES);
        self.next_base = base + bytes.next_multiple_of(SPACING_BYTES) + SPACING_BYTES;
        self.reserved.insert(base, base + bytes);
        base
    }

    /// Whether there were reserved addresses with this base. What is committed to them goes too.
    pub(super) fn unreserve(&mut self, base: u64) -> bool {
        let Some(end) = self.reserved.remove(&base) else { return false };
        self.memory.retain(|at, _| !(base..end).contains(at));
        true
    }

    /// Puts new memory behind reserved addresses.
    pub(super) fn commit(&mut self, at: u64, bytes: u64) -> Result<(), &'static str> {
        let end = at + bytes;
        let Some((base, reserved_end)) = self.reserved.range(..=at).next_back() else {
            return Err("there are no such addresses");
        };
        let is_whole = (at - base).is_multiple_of(GRANULARITY_BYTES)
            && bytes.is_multiple_of(GRANULARITY_BYTES);
        if end > *reserved_end || !is_whole {
            return Err("the range is not one of reserved units");
        }
        let before = self.memory.range(..end).next_back();
        if before.is_some_and(|(start, contents)| start + contents.len() as u64 > at) {
            return Err("a part of the range is committed already");
        }
        let len = usize::try_from(bytes).ok().filter(|_| bytes <= MOST_BYTES);
        let len = len.ok_or("that is more than a test needs")?;
        self.memory.insert(at, vec![FRESH_BYTE; len]);
        Ok(())
    }

    /// Whether just this range was committed.
    pub(super) fn decommit(&mut self, at: u64, bytes: u64) -> bool {
        let is_one = self.memory.get(&at).is_some_and(|contents| contents.len() as u64 == bytes);
        if is_one {
            self.memory.remove(&at);
        }
        is_one
    }

    pub(super) fn physical_bytes(&self) -> u64 {
        self.memory.values().map(|contents| contents.len() as u64).sum()
    }

    /// Passes the pieces of a range to `on`, in order; `None` where a byte of it has no memory.
    fn pieces(&mut self, at: u64, bytes: u64, mut on: impl FnMut(&mut [u8])) -> Option<()> {
        let (mut at, mut left) = (at, usize::try_from(bytes).ok()?);
        while left > 0 {
            let (base, contents) = self.memory.range_mut(..=at).next_back()?;
            let piece = contents.get_mut(usize::try_from(at - base).ok()?..)?;
            if piece.is_empty() {
                return None;
            }
            let here = piece.len().min(left);
            on(&mut piece[..here]);
            (at, left) = (at + here as u64, left - here);
        }
        Some(())
    }

    fn get(&mut self, at: u64, bytes: u64) -> Option<Vec<u8>> {
        let mut contents = Vec::new();
        self.pieces(at, bytes, |piece| contents.extend_from_slice(piece))?;
        Some(contents)
    }

    /// Nothing is written where a byte of the range has no memory.
    fn put(&mut self, at: u64, contents: &[u8]) -> Option<()> {
        self.pieces(at, contents.len() as u64, |_| {})?;
        let mut rest = contents;
        self.pieces(at, contents.len() as u64, |piece| {
            let (here, after) = rest.split_at(piece.len());
            piece.copy_from_slice(here);
            rest = after;
        })
    }

    // --- work ---------------------------------------------------------------------------------

    /// Queues work on a stream, or records it there.
    pub(super) fn push(&mut self, stream: StreamId, work: Work) {
        match &mut self.recording {
            Some(recording) if recording.streams.contains(&stream) => {
                recording.steps.push((stream, work));
            }
            _ => self.queues.entry(stream).or_default().push_back(work),
        }
    }

    pub(super) fn record(&mut self, stream: StreamId) -> Ticket {
        let captured = self.recording.as_ref().is_some_and(|r| r.streams.contains(&stream));
        let ticket = self.new_ticket(captured);
        self.push(stream, Work::Record(ticket));
        ticket
    }

    fn new_ticket(&mut self, captured: bool) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket { number: self.tickets, captured };
        if !captured {
            self.unreached.insert(ticket);
        }
        ticket
    }

    /// Makes a stream wait. One that waits for captured work is captured from then on.
    pub(super) fn wait(&mut self, stream: StreamId, ticket: Ticket) -> Result<(), &'static str> {
        match &mut self.recording {
            Some(recording) if ticket.captured => {
                let known = |step: &(_, Work)| matches!(step.1, Work::Record(t) if t == ticket);
                if !recording.steps.iter().any(known) {
                    return Err("the event was recorded in an earlier capture");
                }
                recording.streams.insert(stream);
            }
            Some(recording) if recording.streams.contains(&stream) => {
                return Err("the event was recorded outside the capture");
            }
            None if ticket.captured => return Err("the event was recorded in an earlier capture"),
            _ => {}
        }
        self.push(stream, Work::Wait(ticket));
        Ok(())
    }

    /// Runs work until a stream has none left. Which stream goes on is drawn anew for each piece, from
    /// those that need not wait.
    pub(super) fn run(&mut self, stream: StreamId) {
        while self.queues.contains_key(&stream) {
            let ready: Vec<StreamId> = self
                .queues
                .iter()
                .filter(|queue| self.can_run(queue.1))
                .map(|(id, _)| *id)
                .collect();
            // A wait is for a record that was queued before it, so some stream can always go on.
            let Some(drawn) = self.random.below(ready.len() as u64) else { return };
            self.run_one(ready[drawn as usize]);
        }
    }

    /// Runs all work there is.
    pub(super) fn run_all(&mut self) {
        while let Some(stream) = self.queues.keys().next().copied() {
            self.run(stream);
        }
    }

    fn can_run(&self, queue: &VecDeque<Work>) -> bool {
        match queue.front() {
            Some(Work::Wait(ticket)) => !self.unreached.contains(ticket),
            work => work.is_some(),
        }
    }

    fn run_one(&mut self, stream: StreamId) {
        let Some(queue) = self.queues.get_mut(&stream) else { return };
        let work = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&stream);
        }
        if let Some(work) = work
            && self.do_work(&work).is_none()
        {
            self.fault.get_or_insert_with(|| format!("{work:?}: there is no such memory"));
        }
    }

    /// `None` where a range lies in no memory: nothing is done then.
    fn do_work(&mut self, work: &Work) -> Option<()> {
        match work {
            Work::Fill { at, bytes, pattern } => {
                let mut contents = self.get(*at, *bytes)?;
                pattern.repeat(&mut contents);
                self.put(*at, &contents)?;
            }
            Work::Write { at, contents } => self.put(*at, contents)?,
            Work::Copy { to, from, bytes } => {
                let contents = self.get(*from, *bytes)?;
                self.put(*to, &contents)?;
            }
            Work::Read { from, bytes, into } => {
                let contents = self.get(*from, *bytes)?;
                *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(contents);
            }
            Work::Record(ticket) => {
                self.unreached.remove(ticket);
            }
            Work::Wait(_) => {}
        }
        Some(())
    }

    // --- captures -----------------------------------------------------------------------------

    pub(super) fn is_recording(&self) -> bool {
        self.recording.is_some()
    }

    pub(super) fn begin(&mut self, origin: StreamId) {
        let streams = BTreeSet::from([origin]);
        self.recording = Some(Recording { origin, streams, steps: Vec::new() });
    }

    pub(super) fn end(&mut self) -> Option<Recording> {
        self.recording.take()
    }

    /// Queues recorded work, with events and further streams of its own.
    pub(super) fn launch(&mut self, recording: &Recording) {
        let mut streams = BTreeMap::from([(recording.origin, recording.origin)]);
        let mut tickets = BTreeMap::new();
        for (stream, work) in &recording.steps {
            let stream = *streams.entry(*stream).or_insert_with(|| self.new_stream());
            let work = match work {
                Work::Record(ticket) => {
                    let own = self.new_ticket(false);
                    tickets.insert(*ticket, own);
                    Work::Record(own)
                }
                Work::Wait(ticket) => Work::Wait(tickets.get(ticket).copied().unwrap_or(*ticket)),
                other => other.clone(),
            };
            self.push(stream, work);
        }
    }
}

impl Recording {
    /// Whether what each further stream did is waited for by the origin.
    pub(super) fn is_joined(&self) -> bool {
        self.streams.iter().filter(|stream| **stream != self.origin).all(|stream| {
            let last = self.steps.iter().rfind(|step| step.0 == *stream);
            let Some((_, Work::Record(last))) = last else { return false };
            let waits = |step: &(StreamId, Work)| {
                step.0 == self.origin && matches!(step.1, Work::Wait(ticket) if ticket == *last)
            };
            self.steps.iter().any(waits)
        })
    }
}
