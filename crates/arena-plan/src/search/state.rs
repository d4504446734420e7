//! A partial placement, what follows from it, and the way back.
//!
//! For each unplaced item two offsets are kept. `support` is the top of the placed items under it: where
//! it would come to rest now. `low` is proved: no solution below this node has it lower. An item with
//! `low > support` was *passed over*: it must come to rest on an item that is not placed yet.

use std::cell::Cell;

use super::model::{Lists, Model, NONE};

enum Change {
    Placed(u32),
    Raised { item: u32, support: u64, low: u64 },
    Options { section: u32, options: u32 },
}

pub(super) struct State<'m> {
    pub(super) model: &'m Model,
    capacity: u64,
    pub(super) support: Vec<u64>,
    pub(super) low: Vec<u64>,
    pub(super) placed: Vec<bool>,
    trail: Vec<Change>,
    /// How many items are placed.
    pub(super) placements: usize,
    /// Items of each section: the unplaced ones, nearly sorted by `low` from check to check, then the placed
    /// ones, the last one first. Taking one back moves the border.
    members: Lists,
    /// For each section the number of unplaced items.
    unplaced: Vec<u32>,
    /// For each section what the unplaced items leave of the capacity.
    room: Vec<u64>,
    /// For each section an upper bound of the end of its stack. On the way down the end only rises, so a bound
    /// stays one on the way back.
    end: Vec<u64>,
    /// Sections in which a `low` has risen since the last check.
    touched: Vec<u32>,
    is_touched: Vec<bool>,
    /// For each item the one on which it could rest lowest when that was last looked for, or `NONE`.
    rests_on: Vec<u32>,
    /// For each section how many of its unplaced items could be the lowest of them.
    pub(super) options: Vec<u32>,
    /// For each section how often it was the reason for going back.
    pub(super) blame: Vec<f64>,
    /// Items and sections looked at so far.
    work: Cell<u64>,
}

impl<'m> State<'m> {
    /// `None` when not even the empty placement can be completed.
    pub(super) fn new(model: &'m Model, capacity: u64, blame: Vec<f64>) -> Option<Self> {
        let start: Vec<u64> = model.items.iter().map(|item| item.fixed.unwrap_or(0)).collect();
        let mut state = Self {
            model,
            capacity,
            low: start.clone(),
            support: start,
            placed: vec![false; model.items.len()],
            trail: Vec::new(),
            placements: 0,
            members: model.members.clone(),
            unplaced: (0..model.sections).map(|s| model.members.of(s).len() as u32).collect(),
            room: (0..model.sections)
                .map(|section| {
                    let total: u64 =
                        model.members.of(section).iter().map(|&i| model.sizes[i as usize]).sum();
                    capacity.saturating_sub(total)
                })
                .collect(),
            end: vec![capacity; model.sections],
            touched: Vec::new(),
            is_touched: vec![false; model.sections],
            rests_on: vec![NONE; model.items.len()],
            options: vec![0; model.sections],
            blame,
            // The copies and orders that an attempt begins with, and its first look at each section.
            work: Cell::new(2 * model.area() + 16 * model.items.len() as u64),
        };
        for item in 0..model.items.len() {
            if !state.raise_twin_after(item) {
                return None;
            }
        }
        state.touched = (0..).take(model.sections).collect();
        state.is_touched.fill(true);
        state.check_touched().then_some(state)
    }

    pub(super) fn look_at(&self, count: usize) {
        self.work.set(self.work.get() + count as u64);
    }

    pub(super) fn work(&self) -> u64 {
        self.work.get()
    }

    /// The placed items in the order of their placement.
    pub(super) fn path(&self) -> Vec<u32> {
        self.look_at(self.trail.len());
        let placed = |change: &Change| match change {
            Change::Placed(item) => Some(*item),
            _ => None,
        };
        let path: Vec<u32> = self.trail.iter().filter_map(placed).collect();
        debug_assert_eq!(path.len(), self.placements);
        path
    }

    /// A point to come back to with [`undo`](Self::undo).
    pub(super) fn mark(&self) -> usize {
        self.trail.len()
    }

    pub(super) fn undo(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some(Change::Placed(item)) => {
                    self.placed[item as usize] = false;
                    let life = &self.model.items[item as usize];
                    let size = self.model.sizes[item as usize];
                    for section in life.first as usize..life.end as usize {
                        self.unplaced[section] += 1;
                        self.room[section] -= size;
                    }
                    self.placements -= 1;
                }
                Some(Change::Raised { item, support, low }) => {
                    self.support[item as usize] = support;
                    self.low[item as usize] = low;
                }
                Some(Change::Options { section, options }) => {
                    self.options[section as usize] = options;
                }
                None => break,
            }
        }
    }

    /// Whether `item` could come to rest where it is now without a wasteful hole below it: an unplaced
    /// item that would fit there whole could drop into the hole, a solution looked at elsewhere. (A fixed
    /// one below it must be placed first.)
    pub(super) fn placeable(&self, item: usize) -> bool {
        self.look_at(self.model.meets.of(item).len());
        let offset = self.support[item];
        self.low[item] == offset
            && self.model.meets.of(item).iter().all(|&other| {
                let other = other as usize;
                self.placed[other] || self.support[other] + self.model.sizes[other] > offset
            })
    }

    /// Places an item at its support; `among` are the unplaced items of its group. False when no
    /// solution has it there; the caller then goes back to its mark.
    pub(super) fn place(&mut self, item: u32, among: &[u32]) -> bool {
        let at = item as usize;
        self.placed[at] = true;
        self.trail.push(Change::Placed(item));
        self.placements += 1;
        let life = &self.model.items[at];
        for section in life.first as usize..life.end as usize {
            let border = self.unplaced[section] as usize - 1;
            let members = &mut self.members.of_mut(section)[..=border];
            let place = members.iter().position(|&member| member == item);
            let place = place.expect("an unplaced item is before the border");
            members[place..].rotate_left(1);
            self.work.set(self.work.get() + border as u64);
            self.unplaced[section] = border as u32;
            self.room[section] += self.model.sizes[at];
        }
        self.touch(at);
        let top = self.support[at] + self.model.sizes[at];
        self.look_at(self.model.meets.of(at).len());
        for &other in self.model.meets.of(at) {
            let met = other as usize;
            if self.placed[met] {
                continue;
            }
            let rest = round_up(top, self.model.aligns[met]);
            if rest > self.support[met] {
                if self.model.items[met].fixed.is_some() {
                    return self.fail();
                }
                let low = self.low[met].max(rest);
                if !self.raise(met, rest, low) {
                    return self.fail();
                }
            }
        }
        self.settle(among)
    }

    /// Decides that an item does not rest at its support. False when no solution has it higher.
    pub(super) fn pass(&mut self, item: u32, among: &[u32]) -> bool {
        let at = item as usize;
        if self.model.items[at].fixed.is_some() {
            return false;
        }
        let Some(low) = self.rest_on_unplaced(at) else {
            self.blame_life_of(at);
            return self.fail();
        };
        if self.raise(at, self.support[at], low) { self.settle(among) } else { self.fail() }
    }

    /// The lowest offset at which an item can rest on an unplaced one. Only those count that reach above
    /// its support and leave no room for it there.
    fn rest_on_unplaced(&mut self, item: usize) -> Option<u64> {
        self.look_at(self.model.meets.of(item).len());
        let blocked_from = self.support[item] + self.model.sizes[item];
        let mut lowest = u64::MAX;
        for &number in self.model.meets.of(item) {
            let other = number as usize;
            let top = self.low[other] + self.model.sizes[other];
            let carries = top > self.support[item] && self.low[other] < blocked_from;
            if !self.placed[other] && carries && top < lowest {
                lowest = top;
                self.rests_on[item] = number;
            }
        }
        (lowest != u64::MAX).then(|| round_up(lowest, self.model.aligns[item]))
    }

    /// Whether the item found last still allows `item` to rest as low as it is known to.
    fn still_rests(&self, item: usize) -> bool {
        let under = self.rests_on[item] as usize;
        under < self.placed.len()
            && !self.placed[under]
            && self.low[under] + self.model.sizes[under] <= self.low[item]
            && self.low[under] + self.model.sizes[under] > self.support[item]
            && self.low[under] < self.support[item] + self.model.sizes[item]
    }

    /// Raises what follows and checks the sections that have changed.
    fn settle(&mut self, among: &[u32]) -> bool {
        self.look_at(among.len());
        for &item in among {
            let at = item as usize;
            if self.placed[at] || self.low[at] == self.support[at] || self.still_rests(at) {
                continue;
            }
            let Some(low) = self.rest_on_unplaced(at) else {
                self.blame_life_of(at);
                return self.fail();
            };
            if low > self.low[at] && !self.raise(at, self.support[at], low) {
                return self.fail();
            }
        }
        self.check_touched()
    }

    fn raise(&mut self, item: usize, support: u64, low: u64) -> bool {
        self.trail.push(Change::Raised {
            item: item as u32,
            support: self.support[item],
            low: self.low[item],
        });
        self.support[item] = support;
        if low > self.low[item] {
            let before = std::mem::replace(&mut self.low[item], low);
            if low + self.model.sizes[item] > self.capacity
                || self.model.items[item].fixed.is_some()
            {
                self.blame_life_of(item);
                return false;
            }
            self.touch_where_it_matters(item, before, low);
            return self.raise_twin_after(item);
        }
        true
    }

    fn touch(&mut self, item: usize) {
        let life = &self.model.items[item];
        for section in life.first..life.end {
            if !self.is_touched[section as usize] {
                self.is_touched[section as usize] = true;
                self.touched.push(section);
            }
        }
    }

    /// Marks the sections in which this rise may change something: how many items could be the lowest, or
    /// whether the stack ends within the capacity. It ends at most as much higher as the item does, or by the
    /// item's size.
    fn touch_where_it_matters(&mut self, item: usize, before: u64, low: u64) {
        let life = &self.model.items[item];
        let rise = (low - before).min(self.model.sizes[item]);
        self.work.set(self.work.get() + life.width());
        for section in life.first..life.end {
            let at = section as usize;
            if self.is_touched[at] {
                continue;
            }
            let end = self.end[at] + rise;
            if end > self.capacity || (before <= self.room[at] && low > self.room[at]) {
                self.is_touched[at] = true;
                self.touched.push(section);
            } else {
                self.end[at] = end;
            }
        }
    }

    /// Shares one blame among the sections of an item that has no place left.
    fn blame_life_of(&mut self, item: usize) {
        let life = &self.model.items[item];
        #[expect(clippy::cast_precision_loss, reason = "a share, not a count")]
        let share = 1.0 / life.width() as f64;
        for section in life.first..life.end {
            self.blame[section as usize] += share;
        }
    }

    /// Of equal items the earlier one lies lower.
    fn raise_twin_after(&mut self, item: usize) -> bool {
        let twin = self.model.twin_after[item];
        if twin == NONE || self.placed[twin as usize] {
            return true;
        }
        let twin = twin as usize;
        let low = round_up(self.low[item] + self.model.sizes[item], self.model.aligns[twin]);
        low <= self.low[twin] || self.raise(twin, self.support[twin], low)
    }

    fn fail(&mut self) -> bool {
        for section in self.touched.drain(..) {
            self.is_touched[section as usize] = false;
        }
        false
    }

    fn check_touched(&mut self) -> bool {
        while let Some(section) = self.touched.pop() {
            self.is_touched[section as usize] = false;
            let at = section as usize;
            let (end, options) = self.section_end(at);
            self.end[at] = end;
            if end > self.capacity {
                self.blame[at] += 1.0;
                return self.fail();
            }
            if options != self.options[at] {
                self.trail.push(Change::Options { section, options: self.options[at] });
                self.options[at] = options;
            }
        }
        true
    }

    /// Stacks a section's unplaced items by rising `low`, none below it: no order ends lower. Returns that
    /// end, and how many of the items could be the lowest, with all others above.
    fn section_end(&mut self, section: usize) -> (u64, u32) {
        let (lows, sizes) = (&self.low[..], &self.model.sizes[..]);
        let members = &mut self.members.of_mut(section)[..self.unplaced[section] as usize];
        let (mut end, mut highest, mut moves) = (0, 0, 0);
        for sorted in 0..members.len() {
            let item = members[sorted];
            let low = lows[item as usize];
            if low >= highest {
                highest = low;
                end = low.max(end) + sizes[item as usize];
                continue;
            }
            let mut at = sorted;
            while at > 0 && lows[members[at - 1] as usize] > low {
                members[at] = members[at - 1];
                at -= 1;
            }
            moves += sorted - at;
            members[at] = item;
        }
        if moves > 0 {
            let stack = |end: u64, &item: &u32| lows[item as usize].max(end) + sizes[item as usize];
            end = members.iter().fold(0, stack);
        }
        // A member costs several times what a look at another item does.
        let cost = 4 * members.len() + moves;
        self.work.set(self.work.get() + cost as u64);
        if end > self.capacity {
            return (end, 0);
        }
        let room = self.room[section];
        (end, members.partition_point(|&item| lows[item as usize] <= room) as u32)
    }

    /// The unplaced items of a section that could be its lowest, by rising `low` as of the last check.
    pub(super) fn members(&self, section: usize) -> &[u32] {
        &self.members.of(section)[..self.unplaced[section] as usize]
    }
}

fn round_up(offset: u64, align: u64) -> u64 {
    if align == 1 { offset } else { offset.next_multiple_of(align) }
}
