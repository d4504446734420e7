//! Steps that follow a plan, and what happens where they do not.
//!
//! A request takes the next slot if it fits and every former occupant of the slot's bytes has been
//! freed *in this step*. Each slot counts how often its former occupants were freed since the plan
//! was installed; it may be given out when that is `needed x step`, so that a new step clears nothing.
//! Both are kept modulo 2³²: a count is never more than `needed`, below 2²⁰, short of its step.
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

use super::slots::{Slot, SlotTable};
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
#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// The plan, and in its slots what became of them: `done` counts how often former occupants were
    /// freed, `stage` is `2 x step` while a slot is given out and one more when it is freed.
    ///
    /// A slot's stage is of this step or of the one before: a step either gives every slot out, or is
    /// off its plan and settles them all. So it may wrap around like the counts.
    table: SlotTable,
    /// The next slot in the order of requests.
    next: usize,
    /// Steps since the plan was installed, this one included.
    step: u32,
    /// The last request had no slot, so the next slot may be the one of the request after it.
    astray: bool,
    innermost: OpenScope,
    /// The scopes around it, and below them one that stands for none.
    outer: Vec<OpenScope>,
    deviations: Deviations,
    /// `deviations.total()` when the step began.
    total_before: u64,
}

/// What tells how many of a scope's slots are alive when it closes, at the cost of one addition for
/// each drop and none for each request.
#[derive(Debug, Clone, Copy, Default)]
struct OpenScope {
    /// The first slot that is the scope's own or passed over in it.
    first: usize,
    /// Slots from there on that are not its own: passed over, or of inner scopes that closed.
    not_own: usize,
    /// Its own that were freed.
    freed: usize,
}

impl Replay {
    pub(crate) fn new(table: SlotTable) -> Self {
        Self {
            table,
            next: 0,
            step: 0,
            astray: false,
            innermost: OpenScope::default(),
            outer: Vec::with_capacity(8),
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
        if self.outer.is_empty() {
            self.step = self.step.wrapping_add(1);
            self.next = 0;
            self.astray = false;
            self.total_before = self.deviations.total();
        }
        self.outer.push(self.innermost);
        self.innermost = OpenScope { first: self.next, ..OpenScope::default() };
    }

    /// Closes the innermost scope: what was given out in it is free. Closing the root ends the step.
    pub(crate) fn close(&mut self) {
        let Some(around) = self.outer.pop() else { return };
        let OpenScope { first, not_own, freed } = self.innermost;
        let live = self.next - first - not_own - freed;
        if live > 0 {
            self.deviations.unfreed += live as u64;
            for slot in first..self.next {
                self.table.free(slot, self.given_out());
            }
        }
        self.innermost = around;
        self.innermost.not_own += self.next - first;
        if self.outer.is_empty() {
            self.innermost = OpenScope::default();
            self.end_step();
        }
    }

    /// Ends the innermost scope without freeing anything: its guard was forgotten, and buffers of the
    /// scope around it may have been given out since. They are freed with that.
    pub(crate) fn merge(&mut self) {
        if self.outer.len() > 1
            && let Some(around) = self.outer.pop()
        {
            let OpenScope { not_own, freed, .. } = self.innermost;
            self.innermost = around;
            self.innermost.not_own += not_own;
            self.innermost.freed += freed;
        }
    }

    fn end_step(&mut self) {
        self.deviations.missing += (self.table.len() - self.next) as u64;
        if self.deviations.total() == self.total_before {
            return; // Each slot was given out and freed: every count is as it should be.
        }
        self.deviations.steps += 1;
        let freed = self.given_out().wrapping_add(1);
        for slot in &mut self.table.slots {
            slot.done = slot.needed.wrapping_mul(self.step);
            slot.stage = freed;
        }
    }

    /// The stage of a slot that is given out in this step.
    #[inline]
    fn given_out(&self) -> u32 {
        self.step.wrapping_mul(2)
    }

    /// The slot and the offset for a request, or `None` if the bump must serve it.
    #[inline]
    pub(crate) fn alloc(&mut self, bytes: u64, alignment: Alignment) -> Option<(u32, u64)> {
        let slot = self.table.slots.get(self.next)?;
        let exact = slot.bytes == bytes && self.table.aligns(slot, alignment);
        if exact && self.is_free(slot) {
            return self.give_out_next();
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
        if self.next == self.table.len() {
            self.deviations.extra += 1;
            return None;
        }
        let slot = self.table.slots.get(self.next)?;
        let fits = bytes <= slot.bytes && self.table.aligns(slot, alignment);
        let exact = fits && bytes == slot.bytes;
        // A request that fits the next slot takes it, unless the step has gone astray: then a slot
        // of just its size a little further on is more likely its own.
        if !fits || (self.astray && !exact) {
            let ahead = self.table.slots[self.next..].iter().take(LOOK_AHEAD);
            let same = |slot: &Slot| slot.bytes == bytes && self.table.aligns(slot, alignment);
            if let Some(distance) = ahead.clone().position(same) {
                self.deviations.missing += distance as u64;
                self.pass_over(distance);
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
        let slot = self.table.slots.get(self.next)?;
        if !self.is_free(slot) {
            self.deviations.late += 1;
            self.pass_over(1);
            return None;
        }
        let smaller = bytes < slot.bytes;
        self.deviations.smaller += u64::from(smaller);
        self.astray &= smaller;
        self.give_out_next()
    }

    fn pass_over(&mut self, slots: usize) {
        self.next += slots;
        self.innermost.not_own += slots;
    }

    #[inline]
    fn is_free(&self, slot: &Slot) -> bool {
        slot.done == slot.needed.wrapping_mul(self.step)
    }

    #[inline]
    fn give_out_next(&mut self) -> Option<(u32, u64)> {
        let (number, stage) = (self.next, self.given_out());
        let slot = self.table.slots.get_mut(number)?;
        slot.stage = stage;
        self.next = number + 1;
        // The table has fewer than 2³² slots.
        #[expect(clippy::cast_possible_truncation, reason = "see above")]
        let index = number as u32;
        Some((index, slot.offset_bytes))
    }

    /// The handle of a slot was dropped.
    #[inline]
    pub(crate) fn drop_slot(&mut self, slot: u32) {
        let number = slot as usize;
        if !self.table.free(number, self.given_out()) {
            return;
        }
        if self.innermost.first <= number {
            self.innermost.freed += 1;
        } else {
            self.note_drop_of_outer(number);
        }
    }

    /// A buffer of an outer scope was dropped in an inner one.
    #[cold]
    fn note_drop_of_outer(&mut self, slot: usize) {
        let own = |scope: &&mut OpenScope| scope.first <= slot;
        if let Some(scope) = self.outer.iter_mut().rev().find(own) {
            scope.freed += 1;
        }
    }

    /// Where the first slot at or after `from` lies that was given out in the innermost scope, as a
    /// range from the plan's start, and the number after it.
    pub(crate) fn own_range(&self, from: usize) -> Option<(usize, (u64, u64))> {
        let own = usize::max(from, self.innermost.first)..self.next;
        // Given out in this step, and freed since or not.
        let given_out = |slot: &Slot| slot.stage & !1 == self.given_out();
        let first = own.start + self.table.slots.get(own)?.iter().position(given_out)?;
        let slot = &self.table.slots[first];
        Some((first + 1, (slot.offset_bytes, slot.offset_bytes + slot.bytes)))
    }
}
