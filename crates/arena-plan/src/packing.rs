//! The instance as the solvers see it: whole units for bytes, sections for time, no empty buffers.

use crate::bound::{Bound, live_totals, lower_bound_in};
use crate::instance::Instance;
use crate::sections::Sections;

/// A buffer to place. Sizes and offsets are in units, times in sections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) size: u64,
    pub(crate) align: u64,
    /// Lives in the sections `first..end`.
    pub(crate) first: u32,
    pub(crate) end: u32,
    pub(crate) fixed: Option<u64>,
    /// The largest live total among its sections.
    pub(crate) total: u64,
}

impl Item {
    pub(crate) fn width(&self) -> u64 {
        u64::from(self.end - self.first)
    }

    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.first < other.end && other.first < self.end
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Packing {
    pub(crate) items: Vec<Item>,
    /// The buffer that each item stands for.
    buffer_of: Vec<usize>,
    pub(crate) sections: u32,
    pub(crate) unit_bytes: u64,
    /// No peak can be lower.
    pub(crate) bound: u64,
    /// The same in bytes.
    pub(crate) bound_bytes: Bound,
}

impl Packing {
    pub(crate) fn new(instance: &Instance) -> Self {
        let sections = Sections::new(instance);
        let unit_bytes = unit_bytes(instance);
        let totals = live_totals(&sections, &|index| instance.occupied_bytes(index));
        let highest = RangeMax::new(&totals);
        let mut items = Vec::with_capacity(instance.len());
        let mut buffer_of = Vec::with_capacity(instance.len());
        for (index, buffer) in instance.buffers().iter().enumerate() {
            if buffer.size_bytes == 0 {
                continue;
            }
            let (first, end) = sections.ranges[index];
            items.push(Item {
                size: instance.occupied_bytes(index) / unit_bytes,
                align: (buffer.alignment_bytes / unit_bytes).max(1),
                first,
                end,
                fixed: buffer.fixed_offset_bytes.map(|offset| offset / unit_bytes),
                total: highest.of(first as usize, end as usize) / unit_bytes,
            });
            buffer_of.push(index);
        }
        let bound_bytes = lower_bound_in(instance, &sections);
        let bound = bound_bytes.rounded_bytes / unit_bytes;
        Self { items, buffer_of, sections: sections.count, unit_bytes, bound, bound_bytes }
    }

    /// Offsets in bytes for every buffer from offsets in units for every item.
    pub(crate) fn offsets_bytes(&self, instance: &Instance, offsets: &[u64]) -> Vec<u64> {
        let mut bytes: Vec<u64> = instance
            .buffers()
            .iter()
            .map(|buffer| buffer.fixed_offset_bytes.unwrap_or(0))
            .collect();
        for (&buffer, &offset) in self.buffer_of.iter().zip(offsets) {
            bytes[buffer] = offset * self.unit_bytes;
        }
        bytes
    }

    pub(crate) fn has_fixed(&self) -> bool {
        self.items.iter().any(|item| item.fixed.is_some())
    }

    pub(crate) fn peak(&self, offsets: &[u64]) -> u64 {
        self.items.iter().zip(offsets).map(|(item, offset)| offset + item.size).max().unwrap_or(0)
    }

    /// The fixed items where they are, the others one above another over all of them.
    pub(crate) fn stacked(&self) -> Vec<u64> {
        let fixed_top = |item: &Item| item.fixed.map(|offset| offset + item.size);
        let mut top = self.items.iter().filter_map(fixed_top).max().unwrap_or(0);
        let stack = |item: &Item| {
            item.fixed.unwrap_or_else(|| {
                let offset = top.next_multiple_of(item.align);
                top = offset + item.size;
                offset
            })
        };
        self.items.iter().map(stack).collect()
    }

    /// The item numbers by rising section; those of the same section by number.
    pub(crate) fn in_order_of(&self, section: impl Fn(&Item) -> u32) -> Vec<u32> {
        // Sections are small numbers: they are counted, not compared.
        let mut next = vec![0_u32; self.sections as usize + 2];
        for item in &self.items {
            next[section(item) as usize + 1] += 1;
        }
        for at in 1..next.len() {
            next[at] += next[at - 1];
        }
        let mut order = vec![0; self.items.len()];
        for (number, item) in (0..).zip(&self.items) {
            let place = &mut next[section(item) as usize];
            order[*place as usize] = number;
            *place += 1;
        }
        order
    }

    /// Groups of items with no section in common between groups, in order of time.
    pub(crate) fn components(&self) -> Vec<Vec<u32>> {
        let mut components: Vec<Vec<u32>> = Vec::new();
        let mut reach = 0;
        for item in self.in_order_of(|item| item.first) {
            let Item { first, end, .. } = self.items[item as usize];
            match components.last_mut() {
                Some(last) if first < reach => last.push(item),
                _ => components.push(vec![item]),
            }
            reach = reach.max(end);
        }
        components
    }
}

/// The largest unit in which all sizes, fixed offsets and needed alignments are whole. Large units
/// make many instances small: equal heights are then noticed to be equal.
fn unit_bytes(instance: &Instance) -> u64 {
    let common = (0..instance.len())
        .map(|index| instance.occupied_bytes(index))
        .chain(instance.buffers().iter().filter_map(|buffer| buffer.fixed_offset_bytes))
        .fold(0, gcd);
    if common == 0 {
        return instance.granule_bytes();
    }
    if common % instance.alignment_bytes() == 0 {
        return common;
    }
    // An offset rounded up to a power of two is a multiple only of powers of two.
    1 << common.trailing_zeros()
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The largest of any run of values in O(1) after O(n log n).
struct RangeMax {
    /// `levels[k][i]` is the largest of the `2^k` values from `i` on.
    levels: Vec<Vec<u64>>,
}

impl RangeMax {
    fn new(values: &[u64]) -> Self {
        let mut levels = vec![values.to_vec()];
        let mut width = 1;
        while 2 * width <= values.len() {
            let last = &levels[levels.len() - 1];
            let next =
                (0..=values.len() - 2 * width).map(|i| last[i].max(last[i + width])).collect();
            levels.push(next);
            width *= 2;
        }
        Self { levels }
    }

    /// The largest of the values `from..to`; `from < to`.
    fn of(&self, from: usize, to: usize) -> u64 {
        let level = (to - from).ilog2() as usize;
        let values = &self.levels[level];
        values[from].max(values[to - (1 << level)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::Buffer;

    #[test]
    fn the_unit_divides_sizes_and_keeps_alignments_whole() {
        let unit = |buffers: Vec<Buffer>| unit_bytes(&Instance::new(buffers).unwrap());
        assert_eq!(unit(vec![Buffer::new(0, 1, 3072), Buffer::new(0, 1, 2048)]), 1024);
        assert_eq!(unit(vec![Buffer::new(0, 1, 3072), Buffer::new(0, 1, 6144)]), 3072);
        // 3072 is no multiple of 2048, so offsets need not be multiples of 3072.
        assert_eq!(
            unit(vec![Buffer::new(0, 1, 3072), Buffer::new(0, 1, 6144).aligned(2048)]),
            1024
        );
        assert_eq!(unit(vec![Buffer::new(0, 1, 10).aligned(256)]), 256);
        assert_eq!(unit(vec![Buffer::new(0, 1, 12).fixed_at(4), Buffer::new(0, 1, 24)]), 4);
        assert_eq!(unit(vec![]), 1);
    }

    #[test]
    fn an_item_knows_the_fullest_of_its_sections() {
        let instance = Instance::new(vec![
            Buffer::new(0, 10, 1),
            Buffer::new(1, 2, 5),
            Buffer::new(3, 4, 7),
            Buffer::new(20, 21, 2),
        ])
        .unwrap();
        let packing = Packing::new(&instance);
        let totals: Vec<u64> = packing.items.iter().map(|item| item.total).collect();
        assert_eq!(totals, [8, 6, 8, 2]);
        assert_eq!(packing.bound, 8);
        assert_eq!(packing.components(), [vec![0, 1, 2], vec![3]]);
    }
}
