//! Skyline best fit: fill the lowest flat stretch of the skyline over time with the best buffer that
//! fits into it whole, else lift the stretch to its lower neighbour.
//!
//! About a microsecond a buffer: a heap finds the lowest stretch, neighbours are linked, and a tree
//! over the buffers in birth order finds the best that lies inside a stretch.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::deadline::Deadline;
use crate::packing::Packing;

const NONE: u32 = u32::MAX;

/// Best remaining rank and earliest end below a node of the tree.
#[derive(Clone, Copy)]
struct Node {
    rank: u32,
    min_end: u32,
}

const EMPTY: Node = Node { rank: NONE, min_end: NONE };

/// The unplaced items, leaves in order of birth, each with its rank (0 is the best).
struct Picker {
    nodes: Vec<Node>,
    leaves: usize,
    /// First leaf of the items born in or after each section.
    start: Vec<u32>,
    leaf_of: Vec<u32>,
    /// Nodes looked at so far, over all packings.
    looked_at: u64,
}

impl Picker {
    fn new(packing: &Packing) -> Self {
        let sections = packing.sections as usize;
        let mut start = vec![0_u32; sections + 2];
        for item in &packing.items {
            start[item.first as usize + 1] += 1;
        }
        for section in 0..=sections {
            start[section + 1] += start[section];
        }
        let mut next = start.clone();
        let leaf_of = packing
            .items
            .iter()
            .map(|item| {
                let leaf = next[item.first as usize];
                next[item.first as usize] += 1;
                leaf
            })
            .collect();
        let leaves = packing.items.len().next_power_of_two();
        Self { nodes: vec![EMPTY; 2 * leaves], leaves, start, leaf_of, looked_at: 0 }
    }

    fn fill(&mut self, packing: &Packing, order: &[u32]) {
        self.nodes.fill(EMPTY);
        for (rank, &item) in (0..).zip(order) {
            let leaf = self.leaves + self.leaf_of[item as usize] as usize;
            self.nodes[leaf] = Node { rank, min_end: packing.items[item as usize].end };
        }
        for node in (1..self.leaves).rev() {
            self.update(node);
        }
    }

    fn update(&mut self, node: usize) {
        let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
        self.nodes[node] =
            Node { rank: left.rank.min(right.rank), min_end: left.min_end.min(right.min_end) };
    }

    fn remove(&mut self, item: u32) {
        let mut node = self.leaves + self.leaf_of[item as usize] as usize;
        self.nodes[node] = EMPTY;
        while node > 1 {
            node /= 2;
            self.update(node);
        }
    }

    /// The best rank among the items that live inside `from..to`, or `NONE`.
    fn best_inside(&mut self, packing: &Packing, order: &[u32], from: u32, to: u32) -> u32 {
        self.looked_at += 1;
        let mut best = NONE;
        let mut low = self.start[from as usize] as usize + self.leaves;
        let mut high = self.start[to as usize] as usize + self.leaves;
        while low < high {
            if low % 2 == 1 {
                self.descend(low, packing, order, to, &mut best);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.descend(high, packing, order, to, &mut best);
            }
            low /= 2;
            high /= 2;
        }
        best
    }

    fn descend(&mut self, node: usize, packing: &Packing, order: &[u32], to: u32, best: &mut u32) {
        self.looked_at += 1;
        let Node { rank, min_end } = self.nodes[node];
        if rank >= *best || min_end > to {
            return;
        }
        // The best of the whole subtree fits: no need to look further down.
        if packing.items[order[rank as usize] as usize].end <= to {
            *best = rank;
            return;
        }
        if node < self.leaves {
            let (left, right) = (2 * node, 2 * node + 1);
            let first = if self.nodes[left].rank < self.nodes[right].rank { left } else { right };
            self.descend(first, packing, order, to, best);
            self.descend(left + right - first, packing, order, to, best);
        }
    }
}

/// Reusable storage for [`Skyline::pack`].
pub(crate) struct Skyline<'a> {
    packing: &'a Packing,
    deadline: Deadline,
    picker: Picker,
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// A stretch is named by its first section; these are indexed by that.
    height: Vec<u64>,
    end: Vec<u32>,
    /// First section of the stretch to the left, `NONE` at the edge.
    previous: Vec<u32>,
    /// The offsets of the latest packing.
    pub(crate) offsets: Vec<u64>,
}

impl<'a> Skyline<'a> {
    /// Looks at the tree's nodes between two looks at the clock.
    const LOOKS_PER_TIME: u64 = 10_000;
    /// Looks that placing a buffer takes at most in most instances.
    const LOOKS_PER_BUFFER: u64 = 60;

    /// Items with fixed offsets are not respected: use the greedy orders for those.
    pub(crate) fn new(packing: &'a Packing, deadline: Deadline) -> Self {
        let sections = packing.sections as usize;
        Self {
            packing,
            deadline,
            picker: Picker::new(packing),
            heap: BinaryHeap::new(),
            height: vec![0; sections],
            end: vec![NONE; sections],
            previous: vec![NONE; sections],
            offsets: vec![0; packing.items.len()],
        }
    }

    /// Packs the items, `order` from the most to the least wanted, and returns the peak; `None` as
    /// soon as the peak would reach `limit`, or too late.
    pub(crate) fn pack(&mut self, order: &[u32], limit: u64) -> Option<u64> {
        let packing = self.packing;
        if packing.items.is_empty() {
            return Some(0);
        }
        self.picker.fill(packing, order);
        self.heap.clear();
        self.end.fill(NONE);
        self.set(0, packing.sections, 0, NONE);
        let mut peak = 0;
        let mut left = order.len();
        let mut next_look = self.picker.looked_at;
        while left > 0 {
            if self.picker.looked_at >= next_look {
                if self.deadline.has_passed() {
                    return None;
                }
                next_look = self.picker.looked_at + Self::LOOKS_PER_TIME;
            }
            let Some(Reverse((height, start))) = self.heap.pop() else { break };
            let end = self.end[start as usize];
            if end == NONE || self.height[start as usize] != height {
                continue; // merged into a neighbour since
            }
            let rank = self.picker.best_inside(packing, order, start, end);
            if rank == NONE {
                self.lift(start);
                continue;
            }
            let item = order[rank as usize];
            self.picker.remove(item);
            left -= 1;
            let placed = &packing.items[item as usize];
            let offset = height.next_multiple_of(placed.align);
            let top = offset + placed.size;
            if top >= limit {
                return None;
            }
            peak = peak.max(top);
            self.offsets[item as usize] = offset;
            self.split(start, placed.first, placed.end, top);
        }
        Some(peak)
    }

    /// What the packings so far have cost, in buffers of a plain instance.
    pub(crate) fn cost(&self) -> u64 {
        self.picker.looked_at / Self::LOOKS_PER_BUFFER
    }

    fn set(&mut self, start: u32, end: u32, height: u64, previous: u32) {
        let at = start as usize;
        self.end[at] = end;
        self.height[at] = height;
        self.previous[at] = previous;
        if end < self.packing.sections {
            self.previous[end as usize] = start;
        }
        self.heap.push(Reverse((height, start)));
    }

    /// Raises the part `first..last` of the stretch at `start` to `top`.
    fn split(&mut self, start: u32, first: u32, last: u32, top: u64) {
        let (end, height) = (self.end[start as usize], self.height[start as usize]);
        let mut previous = self.previous[start as usize];
        let mut from = first;
        if start < first {
            self.set(start, first, height, previous);
            previous = start;
        } else if previous != NONE && self.height[previous as usize] == top {
            self.end[start as usize] = NONE;
            from = previous;
            previous = self.previous[from as usize];
        }
        let mut to = last;
        if last < end {
            self.set(last, end, height, from);
        } else if last < self.packing.sections && self.height[last as usize] == top {
            to = self.end[last as usize];
            self.end[last as usize] = NONE;
        }
        self.set(from, to, top, previous);
    }

    /// Nothing fits: raise the stretch to its lower neighbour, which swallows it.
    fn lift(&mut self, start: u32) {
        let end = self.end[start as usize];
        let previous = self.previous[start as usize];
        let left = (previous != NONE).then(|| self.height[previous as usize]);
        let right = (end < self.packing.sections).then(|| self.height[end as usize]);
        let target = match (left, right) {
            (Some(left), Some(right)) => left.min(right),
            (Some(height), None) | (None, Some(height)) => height,
            // The stretch spans all time, where everything fits.
            (None, None) => return,
        };
        let (mut from, mut to, mut before) = (start, end, previous);
        if left == Some(target) {
            self.end[start as usize] = NONE;
            from = previous;
            before = self.previous[from as usize];
        }
        if right == Some(target) {
            to = self.end[end as usize];
            self.end[end as usize] = NONE;
        }
        self.set(from, to, target, before);
    }
}

/// The item numbers by falling key; equal keys by falling width, then by birth.
pub(crate) fn order_by<K: PartialOrd + Copy>(
    packing: &Packing,
    key: impl Fn(usize) -> K,
) -> Vec<u32> {
    let mut keyed: Vec<(K, u32)> =
        (0..).zip(&packing.items).map(|(i, _)| (key(i as usize), i)).collect();
    keyed.sort_unstable_by(|&(left_key, a), &(right_key, b)| {
        right_key.partial_cmp(&left_key).unwrap_or(std::cmp::Ordering::Equal).then_with(|| {
            let (left, right) = (&packing.items[a as usize], &packing.items[b as usize]);
            (right.width(), left.first, a).cmp(&(left.width(), right.first, b))
        })
    });
    keyed.into_iter().map(|(_, item)| item).collect()
}
