//! How a scope is opened.

use arena_core::Reset;

use crate::step_key::StepKey;

/// How a scope is opened, where the defaults do not suit: its key, and its reset policy.
///
/// ```
/// use arena_scope::{Reset, ScopeOptions};
/// let options = ScopeOptions::named("train").variant(32).reset(Reset::Zero);
/// assert_eq!(options.key().variant, 32);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScopeOptions {
    key: StepKey,
    pub(crate) reset: Option<Reset>,
}

impl ScopeOptions {
    /// A scope with a name, which errors show, and the arena's reset policy.
    #[must_use]
    pub const fn named(name: &'static str) -> Self {
        Self { key: StepKey::named(name), reset: None }
    }

    /// The variant of the key, for steps of one name that differ: see [`StepKey`].
    ///
    /// ```
    /// use arena_scope::ScopeOptions;
    /// let options = ScopeOptions::named("train").variant(7);
    /// assert_eq!((options.key().name, options.key().variant), ("train", 7));
    /// ```
    #[must_use]
    pub const fn variant(mut self, variant: u64) -> Self {
        self.key.variant = variant;
        self
    }

    /// Closes with this policy instead of the arena's.
    #[must_use]
    pub const fn reset(mut self, reset: Reset) -> Self {
        self.reset = Some(reset);
        self
    }

    /// The kind of step that a root scope with these options is.
    #[must_use]
    pub const fn key(self) -> StepKey {
        self.key
    }
}

impl From<StepKey> for ScopeOptions {
    fn from(key: StepKey) -> Self {
        Self { key, reset: None }
    }
}
