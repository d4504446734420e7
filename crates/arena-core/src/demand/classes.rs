//! The addresses at which a region can end, in classes.
//!
//! What such an address leaves when divided by the largest alignment is written in digits, whose
//! units are the alignments. A kept buffer keeps its place when a digit below its alignment changes,
//! and moves with the top when another one does. So a trial tells how far each digit may change before
//! a buffer lies in another way, and a block of digits needs one trial, not one for each class in it.

#![forbid(unsafe_code)]

use crate::bytes::Alignment;

/// The units of the digits: 1 and all alignments in order. What lies above the last is no digit.
#[derive(Debug)]
pub(super) struct Units(Vec<i128>);

/// An address that moves with the top. It follows the digits from `level` on, and no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) at: i128,
    pub(super) level: usize,
}

/// For each digit a first and a last value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Block(Vec<(i128, i128)>);

/// How far each digit of a top may fall, and rise.
#[derive(Debug, Clone)]
pub(super) struct Reach<'u> {
    units: &'u Units,
    digits: Vec<(i128, i128)>,
}

impl Units {
    pub(super) fn new(alignments: impl Iterator<Item = Alignment>) -> Self {
        let mut units = vec![1];
        units.extend(alignments.map(|alignment| i128::from(alignment.bytes())));
        units.sort_unstable();
        units.dedup();
        Self(units)
    }

    /// The level of a place that follows no digit.
    pub(super) fn levels(&self) -> usize {
        self.0.len() - 1
    }

    /// Every class.
    pub(super) fn all(&self) -> Block {
        Block(self.0.windows(2).map(|two| (0, two[1] / two[0] - 1)).collect())
    }

    fn digit(&self, address: i128, at: usize) -> i128 {
        address.rem_euclid(self.0[at + 1]) / self.0[at]
    }

    /// How far the digits of a top go in its block.
    pub(super) fn reach(&self, top: i128, block: &Block) -> Reach<'_> {
        let far = |(at, &(first, last))| {
            let digit = self.digit(top, at);
            (digit - first, last - digit)
        };
        Reach { units: self, digits: block.0.iter().enumerate().map(far).collect() }
    }

    /// The first level whose digits an aligned address follows.
    fn level_of(&self, alignment: Alignment) -> usize {
        self.0.partition_point(|unit| *unit < i128::from(alignment.bytes()))
    }

    /// The place when it is rounded down. It stays there as long as the digits are held.
    pub(super) fn align_down(&self, place: Place, alignment: Alignment) -> Place {
        let at = place.at & !i128::from(alignment.low_bits());
        Place { at, level: place.level.max(self.level_of(alignment)) }
    }

    /// The same when it is rounded up.
    pub(super) fn align_up(&self, place: Place, alignment: Alignment) -> Place {
        let low_bits = i128::from(alignment.low_bits());
        self.align_down(Place { at: place.at + low_bits, ..place }, alignment)
    }

    /// The lowest top for which a place is not below `address`; for `top` it is where it says.
    pub(super) fn least_top(&self, top: i128, place: Place, address: i128) -> i128 {
        let unit = self.0[place.level];
        let distance = top.div_euclid(unit) * unit - place.at;
        -(-(address + distance)).div_euclid(unit) * unit
    }

    /// The lowest top of a block that is not below `least`.
    pub(super) fn first_from(&self, least: i128, block: &Block) -> i128 {
        let period = self.0[block.0.len()];
        let whole = least.div_euclid(period) * period;
        // From `at` on the digits of `least`, if the block has them.
        let kept = |at: usize| -> Option<i128> {
            let digits = block.0.iter().enumerate().skip(at);
            let digits = digits.map(|(at, &(first, last))| {
                let digit = self.digit(least, at);
                (first..=last).contains(&digit).then(|| digit * self.0[at])
            });
            digits.sum()
        };
        // Below `at` the first ones.
        let lowest = |at: usize| -> i128 {
            block.0[..at].iter().zip(&self.0).map(|((first, _), unit)| first * unit).sum()
        };
        // One digit is raised, the lowest that can be; else the next period begins.
        let raised = |at: usize| {
            let (first, last) = block.0[at];
            let digit = i128::max(self.digit(least, at) + 1, first);
            let above = kept(at + 1)?;
            (digit <= last).then(|| above + digit * self.0[at] + lowest(at))
        };
        let digits = block.0.len();
        let found = kept(0).or_else(|| (0..digits).find_map(raised));
        whole + found.unwrap_or_else(|| period + lowest(digits))
    }
}

impl Place {
    pub(super) fn plus(self, bytes: i128) -> Self {
        Self { at: self.at + bytes, ..self }
    }
}

impl Block {
    /// Parts the block into what was reached from `top`, and what is left, in blocks.
    pub(super) fn part(mut self, top: i128, reach: &Reach<'_>) -> (Self, Vec<Self>) {
        let mut rest = Vec::new();
        for (at, &(below, above)) in reach.digits.iter().enumerate().rev() {
            let digit = reach.units.digit(top, at);
            let (first, last) = self.0[at];
            for left in [(first, digit - below - 1), (digit + above + 1, last)] {
                if left.0 <= left.1 {
                    let mut block = self.clone();
                    block.0[at] = left;
                    rest.push(block);
                }
            }
            self.0[at] = (digit - below, digit + above);
        }
        (self, rest)
    }
}

impl Reach<'_> {
    /// Holds the digits so that `spare`, with every place of `plus` and against every one of `minus`,
    /// does not go below 0. It is not below 0 now.
    pub(super) fn hold(&mut self, mut spare: i128, plus: &[Place], minus: &[Place]) {
        let following = |at, places: &[Place]| places.iter().filter(|it| it.level <= at).count();
        for (at, (below, above)) in self.digits.iter_mut().enumerate().rev() {
            let (gained, lost) = (following(at, plus), following(at, minus));
            let far = if gained > lost { below } else { above };
            let step = gained.abs_diff(lost) as i128 * self.units.0[at];
            if step > 0 {
                *far = i128::min(*far, spare / step);
                spare -= *far * step;
            }
        }
    }
}
