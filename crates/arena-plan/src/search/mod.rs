//! Branch and bound: is there a plan within a capacity?
//!
//! Each connected group of items is searched for itself, in rounds of short attempts that differ in what
//! they prefer, and begin with a part of the longest path of earlier ones. An attempt branches on one question: does this item rest where it is now, or not? After a
//! no it must rest on something that is yet to be placed, which raises a proved lowest offset. Per section
//! the unplaced items, stacked by rising lowest offset, must end within the capacity.

mod leads;
mod model;
mod orders;
mod state;
mod tree;

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::packing::Packing;
use leads::Leads;
use model::Model;
use orders::{PER_ROUND, Style};
use tree::{Outcome, Tree};

/// What a search may use.
pub(crate) struct Budget<'a> {
    /// Looks at items and sections left, over all groups and threads.
    pub(crate) work: &'a AtomicU64,
    /// Asked now and then whether to stop.
    pub(crate) stop: &'a (dyn Fn() -> bool + Sync),
    pub(crate) threads: usize,
    pub(crate) seed: u64,
}

impl Budget<'_> {
    /// Takes work off the budget; false when it is time to stop.
    fn charge(&self, work: u64) -> bool {
        let left = self.work.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.saturating_sub(work))
        });
        left.is_ok_and(|left| left > work) && !(self.stop)()
    }
}

/// How a round over all groups ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Every group is within the capacity.
    Found,
    /// Proved: the capacity is too small.
    Infeasible,
    /// Not known.
    Unknown,
}

/// The groups of a packing, prepared once for all rounds.
pub(crate) struct Searcher<'p> {
    packing: &'p Packing,
    groups: Vec<Group>,
}

struct Group {
    items: Vec<u32>,
    /// Built when it is first needed.
    model: OnceCell<Option<Model>>,
    /// For each capacity that was aimed at.
    leads: RefCell<HashMap<u64, Leads>>,
}

impl<'p> Searcher<'p> {
    pub(crate) fn new(packing: &'p Packing) -> Self {
        let group = |items| Group { items, model: OnceCell::new(), leads: RefCell::default() };
        Self { packing, groups: packing.components().into_iter().map(group).collect() }
    }

    /// One round: looks for offsets with a peak of at most `capacity`, and improves `offsets` group by
    /// group; groups that are within the capacity stay as they are. With `prove` one attempt may last until
    /// it has shown that no such offsets exist.
    pub(crate) fn round(
        &self,
        round: u32,
        prove: bool,
        capacity: u64,
        offsets: &mut [u64],
        budget: &Budget<'_>,
    ) -> Answer {
        let mut answer = Answer::Found;
        budget.charge(self.packing.items.len() as u64);
        for group in &self.groups {
            let top = |&item: &u32| offsets[item as usize] + self.packing.items[item as usize].size;
            if group.items.iter().map(top).max().unwrap_or(0) <= capacity {
                continue;
            }
            if (budget.stop)() {
                return Answer::Unknown;
            }
            let Some(model) = group.model(self.packing, budget.stop) else {
                answer = Answer::Unknown;
                continue;
            };
            let mut leads = group.leads.borrow_mut();
            let leads = Mutex::new(leads.entry(capacity).or_default());
            match search_group(model, &leads, round, prove, capacity, budget) {
                Outcome::Found(found) => {
                    for (&item, offset) in model.origin.iter().zip(found) {
                        offsets[item as usize] = offset;
                    }
                }
                Outcome::Infeasible => return Answer::Infeasible,
                Outcome::Stopped => answer = Answer::Unknown,
            }
        }
        answer
    }

    /// Whether any group is small enough to be searched.
    pub(crate) fn can_search(&self, stop: &dyn Fn() -> bool) -> bool {
        self.groups.iter().any(|group| !stop() && group.model(self.packing, stop).is_some())
    }
}

impl Group {
    fn model(&self, packing: &Packing, stop: &dyn Fn() -> bool) -> Option<&Model> {
        self.model.get_or_init(|| Model::new(packing, &self.items, stop)).as_ref()
    }
}

/// Threads take the round's attempts in turn; the first to end decides.
fn search_group(
    model: &Model,
    leads: &Mutex<&mut Leads>,
    round: u32,
    prove: bool,
    capacity: u64,
    budget: &Budget<'_>,
) -> Outcome {
    let next_attempt = AtomicU64::new(0);
    let decided = AtomicBool::new(false);
    let outcome = Mutex::new(Outcome::Stopped);
    let charge = |work| budget.charge(work) && !decided.load(Ordering::Relaxed);
    let work = || {
        let mut blame = vec![0.0; model.sections];
        while charge(0) {
            let attempt = next_attempt.fetch_add(1, Ordering::Relaxed);
            if attempt >= PER_ROUND {
                return;
            }
            let mut random = orders::random(budget.seed, round, attempt);
            let style = Style::new(model, attempt, &mut random);
            let proves = prove && attempt == PER_ROUND - 1;
            let leads = || leads.lock().unwrap_or_else(PoisonError::into_inner);
            // A proof begins with what is hardest.
            let lead = if proves { Vec::new() } else { leads().beginning(&mut random) };
            let followed = lead.len();
            let ended = match Tree::new(model, capacity, style, blame, lead) {
                Some(mut tree) => {
                    // What a lead places is not looked for.
                    let nodes = orders::node_limit(model, round, proves) - followed as u64;
                    let ended = tree.run(nodes, &charge);
                    let learnt = tree.into_learnt();
                    leads().learn(learnt.path, followed > 0);
                    // What went wrong counts for the next attempts, less and less.
                    blame = learnt.blame;
                    blame.iter_mut().for_each(|section| *section /= 2.0);
                    ended
                }
                None => {
                    blame = vec![0.0; model.sections];
                    Outcome::Infeasible
                }
            };
            if ended != Outcome::Stopped && !decided.swap(true, Ordering::Relaxed) {
                *outcome.lock().unwrap_or_else(PoisonError::into_inner) = ended;
            }
        }
    };
    if budget.threads <= 1 {
        work();
    } else {
        std::thread::scope(|scope| {
            for _ in 1..budget.threads {
                scope.spawn(work);
            }
            work();
        });
    }
    outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
}
