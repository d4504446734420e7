//! How often steps were not as planned.

use std::fmt;

use super::sites::DeviationKind;

/// How often steps were not as planned, since the plan was installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Deviations {
    /// Requests that were smaller than their slot. They got its address.
    pub smaller: u64,
    /// The same in steps of a key that shares the plan of another key, such as the short last batch of an epoch.
    pub smaller_by_design: u64,
    /// Requests that were larger than the next slot, where no slot further on fitted.
    pub larger: u64,
    /// Requests after the last slot.
    pub extra: u64,
    /// Slots that no request took.
    pub missing: u64,
    /// Requests whose slot's bytes still belonged to a live buffer.
    pub late: u64,
    /// Buffers that were still alive when their scope closed although the plan has them dropped before, and
    /// buffers that were forgotten.
    pub unfreed: u64,
    /// Steps with a deviation that [`total`](Self::total) counts.
    pub steps: u64,
}

impl Deviations {
    /// The deviations that moved a buffer or left a slot unused: larger, extra, missing and late. A smaller
    /// request keeps its planned address, and a buffer that was not freed in time moves nothing by itself,
    /// so neither is counted.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.larger + self.extra + self.missing + self.late
    }

    /// All deviations but those by design: 0 says that nothing unexpected happened.
    #[must_use]
    pub const fn unplanned(&self) -> u64 {
        self.total() + self.smaller + self.unfreed
    }

    pub(super) const fn of(&mut self, kind: DeviationKind) -> &mut u64 {
        match kind {
            DeviationKind::Smaller => &mut self.smaller,
            DeviationKind::Larger => &mut self.larger,
            DeviationKind::Extra => &mut self.extra,
            DeviationKind::Missing => &mut self.missing,
            DeviationKind::Late => &mut self.late,
        }
    }
}

impl fmt::Display for Deviations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { smaller, smaller_by_design, larger, extra, missing, late, unfreed, steps } =
            self;
        write!(
            f,
            "{larger} larger, {extra} extra, {missing} missing, {late} freed late, \
             {unfreed} unfreed, {smaller} smaller, {smaller_by_design} smaller by design \
             (steps that deviated: {steps})"
        )
    }
}
