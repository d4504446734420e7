//! Branch and bound: is there a plan within a capacity?
//!
//! Searches one connected group of items after the other, each with a portfolio of orders, doubling node
//! limits and random restarts.

mod model;
mod orders;
mod state;
mod tree;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::packing::Packing;
use model::Model;
use tree::{Outcome, Tree};

/// What a search may use.
pub(crate) struct Budget<'a> {
    /// Nodes left, over all groups and threads.
    pub(crate) nodes: &'a AtomicU64,
    /// Asked now and then whether to stop.
    pub(crate) stop: &'a (dyn Fn() -> bool + Sync),
    pub(crate) threads: usize,
    pub(crate) seed: u64,
}

/// How a search over all groups ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Offsets in units for each item of the packing.
    Found(Vec<u64>),
    /// Proved: the capacity is too small.
    Infeasible,
    /// Not known.
    Unknown,
}

/// Looks for offsets with a peak of at most `capacity`. Groups that are within it in `known` keep their
/// offsets.
pub(crate) fn search(
    packing: &Packing,
    capacity: u64,
    known: &[u64],
    budget: &Budget<'_>,
) -> Answer {
    let mut offsets = known.to_vec();
    for group in packing.components() {
        let top = |&item: &u32| known[item as usize] + packing.items[item as usize].size;
        if group.iter().map(top).max().unwrap_or(0) <= capacity {
            continue;
        }
        let Some(model) = Model::new(packing, &group) else {
            return Answer::Unknown;
        };
        match search_group(&model, capacity, budget) {
            Outcome::Found(found) => {
                for (&item, offset) in model.origin.iter().zip(found) {
                    offsets[item as usize] = offset;
                }
            }
            Outcome::Infeasible => return Answer::Infeasible,
            Outcome::Stopped => return Answer::Unknown,
        }
    }
    Answer::Found(offsets)
}

/// Threads take the attempts in turn; the first to end decides.
fn search_group(model: &Model, capacity: u64, budget: &Budget<'_>) -> Outcome {
    let next_attempt = AtomicU64::new(0);
    let decided = AtomicBool::new(false);
    let outcome = Mutex::new(Outcome::Stopped);
    let stop = || decided.load(Ordering::Relaxed) || (budget.stop)();
    let work = || {
        while !stop() {
            let attempt = next_attempt.fetch_add(1, Ordering::Relaxed);
            let wanted = orders::node_limit(model, attempt);
            let granted = take(budget.nodes, wanted);
            if granted == 0 {
                return;
            }
            let rank = orders::rank(model, budget.seed, attempt);
            let mut nodes = granted;
            let ended = match Tree::new(model, capacity, rank) {
                Some(mut tree) => tree.run(&mut nodes, &stop),
                None => Outcome::Infeasible,
            };
            budget.nodes.fetch_add(nodes, Ordering::Relaxed);
            if ended != Outcome::Stopped && !decided.swap(true, Ordering::Relaxed) {
                *outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = ended;
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
    outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Takes up to `wanted` from what is left.
fn take(left: &AtomicU64, wanted: u64) -> u64 {
    let before = left
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.saturating_sub(wanted))
        })
        .unwrap_or(0);
    before.min(wanted)
}
