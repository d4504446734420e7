//! What a program demands of a region, so that the smallest capacity can be told.
//!
//! The transient and persistent parts need their highest cursor, which no capacity changes. It is noted for each kind
//! of step, so that it can be told what the run would demand if its steps ended elsewhere, as under plans. The
//! kept part grows down from the top, so its padding depends on the capacity itself; therefore its
//! requests are remembered, and tried against a capacity by the very arithmetic that serves them.

#![forbid(unsafe_code)]

mod classes;
mod trial;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use self::classes::Units;
use self::trial::Trial;
use crate::bytes::Alignment;
use crate::layout::Span;

/// What a run did with the region, in order.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The highest cursor of steps of one kind, or outside of steps, between two changes of the kept zone.
    High {
        kind: Option<u32>,
        bytes: u64,
    },
    Keep {
        bytes: u64,
        alignment: Alignment,
    },
    /// Gives back the `n`-th `Keep`.
    GiveBack {
        keep: usize,
    },
}

/// The record of a run.
#[derive(Debug, Clone)]
pub struct Demand {
    base_address: u64,
    steps: Vec<Step>,
    /// The highest cursors since the last change, sorted by the kind of step.
    highs: Vec<(Option<u32>, u64)>,
    /// The kind of the open step.
    kind: Option<u32>,
    /// How many `Keep`s there were.
    keeps: usize,
    /// Which of them are alive, by where they start in the recording region.
    alive: HashMap<u64, usize>,
}

impl Demand {
    pub(crate) fn new(base_address: u64) -> Self {
        Self {
            base_address,
            steps: Vec::new(),
            // Room for the kinds of a usual loop, so that a second kind allocates nothing in a step.
            highs: Vec::with_capacity(16),
            kind: None,
            keeps: 0,
            alive: HashMap::new(),
        }
    }

    /// What follows happens in a step of this kind, or outside of steps.
    pub(crate) fn set_kind(&mut self, kind: Option<u32>) {
        self.kind = kind;
    }

    /// Forgets the kinds so far: their numbers will mean others.
    pub(crate) fn forget_kinds(&mut self) {
        let highs = std::mem::take(&mut self.highs);
        highs.into_iter().for_each(|(_, bytes)| self.note_cursor_of(None, bytes));
        for step in &mut self.steps {
            if let Step::High { kind, .. } = step {
                *kind = None;
            }
        }
        self.kind = None;
    }

    /// Notes a cursor that is about to fall.
    pub(crate) fn note_cursor(&mut self, cursor_bytes: u64) {
        self.note_cursor_of(self.kind, cursor_bytes);
    }

    /// The same, whatever kind of step is open.
    pub(crate) fn note_cursor_of(&mut self, kind: Option<u32>, cursor_bytes: u64) {
        match self.highs.binary_search_by_key(&kind, |high| high.0) {
            Ok(at) => self.highs[at].1 = self.highs[at].1.max(cursor_bytes),
            Err(at) => self.highs.insert(at, (kind, cursor_bytes)),
        }
    }

    /// Notes that a buffer was kept at `span`, while the cursor stood at `cursor_bytes`.
    pub(crate) fn note_keep(&mut self, span: Span, alignment: Alignment, cursor_bytes: u64) {
        self.alive.insert(span.start_bytes, self.keeps);
        self.keeps += 1;
        self.note(Step::Keep { bytes: span.len_bytes(), alignment }, cursor_bytes);
    }

    /// Notes that the kept buffer at `span` was given back.
    pub(crate) fn note_give_back(&mut self, span: Span, cursor_bytes: u64) {
        if let Some(keep) = self.alive.remove(&span.start_bytes) {
            self.note(Step::GiveBack { keep }, cursor_bytes);
        }
    }

    fn note(&mut self, change: Step, cursor_bytes: u64) {
        self.note_cursor(cursor_bytes);
        self.steps.extend(self.highs.drain(..).map(|(kind, bytes)| Step::High { kind, bytes }));
        self.steps.push(change);
        self.note_cursor(cursor_bytes);
    }

    /// The same run, if each step of a kind had raised the cursor at once to this end and no further, in bytes from
    /// the base. A kind without one stays as it is.
    #[must_use]
    pub fn with_ends(&self, end_bytes: impl Fn(u32) -> Option<u64>) -> Self {
        let mut other = self.clone();
        let set = |kind: Option<u32>, bytes: &mut u64| {
            *bytes = kind.and_then(&end_bytes).unwrap_or(*bytes);
        };
        other.highs.iter_mut().for_each(|(kind, bytes)| set(*kind, bytes));
        for step in &mut other.steps {
            if let Step::High { kind, bytes } = step {
                set(*kind, bytes);
            }
        }
        other
    }

    /// All of it in order.
    fn steps(&self) -> impl Iterator<Item = Step> {
        let last = self.highs.iter().map(|&(kind, bytes)| Step::High { kind, bytes });
        self.steps.iter().copied().chain(last)
    }

    /// The smallest capacity in bytes for which the same requests fit.
    ///
    /// The lowest top that could do is tried. Where it does not, its trial tells a higher one for all
    /// tops for which the buffers find their places in the same way until then. With one alignment
    /// besides 1 that takes a few trials, or some hundred for thousands of buffers. Where many kept
    /// buffers have many large alignments and odd sizes, there can be very many ways.
    #[must_use]
    pub fn smallest_capacity_bytes(&self) -> u64 {
        let alignments = self.steps.iter().filter_map(|step| match step {
            Step::Keep { alignment, .. } => Some(*alignment),
            _ => None,
        });
        let units = Units::new(alignments);
        let (mut top, mut block) = (self.address(self.unpadded_bytes()), units.all());
        let mut later = BinaryHeap::new();
        loop {
            let mut trial = Trial::new(&units, top, &block);
            self.run(&mut trial);
            let mut least_top = top;
            let first_from = |least, block| Reverse((units.first_from(least, &block), block));
            for (next_least_top, reach) in trial.into_failures() {
                let (reached, rest) = block.part(top, &reach);
                later.extend(rest.into_iter().map(|block| first_from(least_top, block)));
                (least_top, block) = (next_least_top, reached);
            }
            if least_top == top {
                break;
            }
            later.push(first_from(least_top, block));
            Reverse((top, block)) = later.pop().expect("the block that was reached");
        }
        u64::try_from(top - self.address(0)).unwrap_or(u64::MAX)
    }

    /// Does all steps in a zone, if its top is of use.
    fn run(&self, zone: &mut Trial<'_>) {
        let mut kept = Vec::with_capacity(self.keeps);
        for step in self.steps() {
            match step {
                Step::High { bytes, .. } => {
                    if !zone.note_floor(self.address(bytes)) {
                        return;
                    }
                }
                Step::Keep { bytes, alignment } => kept.push(zone.place(bytes, alignment)),
                Step::GiveBack { keep } => zone.give_back(kept[keep]),
            }
        }
    }

    fn address(&self, offset_bytes: u64) -> i128 {
        i128::from(self.base_address) + i128::from(offset_bytes)
    }

    /// The most bytes at once of the cursor and the kept buffers, as if nothing were aligned.
    fn unpadded_bytes(&self) -> u64 {
        let (mut most_bytes, mut kept_bytes, mut sizes) = (0, 0, Vec::new());
        for step in self.steps() {
            match step {
                Step::High { bytes, .. } => most_bytes = u64::max(most_bytes, bytes + kept_bytes),
                Step::Keep { bytes, .. } => {
                    sizes.push(bytes);
                    kept_bytes += bytes;
                }
                Step::GiveBack { keep } => kept_bytes -= sizes[keep],
            }
        }
        most_bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kept::KeptZone;

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
        for step in demand.steps() {
            match step {
                Step::High { bytes, .. } if bytes > zone.floor_bytes() => return false,
                Step::High { .. } => {}
                Step::Keep { bytes, alignment } => match zone.place(bytes, alignment, 0) {
                    Some(span) => spans.push(span),
                    None => return false,
                },
                Step::GiveBack { keep } => zone.give_back(spans[keep]),
            }
        }
        true
    }

    #[derive(Debug, Clone)]
    enum Op {
        Cursor(u64),
        Keep(u64, u32),
        GiveBack(usize),
    }

    /// A program of sizes that are multiples of `unit`, and alignments below 2 to the `logs`.
    fn ops(unit: u64, logs: u32) -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            (0..3000_u64).prop_map(Op::Cursor),
            (1..200_u64, 0..logs).prop_map(move |(units, log)| Op::Keep(units * unit, log)),
            any::<usize>().prop_map(Op::GiveBack),
        ];
        prop::collection::vec(op, 0..24)
    }

    fn programs(logs: u32) -> impl Strategy<Value = Demand> {
        let unit = prop::sample::select(vec![1_u64, 4, 256]);
        let program = unit.prop_flat_map(move |unit| (Just(unit), 0..9_u64, ops(unit, logs)));
        program.prop_map(|(unit, base_units, ops)| demand_of(base_units * unit, ops))
    }

    /// What a region records that is large, as a probe's is.
    fn demand_of(base_address: u64, ops: Vec<Op>) -> Demand {
        let (mut demand, mut live) = (Demand::new(base_address), Vec::new());
        let mut zone = KeptZone::new(base_address, 1 << 60);
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
        demand
    }

    fn check_is_the_first_of_all(demand: &Demand) -> Result<(), TestCaseError> {
        let first = (0..).find(|&capacity| fits(demand, capacity));
        prop_assert_eq!(Some(demand.smallest_capacity_bytes()), first);
        Ok(())
    }

    proptest! {
        #[test]
        fn it_is_the_first_capacity_that_fits_of_all(demand in programs(11)) {
            check_is_the_first_of_all(&demand)?;
        }

        // Here no capacity can be tried one by one.
        #[test]
        fn at_alignments_of_terabytes_it_fits_and_smaller_ones_do_not(
            demand in programs(42),
            less in prop::collection::vec((0..42_u32, 1..3000_u64), 200),
        ) {
            let smallest = demand.smallest_capacity_bytes();
            prop_assert!(fits(&demand, smallest));
            for (log, factor) in less {
                let smaller = smallest.checked_sub(factor << log);
                prop_assert!(!smaller.is_some_and(|capacity| fits(&demand, capacity)));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn at_large_alignments_it_is_the_first_capacity_that_fits_of_all(demand in programs(17)) {
            check_is_the_first_of_all(&demand)?;
        }
    }

    #[test]
    fn which_gap_is_the_shortest_may_change_with_the_capacity() {
        let kept = [(97, 5), (6, 6), (96, 0), (26, 0), (68, 0), (179, 6), (130, 0), (106, 0)];
        let mut ops: Vec<Op> = kept.map(|(bytes, log)| Op::Keep(bytes, log)).into();
        ops.extend([Op::GiveBack(1), Op::Keep(150, 0), Op::Cursor(74)]);
        ops.extend([Op::GiveBack(2), Op::Keep(7, 7)]);
        check_is_the_first_of_all(&demand_of(3, ops)).unwrap();
    }

    #[test]
    fn with_other_ends_it_is_the_run_whose_steps_end_there() {
        let kept = |at: u64| Span { start_bytes: (1 << 20) - at, end_bytes: (1 << 20) - at + 100 };
        let run = |ends: [u64; 2]| {
            let mut demand = Demand::new(0);
            demand.note_cursor(40); // before there is a step
            for _ in 0..2 {
                demand.set_kind(Some(0));
                demand.note_cursor(ends[0]);
                demand.set_kind(Some(1));
                demand.note_keep(kept(256), Alignment::DEFAULT, ends[1]);
                demand.note_cursor(ends[1]);
                demand.set_kind(None);
                demand.note_give_back(kept(256), 40);
                demand.note_keep(kept(512), Alignment::ONE, 40);
                demand.note_give_back(kept(512), 40);
            }
            demand
        };
        let recorded = run([3000, 900]);
        for ends in [[500, 100], [100, 700], [4000, 4000], [0, 0]] {
            let planned = recorded.with_ends(|kind| Some(ends[kind as usize]));
            let expected = run(ends).smallest_capacity_bytes();
            assert_eq!(planned.smallest_capacity_bytes(), expected, "{ends:?}");
        }
        let partly = recorded.with_ends(|kind| (kind == 0).then_some(10));
        assert_eq!(partly.smallest_capacity_bytes(), run([10, 900]).smallest_capacity_bytes());
        let mut forgotten = recorded.clone();
        forgotten.forget_kinds();
        let unchanged = forgotten.with_ends(|_| Some(0)).smallest_capacity_bytes();
        assert_eq!(unchanged, recorded.smallest_capacity_bytes());
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
