//! The arena as intervals and a copy of its bytes: slow, and too simple to be wrong.

use arena_scope::errors::Exhausted;
use arena_scope::{Alignment, Arena, Device, RegionKind, Reset, Stats};

/// A range of bytes from the region's base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) start: u64,
    pub(crate) high: u64,
    reset: Reset,
}

#[derive(Debug)]
pub(crate) struct Model {
    base: u64,
    capacity: u64,
    kind: RegionKind,
    /// What every byte of the region holds, as far as it is known; empty where there is no memory.
    bytes: Vec<Option<u8>>,
    cursor: u64,
    mark: Option<u64>,
    peak: u64,
    frames: Vec<Frame>,
    /// Buffers whose bytes nobody else may get: below the mark, transient, kept, and kept ones that
    /// were dropped and are not collected yet.
    below: Vec<Held>,
    transient: Vec<Held>,
    kept: Vec<Held>,
    dropped: Vec<Held>,
    /// Of those the ones that a close has seen, and what their bytes are set to before they come back.
    returned: Vec<Held>,
    returned_value: Option<u8>,
    /// The next fill is refused.
    pub(crate) fill_fails: bool,
    /// The next fallible call tells of a failure.
    pub(crate) deferred: bool,
    /// What closes and refused requests were to clear and could not, and with what.
    owed: Vec<(Held, u8)>,
    /// A root scope whose guard was forgotten and that is not settled yet.
    forgotten_root: Option<Frame>,
    pub(crate) resets: u64,
    pub(crate) last_high: u64,
    tag: u8,
}

impl Model {
    pub(crate) fn new<D: Device>(arena: &Arena<D>) -> Self {
        let capacity = arena.stats().capacity_bytes;
        let bytes = if D::MEASURES_ONLY { 0 } else { at(capacity) };
        Self {
            base: arena.base_address(),
            capacity,
            kind: arena.region_kind(),
            bytes: vec![Some(0); bytes],
            cursor: 0,
            mark: None,
            peak: 0,
            frames: Vec::new(),
            below: Vec::new(),
            transient: Vec::new(),
            kept: Vec::new(),
            dropped: Vec::new(),
            returned: Vec::new(),
            returned_value: None,
            fill_fails: false,
            deferred: false,
            owed: Vec::new(),
            forgotten_root: None,
            resets: 0,
            last_high: 0,
            tag: 0,
        }
    }

    // --- where --------------------------------------------------------------------------------

    fn floor(&self) -> u64 {
        let held = self.kept.iter().chain(&self.dropped).chain(&self.returned);
        held.map(|held| held.start).min().unwrap_or(self.capacity)
    }

    fn is_free(&self, place: Held) -> bool {
        let all = [&self.below, &self.transient, &self.kept, &self.dropped, &self.returned];
        all.into_iter().flatten().all(|held| place.end <= held.start || held.end <= place.start)
    }

    /// The place of the next buffer above the cursor, looked for byte by byte.
    pub(crate) fn place(&self, bytes: u64, alignment: Alignment) -> Option<Held> {
        let mut start = self.cursor;
        while !alignment.divides(self.base + start) {
            start += 1;
        }
        let place = Held { start, end: start + bytes };
        (bytes == 0 || place.end <= self.floor()).then_some(place)
    }

    /// Whether any place above the cursor can hold a kept buffer.
    pub(crate) fn can_keep(&self, bytes: u64, alignment: Alignment) -> bool {
        (self.cursor..=self.capacity.saturating_sub(bytes))
            .filter(|start| alignment.divides(self.base + start))
            .any(|start| {
                start + bytes <= self.capacity && self.is_free(Held { start, end: start + bytes })
            })
    }

    pub(crate) fn is_marked(&self) -> bool {
        self.mark.is_some()
    }

    pub(crate) fn add_transient(&mut self, place: Held) {
        if place.start < place.end {
            self.raise(place);
            self.transient.push(place);
        }
    }

    pub(crate) fn add_below(&mut self, place: Held) {
        if place.start < place.end {
            self.raise(place);
            self.below.push(place);
        }
    }

    fn raise(&mut self, place: Held) {
        assert!(self.is_free(place), "{place:?} overlaps a live buffer");
        self.cursor = place.end;
        self.peak = self.peak.max(place.end);
        if let Some(frame) = self.frames.last_mut() {
            frame.high = frame.high.max(place.end);
        }
    }

    pub(crate) fn add_kept(&mut self, place: Held, alignment: Alignment) {
        assert!(alignment.divides(self.base + place.start));
        assert!(place.start >= self.cursor && place.end <= self.capacity, "{place:?}");
        assert!(self.is_free(place), "{place:?} overlaps a live buffer");
        self.kept.push(place);
    }

    /// A kept buffer was dropped: its bytes come back with the next close.
    pub(crate) fn drop_kept(&mut self, place: Held) {
        let index = self.kept.iter().position(|held| *held == place).expect("it was kept");
        self.dropped.push(self.kept.swap_remove(index));
    }

    // --- what is there ------------------------------------------------------------------------

    /// A pattern that no other buffer has.
    pub(crate) fn pattern(&mut self, place: Held) -> Vec<u8> {
        self.tag = self.tag % 250 + 1;
        let pattern: Vec<u8> =
            (place.start..place.end).map(|n| self.tag.wrapping_add((n % 3) as u8)).collect();
        self.write(place, &pattern);
        pattern
    }

    fn write(&mut self, place: Held, values: &[u8]) {
        if !self.bytes.is_empty() && place.start < place.end {
            for (byte, &value) in self.bytes[at(place.start)..at(place.end)].iter_mut().zip(values)
            {
                *byte = Some(value);
            }
        }
    }

    pub(crate) fn verify(&self, place: Held, found: &[u8]) {
        if self.bytes.is_empty() {
            assert!(found.iter().all(|byte| *byte == 0), "a device without memory reads as zero");
        } else if place.start < place.end {
            let known = &self.bytes[at(place.start)..at(place.end)];
            let agree =
                known.iter().zip(found).all(|(known, found)| known.unwrap_or(*found) == *found);
            assert!(agree, "contents of {place:?}");
        }
    }

    /// Whether a fill of a range is refused; if it is not, the bytes are filled.
    pub(crate) fn fill_refused(&mut self, place: Held, value: u8) -> bool {
        if place.start >= place.end {
            return false;
        }
        let refused = std::mem::take(&mut self.fill_fails);
        if !refused && !self.bytes.is_empty() {
            self.bytes[at(place.start)..at(place.end)].fill(Some(value));
        }
        refused
    }

    // --- scopes -------------------------------------------------------------------------------

    /// Whether opening a scope tells of a failure instead, and what it settles on the way.
    pub(crate) fn open_fails(&mut self) -> bool {
        if let Some(frame) = self.forgotten_root.take() {
            self.frames.push(frame);
            self.deferred |= self.close();
        }
        self.call_fails()
    }

    /// Whether a call that can fail tells of an earlier failure instead, or cannot clear what is owed.
    pub(crate) fn call_fails(&mut self) -> bool {
        std::mem::take(&mut self.deferred) || self.pay_fails()
    }

    fn pay_fails(&mut self) -> bool {
        while let Some(&(Held { start, end }, value)) = self.owed.last() {
            if self.fill_refused(Held { start, end: end.min(self.floor()) }, value) {
                return true;
            }
            self.owed.pop();
        }
        while let Some(&place) = self.returned.last() {
            if let Some(value) = self.returned_value
                && self.fill_refused(place, value)
            {
                return true;
            }
            self.returned.pop();
        }
        false
    }

    /// A kept buffer was refused whose bytes the device had begun to fill, and cleared then: where it lay is
    /// not known, but that it was free.
    pub(crate) fn refuse_kept(&mut self) {
        for n in 0..self.bytes.len() as u64 {
            if self.is_free(Held { start: n, end: n + 1 }) {
                self.bytes[at(n)] = None;
            }
        }
    }

    /// A request was refused that the device may have begun to fill: what it wrote is owed a clearing.
    pub(crate) fn owe(&mut self, place: Held) {
        let value = self.frames.last().and_then(|frame| byte(frame.reset));
        self.owed.extend(value.map(|value| (place, value)));
    }

    pub(crate) fn open(&mut self, reset: Reset) {
        self.mark.get_or_insert(self.cursor);
        self.frames.push(Frame { start: self.cursor, high: self.cursor, reset });
    }

    /// Closes the innermost scope; whether its clearing was refused.
    pub(crate) fn close(&mut self) -> bool {
        let frame = self.pop();
        self.cursor = frame.start;
        let used = Held { start: frame.start, end: frame.high };
        self.owed.extend(byte(frame.reset).map(|value| (used, value)));
        let earlier = self.returned_value.filter(|_| !self.returned.is_empty());
        self.returned_value = byte(frame.reset).or(earlier);
        self.returned.append(&mut self.dropped);
        let refused = self.pay_fails();
        if self.frames.is_empty() {
            self.resets += 1;
            self.last_high = frame.high;
        }
        refused
    }

    /// The innermost scope's guard was forgotten: the bytes stay, its policy is passed on.
    pub(crate) fn forget(&mut self) {
        let frame = self.pop();
        match self.frames.last_mut() {
            Some(parent) if parent.reset == Reset::Keep => parent.reset = frame.reset,
            Some(_) => {}
            None => self.forgotten_root = Some(frame),
        }
    }

    fn pop(&mut self) -> Frame {
        let frame = self.frames.pop().expect("a scope is open");
        if let Some(parent) = self.frames.last_mut() {
            parent.high = parent.high.max(frame.high);
        }
        self.transient.retain(|held| held.start < frame.start);
        frame
    }

    // --- figures ------------------------------------------------------------------------------

    pub(crate) fn check(&self, stats: Stats) {
        assert_eq!(stats.used_bytes, self.cursor, "used");
        assert_eq!(stats.peak_bytes, self.peak, "peak");
        assert_eq!(stats.mark_bytes, self.mark.unwrap_or(self.cursor), "mark");
        assert_eq!(stats.kept_bytes, self.capacity - self.floor(), "kept");
        assert_eq!(stats.free_bytes, self.floor() - self.cursor, "free");
        assert_eq!(stats.capacity_bytes, self.capacity);
        if self.kind == RegionKind::Fixed {
            assert_eq!((stats.driver_allocations, stats.committed_bytes), (1, self.capacity));
        }
        assert!(stats.committed_bytes >= self.cursor + self.capacity - self.floor(), "{stats:?}");
    }

    pub(crate) fn check_exhausted(&self, facts: &Exhausted, bytes: u64) {
        assert_eq!(facts.asked_bytes, bytes);
        assert_eq!(facts.used_bytes, self.cursor);
        assert_eq!(facts.free_bytes, self.floor() - self.cursor);
        assert_eq!(facts.kept_bytes, self.capacity - self.floor());
        assert!(facts.missing_bytes > 0);
        let depth = facts.scope.as_ref().map_or(0, |scope| scope.depth);
        assert_eq!(depth as usize, self.frames.len());
    }
}

fn byte(reset: Reset) -> Option<u8> {
    match reset {
        Reset::Keep => None,
        Reset::Zero => Some(0),
        Reset::Poison => Some(0xff),
    }
}

fn at(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a small region")
}
