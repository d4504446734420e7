//! How a scope is opened.

use arena_core::Reset;

use crate::step_key::StepKey;

/// How a scope is opened, where the defaults do not suit: its key, its reset policy, and the bytes that it needs.
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
    /// 0 asks for nothing.
    pub(crate) needs_bytes: u64,
}

impl ScopeOptions {
    /// A scope with a name, which errors show, and the arena's reset policy.
    #[must_use]
    pub const fn named(name: &'static str) -> Self {
        Self { key: StepKey::named(name), reset: None, needs_bytes: 0 }
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

    /// The scope opens only if this many bytes are free above its start: the mark for a root scope, the cursor for
    /// an inner scope. Otherwise opening fails with [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted), before
    /// any work of the step is queued. No scope is open then, and nothing has changed.
    ///
    /// `bytes` includes padding: it is the high-water of such a scope, on the probe or in an earlier step, minus
    /// its start. It is a check, not a reservation, so the requests of the scope may take more or less. If the
    /// step follows a plan, the bytes of the plan count as free.
    ///
    /// ```
    /// use arena_scope::{Arena, ByteSize, Host, ScopeOptions};
    ///
    /// let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let step = ScopeOptions::named("train").needs(5000);
    /// let error = arena.scope_with(step, |_| arena_scope::Ok(())).unwrap_err(); // before the closure runs
    /// let full = error.as_exhausted().expect("5000 bytes do not fit into 4096");
    /// assert_eq!((full.asked_bytes, full.missing_bytes), (5000, 904));
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub const fn needs(mut self, bytes: u64) -> Self {
        self.needs_bytes = bytes;
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
        Self { key, reset: None, needs_bytes: 0 }
    }
}
