//! Host memory for a step's own data: tape nodes, shapes, lists of views.
//!
//! One `bumpalo::Bump` for each depth, kept from step to step, so that the third step of a kind
//! allocates nothing on the heap. This module opens `unsafe` for one thing: resetting a bump through
//! a shared reference, which scopes are made for.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell, UnsafeCell};
use std::fmt;

use arena_core::for_scopes::FrameId;
use bumpalo::Bump;

/// The bumps by depth.
pub(crate) struct StepBumps {
    presized_bytes: usize,
    #[expect(clippy::vec_box, reason = "references to a bump outlive the list's growth")]
    by_depth: RefCell<Vec<Box<StepBump>>>,
}

/// The bump of a depth. It stays where it is when the list grows.
struct StepBump {
    bump: UnsafeCell<Bump>,
    /// The frame that it was reset for last.
    frame: Cell<Option<FrameId>>,
}

impl StepBumps {
    /// No bump yet; each depth gets one of `presized_bytes` when it is first asked for.
    pub(crate) fn new(presized_bytes: usize) -> Self {
        Self { presized_bytes, by_depth: RefCell::new(Vec::with_capacity(8)) }
    }

    /// The bump of a depth, for its open frame: empty if that asks for the first time, with the room it had.
    ///
    /// # Safety
    ///
    /// Nothing that another frame of this depth got is used again.
    pub(crate) unsafe fn get(&self, depth: usize, frame: Option<FrameId>) -> &Bump {
        let mut by_depth = self.by_depth.borrow_mut();
        while by_depth.len() <= depth {
            // Presizing is a hint: a size that cannot be had must not stop the step.
            let bump = Bump::try_with_capacity(self.presized_bytes).unwrap_or_default();
            by_depth.push(Box::new(StepBump { bump: bump.into(), frame: Cell::new(None) }));
        }
        let StepBump { bump, frame: of } = &*by_depth[depth];
        let bump = bump.get();
        if of.replace(frame) != frame {
            // SAFETY: references to it were given to other frames of this depth alone, and the caller says
            // that they are not used again.
            unsafe { (*bump).reset() };
        }
        // SAFETY: the box is never dropped or replaced while `self` lives, and it is borrowed mutably only
        // above, for another frame.
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
