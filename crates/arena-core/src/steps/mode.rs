//! How requests and drops are served.

#![forbid(unsafe_code)]

/// The ways of a request and of a drop, from the shortest to the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    /// The cursor moves up; a drop is nothing.
    Bump,
    /// The same, and each request is signed.
    Observed,
    /// The step does just what an earlier one did under its plan, and is compared with it.
    Repeating,
    /// The step follows its plan and counts whose bytes are free.
    Counted,
    /// Each request and drop is logged.
    Recorded,
    /// For hunting bugs, and while an error waits or a close is not finished: every request takes a look
    /// at everything.
    Hunting,
}
