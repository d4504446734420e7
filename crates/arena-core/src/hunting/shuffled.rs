//! Any free place, drawn from a seed: for tests of programs that must not care where their buffers lie.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::iter::once;

use crate::bytes::Alignment;
use crate::layout::{align_down, fit};
use crate::random::SplitMix64;

/// What of a range of addresses is taken, and who draws the next place in it. Each free aligned place is
/// as likely as any other, so buffers lie in any order, with gaps of any size.
#[derive(Debug)]
pub(crate) struct Shuffled {
    start: u64,
    end: u64,
    /// The end of each buffer by its start.
    taken: BTreeMap<u64, u64>,
    random: SplitMix64,
}

impl Shuffled {
    /// `bytes` bytes from `start` on, all of them free.
    pub(crate) fn new(start: u64, bytes: u64, seed: u64) -> Self {
        let taken = BTreeMap::new();
        Self { start, end: start + bytes, taken, random: SplitMix64::new(seed) }
    }

    /// Takes a place for `bytes` bytes, at least one; `None` if no hole is large enough.
    pub(crate) fn take(&mut self, bytes: u64, alignment: Alignment) -> Option<u64> {
        let places = |hole| places_in(hole, bytes, alignment);
        let count = self.holes().map(|hole| places(hole).1).sum();
        let mut drawn = self.random.below(count)?;
        let address = self.holes().find_map(|hole| {
            let (first, count) = places(hole);
            if drawn < count {
                return Some(first + drawn * alignment.bytes());
            }
            drawn -= count;
            None
        })?;
        self.taken.insert(address, address + bytes);
        Some(address)
    }

    /// Gives a place back. What was not taken here stays as it is.
    pub(crate) fn give_back(&mut self, address: u64) {
        self.taken.remove(&address);
    }

    /// Start and end of what lies between the taken places.
    fn holes(&self) -> impl Iterator<Item = (u64, u64)> {
        let starts = once(self.start).chain(self.taken.values().copied());
        starts.zip(self.taken.keys().copied().chain(once(self.end)))
    }
}

/// The first aligned place in a hole, and how many there are.
fn places_in((start, end): (u64, u64), bytes: u64, alignment: Alignment) -> (u64, u64) {
    match fit(start, end, bytes, alignment) {
        Some((first, _)) => {
            let last = align_down(end - bytes, alignment);
            (first, (last - first) / alignment.bytes() + 1)
        }
        None => (start, 0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_free_place_is_drawn_and_no_other() {
        let a16 = Alignment::new(16).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut places = Shuffled::new(100, 100, seed);
            places.taken.insert(130, 150);
            seen.extend(places.take(17, a16));
        }
        // [100, 130) has room from 112 on, [150, 200) from 160 and from 176 on.
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [112, 160, 176]);
    }

    #[derive(Debug, Clone)]
    enum Op {
        Take(u64, u32),
        GiveBack(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (1..=400_u64, 0..=9_u32).prop_map(|(bytes, log)| Op::Take(bytes, log)),
            1 => any::<usize>().prop_map(Op::GiveBack),
        ]
    }

    proptest! {
        #[test]
        fn a_place_is_free_aligned_and_found_if_there_is_one(
            seed in any::<u64>(),
            start in 1..5000_u64,
            bytes in 0..5000_u64,
            ops in prop::collection::vec(op(), 0..60),
        ) {
            let mut places = Shuffled::new(start, bytes, seed);
            let mut model: Vec<(u64, u64)> = Vec::new();
            for op in ops {
                match op {
                    Op::GiveBack(_) if model.is_empty() => places.give_back(start),
                    Op::GiveBack(pick) => {
                        let (address, _) = model.swap_remove(pick % model.len());
                        places.give_back(address);
                    }
                    Op::Take(bytes_asked, log) => {
                        let alignment = Alignment::new(1 << log).unwrap();
                        let is_free = |address: u64| {
                            let end = address + bytes_asked;
                            end <= start + bytes
                                && model.iter().all(|(from, to)| end <= *from || *to <= address)
                        };
                        let mut every = start..start + bytes;
                        let taken = places.take(bytes_asked, alignment);
                        if let Some(address) = taken {
                            prop_assert!(address >= start && alignment.divides(address));
                            prop_assert!(is_free(address));
                            model.push((address, address + bytes_asked));
                        } else {
                            prop_assert!(!every.any(|a| alignment.divides(a) && is_free(a)));
                        }
                    }
                }
            }
        }
    }
}
