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
    pub(super) slots: Box<[Slot]>,
    pub(super) successors: Box<[u32]>,
    peak_bytes: u64,
    alignment: Alignment,
    id: u64,
}

/// A slot as the replay reads it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) offset_bytes: u64,
    pub(super) bytes: u64,
    pub(super) alignment: Alignment,
    /// Former occupants of its bytes: each must have been freed before it can be given out.
    pub(super) needed: u32,
    /// Where its successors begin; they end where the next slot's begin.
    pub(super) first_successor: u32,
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
        let edges = space_successors(planned);
        let mut needed = vec![0_u32; planned.len()];
        for &(_, successor) in &edges {
            needed[successor] += 1;
        }
        let (mut slots, mut successors) = (Vec::with_capacity(planned.len()), Vec::new());
        let mut rest = edges.as_slice();
        for (slot, (planned, needed)) in planned.iter().zip(needed).enumerate() {
            let first_successor = u32::try_from(successors.len()).map_err(|_| too_many)?;
            let own = rest.partition_point(|&(from, _)| from == slot);
            for &(_, successor) in &rest[..own] {
                successors.push(u32::try_from(successor).map_err(|_| too_many)?);
            }
            rest = &rest[own..];
            let PlannedSlot { offset_bytes, bytes, alignment } = *planned;
            slots.push(Slot { offset_bytes, bytes, alignment, needed, first_successor });
        }
        u32::try_from(successors.len()).map_err(|_| too_many)?;
        // A handle counts slots from 1.
        u32::try_from(slots.len()).ok().filter(|slots| *slots <= MAX_SLOT).ok_or(too_many)?;
        let id = id_of(planned);
        Ok(Self { slots: slots.into(), successors: successors.into(), peak_bytes, alignment, id })
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

    /// Whether the planned step asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// A hash over the slots, which tells plans apart.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }
}

/// The pairs (slot, next occupant of some of its bytes), sorted, each once.
fn space_successors(planned: &[PlannedSlot]) -> Vec<(usize, usize)> {
    // Who holds each byte so far: start -> (end, slot). The ranges are disjoint.
    let mut holders: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let mut edges = Vec::new();
    for (slot, planned) in planned.iter().enumerate() {
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
        assert_eq!(table.successors.as_ref(), [2, 3, 2, 3, 3]);
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
                for byte in at..at + bytes {
                    if let Some(before) = holder[byte as usize].replace(slot) {
                        expected.insert((before, slot));
                    }
                }
            }
            let found = space_successors(&planned);
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
