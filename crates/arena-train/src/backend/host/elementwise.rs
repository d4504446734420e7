//! What is done to each element alone: GELU, dropout, sums.

use pulp::Arch;
use rayon::prelude::*;

use super::error::{KernelError, check_len};
use super::math::exp;
use super::split::part_len;

/// Below this many elements a pass is not worth a join.
const SERIAL_BELOW: usize = 1 << 14;

/// sqrt(8 / pi): GELU's `tanh(t)` with `t = sqrt(2 / pi) * (x + CUBIC * x^3)` is taken as a logistic function of `2 t`.
const SLOPE: f32 = 1.595_769;

/// Of the third power in GELU's argument.
const CUBIC: f32 = 0.044_715;

fn part(len: usize, threads: usize) -> usize {
    part_len(len, if len < SERIAL_BELOW { 1 } else { threads })
}

/// `1 / (1 + e^(-2 t))`.
#[inline(always)]
fn gate(x: f32) -> f32 {
    1.0 / (1.0 + exp(-SLOPE * (x + CUBIC * x * x * x)))
}

/// GELU by its approximation with tanh (Hendrycks and Gimpel, 2016): `x / 2 * (1 + tanh(t))`.
///
/// # Errors
///
/// [`KernelError::Length`] when the slices differ in length; nothing is written.
pub fn gelu_forward(input: &[f32], output: &mut [f32], threads: usize) -> Result<(), KernelError> {
    check_len("output", output.len(), input.len())?;
    let (arch, part) = (Arch::new(), part(input.len(), threads));
    output.par_chunks_mut(part).zip(input.par_chunks(part)).for_each(|(output, input)| {
        arch.dispatch(
            #[inline(always)]
            || {
                for (output, x) in output.iter_mut().zip(input) {
                    *output = x * gate(*x);
                }
            },
        );
    });
    Ok(())
}

/// The gradient of GELU's input.
///
/// # Errors
///
/// [`KernelError::Length`] when the slices differ in length; nothing is written.
pub fn gelu_input_gradient(
    input: &[f32],
    output_gradient: &[f32],
    input_gradient: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    check_len("output gradient", output_gradient.len(), input.len())?;
    check_len("input gradient", input_gradient.len(), input.len())?;
    let (arch, part) = (Arch::new(), part(input.len(), threads));
    input_gradient
        .par_chunks_mut(part)
        .zip(input.par_chunks(part))
        .zip(output_gradient.par_chunks(part))
        .for_each(|((gradient, input), above)| {
            arch.dispatch(
                #[inline(always)]
                || {
                    for ((gradient, x), above) in gradient.iter_mut().zip(input).zip(above) {
                        let (x, gate) = (*x, gate(*x));
                        let slope = SLOPE * (1.0 + 3.0 * CUBIC * x * x);
                        *gradient = above * (gate + x * gate * (1.0 - gate) * slope);
                    }
                },
            );
        });
    Ok(())
}

/// `sum = left + right`.
///
/// # Errors
///
/// [`KernelError::Length`] when the slices differ in length; nothing is written.
pub fn add(
    left: &[f32],
    right: &[f32],
    sum: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    check_len("right", right.len(), left.len())?;
    check_len("sum", sum.len(), left.len())?;
    let (arch, part) = (Arch::new(), part(left.len(), threads));
    sum.par_chunks_mut(part).zip(left.par_chunks(part)).zip(right.par_chunks(part)).for_each(
        |((sum, left), right)| {
            arch.dispatch(
                #[inline(always)]
                || {
                    for ((sum, left), right) in sum.iter_mut().zip(left).zip(right) {
                        *sum = left + right;
                    }
                },
            );
        },
    );
    Ok(())
}

/// `sum += scale * values`.
///
/// # Errors
///
/// [`KernelError::Length`] when the slices differ in length; nothing is written.
pub fn add_scaled(
    sum: &mut [f32],
    scale: f32,
    values: &[f32],
    threads: usize,
) -> Result<(), KernelError> {
    check_len("values", values.len(), sum.len())?;
    let (arch, part) = (Arch::new(), part(sum.len(), threads));
    sum.par_chunks_mut(part).zip(values.par_chunks(part)).for_each(|(sum, values)| {
        arch.dispatch(
            #[inline(always)]
            || {
                for (sum, value) in sum.iter_mut().zip(values) {
                    *sum += scale * value;
                }
            },
        );
    });
    Ok(())
}

/// Which elements dropout keeps: a function of the seed, the place in the run, and the element's number.
///
/// Nothing is stored: the backward pass, and a forward pass that is done again, draw the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Dropout {
    /// The share of elements that become 0; 0 to below 1.
    pub probability: f32,
    /// Of the run.
    pub seed: u64,
    /// The step.
    pub step: u32,
    /// The layer: no two that drop elements in one step have the same.
    pub layer: u32,
}

impl Dropout {
    /// Four random words for the elements from `4 * block` on: Philox4x32-10 (Salmon et al., 2011), with the seed as
    /// the key.
    #[inline(always)]
    fn words(self, block: u64) -> [u32; 4] {
        let mut key = [self.seed as u32, (self.seed >> 32) as u32];
        let mut words = [block as u32, (block >> 32) as u32, self.step, self.layer];
        for _ in 0..10 {
            let first = u64::from(words[0]) * 0xD251_1F53;
            let second = u64::from(words[2]) * 0xCD9E_8D57;
            words = [
                (second >> 32) as u32 ^ words[1] ^ key[0],
                second as u32,
                (first >> 32) as u32 ^ words[3] ^ key[1],
                first as u32,
            ];
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        words
    }

    /// Words below the first are dropped, and what is kept is multiplied by the second.
    pub(in crate::backend) fn threshold_and_scale(self) -> Result<(u32, f32), KernelError> {
        if !(0.0..1.0).contains(&self.probability) {
            return Err(KernelError::Shape {
                reason: "dropout's probability is at least 0 and below 1",
            });
        }
        let threshold = f64::from(self.probability) * 4_294_967_296.0;
        Ok((threshold as u32, 1.0 / (1.0 - self.probability)))
    }
}

/// Sets the elements that dropout drops to 0, and divides the others by the share that is kept. The gradient goes
/// through it in the same way.
///
/// # Errors
///
/// [`KernelError::Shape`] unless the probability is at least 0 and below 1; nothing is written.
pub fn dropout(dropout: Dropout, values: &mut [f32], threads: usize) -> Result<(), KernelError> {
    let (threshold, scale) = dropout.threshold_and_scale()?;
    if threshold == 0 {
        return Ok(());
    }
    let arch = Arch::new();
    // Whole blocks of four words.
    let part = part(values.len(), threads).next_multiple_of(4);
    values.par_chunks_mut(part).enumerate().for_each(|(index, values)| {
        arch.dispatch(
            #[inline(always)]
            || {
                let first = (index * part / 4) as u64;
                for (block, values) in (first..).zip(values.chunks_mut(4)) {
                    for (value, word) in values.iter_mut().zip(dropout.words(block)) {
                        *value = if word < threshold { 0.0 } else { *value * scale };
                    }
                }
            },
        );
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Dropout;

    /// Known answers that the authors publish with their code (Random123, `kat_vectors`).
    #[test]
    fn the_random_words_are_philoxs() {
        let zero = Dropout { probability: 0.5, seed: 0, step: 0, layer: 0 };
        assert_eq!(zero.words(0), [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
        let ones = Dropout { seed: u64::MAX, step: u32::MAX, layer: u32::MAX, ..zero };
        assert_eq!(ones.words(u64::MAX), [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]);
    }
}
