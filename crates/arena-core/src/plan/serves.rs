//! Whether a plan serves a step that was recorded.

use std::collections::HashMap;
use std::panic::Location;

use super::counters::Counters;
use super::slots::Slots;
use super::table::SlotTable;
use crate::step_log::{StepEvent, StepLog};

impl SlotTable {
    /// Whether the slots serve each request of a recorded step in order: as planned, or smaller. So the short last
    /// batch of an epoch can follow the plan of the whole ones.
    ///
    /// ```
    /// # use arena_core::{Alignment, PlannedSlot, SlotTable, StepLog};
    /// let slot = PlannedSlot { offset_bytes: 0, bytes: 256, alignment: Alignment::DEFAULT };
    /// let table = SlotTable::new(&[slot])?;
    /// assert!(table.serves(&StepLog::default())); // a step without requests
    /// # Ok::<(), arena_core::SlotTableError>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn serves(&self, log: &StepLog) -> bool {
        let (mut counters, here) = (Counters::default(), Location::caller());
        counters.unfold(Slots::of(self));
        let (mut live, mut inside) = (HashMap::new(), 0_u32);
        counters.open_root();
        let events = match log.events() {
            [StepEvent::Open { .. }, events @ ..] => events, // of the root
            events => events,
        };
        for event in events {
            match *event {
                StepEvent::Alloc { bytes: 0, .. } | StepEvent::Tag { .. } => {}
                StepEvent::Alloc { offset_bytes, bytes, alignment } => {
                    let as_planned = counters.alloc(bytes, alignment, u64::MAX);
                    let placed =
                        as_planned.or_else(|| counters.alloc_off_plan(bytes, alignment, here));
                    let Some((slot, _)) = placed else { return false };
                    live.insert(offset_bytes, slot);
                }
                StepEvent::Drop { offset_bytes } => {
                    if let Some(slot) = live.remove(&offset_bytes) {
                        counters.drop_slot(slot);
                    }
                }
                StepEvent::Open { .. } => {
                    inside += 1;
                    counters.open();
                }
                StepEvent::Close if inside > 0 => {
                    inside -= 1;
                    counters.close();
                }
                StepEvent::Close => {} // The root's: what is left in the plan does not matter.
                StepEvent::Merge => {
                    inside = inside.saturating_sub(1);
                    counters.merge();
                }
            }
        }
        counters.deviations().missing == 0 // Other deviations have no slot.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Alignment;
    use crate::plan::PlannedSlot;

    #[test]
    fn what_is_smaller_is_served_and_what_is_larger_late_left_out_or_too_much_is_not() {
        let alignment = Alignment::DEFAULT;
        let slot = |offset_bytes, bytes| PlannedSlot { offset_bytes, bytes, alignment };
        let table = SlotTable::new(&[slot(0, 200), slot(256, 300), slot(0, 50)]).unwrap();
        let serves = |sizes: &[u64], drops_first: bool, inside: bool| {
            let mut log = StepLog::default();
            log.push(StepEvent::Open { name: "" });
            if inside {
                log.push(StepEvent::Open { name: "" });
            }
            for (n, &bytes) in sizes.iter().enumerate() {
                if n == 2 && drops_first {
                    log.push(StepEvent::Drop { offset_bytes: 0 });
                }
                let offset_bytes = 4096 * n as u64;
                log.push(StepEvent::Alloc { offset_bytes, bytes, alignment });
                log.push(StepEvent::Alloc { offset_bytes: 0, bytes: 0, alignment });
            }
            if inside {
                log.push(StepEvent::Close);
            }
            log.push(StepEvent::Close);
            table.serves(&log)
        };
        for inside in [false, true] {
            assert!(serves(&[200, 300, 50], true, inside));
            assert!(serves(&[20, 10, 5], true, inside));
            assert!(serves(&[20], true, inside), "it ends early");
            assert!(!serves(&[200, 300, 50], false, inside), "the first is freed too late");
            assert!(!serves(&[201], true, inside));
            assert!(!serves(&[300], true, inside), "the first slot would be passed over");
            assert!(!serves(&[200, 300, 50, 1], true, inside));
        }
    }
}
