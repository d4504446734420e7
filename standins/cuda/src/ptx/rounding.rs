//! How approximate functions come out: exact, or off by what a device may be off.

/// How far an approximate result may be from the exact one, in units of its last place.
const LAST_PLACES: u32 = 2;

/// The arithmetic of one device: the same operands give the same result each time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rounding {
    /// 0 for exact results.
    pub(crate) seed: u64,
}

impl Rounding {
    /// A result of `f32` near the exact one, which the operands' bits decide.
    pub(super) fn near(self, exact: u64, operands: u64) -> u64 {
        let value = f32::from_bits(exact as u32);
        // Zeros, ones and infinities come out exactly where programs may rely on them.
        if self.seed == 0 || !value.is_normal() || value.abs() == 1.0 {
            return exact;
        }
        let mixed = (operands ^ self.seed.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let off = (mixed >> 40) as u32 % (2 * LAST_PLACES + 1);
        let near = f32::from_bits((exact as u32).wrapping_add(off).wrapping_sub(LAST_PLACES));
        if near.is_normal() { u64::from(near.to_bits()) } else { exact }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_within_two_last_places_and_the_same_each_time() {
        let exact = u64::from(0.7f32.to_bits());
        let mut met = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let near = Rounding { seed }.near(exact, 5);
            assert_eq!(near, Rounding { seed }.near(exact, 5));
            met.insert(near.wrapping_sub(exact) as i64);
        }
        assert_eq!(met.into_iter().collect::<Vec<_>>(), [-2, -1, 0, 1, 2]);
        assert_eq!(Rounding { seed: 0 }.near(exact, 5), exact);
    }

    #[test]
    fn ones_zeros_and_infinities_stay_what_they_are() {
        for value in [0.0, 1.0, -1.0, f32::INFINITY] {
            let bits = u64::from(value.to_bits());
            assert!((1..50).all(|seed| Rounding { seed }.near(bits, seed) == bits), "{value}");
        }
    }
}
