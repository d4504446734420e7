//! The kept zone below a top that may move: places as [`KeptZone`](crate::kept::KeptZone) chooses
//! them, and how far the top's digits may change before it would choose in another way.

#![forbid(unsafe_code)]

use super::classes::{Block, Place, Reach, Units};
use crate::bytes::Alignment;
use crate::gaps::Gaps;
use crate::layout::Span;

/// Added to addresses, which are below 0 when a top is much too low. Each alignment divides it.
const ABOVE_ZERO: i128 = 1 << 62;
/// Below it a trial ends, so that no size and alignment more leads below `-ABOVE_ZERO`.
const LOWEST: i128 = -1 << 60;

/// What is free, or taken, between two places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    start: Place,
    end: Place,
}

#[derive(Debug)]
pub(super) struct Trial<'u> {
    units: &'u Units,
    top: i128,
    reach: Reach<'u>,
    floor: Place,
    /// Gaps between places that follow no digit.
    fixed: Gaps,
    /// The others, in no order. One that is empty now may grow when a digit changes.
    moving: Vec<Range>,
    failures: Vec<(i128, Reach<'u>)>,
}

impl Range {
    fn len(self) -> i128 {
        self.end.at - self.start.at
    }

    /// Whether it stays as long as it is now.
    fn is_rigid(self) -> bool {
        self.start.level == self.end.level
    }
}

impl<'u> Trial<'u> {
    /// An empty zone below a top, of which the digits may be any of the block.
    pub(super) fn new(units: &'u Units, top: i128, block: &Block) -> Self {
        let floor = Place { at: top, level: 0 };
        Self {
            units,
            top,
            reach: units.reach(top, block),
            floor,
            fixed: Gaps::new(0),
            moving: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Notes that nothing may be kept below `address`. A top that fails this is of no use, and more of
    /// its kind are passed over, the sooner it fails; so what was reached is kept at each worse failure.
    /// `false` when there is no use in going on.
    pub(super) fn note_floor(&mut self, address: i128) -> bool {
        if self.floor.at < address {
            let least_top = self.units.least_top(self.top, self.floor, address);
            if self.failures.last().is_none_or(|(worst, _)| *worst < least_top) {
                self.failures.push((least_top, self.reach.clone()));
            }
        }
        self.floor.at > LOWEST
    }

    /// Ever higher tops that are needed, and how far the digits may change for that to be so.
    pub(super) fn into_failures(self) -> Vec<(i128, Reach<'u>)> {
        self.failures
    }

    /// Places `bytes` bytes as the zone does that has room for everything.
    pub(super) fn place(&mut self, bytes: u64, alignment: Alignment) -> Range {
        let fixed = self.fixed.best(bytes, alignment).map(|(gap, _)| self.range_of(gap));
        let bytes = i128::from(bytes);
        let serving =
            |gap: &&Range| self.units.align_up(gap.start, alignment).at + bytes <= gap.end.at;
        let moving = self.moving.iter().filter(serving).copied();
        let best = moving.chain(fixed).min_by_key(|gap| (gap.len(), gap.start.at));
        for index in 0..self.moving.len() {
            self.hold_choice(self.moving[index], best, bytes, alignment);
        }
        if let Some(fixed) = fixed {
            self.hold_choice(fixed, best, bytes, alignment);
        }
        match best {
            Some(gap) => self.place_in(gap, bytes, alignment),
            None => self.place_below_floor(bytes, alignment),
        }
    }

    fn place_in(&mut self, gap: Range, bytes: i128, alignment: Alignment) -> Range {
        let start = self.units.align_up(gap.start, alignment);
        let taken = Range { start, end: start.plus(bytes) };
        self.hold_padding(gap.start, start, alignment);
        self.reach.hold(gap.end.at - taken.end.at, &[gap.end], &[taken.end]);
        self.remove_gap(gap);
        self.insert_gap(Range { start: gap.start, end: taken.start });
        self.insert_gap(Range { start: taken.end, end: gap.end });
        taken
    }

    fn place_below_floor(&mut self, bytes: i128, alignment: Alignment) -> Range {
        let highest = self.floor.plus(-bytes);
        let start = self.units.align_down(highest, alignment);
        self.hold_padding(start, highest, alignment);
        let taken = Range { start, end: start.plus(bytes) };
        self.insert_gap(Range { start: taken.end, end: self.floor });
        self.floor = start;
        taken
    }

    /// Holds the padding from one place to another between nothing and less than the alignment.
    fn hold_padding(&mut self, from: Place, to: Place, alignment: Alignment) {
        let padding = to.at - from.at;
        self.reach.hold(padding, &[to], &[from]);
        self.reach.hold(i128::from(alignment.low_bits()) - padding, &[from], &[to]);
    }

    /// Holds what speaks against a gap that is not the best: it is too short, or longer than the best.
    fn hold_choice(&mut self, gap: Range, best: Option<Range>, bytes: i128, alignment: Alignment) {
        // A shorter one that does not grow: the common case.
        if gap.len() < bytes && gap.start.level <= gap.end.level || best == Some(gap) {
            return;
        }
        let is_before = |best: &Range| (best.len(), best.start.at) < (gap.len(), gap.start.at);
        if let Some(best) = best.filter(is_before) {
            if !(gap.is_rigid() && best.is_rigid()) {
                let margin = i128::from(gap.start.at < best.start.at);
                let spare = gap.len() - best.len() - margin;
                self.reach.hold(spare, &[gap.end, best.start], &[gap.start, best.end]);
            }
        } else {
            let start = self.units.align_up(gap.start, alignment);
            self.hold_padding(gap.start, start, alignment);
            let missing = start.at + bytes - gap.end.at;
            self.reach.hold(missing - 1, &[start], &[gap.end]);
        }
    }

    /// Takes back what [`place`](Self::place) gave.
    pub(super) fn give_back(&mut self, range: Range) {
        let mut free = range;
        if let Some(before) = self.find_gap(Gaps::before, range, |gap| gap.end == range.start) {
            self.remove_gap(before);
            free.start = before.start;
        }
        if let Some(after) = self.find_gap(Gaps::after, range, |gap| gap.start == range.end) {
            self.remove_gap(after);
            free.end = after.end;
        }
        if free.start == self.floor {
            self.floor = free.end;
        } else {
            self.insert_gap(free);
        }
    }

    /// The gap that touches a range.
    fn find_gap(
        &self,
        in_fixed: impl Fn(&Gaps, Span) -> Option<Span>,
        range: Range,
        touches: impl Fn(&Range) -> bool,
    ) -> Option<Range> {
        let fixed = in_fixed(&self.fixed, span_of(range)).map(|gap| self.range_of(gap));
        fixed.into_iter().chain(self.moving.iter().copied()).find(touches)
    }

    fn insert_gap(&mut self, gap: Range) {
        if self.is_fixed(gap) && gap.len() > 0 {
            self.fixed.insert(span_of(gap));
        } else if gap.start != gap.end {
            self.moving.push(gap);
        }
    }

    fn remove_gap(&mut self, gap: Range) {
        if self.is_fixed(gap) {
            self.fixed.remove(span_of(gap));
        } else {
            self.moving.retain(|moving| *moving != gap);
        }
    }

    fn is_fixed(&self, gap: Range) -> bool {
        gap.is_rigid() && gap.start.level == self.units.levels()
    }

    fn range_of(&self, span: Span) -> Range {
        let place =
            |address| Place { at: i128::from(address) - ABOVE_ZERO, level: self.units.levels() };
        Range { start: place(span.start_bytes), end: place(span.end_bytes) }
    }
}

fn span_of(range: Range) -> Span {
    let address = |place: Place| u64::try_from(place.at + ABOVE_ZERO).expect("it is not that low");
    Span { start_bytes: address(range.start), end_bytes: address(range.end) }
}
