//! What happens to a scope's bytes when it closes.

use arena_core::POISON_BYTE;

/// What a closing scope does with the bytes it used: exactly [start of the scope, high-water), in
/// stream order, before the cursor goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reset {
    /// Nothing: the next scope finds what this one left. Closing costs the same for any size.
    #[default]
    Keep,
    /// Sets them to zero. What a scope used is zero at the start of the next one; a buffer that is
    /// asked for in the middle of a scope is not promised to be (that is `alloc_zeroed`).
    Zero,
    /// Sets each to `0xff`, so that every float reads as NaN and a read of stale memory shows. With
    /// this as the arena's policy, fresh memory is poisoned too, before its first use.
    Poison,
}

impl Reset {
    /// What each byte is set to, if any.
    pub(crate) const fn byte(self) -> Option<u8> {
        match self {
            Self::Keep => None,
            Self::Zero => Some(0),
            Self::Poison => Some(POISON_BYTE),
        }
    }
}

/// How a scope is opened, where the defaults do not do.
///
/// ```
/// use arena_scope::{Reset, ScopeOptions};
/// let options = ScopeOptions::named("train").variant(32).reset(Reset::Zero);
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScopeOptions {
    pub(crate) name: &'static str,
    pub(crate) variant: u64,
    pub(crate) reset: Option<Reset>,
}

impl ScopeOptions {
    /// A scope with a name, which errors show, and the arena's reset policy.
    #[must_use]
    pub const fn named(name: &'static str) -> Self {
        Self { name, variant: 0, reset: None }
    }

    /// Tells scopes of one name apart whose requests differ by plan: the batch size or the sequence
    /// length. Name and variant together are the key under which a step is compared with the steps
    /// before it.
    #[must_use]
    pub const fn variant(mut self, variant: u64) -> Self {
        self.variant = variant;
        self
    }

    /// Closes with this policy instead of the arena's.
    #[must_use]
    pub const fn reset(mut self, reset: Reset) -> Self {
        self.reset = Some(reset);
        self
    }
}

impl Default for ScopeOptions {
    fn default() -> Self {
        Self::named("scope")
    }
}
