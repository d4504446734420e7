//! A plan as it is kept: where each request of a step lies, in 16 bytes a request.

use std::sync::Arc;

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
    /// More than 2²⁰ - 1 slots.
    #[error("a plan of {slots} slots has too many slots")]
    TooMany {
        /// How many.
        slots: usize,
    },
}

/// A plan's slots in the order of requests. Copies share the slots, which take 16 bytes each.
///
/// The arena does not trust a plan. It computes from the slots which buffers had the bytes of a slot before. So
/// a bad plan is refused at run time, request by request, and never makes two live buffers overlap.
#[derive(Debug, Clone)]
pub struct SlotTable {
    slots: Arc<[PackedSlot]>,
    peak_bytes: u64,
    alignment: Alignment,
    id: u64,
    yields: bool,
}

/// A [`PlannedSlot`] in 16 bytes.
#[derive(Debug, Clone, Copy)]
struct PackedSlot {
    /// Twice the offset, plus the alignment. The offset is a multiple of the alignment, so the lowest bit that is set
    /// is the alignment's. A slot ends below 2⁶³, so this does not overflow.
    place: u64,
    bytes: u64,
}

impl PackedSlot {
    const fn new(slot: PlannedSlot) -> Self {
        let PlannedSlot { offset_bytes, bytes, alignment } = slot;
        Self { place: offset_bytes << 1 | alignment.bytes(), bytes }
    }

    const fn get(self) -> PlannedSlot {
        let Self { place, bytes } = self;
        let alignment = Alignment::from_log2(place.trailing_zeros());
        PlannedSlot { offset_bytes: (place ^ alignment.bytes()) >> 1, bytes, alignment }
    }
}

impl Default for SlotTable {
    /// The plan of a step without requests.
    fn default() -> Self {
        Self {
            slots: Arc::default(),
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
        if count.is_none() {
            return Err(SlotTableError::TooMany { slots: planned.len() });
        }
        let slots = planned.iter().copied().map(PackedSlot::new).collect();
        Ok(Self { slots, peak_bytes, alignment, id: id_of(planned), yields: false })
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

    /// The slots in the order of requests.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = PlannedSlot> + '_ {
        self.slots.iter().map(|slot| slot.get())
    }

    /// The host memory that the slots take.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        (self.len() * size_of::<PackedSlot>()) as u64
    }

    /// A hash over the slots, which tells plans apart.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }
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
        // Up to the largest offset of each alignment.
        #[test]
        fn a_slot_is_kept_in_16_bytes_as_it_was(
            log2 in 0_u32..=61, offset in prop_oneof![0_u64..100, Just(u64::MAX)], bytes in 1_u64..9
        ) {
            let alignment = Alignment::from_log2(log2);
            let highest = (MAX_BYTES - bytes) & !alignment.low_bits();
            let offset_bytes = offset.saturating_mul(alignment.bytes()).min(highest);
            let planned = PlannedSlot { offset_bytes, bytes, alignment };
            let table = SlotTable::new(&[planned]).unwrap();
            prop_assert_eq!(table.slots().collect::<Vec<_>>(), [planned]);
            prop_assert_eq!(table.host_bytes(), 16);
        }
    }
}
