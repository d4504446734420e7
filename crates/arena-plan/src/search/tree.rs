//! Depth-first search with an explicit stack: an item rests where it is now, or it does not.

use super::model::{Model, NONE};
use super::state::State;

/// How one search of a tree ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Offsets for the model's items.
    Found(Vec<u64>),
    /// The whole tree was searched: there is no solution.
    Infeasible,
    /// The nodes were used up, or the search was called off.
    Stopped,
}

/// A group of unplaced items that no other unplaced item meets: a run of `Tree::pool`, in order of birth.
#[derive(Clone, Copy)]
struct Group {
    start: usize,
    end: usize,
}

struct Frame {
    group: Group,
    /// The item being tried at its support.
    choice: u32,
    /// The trail before the choice.
    mark: usize,
    /// The groups into which the rest falls: `Tree::groups[groups..]`, the next one last.
    groups: usize,
    /// Length of the pool when the frame was opened.
    pool: usize,
}

enum Step {
    Branch,
    NextGroup,
    Failed,
}

pub(super) struct Tree<'m> {
    pub(super) state: State<'m>,
    /// Smaller is tried first among items at the same offset.
    rank: Vec<u32>,
    stack: Vec<Frame>,
    pool: Vec<u32>,
    groups: Vec<Group>,
    pub(super) fail_first: bool,
    pub(super) by_rank: bool, pub(super) desc: String,
    pub(super) scale: f64,
    pub(super) power: f64,
    skipped: Vec<u32>,
    pub(super) fullness: Vec<f64>,
}

impl<'m> Tree<'m> {
    /// `None` when it is plain from the start that there is no solution.
    pub(super) fn new(model: &'m Model, capacity: u64, rank: Vec<u32>, weight: Vec<f64>) -> Option<Self> {
        let state = State::new(model, capacity, weight)?;
        Some(Self { state, rank, stack: Vec::new(), pool: Vec::new(), groups: Vec::new(), fail_first: false, by_rank: false, desc: String::new(), scale: 1.0, power: 1.0, fullness: model.fullness(),  skipped: Vec::new() })
    }

    /// Searches until `nodes` are used up; `stop` is asked now and then.
    pub(super) fn run(&mut self, nodes: &mut u64, stop: &dyn Fn() -> bool) -> Outcome {
        let all = (0..).take(self.rank.len());
        self.pool.extend(all);
        self.open(Group { start: 0, end: self.pool.len() });
        let mut step = Step::Branch;
        loop {
            let Some(frame) = self.stack.last_mut() else {
                return Outcome::Infeasible;
            };
            step = match step {
                Step::Branch => {
                    let group = frame.group;
                    let choice = self.choose_any(group);
                    if choice == NONE {
                        self.stack.pop();
                        Step::Failed
                    } else {
                        if *nodes == 0 || (*nodes % 1024 == 0 && stop()) {
                            return Outcome::Stopped;
                        }
                        *nodes -= 1;
                        let mark = self.state.mark();
                        let frame = self.stack.last_mut().expect("a frame is open");
                        frame.choice = choice;
                        frame.mark = mark;
                        if self.state.place(choice, &self.pool[group.start..group.end]) {
                            self.split(group);
                            Step::NextGroup
                        } else {
                            Step::Failed
                        }
                    }
                }
                Step::NextGroup => {
                    if self.groups.len() > frame.groups {
                        let group = self.groups.pop().expect("one is left");
                        self.open(group);
                        Step::Branch
                    } else {
                        // All of it is placed, and stays so unless a sibling fails.
                        self.stack.pop();
                        if self.stack.is_empty() {
                            return Outcome::Found(self.state.support.clone());
                        }
                        Step::NextGroup
                    }
                }
                Step::Failed => {
                    self.state.undo(frame.mark);
                    self.groups.truncate(frame.groups);
                    let (choice, group) = (frame.choice, frame.group);
                    self.pool.truncate(frame.pool);
                    if self.state.pass(choice, &self.pool[group.start..group.end]) {
                        Step::Branch
                    } else {
                        self.stack.pop();
                        Step::Failed
                    }
                }
            };
        }
    }

    fn open(&mut self, group: Group) {
        let groups = self.groups.len();
        self.stack.push(Frame { group, choice: NONE, mark: self.state.mark(), groups, pool: self.pool.len() });
    }

    pub(super) fn into_weight(self) -> Vec<f64> { self.state.weight }

    fn choose_any(&mut self, group: Group) -> u32 {
        if self.fail_first {
            let choice = self.choose_tight(group);
            if choice != NONE { return choice; }
        }
        self.choose(group)
    }

    fn choose_tight(&mut self, group: Group) -> u32 {
        let mut first = u32::MAX;
        let mut end = 0;
        for &item in &self.pool[group.start..group.end] {
            let life = &self.state.model.items[item as usize];
            first = first.min(life.first);
            end = end.max(life.end);
        }
        self.skipped.clear();
        for _ in 0..4 {
            let mut best = (f64::MAX, NONE);
            for section in first..end {
                let options = self.state.options[section as usize];
                if options == 0 || self.skipped.contains(&section) { continue; }
                let score = f64::from(options) / (self.fullness[section as usize] + self.state.weight[section as usize]);
                if score < best.0 { best = (score, section); }
            }
            if best.1 == NONE { return NONE; }
            let mut key = (u64::MAX, NONE);
            let mut choice = NONE;
            for &item in self.state.members(best.1 as usize) {
                let at = item as usize;
                let this = if self.by_rank { (0, self.rank[at]) } else { (self.state.support[at], self.rank[at]) };
                if !self.state.placed[at] && this < key && self.state.placeable(at) {
                    key = this;
                    choice = item;
                }
            }
            if choice != NONE { return choice; }
            self.skipped.push(best.1);
        }
        NONE
    }

    /// The lowest item that can rest where it is; `NONE` when there is none.
    fn choose(&self, group: Group) -> u32 {
        let mut best = (u64::MAX, NONE);
        let mut choice = NONE;
        for &item in &self.pool[group.start..group.end] {
            let at = item as usize;
            let key = (self.state.support[at], self.rank[at]);
            if !self.state.placed[at] && key < best && self.state.placeable(at) {
                best = key;
                choice = item;
            }
        }
        choice
    }

    /// Pushes the groups that are left of `group`, the smallest last.
    fn split(&mut self, group: Group) {
        let from = self.groups.len();
        let mut start = self.pool.len();
        let mut reach = 0;
        for index in group.start..group.end {
            let item = self.pool[index];
            if self.state.placed[item as usize] {
                continue;
            }
            let life = &self.state.model.items[item as usize];
            if life.first >= reach && self.pool.len() > start {
                self.groups.push(Group { start, end: self.pool.len() });
                start = self.pool.len();
            }
            reach = reach.max(life.end);
            self.pool.push(item);
        }
        if self.pool.len() > start {
            self.groups.push(Group { start, end: self.pool.len() });
        }
        self.groups[from..].sort_by_key(|group| std::cmp::Reverse(group.end - group.start));
    }
}
