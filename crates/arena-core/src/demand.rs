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
    /// Capacities that differ by a multiple of the largest alignment lay kept buffers out alike, counted
    /// from the top. So one trial tells the smallest of each such class, and the smallest of those is
    /// the answer. Where all sizes and alignments are multiples of a granule, what a capacity has over
    /// a multiple of it changes no place, so only those classes are tried.
    pub(crate) fn smallest_capacity_bytes(&self) -> u64 {
        let (mut period, mut granule) = (1, self.base_address);
        for step in &self.steps {
            if let Change::Keep { bytes, alignment, .. } = step.change {
                period = u64::max(period, alignment.bytes());
                granule = gcd(gcd(granule, bytes), alignment.bytes());
            }
        }
        let granule = granule.clamp(1, period);
        let smallest = |class| self.smallest_of_class(class * granule, period, granule);
        (0..period / granule).map(smallest).min().unwrap_or(0)
    }

    /// The smallest capacity that leaves `rest` when divided by `period`, or less than `granule` more.
    fn smallest_of_class(&self, rest: u64, period: u64, granule: u64) -> u64 {
        // One that is large enough for everything: each kept buffer takes less than its alignment more.
        let padding_bytes = (self.keeps as u64).saturating_mul(period);
        let ample_bytes = self.sum_bytes().saturating_add(padding_bytes);
        let mut zone =
            KeptZone::new(self.base_address, ample_bytes.next_multiple_of(period) + rest);
        // While something is kept, and while nothing is: then every byte counts.
        let (mut beside_kept, mut alone) = (0, 0);
        let mut note = |zone: &KeptZone, cursor_bytes: u64| match zone.bytes() {
            0 => alone = u64::max(alone, cursor_bytes),
            kept_bytes => beside_kept = u64::max(beside_kept, cursor_bytes + kept_bytes),
        };
        let mut spans = Vec::with_capacity(self.keeps);
        for step in &self.steps {
            note(&zone, step.high_bytes);
            match step.change {
                Change::Keep { bytes, alignment, cursor_bytes } => {
                    let Some(span) = zone.place(bytes, alignment, 0) else { return u64::MAX };
                    spans.push(span);
                    note(&zone, cursor_bytes);
                }
                Change::GiveBack { keep } => zone.give_back(spans[keep]),
            }
        }
        note(&zone, self.high_bytes);
        let least_bytes = u64::max(beside_kept, (alone + 1).saturating_sub(granule));
        let over_bytes = (least_bytes % period + period - rest) % period;
        u64::max(least_bytes + (period - over_bytes) % period, alone)
    }

    /// The highest cursor and every kept buffer together.
    fn sum_bytes(&self) -> u64 {
        let high = self.steps.iter().map(|step| step.high_bytes).fold(self.high_bytes, u64::max);
        let kept = self.steps.iter().map(|step| match step.change {
            Change::Keep { bytes, .. } => bytes,
            Change::GiveBack { .. } => 0,
        });
        kept.fold(high, u64::saturating_add)
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    /// Whether the requests fit, tried by the arithmetic that serves them.
    fn fits(demand: &Demand, capacity_bytes: u64) -> bool {
        let mut zone = KeptZone::new(demand.base_address, capacity_bytes);
        let mut spans = Vec::new();
        for step in &demand.steps {
            if step.high_bytes > zone.floor_bytes() {
                return false;
            }
            match step.change {
                Change::Keep { bytes, alignment, cursor_bytes } => {
                    match zone.place(bytes, alignment, cursor_bytes) {
                        Some(span) => spans.push(span),
                        None => return false,
                    }
                }
                Change::GiveBack { keep } => zone.give_back(spans[keep]),
            }
        }
        demand.high_bytes <= zone.floor_bytes()
    }

    #[derive(Debug, Clone)]
    enum Op {
        Cursor(u64),
        Keep(u64, u32),
        GiveBack(usize),
    }

    fn ops(unit: u64) -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            (0..3000_u64).prop_map(Op::Cursor),
            (1..200_u64, 0..11_u32).prop_map(move |(units, log)| Op::Keep(units * unit, log)),
            any::<usize>().prop_map(Op::GiveBack),
        ];
        prop::collection::vec(op, 0..24)
    }

    proptest! {
        #[test]
        fn it_is_the_first_capacity_that_fits_of_all(
            base_unit in 0..9_u64,
            (unit, ops) in prop::sample::select(vec![1_u64, 4, 256]).prop_flat_map(|unit| (Just(unit), ops(unit))),
        ) {
            let base_address = base_unit * unit;
            let (mut demand, mut live) = (Demand::new(base_address), Vec::new());
            // The recording region is large, as a probe's is.
            let mut zone = KeptZone::new(base_address, 1 << 24);
            let mut cursor = 0;
            for op in ops {
                match op {
                    Op::Cursor(bytes) => {
                        demand.note_cursor(cursor);
                        cursor = bytes;
                    }
                    Op::Keep(bytes, log) => {
                        let alignment = Alignment::new(1 << log).unwrap();
                        let span = zone.place(bytes, alignment, cursor).unwrap();
                        demand.note_keep(span, alignment, cursor);
                        live.push(span);
                    }
                    Op::GiveBack(pick) if !live.is_empty() => {
                        let span = live.swap_remove(pick % live.len());
                        demand.note_give_back(span, cursor);
                        zone.give_back(span);
                    }
                    Op::GiveBack(_) => {}
                }
            }
            demand.note_cursor(cursor);
            let first = (0..).find(|&capacity| fits(&demand, capacity));
            prop_assert_eq!(Some(demand.smallest_capacity_bytes()), first);
        }
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
