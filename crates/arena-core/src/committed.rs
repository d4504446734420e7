//! Which parts of a region have physical memory behind them, where that comes piece by piece.
//!
//! ```text
//! base                                                          reserved end
//!  | committed ->          hole            <- committed |
//! ```
//!
//! The bottom grows up with the cursor and the top grows down with the kept zone, in chunks of one device call
//! each. A chunk can only be given back whole, so they are few and large: each is as long as what is committed
//! on its side already, up to a bound. There is one hole at most; when it is filled, all is committed.
//!
//! Offsets count from the base, in bytes. This is arithmetic: nothing here knows a device.

#![forbid(unsafe_code)]

use crate::bytes::Alignment;
use crate::layout::{Span, align_down, align_up};

/// The first chunk of each side, if the bound and the hole allow it.
const FIRST_CHUNK_BYTES: u64 = 2 << 20;

/// The chunks of one region.
#[derive(Debug, Clone)]
pub(crate) struct Committed {
    granularity: Alignment,
    /// Addresses that are reserved: a multiple of the granularity, unless all is committed for good.
    end_bytes: u64,
    /// The most that a chunk is longer than it need be.
    ahead_bytes: u64,
    /// In the order of their addresses. Only the hole lies between two of them.
    chunks: Vec<Span>,
    /// How many lie below the hole.
    below: usize,
}

/// A chunk to commit next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// With what comes ahead of the need.
    pub(crate) wish: Span,
    /// The least that serves; it lies in the wish, at the same end of the hole.
    pub(crate) need: Span,
}

impl Committed {
    /// A region that has all its memory from the start.
    pub(crate) fn whole(bytes: u64) -> Self {
        let whole = Span { start_bytes: 0, end_bytes: bytes };
        Self {
            granularity: Alignment::ONE,
            end_bytes: bytes,
            ahead_bytes: 0,
            chunks: vec![whole],
            below: 1,
        }
    }

    /// A region of addresses without memory. `reserved_bytes` is a multiple of the granularity.
    pub(crate) fn nothing(granularity: Alignment, reserved_bytes: u64, ahead_bytes: u64) -> Self {
        let chunks = Vec::new();
        Self { granularity, end_bytes: reserved_bytes, ahead_bytes, chunks, below: 0 }
    }

    /// Bytes of all chunks.
    pub(crate) fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len_bytes()).sum()
    }

    /// What has no memory; empty if all is committed.
    pub(crate) fn hole(&self) -> Span {
        let last_below = self.below.checked_sub(1).and_then(|last| self.chunks.get(last));
        Span {
            start_bytes: last_below.map_or(0, |chunk| chunk.end_bytes),
            end_bytes: self
                .chunks
                .get(self.below)
                .map_or(self.end_bytes, |chunk| chunk.start_bytes),
        }
    }

    /// Where what begins at the base ends.
    pub(crate) fn bottom_end_bytes(&self) -> u64 {
        let hole = self.hole();
        if hole.is_empty() { self.end_bytes } else { hole.start_bytes }
    }

    /// What to commit so that the bottom reaches up to `to_bytes`; `None` if it does.
    pub(crate) fn step_up(&self, to_bytes: u64) -> Option<Step> {
        let hole = self.hole();
        if hole.is_empty() || to_bytes <= hole.start_bytes {
            return None;
        }
        let need_end = align_up(to_bytes, self.granularity).min(hole.end_bytes);
        let need_bytes = need_end - hole.start_bytes;
        let wish_bytes = self.wish_bytes(need_bytes, &self.chunks[..self.below]);
        let wish_end = hole.end_bytes.min(hole.start_bytes + wish_bytes);
        Some(Step {
            wish: Span { end_bytes: wish_end, ..hole },
            need: Span { end_bytes: need_end, ..hole },
        })
    }

    /// What to commit so that the top reaches down to `from_bytes`; `None` if it does.
    pub(crate) fn step_down(&self, from_bytes: u64) -> Option<Step> {
        let hole = self.hole();
        if hole.is_empty() || from_bytes >= hole.end_bytes {
            return None;
        }
        let need_start = align_down(from_bytes, self.granularity).max(hole.start_bytes);
        let need_bytes = hole.end_bytes - need_start;
        let wish_bytes = self.wish_bytes(need_bytes, &self.chunks[self.below..]);
        let wish_start = hole.start_bytes.max(hole.end_bytes.saturating_sub(wish_bytes));
        Some(Step {
            wish: Span { start_bytes: wish_start, ..hole },
            need: Span { start_bytes: need_start, ..hole },
        })
    }

    /// At least the need, and as much as the side has already, up to the bound.
    fn wish_bytes(&self, need_bytes: u64, side: &[Span]) -> u64 {
        let side_bytes: u64 = side.iter().map(|chunk| chunk.len_bytes()).sum();
        let doubled = side_bytes.max(FIRST_CHUNK_BYTES).min(self.ahead_bytes);
        need_bytes.max(align_down(doubled, self.granularity))
    }

    /// A chunk at one end of the hole was committed.
    pub(crate) fn add(&mut self, chunk: Span) {
        let at_the_bottom = chunk.start_bytes == self.hole().start_bytes;
        self.chunks.insert(self.below, chunk);
        self.below += usize::from(at_the_bottom);
    }

    /// The next chunk to give back of those that lie inside `free`; `None` if there is none. They come in an
    /// order that never leaves two holes.
    pub(crate) fn next_in(&self, free: Span) -> Option<Span> {
        let hole = self.hole();
        let inside = |chunk: &Span| {
            // Above a hole the bump cannot use what is committed, however much is to be left to it.
            let start_bytes = if hole.is_empty() || chunk.start_bytes < hole.end_bytes {
                free.start_bytes
            } else {
                0
            };
            start_bytes <= chunk.start_bytes && chunk.end_bytes <= free.end_bytes
        };
        if hole.is_empty() {
            return self.chunks.iter().rev().copied().find(inside);
        }
        let below = self.below.checked_sub(1).and_then(|last| self.chunks.get(last));
        let above = self.chunks.get(self.below);
        [below, above].into_iter().flatten().copied().find(inside)
    }

    /// A chunk that was asked for here was given back.
    pub(crate) fn remove(&mut self, chunk: Span) {
        let Ok(at) =
            self.chunks.binary_search_by_key(&chunk.start_bytes, |chunk| chunk.start_bytes)
        else {
            return;
        };
        if self.hole().is_empty() {
            self.below = at;
        } else if at < self.below {
            self.below -= 1;
        }
        self.chunks.remove(at);
    }

    /// The chunk in whose middle `keep_bytes` lies, if nothing of it is used: nothing below `used_bytes`, nothing
    /// from `floor_bytes` on. With it comes the shorter chunk that would do.
    pub(crate) fn too_long(
        &self,
        used_bytes: u64,
        keep_bytes: u64,
        floor_bytes: u64,
    ) -> Option<(Span, Span)> {
        let after = self.chunks.partition_point(|chunk| chunk.end_bytes <= keep_bytes);
        let chunk = *self.chunks.get(after).filter(|chunk| chunk.start_bytes < keep_bytes)?;
        let is_at_the_hole = self.hole().is_empty() || after + 1 == self.below;
        let is_free = used_bytes <= chunk.start_bytes && chunk.end_bytes <= floor_bytes;
        let shorter = Span { end_bytes: align_up(keep_bytes, self.granularity), ..chunk };
        (is_at_the_hole && is_free && shorter.end_bytes < chunk.end_bytes)
            .then_some((chunk, shorter))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;
    const GRANULARITY: u64 = 2 * MIB;

    fn growing(reserved_bytes: u64, ahead_bytes: u64) -> Committed {
        Committed::nothing(Alignment::new(GRANULARITY).unwrap(), reserved_bytes, ahead_bytes)
    }

    fn span(start_bytes: u64, end_bytes: u64) -> Span {
        Span { start_bytes, end_bytes }
    }

    /// Where what ends at the region's end begins.
    fn top_start_bytes(committed: &Committed) -> u64 {
        let hole = committed.hole();
        if hole.is_empty() { 0 } else { hole.end_bytes }
    }

    /// Commits what is asked for, as wished.
    fn up(committed: &mut Committed, to_bytes: u64) -> Option<u64> {
        let step = committed.step_up(to_bytes)?;
        committed.add(step.wish);
        Some(step.wish.len_bytes() / MIB)
    }

    #[test]
    fn what_is_committed_doubles_up_to_the_bound() {
        let mut committed = growing(1 << 40, 64 * MIB);
        let steps = (0..7).map(|_| {
            let next = committed.bottom_end_bytes() + 1;
            up(&mut committed, next).unwrap()
        });
        assert_eq!(steps.collect::<Vec<_>>(), [2, 2, 4, 8, 16, 32, 64]);
        assert_eq!(up(&mut committed, 128 * MIB + 1), Some(64), "the bound");
        assert_eq!(
            up(&mut committed, 1 << 30),
            Some(1024 - 192),
            "the need is longer than the bound"
        );
        assert_eq!(up(&mut committed, 1 << 30), None);
    }

    #[test]
    fn without_a_way_ahead_just_the_need_is_committed() {
        let mut committed = growing(64 * MIB, 0);
        assert_eq!(up(&mut committed, 1), Some(2));
        assert_eq!(up(&mut committed, 7 * MIB), Some(6));
    }

    #[test]
    fn both_sides_meet_and_all_is_committed() {
        let mut committed = growing(8 * MIB, 1 << 30);
        committed.add(committed.step_down(7 * MIB).unwrap().wish);
        assert_eq!(committed.hole(), span(0, 6 * MIB));
        assert_eq!((committed.bottom_end_bytes(), top_start_bytes(&committed)), (0, 6 * MIB));
        // The cursor may go on into what was committed from above, once the hole is filled.
        assert_eq!(up(&mut committed, 7 * MIB), Some(6));
        assert_eq!((committed.bottom_end_bytes(), top_start_bytes(&committed)), (8 * MIB, 0));
        assert_eq!(committed.bytes(), 8 * MIB);
    }

    #[test]
    fn a_chunk_of_which_nothing_is_used_can_be_made_shorter() {
        let mut committed = growing(64 * MIB, 0);
        for to in [4, 24] {
            up(&mut committed, to * MIB);
        }
        let long = span(4 * MIB, 24 * MIB);
        let too_long = |used, keep, floor| committed.too_long(used * MIB, keep * MIB, floor * MIB);
        assert_eq!(too_long(1, 7, 64), Some((long, span(4 * MIB, 8 * MIB))));
        assert_eq!(too_long(5, 7, 64), None, "a part of it is used");
        assert_eq!(too_long(1, 7, 20), None, "a part of it is kept");
        assert_eq!(too_long(1, 23, 64), None, "it is no longer than it must be");
        assert_eq!(too_long(1, 4, 64), None, "it begins there");
        assert_eq!(too_long(1, 30, 64), None, "there is none");
    }

    #[derive(Debug, Clone)]
    enum Op {
        Up(u64),
        Down(u64),
        /// From, to.
        GiveBack(u64, u64),
        /// How many of those to be given back the device refuses after.
        GiveBackSome(u64, u64, usize),
        AllAndBack,
    }

    const UNITS: u64 = 40;

    fn op() -> impl Strategy<Value = Op> {
        let offset = || 0..=UNITS * 4; // In quarters of a unit, so that offsets lie inside units too.
        prop_oneof![
            4 => offset().prop_map(Op::Up),
            4 => offset().prop_map(Op::Down),
            2 => (offset(), offset()).prop_map(|(from, to)| Op::GiveBack(from, to)),
            1 => (offset(), offset(), 0..3_usize).prop_map(|(a, b, n)| Op::GiveBackSome(a, b, n)),
            1 => Just(Op::AllAndBack),
        ]
    }

    proptest! {
        // The model is a list of units, each of which has memory or not, and whose call gave it.
        #[test]
        fn the_chunks_agree_with_a_list_of_units(
            ahead in 0..12_u64,
            takes_the_wish in any::<bool>(),
            ops in prop::collection::vec(op(), 1..60),
        ) {
            let quarter = GRANULARITY / 4;
            let mut committed = growing(UNITS * GRANULARITY, ahead * GRANULARITY);
            let mut model = [None::<u32>; UNITS as usize];
            let mut calls = 0_u32;
            let units = |span: Span| {
                let unit = |bytes: u64| usize::try_from(bytes / GRANULARITY).unwrap();
                unit(span.start_bytes)..unit(span.end_bytes)
            };
            for op in ops {
                let step = match op {
                    Op::Up(to) => committed.step_up(to * quarter),
                    Op::Down(from) => committed.step_down(from * quarter),
                    _ => None,
                };
                if let Some(Step { wish, need }) = step {
                    let chunk = if takes_the_wish { wish } else { need };
                    prop_assert!(need.start_bytes >= wish.start_bytes);
                    prop_assert!(need.end_bytes <= wish.end_bytes && !need.is_empty());
                    prop_assert!(wish.len_bytes() <= need.len_bytes().max(ahead * GRANULARITY));
                    calls += 1;
                    for unit in &mut model[units(chunk)] {
                        prop_assert_eq!(*unit, None, "committed twice");
                        *unit = Some(calls);
                    }
                    committed.add(chunk);
                }
                match op {
                    Op::Up(to) => prop_assert!(committed.bottom_end_bytes() >= to * quarter),
                    Op::Down(from) => prop_assert!(top_start_bytes(&committed) <= from * quarter),
                    Op::GiveBack(from, to) | Op::GiveBackSome(from, to, _) => {
                        let free = span(from * quarter, from.max(to) * quarter);
                        let some = match op { Op::GiveBackSome(_, _, some) => some, _ => 1000 };
                        for _ in 0..some {
                            let Some(chunk) = committed.next_in(free) else { break };
                            prop_assert!(chunk.end_bytes <= free.end_bytes);
                            let owner = model[units(chunk)][0];
                            prop_assert!(owner.is_some());
                            for unit in &mut model {
                                if *unit == owner { *unit = None; }
                            }
                            committed.remove(chunk);
                        }
                    }
                    Op::AllAndBack => {
                        let ends = |committed: &Committed| {
                            (committed.bottom_end_bytes(), top_start_bytes(committed))
                        };
                        let before = ends(&committed);
                        let mut gone = Vec::new();
                        let all = span(0, UNITS * GRANULARITY);
                        while let Some(chunk) = committed.next_in(all) {
                            committed.remove(chunk);
                            gone.push(chunk);
                        }
                        prop_assert_eq!(committed.bytes(), 0);
                        while let Some(chunk) = gone.pop() {
                            committed.add(chunk);
                        }
                        prop_assert_eq!(ends(&committed), before);
                    }
                }
                let with: u64 = model.iter().flatten().count() as u64;
                prop_assert_eq!(committed.bytes(), with * GRANULARITY);
                let bottom = model.iter().take_while(|unit| unit.is_some()).count() as u64;
                prop_assert_eq!(committed.bottom_end_bytes(), bottom * GRANULARITY);
                let top = model.iter().rev().take_while(|unit| unit.is_some()).count() as u64;
                prop_assert_eq!(top_start_bytes(&committed), (UNITS - top) * GRANULARITY);
                prop_assert!(model[units(committed.hole())].iter().all(Option::is_none));
                prop_assert_eq!(with + units(committed.hole()).len() as u64, UNITS, "one hole");
            }
        }
    }
}
