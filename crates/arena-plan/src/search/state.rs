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
    /// Items of each section, kept nearly sorted by `low` from check to check.
    members: Lists,
    /// Sections in which a `low` has risen since the last check.
    touched: Vec<u32>,
    is_touched: Vec<bool>,
    scratch: Vec<u32>,
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
            members: model.members.clone(),
            touched: Vec::new(),
            is_touched: vec![false; model.sections],
            scratch: Vec::new(),
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

    /// A point to come back to with [`undo`](Self::undo).
    pub(super) fn mark(&self) -> usize {
        self.trail.len()
    }

    pub(super) fn undo(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some(Change::Placed(item)) => self.placed[item as usize] = false,
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
            self.low[item] = low;
            if low + self.model.sizes[item] > self.capacity
                || self.model.items[item].fixed.is_some()
            {
                self.blame_life_of(item);
                return false;
            }
            self.touch(item);
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
        let members = self.members.of_mut(section);
        self.scratch.clear();
        let mut sorted = 0;
        let mut moves = 0;
        for read in 0..members.len() {
            let item = members[read];
            if self.placed[item as usize] {
                self.scratch.push(item);
                continue;
            }
            let low = self.low[item as usize];
            let mut at = sorted;
            while at > 0 && self.low[members[at - 1] as usize] > low {
                members[at] = members[at - 1];
                at -= 1;
            }
            moves += sorted - at;
            members[at] = item;
            sorted += 1;
        }
        members[sorted..].copy_from_slice(&self.scratch);
        // A member costs several times what a look at another item does.
        let cost = 4 * members.len() + moves;
        let (mut end, mut total) = (0, 0);
        for &item in &members[..sorted] {
            let size = self.model.sizes[item as usize];
            end = self.low[item as usize].max(end) + size;
            total += size;
        }
        self.work.set(self.work.get() + cost as u64);
        if end > self.capacity {
            return (end, 0);
        }
        let highest = self.capacity - total;
        let options = members[..sorted]
            .iter()
            .take_while(|&&item| self.low[item as usize] <= highest)
            .count();
        (end, options as u32)
    }

    /// The unplaced items of a section that could be its lowest, by rising `low` as of the last check.
    pub(super) fn members(&self, section: usize) -> &[u32] {
        self.members.of(section)
    }
}

fn round_up(offset: u64, align: u64) -> u64 {
    if align == 1 { offset } else { offset.next_multiple_of(align) }
}
