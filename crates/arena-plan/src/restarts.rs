//! Random restarts of the skyline: keys of random shape with noise on top.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::packing::Packing;
use crate::skyline::order_by;

/// A stream of item orders for [`crate::skyline::Skyline::pack`], the same for the same seed.
pub(crate) struct RandomOrders<'a> {
    packing: &'a Packing,
    random: ChaCha8Rng,
    /// Logarithms of size, width and total of each item.
    logs: Vec<[f64; 3]>,
}

impl<'a> RandomOrders<'a> {
    pub(crate) fn new(packing: &'a Packing, seed: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "keys only need to be near")]
        let log = |value: u64| (value as f64).ln();
        let logs =
            packing.items.iter().map(|i| [log(i.size), log(i.width()), log(i.total)]).collect();
        Self { packing, random: ChaCha8Rng::seed_from_u64(seed), logs }
    }

    /// size^a x width^b x total^c x (1 + noise), as a logarithm.
    pub(crate) fn next_order(&mut self) -> Vec<u32> {
        // Lifetime says more than size on large steps, so small exponents of the size come more often.
        let size = 1.5 * self.random.random_range(0.0_f64..1.0).powi(2);
        let width: f64 = self.random.random_range(0.0..2.0);
        let total: f64 = self.random.random_range(0.0..2.0);
        // Mostly a little noise, now and then a lot.
        let noise = self.random.random_range(0.0_f64..1.0).powi(3);
        let keys: Vec<f64> = self
            .logs
            .iter()
            .map(|log| {
                let shape = size * log[0] + width * log[1] + total * log[2];
                shape + noise * self.random.random_range(0.0..1.0_f64)
            })
            .collect();
        order_by(self.packing, |i| keys[i])
    }
}
