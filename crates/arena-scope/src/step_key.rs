//! The key of a kind of step, and a map with such keys.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;

/// The kind of a step: the name of its root scope, and a variant. Steps of one name that make different
/// requests on purpose need different variants, for example their batch size or their sequence length.
///
/// Observers, plans, captured graphs and steady states find a step by its key.
///
/// ```
/// use arena_scope::StepKey;
/// const TRAIN: StepKey = StepKey::named("train");
/// assert_eq!(TRAIN.variant(64).to_string(), "`train` (64)");
/// assert_ne!(TRAIN.variant(64), TRAIN.variant(7));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StepKey {
    /// The root scope's name.
    pub name: &'static str,
    /// The variant; 0 unless set.
    pub variant: u64,
}

impl StepKey {
    /// The steps of this name, variant 0.
    #[must_use]
    pub const fn named(name: &'static str) -> Self {
        Self { name, variant: 0 }
    }

    /// The same name with another variant.
    #[must_use]
    pub const fn variant(mut self, variant: u64) -> Self {
        self.variant = variant;
        self
    }
}

impl Default for StepKey {
    /// The key of scopes without a name: `"scope"`, variant 0.
    fn default() -> Self {
        Self::named("scope")
    }
}

impl From<&'static str> for StepKey {
    fn from(name: &'static str) -> Self {
        Self::named(name)
    }
}

impl fmt::Display for StepKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ({})", self.name, self.variant)
    }
}

/// One value for each key, in the order in which they came. A loop asks for the same key again and again,
/// so the one that was found last is tried first.
#[derive(Debug)]
pub(crate) struct KeyMap<T> {
    entries: Vec<(StepKey, T)>,
    index: HashMap<StepKey, usize>,
    last: Cell<usize>,
}

impl<T> Default for KeyMap<T> {
    /// Room for the kinds of a usual loop, so that a second kind allocates nothing in a step.
    fn default() -> Self {
        let (entries, index) = (Vec::with_capacity(16), HashMap::with_capacity(16));
        Self { entries, index, last: Cell::new(0) }
    }
}

impl<T> KeyMap<T> {
    fn position(&self, key: StepKey) -> Option<usize> {
        let last = self.last.get();
        if self.entries.get(last).is_some_and(|entry| entry.0 == key) {
            return Some(last);
        }
        let found = self.index.get(&key).copied()?;
        self.last.set(found);
        Some(found)
    }

    /// How many keys came before this one, or before it would come.
    pub(crate) fn number(&self, key: StepKey) -> usize {
        self.position(key).unwrap_or(self.entries.len())
    }

    pub(crate) fn get(&self, key: StepKey) -> Option<&T> {
        self.position(key).map(|at| &self.entries[at].1)
    }

    pub(crate) fn get_mut(&mut self, key: StepKey) -> Option<&mut T> {
        self.position(key).map(|at| &mut self.entries[at].1)
    }

    pub(crate) fn get_or_insert_with(&mut self, key: StepKey, new: impl FnOnce() -> T) -> &mut T {
        let at = self.position(key).unwrap_or_else(|| {
            self.index.insert(key, self.entries.len());
            self.entries.push((key, new()));
            self.entries.len() - 1
        });
        &mut self.entries[at].1
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (StepKey, &T)> {
        self.entries.iter().map(|(key, value)| (*key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_own_value_and_the_order_stays() {
        let mut map = KeyMap::default();
        let key = |n: u64| StepKey::named(if n.is_multiple_of(2) { "a" } else { "b" }).variant(n);
        for n in (0..100).rev() {
            *map.get_or_insert_with(key(n), || 0) += n;
            *map.get_or_insert_with(key(n), || 0) += n;
        }
        assert!((0..100).all(|n| map.get(key(n)) == Some(&(2 * n))));
        assert_eq!(map.get(StepKey::named("a").variant(1)), None);
        assert!(map.iter().map(|(key, _)| key.variant).eq((0..100).rev()));
    }
}
