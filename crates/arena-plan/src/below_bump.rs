//! Plans in which no buffer lies higher than the bump would put it. A step can leave such a plan at any
//! request, and needs no byte more than if the bump had served it from its beginning.

use std::cmp::Reverse;

use arena_scope::record::{StepEvent, StepLog};

use crate::instance::{Buffer, Instance};
use crate::packing::Packing;
use crate::sweep;

/// Where the bump's cursor is after each request of a recorded step that is not empty, from the step's start on:
/// no buffer may end above it.
pub(crate) fn limits(log: &StepLog) -> Vec<u64> {
    ends_from(0, log)
}

/// The same from another start on, which the cursors include.
pub(crate) fn ends_from(start_bytes: u64, log: &StepLog) -> Vec<u64> {
    let (mut cursor, mut starts, mut limits) = (start_bytes, Vec::new(), Vec::new());
    for event in log.events() {
        match *event {
            StepEvent::Alloc { bytes, alignment, .. } if bytes > 0 => {
                cursor = cursor.next_multiple_of(alignment.bytes()).saturating_add(bytes);
                limits.push(cursor);
            }
            StepEvent::Open { .. } => starts.push(cursor),
            StepEvent::Close => cursor = starts.pop().unwrap_or(cursor),
            StepEvent::Merge => drop(starts.pop()),
            _ => {}
        }
    }
    limits
}

/// Whether each buffer, in the order of births, ends at its limit or below.
pub(crate) fn holds(instance: &Instance, offsets_bytes: &[u64], limits: &[u64]) -> bool {
    let ends = instance.buffers().iter().zip(offsets_bytes);
    ends.zip(limits).all(|((buffer, offset), limit)| offset + buffer.size_bytes <= *limit)
}

/// With more buffers than this only the sweep is tried: the time of the orders grows with the square of their
/// number.
const MOST: usize = 4096;

/// Offsets that hold the limits, with the lowest peak that the sweep and a few orders find. The sweep always holds
/// them: it puts each buffer below the end of the highest live one, or right on it, and under the bump the live
/// buffers lie above one another.
pub(crate) fn place(instance: &Instance, limits: &[u64]) -> Vec<u64> {
    let buffers = instance.buffers();
    let packing = Packing::new(instance);
    let mut placed = vec![packing.offsets_bytes(instance, &sweep::place(&packing))];
    if buffers.len() <= MOST {
        let lifetime = |buffer: &Buffer| u128::from(buffer.death - buffer.birth);
        let size = |buffer: &Buffer| u128::from(buffer.size_bytes);
        let area = |buffer: &Buffer| size(buffer) * lifetime(buffer);
        let keys: [&dyn Fn(&Buffer) -> u128; 3] = [&size, &area, &lifetime];
        placed.extend(keys.into_iter().filter_map(|key| {
            let mut order: Vec<usize> = (0..buffers.len()).collect();
            order.sort_by_key(|&number| Reverse(key(&buffers[number])));
            in_order(buffers, &order, limits)
        }));
    }
    let peak = |offsets: &Vec<u64>| {
        let ends = offsets.iter().zip(buffers).map(|(offset, buffer)| offset + buffer.size_bytes);
        ends.max()
    };
    placed.into_iter().min_by_key(peak).unwrap_or_default()
}

/// Each buffer in turn at the lowest place that is free for its whole life, unless that is above its limit.
fn in_order(buffers: &[Buffer], order: &[usize], limits: &[u64]) -> Option<Vec<u64>> {
    let mut offsets = vec![0; buffers.len()];
    let mut placed: Vec<(u64, usize)> = Vec::with_capacity(order.len()); // sorted by the offset
    for &number in order {
        let Buffer { size_bytes, alignment_bytes, .. } = buffers[number];
        let mut start = 0_u64;
        for &(taken, other) in &placed {
            if start + size_bytes <= taken {
                break;
            }
            if buffers[other].overlaps_in_time(&buffers[number]) {
                let end = taken + buffers[other].size_bytes;
                start = start.max(end.next_multiple_of(alignment_bytes));
            }
        }
        if start + size_bytes > limits[number] {
            return None;
        }
        offsets[number] = start;
        placed.insert(placed.partition_point(|&(taken, _)| taken <= start), (start, number));
    }
    Some(offsets)
}
