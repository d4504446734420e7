//! What was not as planned.

use std::fmt;

use super::sites::DeviationKind;

/// What was not as planned, since the plan was installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Deviations {
    /// Requests smaller than their slot; they got its address all the same.
    pub smaller: u64,
    /// Requests larger than the next slot, with no slot of theirs ahead.
    pub larger: u64,
    /// Requests after the last slot.
    pub extra: u64,
    /// Slots that nobody asked for.
    pub missing: u64,
    /// Requests whose slot's bytes were not free yet.
    pub late: u64,
    /// Buffers that were alive when their scope closed, though the plan has them freed by then, or
    /// that were forgotten.
    pub unfreed: u64,
    /// Steps in which anything but a smaller request was not as planned.
    pub steps: u64,
}

impl Deviations {
    /// All of them, smaller requests left out: those keep their planned address.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.larger + self.extra + self.missing + self.late
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
        let Self { smaller, larger, extra, missing, late, unfreed, steps } = self;
        write!(
            f,
            "{larger} larger, {extra} extra, {missing} missing, {late} freed late, \
             {unfreed} unfreed, {smaller} smaller (steps that deviated: {steps})"
        )
    }
}
