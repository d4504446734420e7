//! Which queued operation runs next.
//!
//! Operations form a graph: each waits for those before it in its stream and for the events that its stream was told to
//! wait for. Nothing runs until somebody waits; then a seeded choice among the runnable ones decides, so another seed is
//! another legal order of the same program.

use crate::abi::Handle;
use crate::work::Work;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

/// Number of a queued operation; never used twice.
pub(crate) type OpId = u64;

/// When operations run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// At the call, as if the device were infinitely fast.
    Eager,
    /// Only when something waits, in an order drawn from the seed.
    Deferred,
    /// Only when something waits, and a query is not enough.
    Endless,
    /// Also between any two calls, as far as the seed decides.
    Drawn,
}

/// An operation, and the context and stream that it was queued in.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) context: Handle,
    pub(crate) stream: Handle,
    pub(crate) work: Work,
}

#[derive(Debug)]
struct Waiting {
    queued: Queued,
    blockers: usize,
}

/// All queued operations.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) mode: Mode,
    waiting: BTreeMap<OpId, Waiting>,
    dependents: BTreeMap<OpId, Vec<OpId>>,
    ready: Vec<OpId>,
    next: OpId,
    random: ChaCha8Rng,
    /// Queries since an operation last ran.
    queries: u32,
}

/// So many queries in vain, and a host function may run although nobody waits for it.
const PATIENCE: u32 = 64;

impl Schedule {
    /// An empty schedule whose order is drawn from `seed`; operations are numbered from `next` on.
    pub(crate) fn new(mode: Mode, seed: u64, next: OpId) -> Self {
        let random = ChaCha8Rng::seed_from_u64(seed);
        Self {
            mode,
            waiting: BTreeMap::new(),
            dependents: BTreeMap::new(),
            ready: Vec::new(),
            next,
            random,
            queries: 0,
        }
    }

    /// The number that the next operation will get.
    pub(crate) fn next_id(&self) -> OpId {
        self.next
    }

    /// Queues an operation behind those of `after` that are not done yet.
    pub(crate) fn submit(&mut self, queued: Queued, after: impl IntoIterator<Item = OpId>) -> OpId {
        let id = self.next;
        self.next += 1;
        let mut after: Vec<OpId> =
            after.into_iter().filter(|op| self.waiting.contains_key(op)).collect();
        after.sort_unstable();
        after.dedup();
        for op in &after {
            self.dependents.entry(*op).or_default().push(id);
        }
        if after.is_empty() {
            self.ready.push(id);
        }
        self.waiting.insert(id, Waiting { queued, blockers: after.len() });
        id
    }

    /// Whether the operation has run.
    pub(crate) fn is_done(&self, op: OpId) -> bool {
        !self.waiting.contains_key(&op)
    }

    /// Draws one runnable operation; `None` when nothing is queued.
    pub(crate) fn draw(&mut self) -> Option<(OpId, Queued)> {
        if self.ready.is_empty() {
            return None;
        }
        let pick = self.random.random_range(0..self.ready.len());
        self.take(pick)
    }

    /// The same while nobody waits. Not a host function, which may wait for the caller itself: a driver runs it on a
    /// thread of its own, the stand-in on the caller's.
    pub(crate) fn draw_unwaited(&mut self) -> Option<(OpId, Queued)> {
        let runs_device = |op: &OpId| {
            self.waiting.get(op).is_some_and(|w| !matches!(w.queued.work, Work::Host { .. }))
        };
        let picks: Vec<usize> = (self.ready.iter().enumerate())
            .filter(|(_, op)| self.queries >= PATIENCE || runs_device(op))
            .map(|(pick, _)| pick)
            .collect();
        if picks.is_empty() {
            return None;
        }
        let pick = picks[self.random.random_range(0..picks.len())];
        self.take(pick)
    }

    fn take(&mut self, pick: usize) -> Option<(OpId, Queued)> {
        self.queries = 0;
        let id = self.ready.swap_remove(pick);
        self.waiting.get(&id).map(|waiting| (id, waiting.queued.clone()))
    }

    /// Puts a drawn operation back that could not end yet.
    pub(crate) fn postpone(&mut self, op: OpId) {
        self.ready.push(op);
    }

    /// Notes that a drawn operation has run, which may free others.
    pub(crate) fn finish(&mut self, op: OpId) {
        self.waiting.remove(&op);
        for dependent in self.dependents.remove(&op).unwrap_or_default() {
            if let Some(waiting) = self.waiting.get_mut(&dependent) {
                waiting.blockers -= 1;
                if waiting.blockers == 0 {
                    self.ready.push(dependent);
                }
            }
        }
    }

    /// Whether a context has work in the queue.
    pub(crate) fn is_busy(&self, context: Handle) -> bool {
        self.waiting.values().any(|waiting| waiting.queued.context == context)
    }

    /// How many operations are queued.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a device that nobody waits for gets something done while somebody asks.
    pub(crate) fn moves_on_a_query(&mut self) -> bool {
        self.queries += 1;
        self.mode != Mode::Endless && self.random.random_bool(0.5)
    }

    /// Whether it gets another thing done between two calls.
    pub(crate) fn moves_between_calls(&mut self) -> bool {
        self.mode == Mode::Drawn && !self.ready.is_empty() && self.random.random_bool(0.5)
    }

    /// A number for what draws by itself.
    pub(crate) fn draw_seed(&mut self) -> u64 {
        self.random.random()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker() -> Queued {
        Queued { context: 1, stream: 2, work: Work::Marker }
    }

    fn order(seed: u64) -> Vec<OpId> {
        let mut schedule = Schedule::new(Mode::Deferred, seed, 0);
        let a = schedule.submit(marker(), []);
        let b = schedule.submit(marker(), [a]);
        let c = schedule.submit(marker(), []);
        schedule.submit(marker(), [b, c, b]);
        let mut order = Vec::new();
        while let Some((id, _)) = schedule.draw() {
            order.push(id);
            schedule.finish(id);
        }
        order
    }

    #[test]
    fn every_order_respects_what_was_waited_for_and_all_legal_orders_occur() {
        let orders: std::collections::BTreeSet<_> = (0..64).map(order).collect();
        let legal = [[0, 1, 2, 3], [0, 2, 1, 3], [2, 0, 1, 3]].map(Vec::from);
        assert_eq!(orders, legal.into_iter().collect());
    }

    #[test]
    fn one_seed_gives_one_order() {
        assert_eq!(order(7), order(7));
    }
}
