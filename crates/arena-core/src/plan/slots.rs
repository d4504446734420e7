//! A plan as slots: where each request of a step lies, and whose bytes it takes over.

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::bytes::{Alignment, MAX_BYTES};
use crate::packed::MAX_SLOT;

/// Where a plan puts one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedSlot {
    /// First byte, from the plan's start.
    pub offset_bytes: u64,
    /// The size asked for; not zero.
    pub bytes: u64,
    /// The alignment asked for; it divides the offset.
    pub alignment: Alignment,
}

/// Why slots cannot be a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotTableError {
    /// A slot has a size of 0: empty requests need no slot.
    #[error("slot {slot} is empty")]
    Empty {
        /// Its place in the order of requests.
        slot: usize,
    },
    /// A slot ends above the largest address.
    #[error("slot {slot} ends above the largest address")]
    TooBig {
        /// Its place in the order of requests.
        slot: usize,
    },
    /// A slot's offset is not a multiple of its alignment.
    #[error(
        "slot {slot} starts at offset {offset_bytes}, which is not a multiple of its alignment {alignment}"
    )]
    Misaligned {
        /// Its place in the order of requests.
        slot: usize,
        /// Its offset.
        offset_bytes: u64,
        /// Its alignment.
        alignment: Alignment,
    },
    /// More than 2²⁰ - 1 slots, or more than 2³² - 1 successors.
    #[error("a plan of {slots} slots has too many slots or too many successors")]
    TooMany {
        /// How many.
        slots: usize,
    },
}

/// A plan's slots in the order of requests, each with its *space successors*: the next slots that
/// take over some of its bytes.
///
/// The arena does not trust a plan. It computes from the slots which buffers had the bytes of a slot before. So
/// a bad plan is refused at run time, request by request, and never makes two live buffers overlap.
#[derive(Debug, Clone)]
pub struct SlotTable {
    /// Where each request lies.
    pub(super) slots: Box<[Slot]>,
    /// Whose bytes come free by each.
    successors: Box<[Successors]>,
    /// Lists of further successors, each behind its length; the one at 0 is empty.
    more_successors: Box<[u32]>,
    /// The replay's: what each slot waits for, or that it is given out. Behind them lie [`NOBODIES`]
    /// more, which take the credit of missing successors.
    pub(super) states: Box<[SlotState]>,
    peak_bytes: u64,
    alignment: Alignment,
    id: u64,
    yields: bool,
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

impl Default for SlotTable {
    /// The plan of a step without requests.
    fn default() -> Self {
        Self {
            slots: Box::default(),
            successors: Box::default(),
            more_successors: Box::default(),
            states: Box::default(),
            peak_bytes: 0,
            alignment: Alignment::ONE,
            id: id_of(&[]),
            yields: false,
        }
    }
}

impl SlotTable {
    /// The table of these slots, which are in the order of requests.
    ///
    /// # Errors
    ///
    /// [`SlotTableError`] for a slot that is empty, too big or misaligned, or for too many of them.
    ///
    /// ```
    /// # use arena_core::{Alignment, PlannedSlot, SlotTable};
    /// let alignment = Alignment::DEFAULT;
    /// let slot = |offset_bytes, bytes| PlannedSlot { offset_bytes, bytes, alignment };
    /// assert!(SlotTable::new(&[slot(0, 1000), slot(1024, 8)]).is_ok());
    /// assert!(SlotTable::new(&[slot(128, 8)]).is_err()); // 128 is not a multiple of 256
    /// ```
    pub fn new(planned: &[PlannedSlot]) -> Result<Self, SlotTableError> {
        let too_many = SlotTableError::TooMany { slots: planned.len() };
        let (mut peak_bytes, mut alignment) = (0, Alignment::ONE);
        for (slot, planned) in planned.iter().enumerate() {
            let PlannedSlot { offset_bytes, bytes, alignment: own } = *planned;
            if bytes == 0 {
                return Err(SlotTableError::Empty { slot });
            }
            match offset_bytes.checked_add(bytes) {
                Some(end) if end <= MAX_BYTES => peak_bytes = u64::max(peak_bytes, end),
                _ => return Err(SlotTableError::TooBig { slot }),
            }
            if !own.divides(offset_bytes) {
                return Err(SlotTableError::Misaligned { slot, offset_bytes, alignment: own });
            }
            alignment = alignment.max(own);
        }
        // A handle counts slots from 1.
        let count = u32::try_from(planned.len()).ok().filter(|&count| count <= MAX_SLOT);
        let count = count.ok_or(too_many)?;
        let alone = |&PlannedSlot { offset_bytes, bytes, .. }: &PlannedSlot| Slot {
            offset_bytes,
            bytes,
            needed: 0,
            moment: Moment::default(),
        };
        let mut slots: Box<[Slot]> = planned.iter().map(alone).collect();
        let nobody = |slot: u32| count + slot % NOBODIES;
        let nobodies = |slot: u32| Successors { first: [nobody(slot); 2], more: 0 };
        let mut successors: Box<[Successors]> = (0..count).map(nobodies).collect();
        let mut more_successors = vec![0];
        for own in space_successors(planned).chunk_by(|one, other| one.0 == other.0) {
            for &(_, successor) in own {
                slots[successor as usize].needed += 1;
            }
            let Successors { first, more } = &mut successors[own[0].0 as usize];
            for (place, &(_, successor)) in first.iter_mut().zip(own) {
                *place = successor;
            }
            if let [_, _, others @ ..] = own
                && !others.is_empty()
            {
                *more = u32::try_from(more_successors.len()).map_err(|_| too_many)?;
                // There are fewer successors than slots.
                more_successors.push(u32::try_from(others.len()).map_err(|_| too_many)?);
                more_successors.extend(others.iter().map(|&(_, successor)| successor));
            }
        }
        let states = vec![SlotState::default(); slots.len() + NOBODIES as usize].into();
        let (id, more_successors) = (id_of(planned), more_successors.into());
        let table = Self {
            slots,
            successors,
            more_successors,
            states,
            peak_bytes,
            alignment,
            id,
            yields: false,
        };
        table.rearm();
        Ok(table)
    }

    /// The same plan, which yields to the bump: a step follows it up to the first request that is not the next
    /// slot's to the byte, or whose slot ends above where the bump would have put it. So until then each
    /// buffer lies no higher than under the bump, and from there on the bump goes on: a step needs no byte more
    /// than without the plan.
    ///
    /// A plan that does not yield is followed to the step's end. What it does not serve lies above it.
    #[must_use]
    pub const fn yielding(mut self) -> Self {
        self.yields = true;
        self
    }

    /// Whether it [yields](Self::yielding).
    #[must_use]
    pub const fn yields(&self) -> bool {
        self.yields
    }

    /// Lets every slot wait for all its former occupants, as at the start of a step.
    pub(super) fn rearm(&self) {
        for (state, slot) in self.states.iter().zip(&self.slots) {
            state.rearm(slot.needed);
        }
    }

    /// Bytes from the plan's start to the end of its highest slot.
    #[must_use]
    pub const fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// The largest alignment of a slot: the plan's start must have it.
    #[must_use]
    pub const fn alignment(&self) -> Alignment {
        self.alignment
    }

    /// Requests of the planned step.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the planned step has no request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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

    /// A hash over the slots, which tells plans apart.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }
}

#[inline]
fn credit(states: &[SlotState], slot: u32) {
    if let Some(state) = states.get(slot as usize) {
        state.credit();
    }
}

/// The pairs (slot, next occupant of some of its bytes), sorted, each once.
fn space_successors(planned: &[PlannedSlot]) -> Vec<(u32, u32)> {
    // Who holds each byte so far: start -> (end, slot). The ranges are disjoint.
    let mut holders: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
    let mut edges = Vec::new();
    for (planned, slot) in planned.iter().zip(0..) {
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

/// FNV-1a over the slots' fields.
fn id_of(planned: &[PlannedSlot]) -> u64 {
    let fields =
        planned.iter().flat_map(|slot| [slot.offset_bytes, slot.bytes, slot.alignment.bytes()]);
    let bytes = fields.flat_map(u64::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
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
        let table =
            SlotTable::new(&[slot(0, 100), slot(100, 100), slot(50, 100), slot(0, 200)]).unwrap();
        let needed: Vec<u32> = table.slots.iter().map(|slot| slot.needed).collect();
        // The last takes over from 2 in the middle, from 0 below it and from 1 above it.
        assert_eq!(needed, [0, 0, 2, 3]);
        let successors: Vec<_> = table.successors.iter().map(|all| all.first).collect();
        // From 4 on there is nobody.
        assert_eq!(successors, [[2, 3], [2, 3], [3, 6], [7, 7]]);
        assert_eq!((table.peak_bytes(), table.len()), (200, 4));
    }

    #[test]
    fn slots_that_are_none_are_refused() {
        let a256 = Alignment::DEFAULT;
        let misaligned = PlannedSlot { offset_bytes: 128, bytes: 1, alignment: a256 };
        let refused = |slots: &[PlannedSlot]| SlotTable::new(slots).unwrap_err();
        assert_eq!(refused(&[slot(0, 1), slot(0, 0)]), SlotTableError::Empty { slot: 1 });
        assert_eq!(refused(&[slot(u64::MAX, 2)]), SlotTableError::TooBig { slot: 0 });
        assert_eq!(refused(&[slot(MAX_BYTES, 1)]), SlotTableError::TooBig { slot: 0 });
        assert!(matches!(refused(&[misaligned]), SlotTableError::Misaligned { slot: 0, .. }));
    }

    #[test]
    fn the_id_tells_plans_apart() {
        let id = |slots: &[PlannedSlot]| SlotTable::new(slots).unwrap().id();
        assert_eq!(id(&[slot(0, 8), slot(8, 8)]), id(&[slot(0, 8), slot(8, 8)]));
        assert_ne!(id(&[slot(0, 8), slot(8, 8)]), id(&[slot(0, 8), slot(16, 8)]));
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
            prop_assert_eq!(space_successors(&planned), expected.as_slice());
            // The table credits just these.
            let table = SlotTable::new(&planned).unwrap();
            let mut needed = vec![0; planned.len()];
            for &(_, successor) in &expected {
                needed[successor as usize] += 1;
            }
            prop_assert!(table.slots.iter().map(|slot| slot.needed).eq(needed));
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
