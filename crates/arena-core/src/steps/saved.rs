//! What a paused region needs to come back.

#![forbid(unsafe_code)]

use crate::layout::Span;

/// The contents that are kept, and whose memory was taken.
#[derive(Debug, Default)]
pub(super) struct Paused {
    /// Offsets and contents.
    pub(super) contents: Vec<(u64, Vec<u8>)>,
    /// The chunks whose memory was taken, in the order in which it was.
    pub(super) taken: Vec<Span>,
}
