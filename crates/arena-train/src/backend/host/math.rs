//! Elementary functions as plain arithmetic, which the compiler turns into vector instructions.
//!
//! Nothing is fused, so every processor and every vector width gives the same bits.

/// Elements that a sum keeps apart, so that it runs along vector lanes.
const LANES: usize = 16;

/// `e^x`, to 2 units in the last place, for -87 to 88; beyond that range the value at its end. NaN stays NaN.
///
/// The argument is cut into a multiple of ln 2, which becomes the exponent, and a rest of at most half of it, for
/// which a polynomial stands. Split and coefficients: S. L. Moshier, Cephes, `expf`.
#[inline(always)]
#[expect(clippy::excessive_precision, reason = "the coefficients as they were published")]
pub(super) fn exp(x: f32) -> f32 {
    /// Added to a small number it leaves the nearest integer in the low bits.
    const ROUNDS: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_375;
    const LN_2_LOW: f32 = -2.121_944_400_e-4;
    let x = x.clamp(-87.0, 88.0);
    let rounded = x * std::f32::consts::LOG2_E + ROUNDS;
    let whole = rounded - ROUNDS;
    let rest = x - whole * LN_2_HIGH - whole * LN_2_LOW;
    let mut sum = 1.987_569_150_0e-4;
    for coefficient in [
        1.398_199_950_7e-3,
        8.333_451_907_3e-3,
        4.166_579_589_4e-2,
        1.666_666_545_9e-1,
        5.000_000_120_1e-1,
    ] {
        sum = sum * rest + coefficient;
    }
    let sum = sum * rest * rest + rest + 1.0;
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    sum * power
}

/// The sum of `term` over the elements of some slices of equal length, in an order that depends on the length alone.
#[inline(always)]
pub(super) fn sum<const SLICES: usize>(
    slices: [&[f32]; SLICES],
    term: impl Fn([f32; SLICES]) -> f32,
) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let len = slices.map(<[f32]>::len).into_iter().min().unwrap_or(0);
    // Whole arrays: their elements need no check, which would keep the loop from becoming vectors.
    let arrays = slices.map(|slice| slice[..len].as_chunks::<LANES>().0);
    for at in 0..len / LANES {
        let arrays = arrays.map(|arrays| &arrays[at]);
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(arrays.map(|array| array[lane]));
        }
    }
    for (lane, at) in (len / LANES * LANES..len).enumerate() {
        lanes[lane] += term(slices.map(|slice| slice[at]));
    }
    // In pairs, then pairs of pairs: one after the other, each addition would wait for the one before.
    let mut count = LANES;
    while count > 1 {
        count /= 2;
        for lane in 0..count {
            lanes[lane] += lanes[lane + count];
        }
    }
    lanes[0]
}

/// The largest of some values, of which there is at least one. One that is no number counts only if it is the first.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [values[0]; LANES];
    let (arrays, rest) = values.as_chunks::<LANES>();
    for array in arrays {
        for (lane, value) in lanes.iter_mut().zip(array) {
            *lane = larger(*lane, *value);
        }
    }
    rest.iter().chain(&lanes).copied().fold(values[0], larger)
}

#[cfg(test)]
mod tests {
    use super::{exp, largest, sum};

    #[test]
    fn the_largest_is_found_at_any_place_and_only_a_first_nan_counts() {
        for len in [1, 15, 16, 17, 40] {
            for at in 0..len {
                let mut values = vec![-3.0; len];
                values[at] = -1.0;
                assert_eq!(largest(&values), -1.0, "{at} of {len}");
                values[at] = f32::NAN;
                assert_eq!(largest(&values).is_nan(), at == 0, "{at} of {len}");
            }
        }
    }

    #[test]
    fn exp_is_right_to_two_units_in_the_last_place() {
        for step in -870_000..=880_000_i32 {
            let x = f64::from(step) / 10_000.0;
            let x = x as f32;
            let right = f64::from(x).exp();
            let error = (f64::from(exp(x)) - right).abs() / right;
            assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({x}): {error:e}");
        }
    }

    #[test]
    fn exp_ends_where_it_would_leave_its_range_and_keeps_nan() {
        assert!(exp(f32::NAN).is_nan());
        assert!((0.0..2e-38).contains(&exp(f32::NEG_INFINITY)));
        assert!((1e38..f32::INFINITY).contains(&exp(f32::INFINITY)));
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn a_sum_has_every_term_once() {
        for len in [0, 1, 15, 16, 17, 100_usize] {
            let (a, b): (Vec<f32>, Vec<f32>) =
                (0..len).map(|index| (index as f32, 0.5 * index as f32)).unzip();
            let right = (0..len).sum::<usize>() as f32;
            assert_eq!(sum([&a, &b], |[a, b]| a + b), 1.5 * right);
        }
    }
}
