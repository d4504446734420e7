//! Plans in which no buffer lies higher than the bump would put it. A step can leave such a plan at any
//! request, and needs no byte more than if the bump had served it from its beginning.

use std::cmp::Reverse;

use arena_scope::record::{StepEvent, StepLog};

use crate::instance::{Buffer, Instance};

/// Where the bump's cursor is after each request of a recorded step that is not empty, from the step's start on:
/// no buffer may end above it.
pub(crate) fn limits(log: &StepLog) -> Vec<u64> {
    let (mut cursor, mut starts, mut limits) = (0_u64, Vec::new(), Vec::new());
    for event in log.events() {
        match *event {
            StepEvent::Alloc { bytes, alignment, .. } if bytes > 0 => {
                cursor = cursor.next_multiple_of(alignment.bytes()).saturating_add(bytes);
                limits.push(cursor);
            }
            StepEvent::Open => starts.push(cursor),
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

/// Above so many buffers only the order of births is tried: the others take their square in time.
const MOST: usize = 4096;

/// Offsets that hold the limits, with the lowest peak that a few orders find. In the order of births there are
/// always some: the lowest free place is below the highest live buffer, or right on it, and under the bump those
/// lie above one another.
pub(crate) fn place(instance: &Instance, limits: &[u64]) -> Vec<u64> {
    let buffers = instance.buffers();
    let births: Vec<usize> = (0..buffers.len()).collect();
    let lifetime = |buffer: &Buffer| buffer.death - buffer.birth;
    let area = |buffer: &Buffer| u128::from(buffer.size_bytes) * u128::from(lifetime(buffer));
    let mut orders = vec![births];
    if buffers.len() <= MOST {
        let sorted = |key: &dyn Fn(&Buffer) -> u128| {
            let mut order = orders[0].clone();
            order.sort_by_key(|&number| Reverse(key(&buffers[number])));
            order
        };
        let more = [
            sorted(&|buffer| buffer.size_bytes.into()),
            sorted(&area),
            sorted(&|buffer| lifetime(buffer).into()),
        ];
        orders.extend(more);
    }
    let placed =
        orders.iter().enumerate().filter_map(|(n, order)| in_order(buffers, order, n == 0, limits));
    let peak = |offsets: &Vec<u64>| {
        let ends = offsets.iter().zip(buffers).map(|(offset, buffer)| offset + buffer.size_bytes);
        ends.max()
    };
    placed.min_by_key(peak).unwrap_or_default()
}

/// Each buffer in turn at the lowest place that is free for its whole life, unless that is above its limit.
fn in_order(
    buffers: &[Buffer],
    order: &[usize],
    by_birth: bool,
    limits: &[u64],
) -> Option<Vec<u64>> {
    let mut offsets = vec![0; buffers.len()];
    let mut placed: Vec<(u64, usize)> = Vec::with_capacity(order.len()); // sorted by the offset
    for &number in order {
        let Buffer { birth, size_bytes, alignment_bytes, .. } = buffers[number];
        if by_birth {
            placed.retain(|&(_, other)| buffers[other].death > birth);
        }
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
