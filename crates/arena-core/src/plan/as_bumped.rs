//! Where the bump's cursor would be, had it served a step that follows a plan.

use std::cell::{Cell, RefCell};

use crate::bytes::Alignment;
use crate::layout::align_up;

/// No region ends above.
const HIGHEST: u64 = 1 << 62;

/// The address of that cursor, and of the starts of the open scopes inside the root.
#[derive(Debug, Default)]
pub(super) struct AsBumped {
    cursor: Cell<u64>,
    before_last: Cell<u64>,
    starts: RefCell<Vec<u64>>,
}

impl AsBumped {
    /// A step begins at this address.
    pub(super) fn restart(&self, address: u64) {
        self.cursor.set(address);
        self.before_last.set(address);
        self.starts.borrow_mut().clear();
    }

    /// Where a request would end.
    pub(super) fn end_of(&self, bytes: u64, alignment: Alignment) -> u64 {
        align_up(self.cursor.get(), alignment).saturating_add(bytes)
    }

    /// A request was served.
    pub(super) fn take(&self, bytes: u64, alignment: Alignment) {
        self.before_last.set(self.cursor.get());
        // Beyond any region it does not matter where it is, and it must not overflow.
        self.cursor.set(self.end_of(bytes, alignment).min(HIGHEST));
    }

    /// The last request was taken back.
    pub(super) fn take_back(&self) {
        self.cursor.set(self.before_last.get());
    }

    /// A scope inside opens.
    pub(super) fn open(&self) {
        self.starts.borrow_mut().push(self.cursor.get());
    }

    /// It closes: the bump would be back where it began.
    pub(super) fn close(&self) {
        if let Some(start) = self.starts.borrow_mut().pop() {
            self.cursor.set(start);
        }
    }

    /// It ends with the scope around it, which keeps its bytes.
    pub(super) fn merge(&self) {
        self.starts.borrow_mut().pop();
    }
}
