//! Depth-first search with an explicit stack: an item rests where it is now, or it does not.

use super::model::{Model, NONE};
use super::orders::Style;
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
    state: State<'m>,
    style: Style,
    stack: Vec<Frame>,
    pool: Vec<u32>,
    groups: Vec<Group>,
    /// What `charge` has been told of the state's work.
    charged: u64,
    /// What to place first, as far as it can be placed.
    lead: Vec<u32>,
    /// The longest path so far: items in the order of their placement.
    longest: Vec<u32>,
}

/// What an attempt tells the next ones.
pub(super) struct Learnt {
    /// For each section how often it was the reason for going back.
    pub(super) blame: Vec<f64>,
    /// The longest path before it failed.
    pub(super) path: Vec<u32>,
}

impl<'m> Tree<'m> {
    /// How many sections are looked at for an item to place before falling back to the lowest one.
    const SECTIONS_TRIED: usize = 4;
    /// Some tens of microseconds.
    const WORK_PER_CHARGE: u64 = 1 << 16;

    /// `blame` and `lead`, what to place first, come from earlier attempts. `None` when it is plain from the start that there is no
    /// solution.
    pub(super) fn new(
        model: &'m Model,
        capacity: u64,
        style: Style,
        blame: Vec<f64>,
        lead: Vec<u32>,
    ) -> Option<Self> {
        let state = State::new(model, capacity, blame)?;
        Some(Self {
            state,
            style,
            stack: Vec::new(),
            pool: Vec::new(),
            groups: Vec::new(),
            charged: 0,
            lead,
            longest: Vec::new(),
        })
    }

    pub(super) fn into_learnt(self) -> Learnt {
        Learnt { blame: self.state.blame, path: self.longest }
    }

    /// Searches until `nodes` are used up. `charge` is told now and then how much work was done, and says
    /// whether to go on.
    pub(super) fn run(&mut self, nodes: u64, charge: &dyn Fn(u64) -> bool) -> Outcome {
        let outcome = self.descend(nodes, charge);
        charge(self.state.work() - self.charged);
        outcome
    }

    fn descend(&mut self, mut nodes: u64, charge: &dyn Fn(u64) -> bool) -> Outcome {
        let all = (0..).take(self.style.rank.len());
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
                    let choice = self.choose(group);
                    if choice == NONE {
                        self.stack.pop();
                        Step::Failed
                    } else {
                        let done = self.state.work() - self.charged;
                        if done >= Self::WORK_PER_CHARGE {
                            self.charged += done;
                            if !charge(done) {
                                return Outcome::Stopped;
                            }
                        }
                        if nodes == 0 {
                            return Outcome::Stopped;
                        }
                        nodes -= 1;
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
                    // The last one on the path is what failed.
                    if self.state.placements > self.longest.len() + 1 {
                        self.longest = self.state.path();
                        self.longest.pop();
                    }
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
        self.stack.push(Frame {
            group,
            choice: NONE,
            mark: self.state.mark(),
            groups,
            pool: self.pool.len(),
        });
    }

    /// The item to decide on: in the section with the fewest items that could be its lowest, weighed by how
    /// much the section matters, the lowest item that can rest where it is. `NONE` when no item can.
    fn choose(&self, group: Group) -> u32 {
        let items = &self.pool[group.start..group.end];
        if let Some(&item) = self.lead.get(self.state.placements) {
            self.state.look_at(items.len());
            if items.contains(&item) && self.state.placeable(item as usize) {
                return item;
            }
        }
        let model = self.state.model;
        let first = model.items[items[0] as usize].first;
        let end = items.iter().map(|&item| model.items[item as usize].end).max().unwrap_or(first);
        let mut tried = [NONE; Self::SECTIONS_TRIED];
        for turn in 0..tried.len() {
            let mut best = (f64::MAX, NONE);
            self.state.look_at((end - first) as usize);
            for section in first..end {
                let at = section as usize;
                let options = self.state.options[at];
                let score = f64::from(options) / (self.style.importance[at] + self.state.blame[at]);
                if options > 0 && score < best.0 && !tried[..turn].contains(&section) {
                    best = (score, section);
                }
            }
            if best.1 == NONE {
                break;
            }
            let choice = self.lowest(self.state.members(best.1 as usize));
            if choice != NONE {
                return choice;
            }
            tried[turn] = best.1;
        }
        self.lowest(items)
    }

    /// The lowest item that can rest where it is; `NONE` when there is none.
    fn lowest(&self, items: &[u32]) -> u32 {
        let mut best = (u64::MAX, NONE);
        let mut choice = NONE;
        self.state.look_at(items.len());
        for &item in items {
            let at = item as usize;
            let key = (self.state.support[at], self.style.rank[at]);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Guillotine;
    use crate::packing::Packing;
    use crate::search::orders;

    #[test]
    fn a_longest_path_that_is_followed_leads_to_where_it_was() {
        let instance = Guillotine { buffers: 300, shortened_percent: 10, seed: 7 }.generate();
        let packing = Packing::new(&instance);
        let group = &packing.components()[0];
        let model = Model::new(&packing, group, &|| false).unwrap();
        let tree = |attempt: u64, lead: &[u32]| {
            let style = Style::new(&model, attempt, &mut orders::random(0, 0, attempt));
            let blame = vec![0.0; model.sections];
            Tree::new(&model, packing.bound, style, blame, lead.to_vec()).unwrap()
        };
        let mut first = tree(0, &[]);
        let too_few = model.items.len() as u64 - 1;
        assert_eq!(first.run(too_few, &|_| true), Outcome::Stopped);
        let path = first.into_learnt().path;
        assert!(path.len() > 10, "{path:?}");
        // Another attempt, of other preferences, until it has placed as many.
        let mut second = tree(1, &path);
        assert_eq!(second.run(path.len() as u64, &|_| true), Outcome::Stopped);
        assert_eq!(second.state.path(), path);
    }
}
