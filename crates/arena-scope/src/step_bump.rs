//! Host memory for a step's own data: tape nodes, shapes, lists of views.
//!
//! One `bumpalo::Bump` for each depth, kept from step to step, so that the third step of a kind
//! allocates nothing on the heap. This module opens `unsafe` for one thing: resetting a bump through
//! a shared reference, which scopes are made for.

#![allow(unsafe_code)]

use std::cell::{RefCell, UnsafeCell};
use std::fmt;

use bumpalo::Bump;

/// The bumps by depth.
pub(crate) struct StepBumps {
    presized_bytes: usize,
    #[expect(clippy::vec_box, reason = "a bump must stay where it is when the list grows")]
    by_depth: RefCell<Vec<Box<UnsafeCell<Bump>>>>,
}

impl StepBumps {
    /// No bump yet; each depth gets one of `presized_bytes` when it is first opened.
    pub(crate) fn new(presized_bytes: usize) -> Self {
        Self { presized_bytes, by_depth: RefCell::new(Vec::with_capacity(8)) }
    }

    /// Makes the bump of a depth ready for a new scope: empty, with the room it had.
    ///
    /// # Safety
    ///
    /// Nothing that was allocated from this depth's bump is used again.
    pub(crate) unsafe fn open(&self, depth: usize) {
        let mut by_depth = self.by_depth.borrow_mut();
        while by_depth.len() <= depth {
            // Presizing is a hint: a size that cannot be had must not stop the step.
            let bump = Bump::try_with_capacity(self.presized_bytes).unwrap_or_default();
            by_depth.push(Box::new(UnsafeCell::new(bump)));
        }
        by_depth[depth].get_mut().reset();
    }

    /// The bump of a depth that was opened.
    pub(crate) fn get(&self, depth: usize) -> &Bump {
        let bump: *const Bump = self.by_depth.borrow()[depth].get();
        // SAFETY: the box is never dropped or replaced while `self` lives, and it is borrowed
        // mutably only in `open`, whose caller says that no such reference is used any more.
        unsafe { &*bump }
    }
}

impl fmt::Debug for StepBumps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepBumps")
            .field("depths", &self.by_depth.borrow().len())
            .finish_non_exhaustive()
    }
}
