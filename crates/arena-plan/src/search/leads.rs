//! The longest paths that attempts took before they failed; later attempts begin with a part of them.
//!
//! Most of a long path is good, and where it went wrong is not known. So an attempt follows a random length of
//! it and goes on with preferences of its own. A path that leads no further is dropped: its beginning is wrong.

use rand::RngExt;
use rand::rngs::ChaCha8Rng;

/// What attempts at one aim have learnt.
#[derive(Default)]
pub(super) struct Leads {
    /// The items of the longest path, in the order of their placement.
    path: Vec<u32>,
    /// Attempts that have followed it without getting further.
    idle: u32,
}

impl Leads {
    /// The share of the attempts that follow nothing.
    const FRESH: f64 = 0.3;
    const PATIENCE: u32 = 30;

    /// What the next attempt should place first.
    pub(super) fn beginning(&self, random: &mut ChaCha8Rng) -> Vec<u32> {
        if self.path.is_empty() || random.random_bool(Self::FRESH) {
            return Vec::new();
        }
        self.path[..random.random_range(0..self.path.len())].to_vec()
    }

    /// Takes over the longest path of an attempt, and whether it had `followed` a lead.
    pub(super) fn learn(&mut self, path: Vec<u32>, followed: bool) {
        if path.len() > self.path.len() {
            *self = Self { path, idle: 0 };
        } else if followed {
            self.idle += 1;
            if self.idle > Self::PATIENCE {
                *self = Self::default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn most_attempts_begin_with_a_part_of_the_longest_path() {
        let mut leads = Leads::default();
        leads.learn(vec![7, 3, 5, 1], false);
        leads.learn(vec![2, 4], true);
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let lengths: Vec<usize> = (0..1000)
            .map(|_| {
                let beginning = leads.beginning(&mut random);
                assert!([7, 3, 5].starts_with(&beginning), "{beginning:?}");
                beginning.len()
            })
            .collect();
        for length in 1..4 {
            let count = lengths.iter().filter(|&&one| one == length).count();
            assert!((130..220).contains(&count), "{length}: {count}");
        }
    }

    #[test]
    fn a_path_that_leads_no_further_is_dropped() {
        let mut leads = Leads::default();
        leads.learn(vec![7, 3, 5], false);
        for _ in 0..Leads::PATIENCE {
            leads.learn(vec![7, 3], true);
        }
        leads.learn(vec![2, 4], false); // it did not follow the path, which is kept
        assert_eq!(leads.path, [7, 3, 5]);
        leads.learn(vec![7], true);
        leads.learn(vec![2, 4], false);
        assert_eq!(leads.path, [2, 4]);
    }
}
