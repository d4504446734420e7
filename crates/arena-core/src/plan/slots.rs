//! A plan's slots while steps follow it: whose bytes each one takes over, and what became of it in this step.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::table::{PlannedSlot, SlotTable};
use crate::bytes::Alignment;

/// A plan's slots in the order of requests, each with its *space successors*: the next slots that take over some
/// of its bytes.
#[derive(Debug)]
pub(super) struct Slots {
    /// Where each request lies.
    pub(super) all: Box<[Slot]>,
    /// Whose bytes come free by each.
    successors: Box<[Successors]>,
    /// Lists of further successors, each behind its length; the one at 0 is empty.
    more_successors: Box<[u32]>,
    /// The replay's: what each slot waits for, or that it is given out. Behind them lie [`NOBODIES`]
    /// more, which take the credit of missing successors.
    pub(super) states: Box<[SlotState]>,
    /// The plan's.
    alignment: Alignment,
}

/// What a request reads, slot by slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) offset_bytes: u64,
    pub(super) bytes: u64,
    /// Former occupants of its bytes: each must have been freed before it can be given out.
    pub(super) needed: u32,
    /// The replay's: when its request comes in the step that others are compared with.
    pub(super) moment: Moment,
}

/// When a request comes in a step, which is how many drops and scopes come before it, and its alignment:
/// in one word, which is compared as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moment(u32);

impl Moment {
    /// Bits of the number of events. A step has at most 2²⁰ drops, and a script room for 2¹⁰ scopes.
    const EVENT_BITS: u32 = 26;

    #[inline]
    pub(super) const fn new(events: u32, alignment: Alignment) -> Self {
        Self(events | alignment.log2() << Self::EVENT_BITS)
    }

    pub(super) const fn alignment(self) -> Alignment {
        Alignment::from_log2(self.0 >> Self::EVENT_BITS)
    }
}

/// What a drop reads.
#[derive(Debug, Clone, Copy)]
struct Successors {
    /// The first two, or placeholders where there are fewer. Most slots have at most two, and two that always
    /// exist need no branch that a processor could predict wrongly.
    first: [u32; 2],
    /// Where in `more_successors` the others are counted and listed; 0 if there are none.
    more: u32,
}

/// So many, for one that takes every credit would make each drop wait for the one before.
const NOBODIES: u32 = 16;

/// How many former occupants a slot waits for, and above that two flags. Of a step's few MB this alone
/// is used out of order, so it is kept small and by itself.
#[derive(Debug, Clone, Default)]
pub(super) struct SlotState(Cell<u32>);

impl SlotState {
    const GIVEN_OUT: u32 = 1 << 31;
    const PASSED_OVER: u32 = 1 << 30;

    /// It waits for `needed` former occupants.
    pub(super) fn rearm(&self, needed: u32) {
        self.0.set(needed);
    }

    /// It waits for no former occupant, and was neither given out nor passed over.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.0.get() == 0
    }

    /// It is given out. No former occupant of this step is left to wait for, so its count is already set for
    /// the former occupants of the next step.
    #[inline]
    pub(super) fn give_out(&self, needed: u32) {
        self.0.set(needed | Self::GIVEN_OUT);
    }

    pub(super) fn pass_over(&self) {
        self.0.set(self.0.get() | Self::PASSED_OVER);
    }

    pub(super) fn is_given_out(&self) -> bool {
        self.0.get() & Self::GIVEN_OUT != 0
    }

    pub(super) fn is_passed_over(&self) -> bool {
        self.0.get() & Self::PASSED_OVER != 0
    }

    #[inline]
    fn free(&self) {
        self.0.set(self.0.get() & !Self::GIVEN_OUT);
    }

    /// One former occupant was freed.
    #[inline]
    fn credit(&self) {
        self.0.set(self.0.get().wrapping_sub(1));
    }
}

impl Default for Slots {
    /// No slots: those of a plan that no step follows now.
    fn default() -> Self {
        Self {
            all: Box::default(),
            successors: Box::default(),
            more_successors: Box::default(),
            states: Box::default(),
            alignment: Alignment::ONE,
        }
    }
}

impl Slots {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a plan has fewer than 2^20 slots, and they have fewer than 2^23 successors"
    )]
    pub(super) fn of(table: &SlotTable) -> Self {
        let count = table.len() as u32;
        let alone = |PlannedSlot { offset_bytes, bytes, .. }| Slot {
            offset_bytes,
            bytes,
            needed: 0,
            moment: Moment::default(),
        };
        let mut all: Box<[Slot]> = table.slots().map(alone).collect();
        let nobody = |slot: u32| count + slot % NOBODIES;
        let nobodies = |slot: u32| Successors { first: [nobody(slot); 2], more: 0 };
        let mut successors: Box<[Successors]> = (0..count).map(nobodies).collect();
        let mut more_successors = vec![0];
        for own in space_successors(table.slots()).chunk_by(|one, other| one.0 == other.0) {
            for &(_, successor) in own {
                all[successor as usize].needed += 1;
            }
            let Successors { first, more } = &mut successors[own[0].0 as usize];
            for (place, &(_, successor)) in first.iter_mut().zip(own) {
                *place = successor;
            }
            if let [_, _, others @ ..] = own
                && !others.is_empty()
            {
                *more = more_successors.len() as u32;
                more_successors.push(others.len() as u32);
                more_successors.extend(others.iter().map(|&(_, successor)| successor));
            }
        }
        let states = vec![SlotState::default(); all.len() + NOBODIES as usize].into();
        let more_successors = more_successors.into();
        let alignment = table.alignment();
        let slots = Self { all, successors, more_successors, states, alignment };
        slots.rearm();
        slots
    }

    /// The host memory that they take.
    pub(super) fn host_bytes(&self) -> u64 {
        let words = self.more_successors.len() + self.states.len();
        (size_of_val(&*self.all) + size_of_val(&*self.successors) + words * size_of::<u32>()) as u64
    }

    /// Lets every slot wait for all its former occupants, as at the start of a step.
    pub(super) fn rearm(&self) {
        for (state, slot) in self.states.iter().zip(&self.all) {
            state.rearm(slot.needed);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether a request of this alignment may start where a slot does: the plan's start has the
    /// plan's alignment.
    #[inline]
    pub(super) fn aligns(&self, offset_bytes: u64, alignment: Alignment) -> bool {
        // An alignment divides a smaller power of two no more than an offset that it does not divide.
        alignment.divides(offset_bytes | self.alignment.bytes())
    }

    /// Frees a slot that is given out: one more former occupant of its successors' bytes is gone.
    #[inline]
    pub(super) fn free(&self, slot: usize) {
        let states = &*self.states; // One look at the length for all that follows.
        let (Some(state), Some(successors)) = (states.get(slot), self.successors.get(slot)) else {
            return;
        };
        state.free();
        for successor in successors.first {
            credit(states, successor);
        }
        if successors.more > 0 {
            self.credit_more(successors.more);
        }
    }

    #[inline(never)]
    fn credit_more(&self, more: u32) {
        let [count, listed @ ..] = &self.more_successors[more as usize..] else { return };
        for &successor in &listed[..*count as usize] {
            credit(&self.states, successor);
        }
    }
}

#[inline]
fn credit(states: &[SlotState], slot: u32) {
    if let Some(state) = states.get(slot as usize) {
        state.credit();
    }
}

/// The pairs (slot, next occupant of some of its bytes), sorted, each once.
fn space_successors(planned: impl Iterator<Item = PlannedSlot>) -> Vec<(u32, u32)> {
    // Who holds each byte so far: start -> (end, slot). The ranges are disjoint.
    let mut holders: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
    let mut edges = Vec::new();
    for (planned, slot) in planned.zip(0..) {
        let (start, end) = (planned.offset_bytes, planned.offset_bytes + planned.bytes);
        let before = holders.range(..start).next_back().map(|(&at, &held)| (at, held));
        if let Some((at, (held_end, holder))) =
            before.filter(|(_, (held_end, _))| *held_end > start)
        {
            edges.push((holder, slot));
            holders.insert(at, (start, holder));
            if held_end > end {
                holders.insert(end, (held_end, holder));
            }
        }
        while let Some((&at, &(held_end, holder))) = holders.range(start..end).next() {
            edges.push((holder, slot));
            holders.remove(&at);
            if held_end > end {
                holders.insert(end, (held_end, holder));
            }
        }
        holders.insert(start, (end, slot));
    }
    edges.sort_unstable();
    edges.dedup();
    edges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(offset_bytes: u64, bytes: u64) -> PlannedSlot {
        PlannedSlot { offset_bytes, bytes, alignment: Alignment::ONE }
    }

    #[test]
    fn a_slot_needs_each_former_occupant_of_its_bytes_once() {
        // 0: [0, 100)  1: [100, 200)  2: [50, 150)  3: [0, 200)
        let planned = [slot(0, 100), slot(100, 100), slot(50, 100), slot(0, 200)];
        let slots = Slots::of(&SlotTable::new(&planned).unwrap());
        let needed: Vec<u32> = slots.all.iter().map(|slot| slot.needed).collect();
        // The last takes over from 2 in the middle, from 0 below it and from 1 above it.
        assert_eq!(needed, [0, 0, 2, 3]);
        let successors: Vec<_> = slots.successors.iter().map(|all| all.first).collect();
        // From 4 on there is nobody.
        assert_eq!(successors, [[2, 3], [2, 3], [3, 6], [7, 7]]);
    }

    proptest! {
        // The model looks at each byte on its own: who held it last?
        #[test]
        fn successors_agree_with_a_map_of_bytes(
            slots in prop::collection::vec((0_u64..60, 1_u64..30), 0..40)
        ) {
            let planned: Vec<_> = slots.iter().map(|&(at, bytes)| slot(at, bytes)).collect();
            let mut holder = [None; 90];
            let mut expected = std::collections::BTreeSet::new();
            for (slot, &(at, bytes)) in slots.iter().enumerate() {
                let slot = slot as u32;
                for byte in at..at + bytes {
                    if let Some(before) = holder[byte as usize].replace(slot) {
                        expected.insert((before, slot));
                    }
                }
            }
            let expected: Vec<_> = expected.into_iter().collect();
            prop_assert_eq!(space_successors(planned.iter().copied()), expected.as_slice());
            // The table credits just these.
            let table = Slots::of(&SlotTable::new(&planned).unwrap());
            let mut needed = vec![0; planned.len()];
            for &(_, successor) in &expected {
                needed[successor as usize] += 1;
            }
            prop_assert!(table.all.iter().map(|slot| slot.needed).eq(needed));
            let waiting = || -> Vec<u32> {
                table.states[..planned.len()].iter().map(|state| state.0.get()).collect()
            };
            for slot in 0..planned.len() as u32 {
                let before = waiting();
                table.free(slot as usize);
                let credited = waiting().into_iter().zip(before).enumerate();
                let credited: Vec<_> = credited
                    .filter(|(_, (now, before))| now + 1 == *before)
                    .map(|(successor, _)| (slot, successor as u32))
                    .collect();
                let own = expected.iter().filter(|edge| edge.0 == slot);
                prop_assert!(own.eq(&credited));
            }
            prop_assert!(table.states[..planned.len()].iter().all(SlotState::is_free));
        }
    }
}
