//! The key of a kind of step.

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
