//! What an allocator would do: buffers in order of birth, each into the tightest free range.
//!
//! The stage for when no time is left: O(n log n) whatever the lifetimes are.

use std::collections::{BTreeMap, BTreeSet};

use crate::packing::Packing;

/// Free ranges below the top, no two of them side by side.
#[derive(Default)]
struct Free {
    /// (size, offset)
    by_size: BTreeSet<(u64, u64)>,
    /// Offset to size.
    by_offset: BTreeMap<u64, u64>,
    /// All is free from here on; no range ends here.
    top: u64,
}

impl Free {
    fn insert(&mut self, offset: u64, size: u64) {
        if size > 0 {
            self.by_size.insert((size, offset));
            self.by_offset.insert(offset, size);
        }
    }

    fn remove(&mut self, offset: u64, size: u64) {
        self.by_size.remove(&(size, offset));
        self.by_offset.remove(&offset);
    }

    fn take(&mut self, size: u64, align: u64) -> u64 {
        // A range of this size holds an aligned start, wherever it lies.
        if let Some(&(found, from)) = self.by_size.range((size + align - 1, 0)..).next() {
            self.remove(from, found);
            let offset = from.next_multiple_of(align);
            self.insert(from, offset - from);
            self.insert(offset + size, from + found - offset - size);
            return offset;
        }
        let offset = self.top.next_multiple_of(align);
        self.insert(self.top, offset - self.top);
        self.top = offset + size;
        offset
    }

    fn give_back(&mut self, mut offset: u64, mut size: u64) {
        if let Some((&before, &its_size)) = self.by_offset.range(..offset).next_back()
            && before + its_size == offset
        {
            self.remove(before, its_size);
            (offset, size) = (before, size + its_size);
        }
        if let Some(&its_size) = self.by_offset.get(&(offset + size)) {
            self.remove(offset + size, its_size);
            size += its_size;
        }
        if offset + size == self.top {
            self.top = offset;
        } else {
            self.insert(offset, size);
        }
    }
}

/// Offsets for every item; fixed ones are not respected.
pub(crate) fn place(packing: &Packing) -> Vec<u64> {
    let items = &packing.items;
    let mut deaths = packing.in_order_of(|item| item.end).into_iter().peekable();
    let mut offsets = vec![0; items.len()];
    let mut free = Free::default();
    for number in packing.in_order_of(|item| item.first) {
        let item = &items[number as usize];
        while let Some(dead) = deaths.next_if(|&dead| items[dead as usize].end <= item.first) {
            free.give_back(offsets[dead as usize], items[dead as usize].size);
        }
        offsets[number as usize] = free.take(item.size, item.align);
    }
    offsets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::{Buffer, Instance};

    #[test]
    fn a_dead_buffers_bytes_are_taken_by_the_one_that_fits_them_best() {
        let buffers = vec![
            Buffer::new(0, 4, 30),
            Buffer::new(0, 9, 1),
            Buffer::new(0, 4, 10),
            Buffer::new(0, 9, 1),
            Buffer::new(4, 9, 10),
            Buffer::new(4, 9, 20),
            Buffer::new(4, 9, 10),
        ];
        let packing = Packing::new(&Instance::new(buffers).unwrap());
        assert_eq!(place(&packing), [0, 30, 31, 41, 31, 0, 20]);
    }

    #[test]
    fn alignment_is_kept_and_its_padding_is_used() {
        let buffers =
            vec![Buffer::new(0, 9, 1), Buffer::new(1, 9, 8).aligned(8), Buffer::new(2, 9, 7)];
        let packing = Packing::new(&Instance::new(buffers).unwrap());
        assert_eq!(place(&packing), [0, 8, 1]);
    }
}
