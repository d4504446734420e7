//! The open scopes, as the core sees them: where each began, and what its close does.
//!
//! The innermost frame lies in cells of its own, so that a step of one scope touches no list.

#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::reset::Reset;

/// An open scope.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    /// The cursor when it opened, in bytes from the base.
    pub(super) start_bytes: u64,
    /// The highest cursor of the frames that closed inside it.
    pub(super) high_water_bytes: u64,
    /// What errors call it.
    pub(super) label: &'static str,
    pub(super) reset: Reset,
    /// On a profiler's timeline.
    pub(super) range: Option<u64>,
    id: FrameId,
}

/// Names a frame of an arena.
///
/// It is refused by every other arena, and once its frame has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameId(NonZeroU64);

/// Bits of a frame's number, above which lies its arena's: enough for one frame a nanosecond over a quarter
/// of an hour.
const FRAME_BITS: u32 = 40;

/// Arenas of this process so far.
static ARENAS: AtomicU64 = AtomicU64::new(0);

/// The same as [`Frame`], of the innermost one. Each field is a cell of its own: a frame that is copied as a
/// whole right after it was written waits for the writes.
#[derive(Debug)]
struct Innermost {
    start_bytes: Cell<u64>,
    high_water_bytes: Cell<u64>,
    label: Cell<&'static str>,
    reset: Cell<Reset>,
    range: Cell<Option<u64>>,
    id: Cell<FrameId>,
}

/// The stack of frames.
#[derive(Debug)]
pub(super) struct Frames {
    depth: Cell<u32>,
    innermost: Innermost,
    /// Those around the innermost one, from the root on.
    outer: RefCell<Vec<Frame>>,
    /// The frame that was opened last, or what comes before the first one of this arena.
    newest: Cell<FrameId>,
    first: u64,
}

impl Frame {
    pub(super) const fn id(&self) -> FrameId {
        self.id
    }
}

impl Innermost {
    #[inline]
    fn set(&self, frame: Frame) {
        let Frame { start_bytes, high_water_bytes, label, reset, range, id } = frame;
        self.start_bytes.set(start_bytes);
        self.high_water_bytes.set(high_water_bytes);
        self.label.set(label);
        self.reset.set(reset);
        self.range.set(range);
        self.id.set(id);
    }

    #[inline]
    fn get(&self) -> Frame {
        Frame {
            start_bytes: self.start_bytes.get(),
            high_water_bytes: self.high_water_bytes.get(),
            label: self.label.get(),
            reset: self.reset.get(),
            range: self.range.get(),
            id: self.id.get(),
        }
    }
}

impl FrameId {
    /// Its arena's number, counted from 0 in this process.
    pub(crate) const fn arena(self) -> u64 {
        self.0.get() >> FRAME_BITS
    }

    /// Its own number, counted from 1 in its arena; 0 is none.
    pub(crate) const fn number(self) -> u64 {
        (self.0.get() & ((1 << FRAME_BITS) - 1)) - 1
    }

    #[inline]
    const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl Frames {
    pub(super) fn new() -> Self {
        let first = ARENAS.fetch_add(1, Ordering::Relaxed) << FRAME_BITS | 1;
        let id = FrameId(NonZeroU64::MIN.saturating_add(first - 1));
        Self {
            depth: Cell::new(0),
            innermost: Innermost {
                start_bytes: Cell::new(0),
                high_water_bytes: Cell::new(0),
                label: Cell::new(""),
                reset: Cell::new(Reset::Keep),
                range: Cell::new(None),
                id: Cell::new(id),
            },
            outer: RefCell::new(Vec::with_capacity(8)),
            newest: Cell::new(id),
            first,
        }
    }

    /// How many are open: 1 is a root scope.
    #[inline]
    pub(super) fn depth(&self) -> u32 {
        self.depth.get()
    }

    /// Frames that have ended.
    pub(super) fn ended(&self) -> u64 {
        self.newest.get().0.get() - self.first - u64::from(self.depth())
    }

    /// Whether it names a frame of this arena.
    pub(super) fn is_of_this_arena(&self, frame: FrameId) -> bool {
        (frame.0.get() ^ self.first) >> FRAME_BITS == 0
    }

    /// Opens a frame at this cursor.
    #[inline]
    pub(super) fn push(&self, start_bytes: u64, label: &'static str, reset: Reset) -> FrameId {
        let depth = self.depth();
        if depth > 0 {
            self.outer.borrow_mut().push(self.innermost.get());
        }
        let id = self.newest.get().next();
        self.newest.set(id);
        let high_water_bytes = start_bytes;
        self.innermost.set(Frame { start_bytes, high_water_bytes, label, reset, range: None, id });
        self.depth.set(depth + 1);
        id
    }

    /// Ends the innermost frame, whose cursor stands at `cursor_bytes`. Its high-water is that of the frame
    /// around it as well.
    #[inline]
    pub(super) fn pop(&self, cursor_bytes: u64) -> Option<Frame> {
        let depth = self.depth().checked_sub(1)?;
        let mut ended = self.innermost.get();
        ended.high_water_bytes = ended.high_water_bytes.max(cursor_bytes);
        if depth > 0
            && let Some(mut around) = self.outer.borrow_mut().pop()
        {
            around.high_water_bytes = around.high_water_bytes.max(ended.high_water_bytes);
            self.innermost.set(around);
        }
        self.depth.set(depth);
        Some(ended)
    }

    /// Whether this is the innermost frame.
    #[inline]
    pub(super) fn is_innermost(&self, frame: FrameId) -> bool {
        self.depth() > 0 && self.innermost.id.get() == frame
    }

    /// The innermost frame's number, if one is open.
    pub(super) fn innermost_id(&self) -> Option<FrameId> {
        (self.depth() > 0).then(|| self.innermost.id.get())
    }

    /// The open frame of a depth begins at this cursor, if it began higher.
    pub(super) fn lower_start(&self, depth: usize, start_bytes: u64) {
        if depth == self.depth() as usize {
            let start = &self.innermost.start_bytes;
            start.set(start.get().min(start_bytes));
        } else if let Some(frame) = self.outer.borrow_mut().get_mut(depth - 1) {
            frame.start_bytes = frame.start_bytes.min(start_bytes);
        }
    }

    /// The cursor of the innermost frame has been here.
    pub(super) fn raise_high_water(&self, bytes: u64) {
        let high_water = &self.innermost.high_water_bytes;
        high_water.set(high_water.get().max(bytes));
    }

    /// Puts the innermost frame on a profiler's timeline.
    pub(super) fn set_range(&self, range: u64) {
        self.innermost.range.set(Some(range));
    }

    /// What the innermost frame is to clear like, if it has no policy of its own.
    pub(super) fn pass_on(&self, reset: Reset) {
        self.innermost.reset.set(self.innermost.reset.get().or(reset));
    }

    /// The depth of an open frame.
    pub(super) fn depth_of(&self, frame: FrameId) -> Option<u32> {
        (1..=self.depth()).rev().find(|&depth| self.id(depth) == Some(frame))
    }

    /// The number and the label of the open frame of a depth; before the first one of this arena if there is
    /// none.
    pub(super) fn named(&self, depth: u32) -> (FrameId, &'static str) {
        let none = FrameId(NonZeroU64::MIN.saturating_add(self.first - 1));
        self.at(depth).map_or((none, ""), |frame| (frame.id, frame.label))
    }

    /// The number of the open frame of a depth.
    pub(super) fn id(&self, depth: u32) -> Option<FrameId> {
        self.at(depth).map(|frame| frame.id)
    }

    /// The open frame of a depth, counted from 1.
    pub(super) fn at(&self, depth: u32) -> Option<Frame> {
        let outer = (depth as usize).checked_sub(1)?;
        if depth == self.depth() {
            return Some(self.innermost.get());
        }
        self.outer.borrow().get(outer).copied()
    }
}
