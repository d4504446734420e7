//! The kept zone: persistent buffers made after the mark was set.
//!
//! It grows down from the region's top, so that the mark and every transient address stay where
//! they are. Inside it a coalescing best-fit list gives back what was dropped. It is exact: every
//! byte between the floor and the top is either in a kept buffer or in a gap of the list.

#![forbid(unsafe_code)]

use crate::bytes::Alignment;
use crate::gaps::Gaps;
use crate::layout::{Span, align_down};

/// The kept zone of a region, as arithmetic.
#[derive(Debug, Clone)]
pub(crate) struct KeptZone {
    base_address: u64,
    capacity_bytes: u64,
    floor_bytes: u64,
    /// What is free between the floor and the top. The lowest gap never starts at the floor, for then
    /// the floor would have risen over it.
    gaps: Gaps,
}

impl KeptZone {
    pub(crate) const fn new(base_address: u64, capacity_bytes: u64) -> Self {
        let gaps = Gaps::new(base_address);
        Self { base_address, capacity_bytes, floor_bytes: capacity_bytes, gaps }
    }

    /// The lowest byte that belongs to the zone.
    pub(crate) const fn floor_bytes(&self) -> u64 {
        self.floor_bytes
    }

    /// Bytes from the floor to the top, gaps included.
    pub(crate) const fn bytes(&self) -> u64 {
        self.capacity_bytes - self.floor_bytes
    }

    /// Places `bytes` bytes: in the smallest gap that serves, else below the floor, which never
    /// goes below `lowest_bytes`. `None` changes nothing. `bytes` is not zero.
    pub(crate) fn place(
        &mut self,
        bytes: u64,
        alignment: Alignment,
        lowest_bytes: u64,
    ) -> Option<Span> {
        self.place_in_gap(bytes, alignment)
            .or_else(|| self.place_below_floor(bytes, alignment, lowest_bytes))
    }

    fn place_in_gap(&mut self, bytes: u64, alignment: Alignment) -> Option<Span> {
        let (gap, start_bytes) = self.gaps.best(bytes, alignment)?;
        self.gaps.remove(gap);
        let taken = Span { start_bytes, end_bytes: start_bytes + bytes };
        let before = Span { start_bytes: gap.start_bytes, end_bytes: taken.start_bytes };
        let after = Span { start_bytes: taken.end_bytes, end_bytes: gap.end_bytes };
        [before, after]
            .into_iter()
            .filter(|gap| !gap.is_empty())
            .for_each(|gap| self.gaps.insert(gap));
        Some(taken)
    }

    fn place_below_floor(
        &mut self,
        bytes: u64,
        alignment: Alignment,
        lowest_bytes: u64,
    ) -> Option<Span> {
        let highest_start = self.floor_bytes.checked_sub(bytes)?;
        let start_address = align_down(self.base_address + highest_start, alignment);
        let start_bytes = start_address.checked_sub(self.base_address)?;
        if start_bytes < lowest_bytes {
            return None;
        }
        let taken = Span { start_bytes, end_bytes: start_bytes + bytes };
        let padding = Span { start_bytes: taken.end_bytes, end_bytes: self.floor_bytes };
        self.floor_bytes = start_bytes;
        if !padding.is_empty() {
            self.gaps.insert(padding);
        }
        Some(taken)
    }

    /// Takes back a span that [`place`](Self::place) gave and that was not given back since.
    pub(crate) fn give_back(&mut self, span: Span) {
        let mut free = span;
        if let Some(before) = self.gaps.before(span) {
            self.gaps.remove(before);
            free.start_bytes = before.start_bytes;
        }
        if let Some(after) = self.gaps.after(span) {
            self.gaps.remove(after);
            free.end_bytes = after.end_bytes;
        }
        if free.start_bytes == self.floor_bytes {
            self.floor_bytes = free.end_bytes;
        } else {
            self.gaps.insert(free);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::align_up;
    use proptest::prelude::*;

    fn zone() -> KeptZone {
        KeptZone::new(0, 4096)
    }

    const A256: Alignment = Alignment::DEFAULT;

    #[test]
    fn kept_buffers_grow_down_and_the_exact_fit_succeeds() {
        let mut zone = zone();
        let first = zone.place(100, A256, 0).unwrap();
        assert_eq!((first.start_bytes, zone.floor_bytes(), zone.bytes()), (3840, 3840, 256));
        // The padding above the first buffer is a gap, and serves an unaligned request.
        assert_eq!(zone.place(156, Alignment::ONE, 0).unwrap().start_bytes, 3940);
        assert_eq!(zone.place(3840, A256, 0).unwrap().start_bytes, 0);
        assert_eq!(zone.place(1, Alignment::ONE, 0), None);
    }

    #[test]
    fn the_floor_stops_above_the_cursor() {
        let mut zone = zone();
        assert_eq!(zone.place(256, A256, 3841), None);
        assert_eq!(zone.bytes(), 0);
        assert!(zone.place(256, A256, 3840).is_some());
    }

    #[test]
    fn the_smallest_gap_that_serves_is_taken() {
        let mut zone = zone();
        let spans: Vec<Span> =
            [512, 256, 1024, 256].map(|bytes| zone.place(bytes, A256, 0).unwrap()).to_vec();
        zone.give_back(spans[0]);
        zone.give_back(spans[2]);
        assert_eq!(zone.place(500, A256, 0).unwrap().start_bytes, spans[0].start_bytes);
    }

    #[derive(Debug, Clone)]
    enum Op {
        Place { bytes: u64, log: u32 },
        GiveBack(usize),
    }

    fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            (1_u64..2000, 0_u32..12).prop_map(|(bytes, log)| Op::Place { bytes, log }),
            any::<usize>().prop_map(Op::GiveBack),
        ];
        prop::collection::vec(op, 1..most)
    }

    proptest! {
        // The model is a map of bytes: which are held, by whom.
        #[test]
        fn the_zone_agrees_with_a_map_of_bytes(base in 0_u64..100, ops in ops(120)) {
            const CAPACITY: u64 = 10_000;
            let mut zone = KeptZone::new(base, CAPACITY);
            let mut live: Vec<Span> = Vec::new();
            for op in ops {
                match op {
                    Op::Place { bytes, log } => {
                        let alignment = Alignment::new(1 << log).unwrap();
                        if let Some(span) = zone.place(bytes, alignment, 1000) {
                            prop_assert_eq!(span.len_bytes(), bytes);
                            prop_assert!(alignment.divides(base + span.start_bytes));
                            prop_assert!(span.start_bytes >= 1000 && span.end_bytes <= CAPACITY);
                            for other in &live {
                                prop_assert!(span.end_bytes <= other.start_bytes
                                    || other.end_bytes <= span.start_bytes);
                            }
                            live.push(span);
                        }
                    }
                    Op::GiveBack(pick) if !live.is_empty() => {
                        zone.give_back(live.swap_remove(pick % live.len()));
                    }
                    Op::GiveBack(_) => {}
                }
                let held: u64 = live.iter().map(|span| span.len_bytes()).sum();
                let free: u64 = zone.gaps.iter().map(|gap| gap.len_bytes()).sum();
                prop_assert_eq!(held + free, zone.bytes(), "every byte is held or in a gap");
                let floor = live.iter().map(|span| span.start_bytes).min().unwrap_or(CAPACITY);
                prop_assert_eq!(zone.floor_bytes(), floor);
                let gaps: Vec<Span> = zone.gaps.iter().collect();
                prop_assert!(gaps.windows(2).all(|two| two[0].end_bytes < two[1].start_bytes));
            }
        }
    }

    /// The same zone with its gaps in a plain list, each looked at for each request.
    struct PlainZone {
        base_address: u64,
        floor_bytes: u64,
        gaps: Vec<Span>,
    }

    impl PlainZone {
        fn place(&mut self, bytes: u64, alignment: Alignment, lowest_bytes: u64) -> Option<Span> {
            self.place_in_gap(bytes, alignment)
                .or_else(|| self.place_below_floor(bytes, alignment, lowest_bytes))
        }

        fn place_in_gap(&mut self, bytes: u64, alignment: Alignment) -> Option<Span> {
            let (index, start_bytes) = (self.gaps.iter().enumerate())
                .filter_map(|(index, gap)| {
                    let start = self.base_address + gap.start_bytes;
                    let start = align_up(start, alignment) - self.base_address;
                    let fits = start <= gap.end_bytes && bytes <= gap.end_bytes - start;
                    fits.then_some((index, start, gap.len_bytes()))
                })
                .min_by_key(|&(_, _, gap_bytes)| gap_bytes)
                .map(|(index, start, _)| (index, start))?;
            let gap = self.gaps.remove(index);
            let taken = Span { start_bytes, end_bytes: start_bytes + bytes };
            let before = Span { start_bytes: gap.start_bytes, end_bytes: taken.start_bytes };
            let after = Span { start_bytes: taken.end_bytes, end_bytes: gap.end_bytes };
            let rest = [before, after].into_iter().filter(|gap| !gap.is_empty());
            self.gaps.splice(index..index, rest);
            Some(taken)
        }

        fn place_below_floor(
            &mut self,
            bytes: u64,
            alignment: Alignment,
            lowest_bytes: u64,
        ) -> Option<Span> {
            let highest_start = self.floor_bytes.checked_sub(bytes)?;
            let start_address = align_down(self.base_address + highest_start, alignment);
            let start_bytes = start_address.checked_sub(self.base_address)?;
            if start_bytes < lowest_bytes {
                return None;
            }
            let taken = Span { start_bytes, end_bytes: start_bytes + bytes };
            let padding = Span { start_bytes: taken.end_bytes, end_bytes: self.floor_bytes };
            self.floor_bytes = start_bytes;
            if !padding.is_empty() {
                self.insert_gap(padding);
            }
            Some(taken)
        }

        fn give_back(&mut self, span: Span) {
            self.insert_gap(span);
            if self.gaps[0].start_bytes == self.floor_bytes {
                self.floor_bytes = self.gaps.remove(0).end_bytes;
            }
        }

        fn insert_gap(&mut self, span: Span) {
            let index = self.gaps.partition_point(|gap| gap.start_bytes < span.start_bytes);
            let joins_next =
                self.gaps.get(index).is_some_and(|gap| gap.start_bytes == span.end_bytes);
            let joins_last = index > 0 && self.gaps[index - 1].end_bytes == span.start_bytes;
            match (joins_last, joins_next) {
                (true, true) => self.gaps[index - 1].end_bytes = self.gaps.remove(index).end_bytes,
                (true, false) => self.gaps[index - 1].end_bytes = span.end_bytes,
                (false, true) => self.gaps[index].start_bytes = span.start_bytes,
                (false, false) => self.gaps.insert(index, span),
            }
        }
    }

    proptest! {
        // Sizes and alignments that leave many gaps, of which many are long enough and do not serve.
        #[test]
        fn places_are_those_of_a_search_through_all_gaps(base in 0_u64..100, ops in ops(600)) {
            const CAPACITY: u64 = 100_000;
            let mut zone = KeptZone::new(base, CAPACITY);
            let mut plain =
                PlainZone { base_address: base, floor_bytes: CAPACITY, gaps: Vec::new() };
            let mut live: Vec<Span> = Vec::new();
            for op in ops {
                match op {
                    Op::Place { bytes, log } => {
                        let alignment = Alignment::new(1 << log).unwrap();
                        let span = zone.place(bytes, alignment, 1000);
                        prop_assert_eq!(span, plain.place(bytes, alignment, 1000));
                        live.extend(span);
                    }
                    Op::GiveBack(pick) if !live.is_empty() => {
                        let span = live.swap_remove(pick % live.len());
                        zone.give_back(span);
                        plain.give_back(span);
                    }
                    Op::GiveBack(_) => {}
                }
                prop_assert_eq!(zone.floor_bytes(), plain.floor_bytes);
                prop_assert!(zone.gaps.iter().eq(plain.gaps.iter().copied()));
            }
        }
    }
}
