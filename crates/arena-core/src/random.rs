//! Numbers drawn from a seed, for placements and devices that hunt bugs.

#![forbid(unsafe_code)]

/// The generator of Steele, Lea and Flood: a few lines, the same numbers on every machine and for ever.
#[derive(Debug)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `count`; `None` for a count of 0.
    pub(crate) fn below(&mut self, count: u64) -> Option<u64> {
        let share = u128::from(self.next()) * u128::from(count);
        (count > 0).then_some((share >> 64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator's published first numbers for the seed 1234567.
    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        let mut random = SplitMix64(1_234_567);
        let first = [random.next(), random.next(), random.next()];
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }
}
