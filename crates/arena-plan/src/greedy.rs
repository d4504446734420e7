//! Greedy in a fixed order: each buffer goes into a gap among those already placed.
//!
//! O(n^2), but it takes what the skyline cannot: buffers whose offset is fixed.

use crate::deadline::Deadline;
use crate::packing::{Item, Packing};
use crate::skyline::order_by;

/// Which of the gaps that are large enough is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    First,
    Best,
}

struct Placed {
    offset: u64,
    top: u64,
    item: Item,
}

/// Offsets for `order` from first to last; `None` as soon as the peak would reach `limit`, or too late.
pub(crate) fn place(
    packing: &Packing,
    order: &[u32],
    fit: Fit,
    limit: u64,
    deadline: Deadline,
) -> Option<Vec<u64>> {
    let mut offsets = vec![0; packing.items.len()];
    let mut placed: Vec<Placed> = Vec::with_capacity(order.len());
    let mut put = |placed: &mut Vec<Placed>, number: u32, offset: u64| {
        let item = packing.items[number as usize];
        offsets[number as usize] = offset;
        let at = placed.partition_point(|other| other.offset < offset);
        placed.insert(at, Placed { offset, top: offset + item.size, item });
        offset + item.size < limit
    };
    let is_fixed = |number: u32| Some((packing.items[number as usize].fixed?, number));
    let mut fixed: Vec<(u64, u32)> = order.iter().filter_map(|&number| is_fixed(number)).collect();
    fixed.sort_unstable(); // so that each is put behind those before it
    for (offset, number) in fixed {
        if !put(&mut placed, number, offset) {
            return None;
        }
    }
    for &number in order {
        let item = &packing.items[number as usize];
        if item.fixed.is_none() {
            let offset = gap(&placed, item, fit);
            if !put(&mut placed, number, offset) || deadline.has_passed() {
                return None;
            }
        }
    }
    Some(offsets)
}

fn gap(placed: &[Placed], item: &Item, fit: Fit) -> u64 {
    let mut candidate = 0;
    let mut best: Option<(u64, u64)> = None; // (bytes left over, offset)
    for other in placed {
        if !item.meets(&other.item) {
            continue;
        }
        if candidate + item.size <= other.offset {
            let left_over = other.offset - candidate - item.size;
            if fit == Fit::First {
                return candidate;
            }
            if best.is_none_or(|(least, _)| left_over < least) {
                best = Some((left_over, candidate));
            }
        }
        candidate = candidate.max(other.top.next_multiple_of(item.align));
    }
    best.map_or(candidate, |(_, offset)| offset)
}

/// The orders worth trying, best first; each is made when it is asked for.
pub(crate) fn orders(packing: &Packing) -> impl Iterator<Item = Vec<u32>> {
    let items = &packing.items;
    let area = |i: usize| u128::from(items[i].size) * u128::from(items[i].width());
    (0..5).map(move |key| match key {
        0 => order_by(packing, |i| items[i].size),
        1 => {
            let conflicts = conflicts(packing);
            order_by(packing, |i| conflicts[i] as u128 * u128::from(items[i].size))
        }
        2 => order_by(packing, |i| (items[i].total, items[i].size)),
        3 => order_by(packing, |i| (items[i].total, area(i), items[i].width())),
        _ => order_by(packing, area),
    })
}

/// For each item how many others it meets.
fn conflicts(packing: &Packing) -> Vec<usize> {
    let sections = packing.sections as usize;
    let mut born_before = vec![0_usize; sections + 1];
    let mut dead_by = born_before.clone();
    for item in &packing.items {
        born_before[item.first as usize + 1] += 1;
        dead_by[item.end as usize] += 1;
    }
    for section in 0..sections {
        born_before[section + 1] += born_before[section];
        dead_by[section + 1] += dead_by[section];
    }
    let meets = |item: &Item| born_before[item.end as usize] - dead_by[item.first as usize] - 1;
    packing.items.iter().map(meets).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::{Buffer, Instance};

    #[test]
    fn conflicts_are_counted_without_comparing_pairs() {
        let buffers = (0..40).map(|i| Buffer::new(i * 7 % 31, i * 7 % 31 + 1 + i * 5 % 13, 1 + i));
        let packing = Packing::new(&Instance::new(buffers.collect()).unwrap());
        let naive: Vec<usize> = packing
            .items
            .iter()
            .map(|item| packing.items.iter().filter(|other| item.meets(other)).count() - 1)
            .collect();
        assert_eq!(conflicts(&packing), naive);
    }

    #[test]
    fn the_best_gap_is_the_tightest_and_the_first_the_lowest() {
        let packing = Packing::new(
            &Instance::new(vec![
                Buffer::new(0, 9, 10).fixed_at(30),
                Buffer::new(0, 9, 10).fixed_at(50),
                Buffer::new(0, 9, 10),
            ])
            .unwrap(),
        );
        let order = [0, 1, 2];
        assert_eq!(place(&packing, &order, Fit::First, u64::MAX, Deadline::NEVER).unwrap()[2], 0);
        assert_eq!(packing.unit_bytes, 10);
        assert_eq!(place(&packing, &order, Fit::Best, u64::MAX, Deadline::NEVER).unwrap()[2], 4);
        assert_eq!(place(&packing, &order, Fit::Best, 6, Deadline::NEVER), None);
    }
}
