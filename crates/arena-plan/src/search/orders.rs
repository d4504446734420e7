//! The portfolio: in which order items at the same offset are tried, and for how long.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::model::Model;
use crate::packing::Item;

/// Plain orders per round; the rest of a round is random.
const PLAIN: u64 = 3;
const PER_ROUND: u64 = 6;

/// Nodes for an attempt: doubled every round.
pub(super) fn node_limit(model: &Model, attempt: u64) -> u64 {
    let round = (attempt / PER_ROUND).min(40);
    (4 * model.items.len() as u64) << round
}

/// The rank of each item in an attempt, 0 first.
pub(super) fn rank(model: &Model, seed: u64, attempt: u64) -> Vec<u32> {
    let kind = attempt % PER_ROUND;
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ attempt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let noise = if kind < PLAIN { 0.0 } else { random.random_range(0.05..0.6_f64) };
    #[expect(clippy::cast_precision_loss, reason = "keys only need to be near")]
    let keys: Vec<[f64; 3]> = model
        .items
        .iter()
        .map(|item: &Item| {
            let width = item.width() as f64;
            let area = width * item.size as f64;
            let total = item.total as f64;
            let mut key = match kind % PLAIN {
                0 => [width, area, total],
                1 => [total, area, width],
                _ => [total, width, area],
            };
            for part in &mut key {
                *part *= 1.0 - noise * random.random_range(0.0..1.0_f64);
            }
            key
        })
        .collect();
    let mut order: Vec<u32> = (0..).take(keys.len()).collect();
    order.sort_by(|&a, &b| {
        keys[b as usize].partial_cmp(&keys[a as usize]).unwrap_or(std::cmp::Ordering::Equal)
    });
    let mut rank = vec![0; order.len()];
    for (place, item) in (0..).zip(order) {
        rank[item as usize] = place;
    }
    rank
}
