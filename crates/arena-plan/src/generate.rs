//! Hard instances with a known packing: a full rectangle, cut up.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::instance::{Buffer, Instance};

/// What to generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guillotine {
    /// Into how many buffers the rectangle is cut.
    pub buffers: usize,
    /// How many in a hundred buffers lose some of their lifetime.
    pub shortened_percent: u32,
    /// Equal seeds give equal instances.
    pub seed: u64,
}

impl Guillotine {
    /// The height of the rectangle: all buffers fit into this many bytes.
    pub const CAPACITY_BYTES: u64 = 1 << 20;
    /// The length of the rectangle in time.
    pub const TIME: u64 = 1 << 20;
    /// Cuts are at multiples of this.
    const GRAIN: u64 = 1 << 10;

    /// Cuts a full rectangle by guillotine cuts, each through one whole piece chosen at random with its
    /// area as the weight. Without shortening, every moment is full to the last byte.
    ///
    /// # Panics
    ///
    /// When more buffers are asked for than the grain allows to cut.
    #[must_use]
    pub fn generate(&self) -> Instance {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        // (birth, death, bottom, top)
        let mut pieces = vec![(0, Self::TIME, 0, Self::CAPACITY_BYTES)];
        let mut failures = 0;
        while pieces.len() < self.buffers {
            assert!(failures < 100_000, "{} buffers are too many to cut", self.buffers);
            let total: u64 = pieces.iter().map(weight).sum();
            let mut at = random.random_range(0..total);
            let chosen = pieces.iter().position(|piece| {
                let here = at < weight(piece);
                at = at.saturating_sub(weight(piece));
                here
            });
            let chosen = chosen.unwrap_or(0);
            let (birth, death, bottom, top) = pieces[chosen];
            let through_time = random.random_bool(0.5);
            let (low, high) = if through_time { (birth, death) } else { (bottom, top) };
            let steps = (high - low) / Self::GRAIN;
            if steps < 2 {
                failures += 1;
                continue;
            }
            // Not too close to the rim, or most buffers would be slivers.
            let part = random.random_range(0.15..0.85);
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share of a small positive number"
            )]
            let step = ((steps as f64 * part) as u64).clamp(1, steps - 1);
            let cut = low + step * Self::GRAIN;
            if through_time {
                pieces[chosen] = (birth, cut, bottom, top);
                pieces.push((cut, death, bottom, top));
            } else {
                pieces[chosen] = (birth, death, bottom, cut);
                pieces.push((birth, death, cut, top));
            }
        }
        let mut buffers: Vec<Buffer> = Vec::with_capacity(pieces.len());
        for (birth, death, bottom, top) in pieces {
            let mut buffer = Buffer::new(birth, death, top - bottom);
            let steps = (death - birth) / Self::GRAIN;
            if steps > 1 && random.random_range(0..100) < self.shortened_percent {
                let lost = random.random_range(1..=steps.div_ceil(2).min(steps - 1)) * Self::GRAIN;
                if random.random_bool(0.5) {
                    buffer.birth += lost;
                } else {
                    buffer.death -= lost;
                }
            }
            buffers.push(buffer);
        }
        // Their order must not give the cuts away.
        for last in (1..buffers.len()).rev() {
            buffers.swap(last, random.random_range(0..=last));
        }
        Instance::new(buffers).expect("pieces of a rectangle are sound buffers")
    }
}

fn weight(&(birth, death, bottom, top): &(u64, u64, u64, u64)) -> u64 {
    ((death - birth) / Guillotine::GRAIN) * ((top - bottom) / Guillotine::GRAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::lower_bound;

    #[test]
    fn an_unshortened_rectangle_is_full_at_every_moment() {
        let instance = Guillotine { buffers: 120, shortened_percent: 0, seed: 3 }.generate();
        assert_eq!(instance.len(), 120);
        let area: u64 = instance.buffers().iter().map(|b| b.size_bytes * (b.death - b.birth)).sum();
        assert_eq!(area, Guillotine::TIME * Guillotine::CAPACITY_BYTES);
        assert_eq!(lower_bound(&instance).rounded_bytes, Guillotine::CAPACITY_BYTES);
    }

    #[test]
    fn equal_seeds_give_equal_instances_and_others_do_not() {
        let of = |seed| Guillotine { buffers: 100, shortened_percent: 30, seed }.generate();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        let whole = Guillotine { buffers: 100, shortened_percent: 0, seed: 1 }.generate();
        let shorter = |a: &Buffer, b: &Buffer| a.death - a.birth < b.death - b.birth;
        assert!(of(1).buffers().iter().zip(whole.buffers()).any(|(a, b)| shorter(a, b)));
    }
}
