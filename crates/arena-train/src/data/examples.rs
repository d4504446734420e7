//! Examples by their number, and the order in which an epoch takes them.

use std::ops::Range;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

/// What a network learns from: examples with numbers from 0 on.
pub trait Examples {
    /// The examples of each size, in the order of their numbers. A step takes examples of one size.
    fn groups(&self) -> impl Iterator<Item = usize>;

    /// What tells this set, which is for `what`, from another: counts, sizes, and a checksum of all bytes, which are
    /// read for it.
    fn identity(&self, what: &str) -> String;

    /// Number of examples.
    fn len(&self) -> usize {
        self.groups().sum()
    }

    /// Whether there is no example.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Steps that take every example once, at most `most` at a time.
    fn steps(&self, most: usize) -> u64 {
        self.groups().map(|examples| examples.div_ceil(most) as u64).sum()
    }
}

/// What a network is trained on, and what it is tested with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split<D> {
    /// To train on.
    pub train: D,
    /// To test with.
    pub test: D,
}

impl<D: Examples> Split<D> {
    /// What tells this data from other data. All bytes are read for it.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("{}, {}", self.train.identity("training"), self.test.identity("test"))
    }
}

/// The order of an epoch: the same on every platform for the same seed and epoch. It depends on no earlier epoch, so
/// a resumed run meets the same one.
#[derive(Debug, Clone, Default)]
pub struct EpochOrder {
    examples: Vec<u32>,
    steps: Vec<Range<usize>>,
}

impl EpochOrder {
    /// All examples of `data` in the order of this epoch, at most `most` in a step. The last step of each size may have
    /// fewer.
    ///
    /// ```
    /// # use arena_train::data::{Dataset, EpochOrder};
    /// let data = Dataset { images: vec![0; 10], labels: vec![0; 10], rows: 1, cols: 1 };
    /// let mut order = EpochOrder::default();
    /// order.shuffle(&data, 4, 1, 0);
    /// let lens: Vec<usize> = order.steps().map(<[u32]>::len).collect();
    /// assert_eq!(lens, [4, 4, 2]);
    /// ```
    pub fn shuffle(&mut self, data: &impl Examples, most: usize, seed: u64, epoch: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(epoch);
        self.examples.clear();
        self.steps.clear();
        // A set has fewer than 2^32 examples.
        self.examples.extend((0_u32..).take(data.len()));
        let (mut start, mut sizes) = (0, 0);
        for examples in data.groups() {
            let end = start + examples;
            self.examples[start..end].shuffle(&mut rng);
            let starts = (start..end).step_by(most.max(1));
            self.steps.extend(starts.map(|from| from..end.min(from.saturating_add(most))));
            (start, sizes) = (end, sizes + 1);
        }
        if sizes > 1 {
            self.steps.shuffle(&mut rng);
        }
    }

    /// The examples of each step.
    pub fn steps(&self) -> impl Iterator<Item = &[u32]> {
        self.steps.iter().map(|step| &self.examples[step.clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::{EpochOrder, Examples};

    /// So many examples of each size.
    struct Sizes(&'static [usize]);

    impl Examples for Sizes {
        fn groups(&self) -> impl Iterator<Item = usize> {
            self.0.iter().copied()
        }

        fn identity(&self, what: &str) -> String {
            what.to_owned()
        }
    }

    fn order(sizes: &'static [usize], most: usize, seed: u64, epoch: u64) -> Vec<Vec<u32>> {
        let mut order = EpochOrder::default();
        order.shuffle(&Sizes(sizes), most, seed, epoch);
        order.steps().map(<[u32]>::to_vec).collect()
    }

    #[test]
    fn an_order_is_a_permutation_that_depends_on_seed_and_epoch_alone() {
        let order = |seed, epoch| order(&[1000], 64, seed, epoch).concat();
        let first = order(1, 0);
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
        assert_eq!(first, order(1, 0));
        assert_ne!(first, order(1, 1));
        assert_ne!(first, order(2, 0));
        assert_ne!(first, sorted);
    }

    #[test]
    fn an_order_is_the_same_on_every_platform() {
        assert_eq!(order(&[8], 3, 1, 0), [vec![3, 4, 5], vec![2, 7, 1], vec![6, 0]]);
    }

    #[test]
    fn a_step_takes_examples_of_one_size_and_every_example_is_taken_once() {
        let steps = order(&[10, 0, 7, 3], 4, 1, 0);
        assert_eq!(steps.len() as u64, Sizes(&[10, 0, 7, 3]).steps(4));
        let group = |example: &u32| [10, 17, 20].iter().position(|end| example < end);
        for step in &steps {
            assert!(!step.is_empty() && step.len() <= 4, "{step:?}");
            assert!(step.iter().all(|example| group(example) == group(&step[0])), "{step:?}");
        }
        let of_sizes: Vec<_> = steps.iter().map(|step| group(&step[0])).collect();
        assert!(!of_sizes.is_sorted(), "the sizes come in a drawn order: {of_sizes:?}");
        let mut taken = steps.concat();
        taken.sort_unstable();
        assert_eq!(taken, (0..20).collect::<Vec<_>>());
    }
}
