//! The open scopes, as the core sees them: where each began, and what its close does.
//!
//! The innermost frame lies in a cell of its own, so that a step of one scope touches no list.

#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::reset::Reset;

/// An open scope.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Frame {
    /// The cursor when it opened, in bytes from the base.
    pub(super) start_bytes: u64,
    /// The highest cursor since then, as far as closed frames inside it tell.
    pub(super) high_water_bytes: u64,
    /// What errors call it.
    pub(super) label: &'static str,
    pub(super) reset: Reset,
    /// On a profiler's timeline.
    pub(super) range: Option<u64>,
    /// Tells it from every other frame of the arena.
    serial: u64,
}

/// Names a frame of an arena.
///
/// It is refused by every other arena, and once its frame has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameId {
    pub(super) depth: u32,
    /// The arena's number, and below it the frame's.
    pub(super) serial: u64,
}

/// Bits of a frame's number: enough for one frame a nanosecond over a quarter of an hour, and then some.
const FRAME_BITS: u32 = 40;

/// Arenas of this process so far.
static ARENAS: AtomicU64 = AtomicU64::new(0);

impl FrameId {
    /// 1 is a root scope.
    #[must_use]
    #[inline]
    pub const fn depth(self) -> u32 {
        self.depth
    }
}

/// The stack of frames.
#[derive(Debug)]
pub(super) struct Frames {
    depth: Cell<u32>,
    innermost: Cell<Frame>,
    /// Those around the innermost one, from the root on.
    outer: RefCell<Vec<Frame>>,
    opened: Cell<u64>,
}

impl Frames {
    pub(super) fn new() -> Self {
        Self {
            depth: Cell::new(0),
            innermost: Cell::default(),
            outer: RefCell::new(Vec::with_capacity(8)),
            opened: Cell::new(ARENAS.fetch_add(1, Ordering::Relaxed) << FRAME_BITS),
        }
    }

    /// Whether it names a frame of this arena.
    #[inline]
    pub(super) fn has_opened(&self, frame: FrameId) -> bool {
        (frame.serial ^ self.opened.get()) >> FRAME_BITS == 0
    }

    /// How many are open: 1 is a root scope.
    #[inline]
    pub(super) fn depth(&self) -> u32 {
        self.depth.get()
    }

    /// Opens a frame at this cursor.
    pub(super) fn push(&self, start_bytes: u64, label: &'static str, reset: Reset) {
        if self.depth() > 0 {
            self.outer.borrow_mut().push(self.innermost.get());
        }
        let serial = self.opened.get() + 1;
        self.opened.set(serial);
        let high_water_bytes = start_bytes;
        self.innermost.set(Frame {
            start_bytes,
            high_water_bytes,
            label,
            reset,
            range: None,
            serial,
        });
        self.depth.set(self.depth() + 1);
    }

    /// Ends the innermost frame, whose cursor stands at `cursor_bytes`. Its high-water is that of the frame
    /// around it as well.
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

    /// The innermost frame, if one is open.
    pub(super) fn innermost(&self) -> Option<Frame> {
        (self.depth() > 0).then(|| self.innermost.get())
    }

    /// Changes the innermost frame.
    pub(super) fn change(&self, change: impl FnOnce(&mut Frame)) {
        let mut frame = self.innermost.get();
        change(&mut frame);
        self.innermost.set(frame);
    }

    /// The open frame of a depth, counted from 1.
    pub(super) fn at(&self, depth: u32) -> Option<Frame> {
        if depth == self.depth() {
            return self.innermost();
        }
        self.outer.borrow().get((depth as usize).checked_sub(1)?).copied()
    }

    /// The serial number of the open frame of a depth; 0 if there is none.
    pub(super) fn serial(&self, depth: u32) -> u64 {
        self.at(depth).map_or(0, |frame| frame.serial)
    }
}
