//! A plan as slots: where each request of a step lies, and whose bytes it takes over.

use std::collections::BTreeMap;

use crate::buffer::MAX_SLOT;
use crate::bytes::{Alignment, MAX_BYTES};

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

/// Why slots are no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotTableError {
    /// A slot has no byte: empty requests need no slot.
    #[error("slot {slot} is empty")]
    Empty {
        /// Its place in the order of requests.
        slot: usize,
    },
    /// A slot ends beyond any memory.
    #[error("slot {slot} ends beyond any memory")]
    TooBig {
        /// Its place in the order of requests.
        slot: usize,
    },
    /// A slot's offset is not a multiple of its alignment.
    #[error("slot {slot} starts at {offset_bytes}, no multiple of {alignment}")]
    Misaligned {
        /// Its place in the order of requests.
        slot: usize,
        /// Its offset.
        offset_bytes: u64,
        /// Its alignment.
        alignment: Alignment,
    },
    /// More than 2²⁰ - 1 slots, or more than 2³² - 1 successors.
    #[error("a plan of {slots} slots")]
    TooMany {
        /// How many.
        slots: usize,
    },
}

/// A plan's slots in the order of requests, each with its *space successors*: the next slots that
/// take over some of its bytes.
///
/// Nothing here trusts the plan. Whoever the former occupants of a slot's bytes are follows from the
/// slots alone, so a bad plan is refused at run time, request by request, and never overlaps.
#[derive(Debug, Clone)]
pub struct SlotTable {
    /// Those of the plan, and a last one that takes the credit of missing successors. No
    /// request is as large as it.
    pub(super) slots: Box<[Slot]>,
    /// Lists, each behind its length; the one at 0 is empty.
    more_successors: Box<[u32]>,
    peak_bytes: u64,
    alignment: Alignment,
    id: u64,
}

/// A slot as the replay reads it: all that a request or a drop needs lies together, in 40 bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) offset_bytes: u64,
    pub(super) bytes: u64,
    /// The replay's: how often former occupants were freed since the plan was installed.
    pub(super) done: u32,
    /// The replay's: in which step it was given out last, and odd once it is free.
    pub(super) stage: u32,
    /// Former occupants of its bytes: each must have been freed before it can be given out.
    pub(super) needed: u32,
    /// The first two successors, or the last slot of the table, which is nobody's, in their place:
    /// most have no more, and two that are always there cost no branch that a processor would have
    /// to guess.
    pub(super) successors: [u32; 2],
    /// Where in `more_successors` the others are counted and listed; 0 if there are none.
    pub(super) more: u32,
}

impl Default for SlotTable {
    /// The plan of a step that asks for nothing.
    fn default() -> Self {
        let (slots, more_successors) = (Box::new([Slot::NOBODY]), Box::new([0]));
        Self { slots, more_successors, peak_bytes: 0, alignment: Alignment::ONE, id: id_of(&[]) }
    }
}

impl SlotTable {
    /// The table of these slots, which are in the order of requests.
    ///
    /// # Errors
    ///
    /// [`SlotTableError`] for a slot that is empty, too big or misaligned, or for too many of them.
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
        let nobody = count.ok_or(too_many)?;
        let alone = |&PlannedSlot { offset_bytes, bytes, .. }: &PlannedSlot| Slot {
            offset_bytes,
            bytes,
            successors: [nobody; 2],
            ..Slot::NOBODY
        };
        let last = Slot { successors: [nobody; 2], ..Slot::NOBODY };
        let mut slots: Box<[Slot]> = planned.iter().map(alone).chain([last]).collect();
        let mut more_successors = vec![0];
        for own in space_successors(planned).chunk_by(|one, other| one.0 == other.0) {
            for &(_, successor) in own {
                slots[successor as usize].needed += 1;
            }
            let slot = &mut slots[own[0].0 as usize];
            for (place, &(_, successor)) in slot.successors.iter_mut().zip(own) {
                *place = successor;
            }
            if let [_, _, more @ ..] = own
                && !more.is_empty()
            {
                slot.more = u32::try_from(more_successors.len()).map_err(|_| too_many)?;
                // There are fewer successors than slots.
                more_successors.push(u32::try_from(more.len()).map_err(|_| too_many)?);
                more_successors.extend(more.iter().map(|&(_, successor)| successor));
            }
        }
        let id = id_of(planned);
        let more_successors = more_successors.into();
        Ok(Self { slots, more_successors, peak_bytes, alignment, id })
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
        self.slots.len() - 1
    }

    /// Whether the planned step asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a request of this alignment may start where a slot does: the plan's start has the
    /// plan's alignment.
    #[inline]
    pub(super) fn aligns(&self, slot: &Slot, alignment: Alignment) -> bool {
        alignment <= self.alignment && alignment.divides(slot.offset_bytes)
    }

    /// Frees a slot if it is given out at this stage: one more former occupant of its successors'
    /// bytes is gone. Whether it was.
    #[inline]
    pub(super) fn free(&mut self, slot: usize, given_out: u32) -> bool {
        let slots = &mut *self.slots; // One look at the length for all that follows.
        let Some(freed) = slots.get_mut(slot) else { return false };
        if freed.stage != given_out {
            return false;
        }
        freed.stage = given_out | 1;
        let ([first, second], more) = (freed.successors, freed.more);
        credit(slots, first);
        credit(slots, second);
        if more > 0 {
            self.credit_more(more);
        }
        true
    }

    #[inline(never)]
    fn credit_more(&mut self, more: u32) {
        let [count, listed @ ..] = &self.more_successors[more as usize..] else { return };
        for &successor in &listed[..*count as usize] {
            credit(&mut self.slots, successor);
        }
    }

    /// A hash over the slots, which tells plans apart.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }
}

impl Slot {
    /// The last slot of an empty table.
    const NOBODY: Self = Self {
        offset_bytes: 0,
        bytes: u64::MAX,
        done: 0,
        stage: 1,
        needed: 0,
        successors: [0; 2],
        more: 0,
    };
}

#[inline]
fn credit(slots: &mut [Slot], successor: u32) {
    if let Some(credited) = slots.get_mut(successor as usize) {
        credited.done = credited.done.wrapping_add(1);
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
        assert_eq!(needed, [0, 0, 2, 3, 0]);
        let successors: Vec<_> = table.slots.iter().map(|slot| slot.successors).collect();
        // Number 4 is nobody's.
        assert_eq!(successors, [[2, 3], [2, 3], [3, 4], [4, 4], [4, 4]]);
        assert_eq!((table.peak_bytes(), table.len()), (200, 4));
    }

    #[test]
    fn slots_that_are_none_are_refused() {
        let a256 = Alignment::DEFAULT;
        let misaligned = PlannedSlot { offset_bytes: 128, bytes: 1, alignment: a256 };
        let refused = |slots: &[PlannedSlot]| SlotTable::new(slots).unwrap_err();
        assert_eq!(refused(&[slot(0, 1), slot(0, 0)]), SlotTableError::Empty { slot: 1 });
        assert_eq!(refused(&[slot(u64::MAX, 2)]), SlotTableError::TooBig { slot: 0 });
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
            let mut table = SlotTable::new(&planned).unwrap();
            let mut needed = vec![0; planned.len()];
            for &(_, successor) in &expected {
                needed[successor as usize] += 1;
            }
            prop_assert!(table.slots.iter().map(|slot| slot.needed).take(planned.len()).eq(needed));
            for slot in 0..planned.len() as u32 {
                let before: Vec<_> = table.slots.iter().map(|slot| slot.done).collect();
                prop_assert!(!table.free(slot as usize, 2), "it is not given out");
                table.slots[slot as usize].stage = 2;
                prop_assert!(table.free(slot as usize, 2));
                let credited = table.slots.iter().zip(before).enumerate().take(planned.len());
                let credited: Vec<_> = credited
                    .filter(|(_, (slot, before))| slot.done != *before)
                    .map(|(successor, _)| (slot, successor as u32))
                    .collect();
                let own = expected.iter().filter(|edge| edge.0 == slot);
                prop_assert!(own.eq(&credited));
            }
            prop_assert!(table.slots[..planned.len()].iter().all(|slot| slot.done == slot.needed));
        }
    }
}
