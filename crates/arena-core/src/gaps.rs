//! The gaps of the kept zone: which one serves a request best, and which ones touch a span.
//!
//! Both are answered in logarithmic time, and the memory of a gap that is gone is used again, so
//! that a buffer that is replaced in each step costs no heap allocation.

#![forbid(unsafe_code)]

use crate::bytes::Alignment;
use crate::layout::{Span, align_up};
use crate::ordered::OrderedSet;

/// Free spans: disjoint, never empty, never touching each other.
#[derive(Debug, Clone)]
pub(crate) struct Gaps {
    base_address: u64,
    /// By (start, end); the weight does not matter.
    by_start: OrderedSet,
    /// For each alignment that was asked for, all gaps by (length, start). The weight is what a gap
    /// has room for from its first aligned address on.
    by_length: Vec<(Alignment, OrderedSet)>,
}

impl Gaps {
    pub(crate) const fn new(base_address: u64) -> Self {
        Self { base_address, by_start: OrderedSet::new(), by_length: Vec::new() }
    }

    /// Where `bytes` bytes start in the shortest gap that has room for them, the first of equals.
    pub(crate) fn best(&mut self, bytes: u64, alignment: Alignment) -> Option<(Span, u64)> {
        let base_address = self.base_address;
        let known = self.by_length.iter().position(|(known, _)| *known == alignment);
        let index = known.unwrap_or_else(|| {
            let mut by_length = OrderedSet::new();
            for (start_bytes, end_bytes) in self.by_start.iter() {
                let gap = Span { start_bytes, end_bytes };
                by_length.insert(length_key(gap), room_bytes(base_address, gap, alignment));
            }
            self.by_length.push((alignment, by_length));
            self.by_length.len() - 1
        });
        let (bytes_long, start_bytes) = self.by_length[index].1.first_of_weight(bytes)?;
        let gap = Span { start_bytes, end_bytes: start_bytes + bytes_long };
        Some((gap, aligned_start(base_address, gap, alignment)))
    }

    /// The gap that ends where `span` starts.
    pub(crate) fn before(&self, span: Span) -> Option<Span> {
        let (start_bytes, end_bytes) = self.by_start.last_before((span.start_bytes, 0))?;
        (end_bytes == span.start_bytes).then_some(Span { start_bytes, end_bytes })
    }

    /// The gap that starts where `span` ends.
    pub(crate) fn after(&self, span: Span) -> Option<Span> {
        let (start_bytes, end_bytes) = self.by_start.first_from((span.end_bytes, 0))?;
        (start_bytes == span.end_bytes).then_some(Span { start_bytes, end_bytes })
    }

    pub(crate) fn insert(&mut self, gap: Span) {
        self.by_start.insert((gap.start_bytes, gap.end_bytes), 0);
        for (alignment, by_length) in &mut self.by_length {
            by_length.insert(length_key(gap), room_bytes(self.base_address, gap, *alignment));
        }
    }

    pub(crate) fn remove(&mut self, gap: Span) {
        self.by_start.remove((gap.start_bytes, gap.end_bytes));
        for (_, by_length) in &mut self.by_length {
            by_length.remove(length_key(gap));
        }
    }

    /// All of them, the lowest first.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Span> {
        self.by_start.iter().map(|(start_bytes, end_bytes)| Span { start_bytes, end_bytes })
    }
}

fn length_key(gap: Span) -> (u64, u64) {
    (gap.len_bytes(), gap.start_bytes)
}

fn aligned_start(base_address: u64, gap: Span, alignment: Alignment) -> u64 {
    align_up(base_address + gap.start_bytes, alignment) - base_address
}

fn room_bytes(base_address: u64, gap: Span, alignment: Alignment) -> u64 {
    gap.end_bytes.saturating_sub(aligned_start(base_address, gap, alignment))
}
