//! What a program demands of a region, so that the smallest capacity can be told.
//!
//! The transient and persistent parts need their highest cursor, which no capacity changes. The
//! kept part grows down from the top, so its padding depends on the capacity itself; therefore its
//! requests are remembered, and tried against a capacity by the very arithmetic that serves them.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::bytes::Alignment;
use crate::kept::KeptZone;
use crate::layout::Span;

/// One change of the kept zone, and what the cursor did until then.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// The highest cursor since the step before.
    high_bytes: u64,
    change: Change,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Keep {
        bytes: u64,
        alignment: Alignment,
        cursor_bytes: u64,
    },
    /// Gives back the `n`-th `Keep`.
    GiveBack {
        keep: usize,
    },
}

/// The record of a run.
#[derive(Debug, Clone)]
pub(crate) struct Demand {
    base_address: u64,
    steps: Vec<Step>,
    /// The highest cursor since the last step.
    high_bytes: u64,
    /// How many `Keep`s there were.
    keeps: usize,
    /// Which of them are alive, by where they start in the recording region.
    alive: HashMap<u64, usize>,
}

impl Demand {
    pub(crate) fn new(base_address: u64) -> Self {
        Self { base_address, steps: Vec::new(), high_bytes: 0, keeps: 0, alive: HashMap::new() }
    }

    /// Notes a cursor that is about to fall.
    pub(crate) fn note_cursor(&mut self, cursor_bytes: u64) {
        self.high_bytes = self.high_bytes.max(cursor_bytes);
    }

    /// Notes that a buffer was kept at `span`, while the cursor stood at `cursor_bytes`.
    pub(crate) fn note_keep(&mut self, span: Span, alignment: Alignment, cursor_bytes: u64) {
        let bytes = span.len_bytes();
        self.alive.insert(span.start_bytes, self.keeps);
        self.keeps += 1;
        self.note(Change::Keep { bytes, alignment, cursor_bytes }, cursor_bytes);
    }

    /// Notes that the kept buffer at `span` was given back.
    pub(crate) fn note_give_back(&mut self, span: Span, cursor_bytes: u64) {
        if let Some(keep) = self.alive.remove(&span.start_bytes) {
            self.note(Change::GiveBack { keep }, cursor_bytes);
        }
    }

    fn note(&mut self, change: Change, cursor_bytes: u64) {
        self.note_cursor(cursor_bytes);
        self.steps.push(Step { high_bytes: self.high_bytes, change });
        self.high_bytes = cursor_bytes;
    }

    /// The smallest capacity in bytes for which the same requests fit.
    ///
    /// The search starts at the bytes needed without any padding between kept buffers and tries
    /// each byte from there: every kept buffer adds less than its alignment to it.
    pub(crate) fn smallest_capacity_bytes(&self) -> u64 {
        let mut capacity_bytes = self.least_bytes();
        while !self.fits(capacity_bytes) {
            capacity_bytes += 1;
        }
        capacity_bytes
    }

    /// What no capacity can go below: the bytes of each moment without padding in the kept zone.
    fn least_bytes(&self) -> u64 {
        let (mut least_bytes, mut kept_bytes, mut sizes) = (0, 0, Vec::new());
        for step in &self.steps {
            least_bytes = least_bytes.max(step.high_bytes + kept_bytes);
            match step.change {
                Change::Keep { bytes, .. } => {
                    sizes.push(bytes);
                    kept_bytes += bytes;
                }
                Change::GiveBack { keep } => kept_bytes -= sizes[keep],
            }
        }
        least_bytes.max(self.high_bytes + kept_bytes)
    }

    fn fits(&self, capacity_bytes: u64) -> bool {
        let mut zone = KeptZone::new(self.base_address, capacity_bytes);
        let mut keeps = Vec::new();
        for step in &self.steps {
            if step.high_bytes > zone.floor_bytes() {
                return false;
            }
            match step.change {
                Change::Keep { bytes, alignment, cursor_bytes } => {
                    match zone.place(bytes, alignment, cursor_bytes) {
                        Some(span) => keeps.push(span),
                        None => return false,
                    }
                }
                Change::GiveBack { keep } => zone.give_back(keeps[keep]),
            }
        }
        self.high_bytes <= zone.floor_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_kept_buffers_the_highest_cursor_is_the_answer() {
        let mut demand = Demand::new(0);
        demand.note_cursor(1000);
        demand.note_cursor(777);
        assert_eq!(demand.smallest_capacity_bytes(), 1000);
    }

    #[test]
    fn kept_padding_is_counted_to_the_byte() {
        let mut demand = Demand::new(0);
        // Ten bytes kept at alignment 256 above a cursor of 300: they start at 512.
        let span = Span { start_bytes: 1 << 20, end_bytes: (1 << 20) + 10 };
        demand.note_keep(span, Alignment::DEFAULT, 300);
        assert_eq!(demand.smallest_capacity_bytes(), 522);
        // Later the cursor rises to 600 beside them: they start at 768.
        demand.note_cursor(600);
        assert_eq!(demand.smallest_capacity_bytes(), 778);
    }

    #[test]
    fn what_was_given_back_is_used_again() {
        let mut demand = Demand::new(0);
        let span = Span { start_bytes: 1 << 20, end_bytes: (1 << 20) + 256 };
        demand.note_keep(span, Alignment::DEFAULT, 0);
        demand.note_give_back(span, 0);
        demand.note_keep(span, Alignment::DEFAULT, 0);
        assert_eq!(demand.smallest_capacity_bytes(), 256);
    }
}
