//! In which order the blocks, warps and lanes of a launch run.
//!
//! A device promises no order between two points where threads meet, so a launch draws one. Blocks start in a drawn
//! order, several of them side by side; at each turn the warps of a block and the lanes of a warp are shuffled. In every
//! other launch turns are short as well, so that a thread stops between its load and its store and others come between;
//! then some turn of a warp is long all the same, so that it gets ahead of the others.

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

/// Instructions of a turn that is not cut short: enough that spinning on another thread gets on.
const LONG_TURN: u32 = 20_000;
/// The most instructions of a short turn, of which a launch draws one. Shorter ones find more and take longer.
const SHORT_TURNS: [u32; 2] = [32, 4];
/// Turns of a warp before the next one has its own, and the most of them in most cases when turns are short.
const WARP_TURNS: u32 = 64;
const SHORT_WARP_TURNS: u32 = 2;
/// The most blocks that run side by side.
const SIDE_BY_SIDE: usize = 4;

/// The order of one launch.
#[derive(Debug)]
pub(crate) struct Order {
    /// `None` when everything runs one after another, by number.
    random: Option<Xoshiro256PlusPlus>,
    /// The most instructions of a turn, when turns are short.
    short_turns: Option<u32>,
    /// How many blocks run side by side.
    side_by_side: usize,
}

impl Order {
    /// Blocks one after another, and threads by their numbers.
    pub(crate) fn by_number() -> Self {
        Self { random: None, short_turns: None, side_by_side: 1 }
    }

    /// An order that the seed decides.
    pub(crate) fn drawn(seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let short_turns = SHORT_TURNS.get(random.random_range(0..2 * SHORT_TURNS.len())).copied();
        let side_by_side = random.random_range(1..=SIDE_BY_SIDE);
        Self { random: Some(random), short_turns, side_by_side }
    }

    pub(super) fn side_by_side(&self) -> usize {
        self.side_by_side
    }

    /// Puts what takes its turn next into the order of that turn.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        if let Some(random) = &mut self.random {
            items.shuffle(random);
        }
    }

    /// One of so many.
    pub(super) fn pick(&mut self, count: usize) -> usize {
        match &mut self.random {
            Some(random) if count > 1 => random.random_range(0..count),
            _ => 0,
        }
    }

    /// How many instructions each lane of a warp has in the next turn.
    pub(super) fn turn(&mut self) -> u32 {
        match (&mut self.random, self.short_turns) {
            (Some(random), Some(most)) => random.random_range(1..=most),
            _ => LONG_TURN,
        }
    }

    /// How many turns the lanes of a warp have before it is the next warp's turn.
    pub(super) fn turns_of_a_warp(&mut self) -> u32 {
        if let (Some(random), Some(_)) = (&mut self.random, self.short_turns)
            && random.random_bool(0.75)
        {
            return random.random_range(1..=SHORT_WARP_TURNS);
        }
        WARP_TURNS
    }

    /// The numbers below `count`, each once. The order takes no memory, for a grid may be large.
    pub(super) fn walk(&mut self, count: u64) -> impl Iterator<Item = u64> + use<> {
        let (start, step) = match &mut self.random {
            Some(random) if count > 1 => {
                let step = loop {
                    let step = random.random_range(1..count);
                    if greatest_common_divisor(step, count) == 1 {
                        break step;
                    }
                };
                (random.random_range(0..count), step)
            }
            _ => (0, 1),
        };
        // In 128 bits, in which a product of two numbers of 64 bits has room.
        let at = move |i: u64| {
            (u128::from(start) + u128::from(i) * u128::from(step)) % u128::from(count)
        };
        (0..count).map(move |i| at(i) as u64)
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_walk_meets_every_number_once_whatever_the_seed() {
        for (seed, count) in (0..200).zip([1, 2, 3, 7, 12, 256].into_iter().cycle()) {
            let met: Vec<u64> = Order::drawn(seed).walk(count).collect();
            assert_eq!(met.len() as u64, count);
            assert_eq!(met.into_iter().collect::<BTreeSet<_>>(), (0..count).collect());
        }
    }

    #[test]
    fn seeds_give_different_orders_and_one_seed_the_same() {
        let walk = |seed| Order::drawn(seed).walk(64).collect::<Vec<_>>();
        assert_eq!(walk(3), walk(3));
        let walks: BTreeSet<_> = (0..20).map(walk).collect();
        assert!(walks.len() > 15, "{} orders", walks.len());
        assert!(Order::by_number().walk(64).eq(0..64));
    }
}
