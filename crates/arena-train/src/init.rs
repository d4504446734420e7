//! Initial values of the parameters.

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// Scale for the last layer: a network that begins near-undecided learns faster than one that
/// begins with firm random opinions.
pub const LOGITS_SCALE: f32 = 0.1;

/// The first values of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initial {
    /// All the same.
    Value(f32),
    /// [`he_uniform`].
    HeUniform {
        /// The seed of the run.
        seed: u64,
        /// The tensor's own stream of random numbers.
        stream: u64,
        /// Inputs that are added up in one output.
        fan_in: usize,
        /// What the distribution is multiplied by.
        scale: f32,
    },
}

impl Initial {
    /// Fills a tensor.
    pub fn fill(&self, values: &mut [f32]) {
        match *self {
            Self::Value(value) => values.fill(value),
            Self::HeUniform { seed, stream, fan_in, scale } => {
                he_uniform(seed, stream, fan_in, scale, values);
            }
        }
    }
}

/// Fills `values` from `scale` times the He (Kaiming) uniform distribution: between plus and minus
/// `scale * sqrt(6 / fan_in)`.
///
/// Scale 1 keeps the variance of activations through a ReLU. The layer that gives the logits does
/// better with [`LOGITS_SCALE`].
///
/// `stream` names the tensor: the same seed gives each stream other values, whatever the order in
/// which tensors are filled. The values are the same on every platform.
pub fn he_uniform(seed: u64, stream: u64, fan_in: usize, scale: f32, values: &mut [f32]) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    let bound = scale * (6.0 / fan_in.max(1) as f32).sqrt();
    for value in values {
        // 24 random bits are what an f32 in [0, 1) holds exactly.
        let unit = (rng.next_u32() >> 8) as f32 / (1_u32 << 24) as f32;
        *value = (2.0 * unit - 1.0) * bound;
    }
}

#[cfg(test)]
mod tests {
    use super::he_uniform;

    #[test]
    fn values_are_seeded_bounded_and_spread() {
        let (mut a, mut b) = ([0.0; 4096], [0.0; 4096]);
        he_uniform(1, 0, 25, 1.0, &mut a);
        he_uniform(1, 0, 25, 1.0, &mut b);
        assert_eq!(a, b, "the same seed and stream give the same values");
        he_uniform(1, 1, 25, 1.0, &mut b);
        assert_ne!(a, b, "another stream gives other values");
        he_uniform(2, 0, 25, 1.0, &mut b);
        assert_ne!(a, b, "another seed gives other values");

        he_uniform(1, 0, 25, 0.5, &mut b);
        assert!(a.iter().zip(&b).all(|(a, b)| *b == 0.5 * a), "the scale multiplies");

        let bound = (6.0_f32 / 25.0).sqrt();
        assert!(a.iter().all(|v| v.abs() <= bound));
        let mean = a.iter().sum::<f32>() / 4096.0;
        let variance = a.iter().map(|v| v * v).sum::<f32>() / 4096.0;
        assert!(mean.abs() < 0.02, "{mean}");
        // He's variance is 2 / fan_in.
        assert!((variance - 2.0 / 25.0).abs() < 0.004, "{variance}");
    }

    #[test]
    fn values_are_the_same_on_every_platform() {
        let mut values = [0.0; 3];
        he_uniform(1, 0, 6, 1.0, &mut values);
        assert_eq!(values.map(f32::to_bits), [1_036_665_040, 3_192_370_592, 1_064_836_380]);
    }
}
