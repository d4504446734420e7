//! The portfolio: what an attempt prefers, and how long it lasts.
//!
//! A search that succeeds mostly does so almost without going back, and one that has taken a wrong turn
//! early seldom recovers. So attempts are short, many and different.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::model::Model;

/// Attempts of equal length; then the next round begins.
pub(super) const PER_ROUND: u64 = 20;

/// How an attempt chooses where to go on.
pub(super) struct Style {
    /// Of items at the same offset the smaller rank is tried first.
    pub(super) rank: Vec<u32>,
    /// How much each section matters from the start; blame adds to it.
    pub(super) importance: Vec<f64>,
}

/// Nodes for an attempt: twice what placing every item takes, then 3 % more per round. An attempt
/// that is to `prove` grows faster: only a whole tree shows that there is no solution.
pub(super) fn node_limit(model: &Model, round: u32, prove: bool) -> u64 {
    let nodes = 2 * model.items.len() as u64;
    let grown = |nodes: u64| nodes.saturating_add(nodes.div_ceil(33)).min(1 << 32);
    let nodes = (0..round).fold(nodes, |nodes, _| grown(nodes));
    if prove { nodes << (round / 8).min(20) } else { nodes }
}

/// The same numbers for the same seed, round and attempt.
pub(super) fn random(seed: u64, round: u32, attempt: u64) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(u64::from(round) * PER_ROUND + attempt);
    random
}

impl Style {
    #[expect(clippy::cast_precision_loss, reason = "keys only need to be near")]
    pub(super) fn new(model: &Model, attempt: u64, random: &mut ChaCha8Rng) -> Self {
        // Half of the attempts keep to a plain order.
        let noise = if attempt % 4 < 2 { 0.0 } else { random.random_range(0.0..0.6_f64) };
        let keys: Vec<[f64; 3]> = model
            .items
            .iter()
            .map(|item| {
                let (width, total) = (item.width() as f64, item.total as f64);
                let area = width * item.size as f64;
                let key = if attempt.is_multiple_of(2) {
                    [total, width, area]
                } else {
                    [width, area, total]
                };
                key.map(|part| part * (1.0 - noise * random.random_range(0.0..1.0_f64)))
            })
            .collect();
        let mut order: Vec<u32> = (0..).take(keys.len()).collect();
        order.sort_by(|&a, &b| {
            let (left, right) = (keys[a as usize], keys[b as usize]);
            right.partial_cmp(&left).unwrap_or(std::cmp::Ordering::Equal)
        });
        let mut rank = vec![0; order.len()];
        for (place, item) in (0..).zip(order) {
            rank[item as usize] = place;
        }
        // From "all sections are alike" to "the fullest first, whatever happens".
        let scale = 0.5 * 200.0_f64.powf(random.random_range(0.0..1.0));
        let power: f64 = random.random_range(8.0..24.0);
        let weigh = |full: f64| 0.3 + scale * full.powf(power);
        Self { rank, importance: model.fullness.iter().copied().map(weigh).collect() }
    }
}
