//! When to stop looking for a better plan.

use std::time::{Duration, Instant};

/// A moment after which only the best plan so far counts; or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Self = Self(None);

    /// `time_limit` after `begin`, less what is `kept` for the work after it.
    pub(crate) fn new(begin: Instant, time_limit: Option<Duration>, kept: Duration) -> Self {
        Self(time_limit.and_then(|limit| begin.checked_add(limit.saturating_sub(kept))))
    }

    pub(crate) fn has_passed(self) -> bool {
        self.0.is_some_and(|moment| Instant::now() >= moment)
    }
}
