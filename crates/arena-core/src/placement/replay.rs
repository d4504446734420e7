//! Steps that follow a plan, and what happens where they do not.
//!
//! A request takes the next slot if it fits and every former occupant of the slot's bytes has been
//! freed *in this step*. Each slot counts how often its former occupants were freed since the plan
//! was installed; it may be given out when that is `needed x step`, so that a new step clears nothing.
//!
//! Why no two live buffers overlap, whatever the program does: let slot S be given out, and look at
//! one of its bytes. Its last occupant K before S in the plan was given out and freed in this step,
//! else S's count would be short; and K was given out only after the occupant before it was freed,
//! and so on. So every earlier occupant of that byte is dead. No later occupant is alive either, for
//! it would have needed S to be freed. Two rules make the counts mean this:
//!
//! - A slot that was refused or passed over counts for nobody for the rest of the step: the occupant
//!   *before* it may still live.
//! - Closing a scope frees what was given out in it and not freed; closing the root makes every count
//!   what a whole step would have made it.

use std::fmt;
use std::sync::Arc;

use super::slots::SlotTable;
use crate::bytes::Alignment;

/// How many slots ahead a request that does not fit the next one is looked for.
const LOOK_AHEAD: usize = 64;

/// What was not as planned, since the plan was installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Deviations {
    /// Requests smaller than their slot; they got its address all the same.
    pub smaller: u64,
    /// Requests larger than the next slot, with no slot of theirs ahead.
    pub larger: u64,
    /// Requests after the last slot.
    pub extra: u64,
    /// Slots that nobody asked for.
    pub missing: u64,
    /// Requests whose slot's bytes were not free yet.
    pub late: u64,
    /// Buffers that were alive when their scope closed, though the plan has them freed by then, or
    /// that were forgotten.
    pub unfreed: u64,
    /// Steps in which anything but a smaller request was not as planned.
    pub steps: u64,
}

impl Deviations {
    /// All of them, smaller requests left out: those keep their planned address.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.larger + self.extra + self.missing + self.late
    }
}

impl fmt::Display for Deviations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { smaller, larger, extra, missing, late, unfreed, steps } = self;
        write!(
            f,
            "{larger} larger, {extra} extra, {missing} missing, {late} freed late, \
             {unfreed} unfreed, {smaller} smaller, in {steps} steps"
        )
    }
}

/// A plan while steps follow it.
#[derive(Debug)]
pub(crate) struct Replay {
    table: Arc<SlotTable>,
    lives: Box<[Life]>,
    /// The next slot in the order of requests.
    next: usize,
    /// Steps since the plan was installed, this one included.
    step: u64,
    /// The last request had no slot, so the next slot may be the one of the request after it.
    astray: bool,
    scopes: Vec<OpenScope>,
    deviations: Deviations,
    /// `deviations.total()` when the step began.
    total_before: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Life {
    /// How often former occupants were freed since the plan was installed.
    done: u64,
    /// `2 x step` while given out in a step, one more when freed in it.
    stage: u64,
}

#[derive(Debug, Clone, Copy)]
struct OpenScope {
    /// The first slot that is the scope's own or passed over in it.
    first: usize,
    /// Slots given out in it and not freed.
    live: usize,
}

impl Replay {
    pub(crate) fn new(table: Arc<SlotTable>) -> Self {
        Self {
            lives: vec![Life::default(); table.len()].into(),
            table,
            next: 0,
            step: 0,
            astray: false,
            scopes: Vec::with_capacity(8),
            deviations: Deviations::default(),
            total_before: 0,
        }
    }

    pub(crate) fn table(&self) -> &SlotTable {
        &self.table
    }

    pub(crate) fn deviations(&self) -> Deviations {
        self.deviations
    }

    /// Opens a scope; the first is the root, and begins a step.
    pub(crate) fn open(&mut self) {
        if self.scopes.is_empty() {
            self.step += 1;
            self.next = 0;
            self.astray = false;
            self.total_before = self.deviations.total();
        }
        self.scopes.push(OpenScope { first: self.next, live: 0 });
    }

    /// Closes the innermost scope: what was given out in it is free. Closing the root ends the step.
    pub(crate) fn close(&mut self) {
        let Some(scope) = self.scopes.pop() else { return };
        if scope.live > 0 {
            self.deviations.unfreed += scope.live as u64;
            for slot in scope.first..self.next {
                if self.lives[slot].stage == 2 * self.step {
                    self.free(slot);
                }
            }
        }
        if self.scopes.is_empty() {
            self.end_step();
        }
    }

    /// Ends the innermost scope without freeing anything: its guard was forgotten, and buffers of the
    /// scope around it may have been given out since. They are freed with that.
    pub(crate) fn merge(&mut self) {
        if let [.., outer, inner] = self.scopes.as_mut_slice() {
            outer.live += inner.live;
            self.scopes.pop();
        }
    }

    fn end_step(&mut self) {
        self.deviations.missing += (self.table.len() - self.next) as u64;
        if self.deviations.total() == self.total_before {
            return; // Each slot was given out and freed: every count is as it should be.
        }
        self.deviations.steps += 1;
        for (life, slot) in self.lives.iter_mut().zip(&self.table.slots) {
            life.done = u64::from(slot.needed) * self.step;
        }
    }

    /// The slot and the offset for a request, or `None` if the bump must serve it.
    #[inline]
    pub(crate) fn alloc(&mut self, bytes: u64, alignment: Alignment) -> Option<(u32, u64)> {
        let slot = self.table.slots.get(self.next)?;
        let exact = slot.bytes == bytes && alignment <= slot.alignment;
        if exact && self.is_free(self.next) {
            return Some(self.give_out(self.next));
        }
        None
    }

    /// A request that is not the next slot's to the byte, or whose slot is not free.
    #[cold]
    #[inline(never)]
    pub(crate) fn alloc_off_plan(
        &mut self,
        bytes: u64,
        alignment: Alignment,
    ) -> Option<(u32, u64)> {
        let Some(slot) = self.table.slots.get(self.next) else {
            self.deviations.extra += 1;
            return None;
        };
        let fits = bytes <= slot.bytes && alignment <= slot.alignment;
        let exact = fits && bytes == slot.bytes;
        // A request that fits the next slot takes it, unless the step has gone astray: then a slot
        // of just its size a little further on is more likely its own.
        if !fits || (self.astray && !exact) {
            let ahead = self.table.slots[self.next..].iter().take(LOOK_AHEAD);
            let same =
                |slot: &super::slots::Slot| slot.bytes == bytes && alignment <= slot.alignment;
            if let Some(distance) = ahead.clone().position(same) {
                self.deviations.missing += distance as u64;
                self.next += distance;
                return self.take_next(bytes);
            }
            if !fits {
                self.astray = true;
                self.deviations.larger += 1;
                return None;
            }
        }
        self.take_next(bytes)
    }

    /// Gives the next slot out if it is free, and passes over it if it is not.
    fn take_next(&mut self, bytes: u64) -> Option<(u32, u64)> {
        let slot = self.next;
        if !self.is_free(slot) {
            self.deviations.late += 1;
            self.next += 1;
            return None;
        }
        let smaller = bytes < self.table.slots[slot].bytes;
        self.deviations.smaller += u64::from(smaller);
        self.astray &= smaller;
        Some(self.give_out(slot))
    }

    #[inline]
    fn is_free(&self, slot: usize) -> bool {
        self.lives[slot].done == u64::from(self.table.slots[slot].needed) * self.step
    }

    #[inline]
    fn give_out(&mut self, slot: usize) -> (u32, u64) {
        self.lives[slot].stage = 2 * self.step;
        self.next = slot + 1;
        if let Some(scope) = self.scopes.last_mut() {
            scope.live += 1;
        }
        // The table has fewer than 2³² slots.
        #[expect(clippy::cast_possible_truncation, reason = "see above")]
        let index = slot as u32;
        (index, self.table.slots[slot].offset_bytes)
    }

    /// The handle of a slot was dropped.
    #[inline]
    pub(crate) fn drop_slot(&mut self, slot: u32) {
        let slot = slot as usize;
        if self.lives.get(slot).is_none_or(|life| life.stage != 2 * self.step) {
            return;
        }
        // Usually the innermost scope's own; a buffer of an outer scope may be dropped in here.
        let own = |scope: &&mut OpenScope| scope.first <= slot;
        if let Some(scope) = self.scopes.iter_mut().rev().find(own) {
            scope.live -= 1;
        }
        self.free(slot);
    }

    #[inline]
    fn free(&mut self, slot: usize) {
        self.lives[slot].stage += 1;
        let begin = self.table.slots[slot].first_successor as usize;
        let end = match self.table.slots.get(slot + 1) {
            Some(next) => next.first_successor as usize,
            None => self.table.successors.len(),
        };
        for &successor in &self.table.successors[begin..end] {
            self.lives[successor as usize].done += 1;
        }
    }

    /// The ranges, from the plan's start, of the slots given out in the innermost scope: what its
    /// closing may clear.
    pub(crate) fn own_ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let first = self.scopes.last().map_or(self.next, |scope| scope.first);
        let given_out = |slot: &usize| self.lives[*slot].stage >= 2 * self.step;
        (first..self.next).filter(given_out).map(|slot| {
            let slot = &self.table.slots[slot];
            (slot.offset_bytes, slot.offset_bytes + slot.bytes)
        })
    }
}
