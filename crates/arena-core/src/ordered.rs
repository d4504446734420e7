//! An ordered set of weighted pairs in one piece of memory: a treap, whose nodes lie in a `Vec`.
//!
//! The standard library's `BTreeSet` cannot find the first entry of at least some weight, and asks
//! the heap for a node now and then even when entries only come and go.

#![forbid(unsafe_code)]

type Key = (u64, u64);

/// No node.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Node {
    key: Key,
    weight: u64,
    /// The largest weight of the node and all below it.
    heaviest: u64,
    /// No node below it has a higher one.
    rank: u64,
    left: u32,
    right: u32,
}

/// Keys in order, each once, with a weight.
#[derive(Debug, Clone)]
pub(crate) struct OrderedSet {
    nodes: Vec<Node>,
    root: u32,
    /// The first node that is not in use; the others follow by `right`.
    spare: u32,
    /// How many keys were ever added; the source of the ranks.
    added: u64,
}

impl OrderedSet {
    pub(crate) const fn new() -> Self {
        Self { nodes: Vec::new(), root: NONE, spare: NONE, added: 0 }
    }

    /// Takes all keys out, and keeps their room.
    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
        (self.root, self.spare) = (NONE, NONE);
    }

    /// Adds a key that is not in the set.
    pub(crate) fn insert(&mut self, key: Key, weight: u64) {
        self.added += 1;
        let rank = scattered(self.added);
        let node = Node { key, weight, heaviest: weight, rank, left: NONE, right: NONE };
        let at = self.spare;
        let at = if at == NONE {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1)
                .expect("four billion keys take more memory than there is")
        } else {
            self.spare = self.nodes[at as usize].right;
            self.nodes[at as usize] = node;
            at
        };
        let (before, after) = self.split(self.root, key);
        let before = self.join(before, at);
        self.root = self.join(before, after);
    }

    /// Takes out a key that is in the set.
    pub(crate) fn remove(&mut self, key: Key) {
        let (before, rest) = self.split(self.root, key);
        let (found, after) = self.split(rest, (key.0, key.1 + 1));
        debug_assert!(found != NONE, "{key:?} is not in the set");
        if found != NONE {
            self.nodes[found as usize].right = self.spare;
            self.spare = found;
        }
        self.root = self.join(before, after);
    }

    /// The first key of at least this weight.
    pub(crate) fn first_of_weight(&self, weight: u64) -> Option<Key> {
        let mut at = self.root;
        if self.heaviest(at) < weight || at == NONE {
            return None;
        }
        loop {
            let node = &self.nodes[at as usize];
            at = if node.left != NONE && self.heaviest(node.left) >= weight {
                node.left
            } else if node.weight >= weight {
                return Some(node.key);
            } else {
                node.right
            };
        }
    }

    /// The last key before this one.
    pub(crate) fn last_before(&self, key: Key) -> Option<Key> {
        let (mut at, mut last) = (self.root, None);
        while let Some(node) = self.nodes.get(at as usize) {
            if node.key < key {
                last = Some(node.key);
                at = node.right;
            } else {
                at = node.left;
            }
        }
        last
    }

    /// The first key that is not before this one.
    pub(crate) fn first_from(&self, key: Key) -> Option<Key> {
        let (mut at, mut first) = (self.root, None);
        while let Some(node) = self.nodes.get(at as usize) {
            if node.key < key {
                at = node.right;
            } else {
                first = Some(node.key);
                at = node.left;
            }
        }
        first
    }

    /// All keys in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Key> {
        std::iter::successors(self.first_from((0, 0)), |key| self.first_from((key.0, key.1 + 1)))
    }

    fn heaviest(&self, at: u32) -> u64 {
        self.nodes.get(at as usize).map_or(0, |node| node.heaviest)
    }

    /// Makes a node's `heaviest` true again after one below it has changed.
    fn weigh(&mut self, at: u32) {
        let Node { weight, left, right, .. } = self.nodes[at as usize];
        let below = u64::max(self.heaviest(left), self.heaviest(right));
        self.nodes[at as usize].heaviest = weight.max(below);
    }

    /// The keys below a node, parted into those before `key` and the others.
    fn split(&mut self, at: u32, key: Key) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        let node = &self.nodes[at as usize];
        let parts = if node.key < key {
            let (before, after) = self.split(node.right, key);
            self.nodes[at as usize].right = before;
            (at, after)
        } else {
            let (before, after) = self.split(node.left, key);
            self.nodes[at as usize].left = after;
            (before, at)
        };
        self.weigh(at);
        parts
    }

    /// One tree of two, of which the second holds the later keys.
    fn join(&mut self, before: u32, after: u32) -> u32 {
        if before == NONE || after == NONE {
            return before.min(after);
        }
        if self.nodes[before as usize].rank > self.nodes[after as usize].rank {
            self.nodes[before as usize].right = self.join(self.nodes[before as usize].right, after);
            self.weigh(before);
            before
        } else {
            self.nodes[after as usize].left = self.join(before, self.nodes[after as usize].left);
            self.weigh(after);
            after
        }
    }
}

impl Default for OrderedSet {
    fn default() -> Self {
        Self::new()
    }
}

/// A number of no pattern, which keeps the tree flat whatever the order of the keys (`SplitMix64`).
fn scattered(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    impl OrderedSet {
        /// Nodes on the longest way down.
        fn height(&self, at: u32) -> u32 {
            let node = self.nodes.get(at as usize);
            node.map_or(0, |node| 1 + self.height(node.left).max(self.height(node.right)))
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_map(changes in prop::collection::vec((0..20_u64, 0..20_u64, 0..9_u64), 1..200)) {
            let (mut set, mut map) = (OrderedSet::new(), BTreeMap::new());
            for (one, other, weight) in changes {
                let key = (one, other);
                if map.remove(&key).is_some() {
                    set.remove(key);
                } else {
                    map.insert(key, weight);
                    set.insert(key, weight);
                }
                prop_assert!(set.iter().eq(map.keys().copied()));
                prop_assert_eq!(set.last_before(key), map.range(..key).next_back().map(|it| *it.0));
                prop_assert_eq!(set.first_from(key), map.range(key..).next().map(|it| *it.0));
                for weight in 0..10 {
                    let first = map.iter().find(|it| *it.1 >= weight).map(|it| *it.0);
                    prop_assert_eq!(set.first_of_weight(weight), first);
                }
            }
        }
    }

    #[test]
    fn keys_in_order_make_a_flat_tree() {
        let mut set = OrderedSet::new();
        (0..100_000).for_each(|key| set.insert((key, 0), 0));
        assert!(set.height(set.root) <= 60, "{} nodes deep", set.height(set.root));
    }

    #[test]
    fn keys_that_come_and_go_take_no_more_memory() {
        let mut set = OrderedSet::new();
        (0..100).for_each(|key| set.insert((key, 0), 0));
        for round in 0..1000 {
            set.remove((round, 0));
            set.insert((round + 100, 0), 0);
        }
        assert_eq!(set.nodes.len(), 100);
    }
}
