//! Steps that follow a plan by counting, and what happens where they do not.
//!
//! A request takes the next slot if it fits and every former occupant of the slot's bytes has been
//! freed *in this step*. Each slot counts down how many of them it waits for; the moment it is given out
//! no former occupant of this step is left to wait for, so it is set to wait for those of the next step. So a
//! step that was as planned clears nothing at its end.
//!
//! Why no two live buffers overlap, whatever the program does: let slot S be given out, and look at
//! one of its bytes. Its last occupant K before S in the plan was given out and freed in this step,
//! else S would still wait; and K was given out only after the occupant before it was freed,
//! and so on. So every earlier occupant of that byte is dead. No later occupant is alive either, for
//! it would have needed S to be freed. Two rules make the counts mean this:
//!
//! - A slot that was refused or passed over counts for no other slot for the rest of the step: the occupant
//!   *before* it may still live.
//! - Closing a scope frees what was given out in it and not freed; closing the root makes every count
//!   what a whole step would have made it.

use std::cell::{Cell, RefCell};
use std::panic::Location;

use super::deviations::Deviations;
use super::sites::{DeviationKind, DeviationSite, Sites};
use super::slots::{Slot, SlotState, Slots};
use crate::bytes::Alignment;

/// How many slots ahead a request that does not fit the next one is looked for.
const LOOK_AHEAD: usize = 64;

/// A plan, and the counts of the step that follows it.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// The plan's slots, and what became of them in this step; none while the plan is folded.
    slots: Slots,
    /// The next slot in the order of requests.
    next: Cell<usize>,
    /// The last request had no slot, so the next slot may be the one of the request after it.
    astray: Cell<bool>,
    innermost: InnermostScope,
    /// The scopes around it, and below them one that stands for none.
    outer: RefCell<Vec<OpenScope>>,
    deviations: Cell<Deviations>,
    sites: RefCell<Sites>,
    /// Those when the step began.
    before: Cell<Deviations>,
    /// Steps are of a key that shares the plan: they ask for less by design.
    smaller_by_design: Cell<bool>,
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

/// The same of the innermost scope, which every drop changes.
#[derive(Debug, Default)]
struct InnermostScope {
    first: Cell<usize>,
    not_own: Cell<usize>,
    freed: Cell<usize>,
}

impl InnermostScope {
    fn get(&self) -> OpenScope {
        OpenScope { first: self.first.get(), not_own: self.not_own.get(), freed: self.freed.get() }
    }

    fn set(&self, OpenScope { first, not_own, freed }: OpenScope) {
        self.first.set(first);
        self.not_own.set(not_own);
        self.freed.set(freed);
    }
}

impl Counters {
    /// Counts steps by these slots from now on.
    pub(super) fn unfold(&mut self, slots: Slots) {
        self.slots = slots;
        self.outer.get_mut().reserve(8);
        self.sites.get_mut().reserve();
    }

    /// Forgets what only steps need.
    pub(super) fn fold(&mut self) {
        self.slots = Slots::default();
        *self.outer.get_mut() = Vec::new();
        self.sites.get_mut().shrink();
    }

    /// The host memory that they take.
    pub(super) fn host_bytes(&self) -> u64 {
        let outer = self.outer.borrow().capacity() * size_of::<OpenScope>();
        self.slots.host_bytes() + self.sites.borrow().host_bytes() + outer as u64
    }

    pub(super) fn slots_mut(&mut self) -> &mut Slots {
        &mut self.slots
    }

    /// Lets every slot wait for all its former occupants.
    pub(super) fn rearm(&self) {
        self.slots.rearm();
    }

    /// Whether the next steps ask for less by design.
    pub(super) fn expect_smaller(&self, by_design: bool) {
        self.smaller_by_design.set(by_design);
    }

    pub(super) fn deviations(&self) -> Deviations {
        self.deviations.get()
    }

    /// Where requests were not as planned.
    pub(super) fn sites(&self) -> Vec<DeviationSite> {
        self.sites.borrow().all().to_vec()
    }

    /// The last such request.
    pub(super) fn last_site(&self) -> Option<DeviationSite> {
        self.sites.borrow().last()
    }

    fn note_at(&self, kind: DeviationKind, count: u64, call_site: &'static Location<'static>) {
        if kind == DeviationKind::Smaller && self.smaller_by_design.get() {
            self.note(|deviations| deviations.smaller_by_design += count);
        } else if count > 0 {
            self.note(|deviations| *deviations.of(kind) += count);
            self.sites.borrow_mut().note(kind, call_site);
        }
    }

    fn note(&self, deviation: impl FnOnce(&mut Deviations)) {
        let mut deviations = self.deviations.get();
        deviation(&mut deviations);
        self.deviations.set(deviations);
    }

    /// Opens the root: a step begins.
    pub(super) fn open_root(&self) {
        self.reopen();
        self.before.set(self.deviations.get());
    }

    /// Opens a scope inside.
    pub(super) fn open(&self) {
        self.outer.borrow_mut().push(self.innermost.get());
        self.innermost.set(OpenScope { first: self.next.get(), ..OpenScope::default() });
    }

    /// Goes back to where the root had just opened.
    pub(super) fn reopen(&self) {
        let mut outer = self.outer.borrow_mut();
        outer.clear();
        outer.push(OpenScope::default());
        self.innermost.set(OpenScope::default());
        self.next.set(0);
        self.astray.set(false);
    }

    /// Whether the step is as planned so far, to the byte.
    pub(super) fn is_as_planned(&self) -> bool {
        self.deviations.get() == self.before.get()
    }

    /// The innermost scope closes in a step that repeats another, in which nothing was left alive.
    pub(super) fn leave(&self) {
        if let Some(around) = self.outer.borrow_mut().pop() {
            self.innermost.set(around);
        }
    }

    /// Closes the innermost scope: what was given out in it is free. Closing the root ends the step.
    pub(super) fn close(&self) {
        let mut outer = self.outer.borrow_mut();
        let Some(mut around) = outer.pop() else { return };
        let (OpenScope { first, not_own, freed }, next) = (self.innermost.get(), self.next.get());
        let live = next - first - not_own - freed;
        if live > 0 {
            self.note(|deviations| deviations.unfreed += live as u64);
            for slot in first..next {
                if self.slots.states[slot].is_given_out() {
                    self.slots.free(slot);
                }
            }
        }
        around.not_own += next - first;
        self.innermost.set(around);
        if outer.is_empty() {
            self.innermost.set(OpenScope::default());
            self.end_step();
        }
    }

    /// Ends the innermost scope without freeing anything: its guard was forgotten, and buffers of the
    /// scope around it may have been given out since. They are freed with that.
    pub(super) fn merge(&self) {
        let mut outer = self.outer.borrow_mut();
        if outer.len() > 1
            && let Some(mut around) = outer.pop()
        {
            let OpenScope { not_own, freed, .. } = self.innermost.get();
            around.not_own += not_own;
            around.freed += freed;
            self.innermost.set(around);
        }
    }

    /// The end of the highest slot that is given out, from the plan's start.
    pub(super) fn live_end(&self) -> u64 {
        self.live_end_before(self.next.get())
    }

    /// For each open scope inside the root, whose depth is 2 or more: the same of what was given out before it
    /// opened.
    pub(super) fn live_ends_around(&self, mut end: impl FnMut(usize, u64)) {
        let outer = self.outer.borrow();
        // Below the root lies one that stands for none.
        let open = outer.iter().copied().chain([self.innermost.get()]).enumerate().skip(2);
        open.for_each(|(depth, scope)| end(depth, self.live_end_before(scope.first)));
    }

    fn live_end_before(&self, slot: usize) -> u64 {
        let slots = self.slots.all[..slot].iter().zip(&self.slots.states);
        let live = slots.filter(|(_, state)| state.is_given_out());
        live.map(|(slot, _)| slot.offset_bytes + slot.bytes).max().unwrap_or(0)
    }

    /// The step ends.
    pub(super) fn end_step(&self) {
        let missing = (self.slots.len() - self.next.get()) as u64;
        self.note(|deviations| deviations.missing += missing);
        if self.deviations.get().total() == self.before.get().total() {
            return; // Each slot was given out and freed: each waits for those of the next step.
        }
        self.note(|deviations| deviations.steps += 1);
        self.slots.rearm();
    }

    /// The handle and the offset of the next slot if that is just what is asked for, is free, and ends no higher
    /// than `highest_end`, from the plan's start.
    pub(super) fn alloc(
        &self,
        bytes: u64,
        alignment: Alignment,
        highest_end: u64,
    ) -> Option<(u32, u64)> {
        let number = self.next.get();
        let (slot, state) = (self.slots.all.get(number)?, self.slots.states.get(number)?);
        if slot.bytes == bytes
            && self.slots.aligns(slot.offset_bytes, alignment)
            && state.is_free()
            && slot.offset_bytes + bytes <= highest_end
        {
            state.give_out(slot.needed);
            return Some((self.advance(), slot.offset_bytes));
        }
        None
    }

    /// Gives the next slot out, of which a step before has shown that it is free here.
    pub(super) fn give_out_next(&self) {
        let number = self.next.get();
        if let (Some(slot), Some(state)) =
            (self.slots.all.get(number), self.slots.states.get(number))
        {
            debug_assert!(state.is_free(), "the step before had it");
            state.give_out(slot.needed);
        }
        self.advance();
    }

    /// Slots that were given out or passed over.
    #[inline(always)]
    pub(super) fn requests(&self) -> usize {
        self.next.get()
    }

    /// The next slot in the order of requests.
    #[inline(always)]
    pub(super) fn next_slot(&self) -> Option<&Slot> {
        self.slots.all.get(self.next.get())
    }

    /// The handle of the next slot, which is given out.
    #[inline(always)]
    pub(super) fn advance(&self) -> u32 {
        let handle = self.next.get() + 1; // Handles count slots from 1.
        self.next.set(handle);
        // The table has fewer than 2³² slots.
        #[expect(clippy::cast_possible_truncation, reason = "see above")]
        let handle = handle as u32;
        handle
    }

    /// A request that is not the next slot's to the byte, or whose slot is not free.
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_off_plan(
        &self,
        bytes: u64,
        alignment: Alignment,
        call_site: &'static Location<'static>,
    ) -> Option<(u32, u64)> {
        let next = self.next.get();
        if next == self.slots.len() {
            self.note_at(DeviationKind::Extra, 1, call_site);
            return None;
        }
        let slot = self.slots.all.get(next)?;
        let fits = bytes <= slot.bytes && self.slots.aligns(slot.offset_bytes, alignment);
        let exact = fits && bytes == slot.bytes;
        // A request that fits the next slot takes it, unless the step has gone astray: then a slot
        // of just its size a little further on is more likely its own.
        if !fits || (self.astray.get() && !exact) {
            let mut ahead = self.slots.all[next..].iter().take(LOOK_AHEAD);
            let same = |slot: &Slot| {
                slot.bytes == bytes && self.slots.aligns(slot.offset_bytes, alignment)
            };
            if let Some(distance) = ahead.position(same) {
                self.note_at(DeviationKind::Missing, distance as u64, call_site);
                self.pass_over(distance);
                return self.take_next(bytes, call_site);
            }
            if !fits {
                self.astray.set(true);
                self.note_at(DeviationKind::Larger, 1, call_site);
                return None;
            }
        }
        self.take_next(bytes, call_site)
    }

    /// Notes why a request is not the next slot's.
    #[cold]
    pub(super) fn note_why(
        &self,
        bytes: u64,
        alignment: Alignment,
        call_site: &'static Location<'static>,
    ) {
        let kind = match self.next_slot() {
            None => DeviationKind::Extra,
            Some(slot) if bytes < slot.bytes => DeviationKind::Smaller,
            Some(slot) if bytes > slot.bytes => DeviationKind::Larger,
            Some(slot) if !self.slots.aligns(slot.offset_bytes, alignment) => DeviationKind::Larger,
            Some(_) => DeviationKind::Late,
        };
        self.note_at(kind, 1, call_site);
    }

    /// Gives the next slot out if it is free, and passes over it if it is not.
    fn take_next(&self, bytes: u64, call_site: &'static Location<'static>) -> Option<(u32, u64)> {
        let number = self.next.get();
        let (slot, state) = (self.slots.all.get(number)?, self.slots.states.get(number)?);
        if !state.is_free() {
            self.note_at(DeviationKind::Late, 1, call_site);
            self.pass_over(1);
            return None;
        }
        let smaller = bytes < slot.bytes;
        self.note_at(DeviationKind::Smaller, u64::from(smaller), call_site);
        self.astray.set(self.astray.get() && smaller);
        state.give_out(slot.needed);
        Some((self.advance(), slot.offset_bytes))
    }

    /// The slot that was given out last was not used after all: it is the next one again. Whether it
    /// was the last.
    pub(super) fn take_back(&self, slot: u32) -> bool {
        let is_last = self.next.get() == slot as usize;
        if is_last {
            let number = self.next.get() - 1;
            self.slots.states[number].rearm(0);
            self.next.set(number);
        }
        is_last
    }

    /// The same in a step that repeats another, whose counts know nothing of the slot yet.
    pub(super) fn step_back(&self, slot: u32) -> bool {
        let is_last = self.next.get() == slot as usize;
        if is_last {
            self.next.set(self.next.get() - 1);
        }
        is_last
    }

    fn pass_over(&self, slots: usize) {
        let next = self.next.get();
        for state in &self.slots.states[next..next + slots] {
            state.pass_over();
        }
        self.next.set(next + slots);
        self.innermost.not_own.set(self.innermost.not_own.get() + slots);
    }

    /// The handle of a slot was dropped.
    pub(super) fn drop_slot(&self, slot: u32) {
        let number = slot as usize - 1;
        self.slots.free(number);
        let InnermostScope { first, freed, .. } = &self.innermost;
        if first.get() <= number {
            freed.set(freed.get() + 1);
        } else {
            self.note_drop_of_outer(number);
        }
    }

    /// A buffer of an outer scope was dropped in an inner one.
    #[cold]
    fn note_drop_of_outer(&self, slot: usize) {
        let own = |scope: &&mut OpenScope| scope.first <= slot;
        if let Some(scope) = self.outer.borrow_mut().iter_mut().rev().find(own) {
            scope.freed += 1;
        }
    }

    /// Where the first slot at or after `from` lies that was given out in the innermost scope, as a
    /// range from the plan's start, and the number after it.
    pub(super) fn own_range(&self, from: usize) -> Option<(usize, (u64, u64))> {
        let own = usize::max(from, self.innermost.first.get())..self.next.get();
        let given_out = |state: &SlotState| !state.is_passed_over();
        let first = own.start + self.slots.states.get(own)?.iter().position(given_out)?;
        let slot = &self.slots.all[first];
        Some((first + 1, (slot.offset_bytes, slot.offset_bytes + slot.bytes)))
    }
}
