//! What a close owes: device work for memory that it has given back already.
//!
//! A close first does what cannot fail, and writes down here what the device has to do. Each entry is
//! struck out only when the device has done it. Whatever fails or unwinds in between, the entry stays,
//! and as long as there is one, no request is served and no scope opens: the next fallible call pays
//! first. So no buffer has a byte of what is still to be waited for or cleared.

#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};

use crate::layout::Span;

/// Open entries, each of which is paid in the order of the fields.
#[derive(Debug, Default)]
pub(super) struct Debts {
    any: Cell<bool>,
    /// Which close they are of, for errors.
    of: Cell<(&'static str, u32)>,
    /// Every declared stream is to be waited for, and those of this depth or deeper forgotten.
    pub(super) wait: Cell<Option<u32>>,
    /// Free ranges of the region, and what each of their bytes is to be set to.
    clear: RefCell<Vec<(Span, u8)>>,
    /// Allocations of their own, of buffers from this offset on.
    pub(super) release: Cell<Option<u64>>,
    /// Spans of dropped kept buffers: every stream that used them was waited for, or will be before they
    /// are given back.
    returned: RefCell<Vec<Span>>,
    holds_returned: Cell<bool>,
    /// What their bytes are set to before.
    pub(super) value_of_returned: Cell<Option<u8>>,
    /// What the region holds above this offset, and above its soft limit, is to go back.
    pub(super) trim: Cell<Option<u64>>,
    /// Ranges on a profiler's timeline.
    pub(super) ranges: RefCell<Vec<u64>>,
}

impl Debts {
    pub(super) fn new() -> Self {
        Self { returned: RefCell::new(Vec::with_capacity(16)), ..Self::default() }
    }

    /// Whether anything is owed.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.get()
    }

    /// The scope and the depth of the last close that owed something.
    pub(super) fn of(&self) -> (&'static str, u32) {
        self.of.get()
    }

    /// A close begins to owe.
    pub(super) fn begin(&self, label: &'static str, depth: u32) {
        self.of.set((label, depth));
        self.any.set(true);
    }

    /// The next range to end. It is not tried again: a profiler that fails must not stop the arena.
    pub(super) fn next_range(&self) -> Option<u64> {
        self.ranges.borrow_mut().pop()
    }

    /// Everything was paid, but for spans that a pin holds back.
    pub(super) fn end(&self) {
        self.any.set(false);
    }

    /// Owes a clearing.
    pub(super) fn clear(&self, span: Span, value: u8) {
        if !span.is_empty() {
            self.clear.borrow_mut().push((span, value));
            self.any.set(true);
        }
    }

    /// Whether bytes of dropped kept buffers wait: because of a pin, or of a failed clearing.
    #[inline]
    pub(super) fn holds_returned(&self) -> bool {
        self.holds_returned.get()
    }

    /// A kept buffer was dropped.
    pub(super) fn hold_returned(&self, span: Span) {
        self.returned.borrow_mut().push(span);
        self.holds_returned.set(true);
    }

    /// The next of them to give back.
    pub(super) fn next_returned(&self) -> Option<Span> {
        self.returned.borrow().last().copied()
    }

    /// That one was given back.
    pub(super) fn gave_back(&self) {
        let mut returned = self.returned.borrow_mut();
        returned.pop();
        self.holds_returned.set(!returned.is_empty());
    }

    /// The next clearing that is owed.
    pub(super) fn next_clearing(&self) -> Option<(Span, u8)> {
        self.clear.borrow().last().copied()
    }

    /// That one was done.
    pub(super) fn cleared(&self) {
        self.clear.borrow_mut().pop();
    }
}
