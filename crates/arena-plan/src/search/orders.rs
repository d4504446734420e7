//! The portfolio: in which order items at the same offset are tried, and for how long.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::model::Model;
use crate::packing::Item;

/// Plain orders per round; the rest of a round is random.
const PLAIN: u64 = 3;
pub(super) const PER_ROUND: u64 = 4;

/// Nodes for an attempt: doubled every round.
pub(super) fn node_limit(model: &Model, round: u32) -> u64 {
    (crate::tune(1) * model.items.len() as f64 * crate::tune(3).powi(round as i32)) as u64
}

/// The rank of each item in an attempt, 0 first.
pub(super) fn rank(model: &Model, seed: u64, round: u32, attempt: u64) -> Vec<u32> {
    let kind = attempt % PER_ROUND;
    let attempt = attempt + u64::from(round) * 100;
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ attempt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let noise = if kind % 4 < 2 { 0.0 } else { random.random_range(crate::tune(6)..crate::tune(7)) };
    #[expect(clippy::cast_precision_loss, reason = "keys only need to be near")]
    let keys: Vec<[f64; 3]> = model
        .items
        .iter()
        .map(|item: &Item| {
            let width = item.width() as f64;
            let area = width * item.size as f64;
            let total = item.total as f64;
            let mut key = match kind % 2 {
                0 => [total, width, area],
                _ => [width, area, total],
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
    if std::env::var_os("DBG").is_some() { eprint!("noise {noise:.2} kind {kind} "); }
    let mut rank = vec![0; order.len()];
    for (place, item) in (0..).zip(order) {
        rank[item as usize] = place;
    }
    rank
}

pub(super) fn style(tree: &mut super::tree::Tree<'_>, seed: u64, round: u32, attempt: u64) {
    let attempt = attempt + u64::from(round) * 100;
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ attempt.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xabcd);
    let r: f64 = random.random_range(0.0..1.0);
    tree.state.use_not_first = r < crate::tune(0);
    let r: f64 = random.random_range(0.0..1.0);
    tree.by_rank = r < crate::tune(12);
    let scale = (crate::tune(8).ln() + (crate::tune(10).ln() - crate::tune(8).ln()) * random.random_range(0.0..1.0_f64)).exp();
    let power = crate::tune(11) * random.random_range(0.3..1.0_f64);
    tree.desc = format!("scale {scale:.2} power {power:.2}");
    for f in &mut tree.fullness { *f = 0.3 + scale * f.powf(power); }
}
