//! Plans in which no buffer lies higher than the bump would put it. A step can leave such a plan at any
//! request, and needs no byte more than if the bump had served it from its beginning.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use arena_scope::record::{StepEvent, StepLog};

use crate::instance::{Buffer, Instance};

/// Whether the offsets, which are in the order of the requests of the log, are so.
pub(crate) fn lies_below_bump(log: &StepLog, offsets_bytes: &[u64]) -> bool {
    let (mut cursor, mut starts, mut offsets) = (0_u64, Vec::new(), offsets_bytes.iter());
    for event in log.events() {
        match *event {
            StepEvent::Alloc { bytes, alignment, .. } if bytes > 0 => {
                cursor = cursor.next_multiple_of(alignment.bytes()).saturating_add(bytes);
                if offsets.next().is_none_or(|offset| offset + bytes > cursor) {
                    return false;
                }
            }
            StepEvent::Open => starts.push(cursor),
            StepEvent::Close => cursor = starts.pop().unwrap_or(cursor),
            StepEvent::Merge => drop(starts.pop()),
            _ => {}
        }
    }
    true
}

/// An offset for each buffer of a step that was recorded: the lowest that is free at its birth. So it ends no
/// higher than the highest live buffer and its own size, which the bump has below its cursor.
pub(crate) fn first_fit(instance: &Instance) -> Vec<u64> {
    let mut order: Vec<usize> = (0..instance.len()).collect();
    order.sort_by_key(|&number| instance.buffers()[number].birth);
    let mut offsets = vec![0; instance.len()];
    let mut live: BTreeMap<u64, u64> = BTreeMap::new(); // start -> end
    let mut deaths = BinaryHeap::new();
    for number in order {
        let Buffer { birth, death, size_bytes, alignment_bytes, .. } = instance.buffers()[number];
        while let Some(&Reverse((died, start))) = deaths.peek()
            && died <= birth
        {
            live.remove(&start);
            deaths.pop();
        }
        if size_bytes == 0 {
            continue;
        }
        let mut start = 0_u64;
        for (&taken, &end) in &live {
            if start + size_bytes <= taken {
                break;
            }
            start = end.next_multiple_of(alignment_bytes);
        }
        offsets[number] = start;
        live.insert(start, start + size_bytes);
        deaths.push(Reverse((death, start)));
    }
    offsets
}
