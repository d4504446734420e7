//! The stages, the cheapest first. A stage starts only if the stages before it were not enough.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::greedy::{self, Fit};
use crate::instance::Instance;
use crate::packing::Packing;
use crate::plan::Plan;
use crate::restarts::RandomOrders;
use crate::search::{Answer, Budget, Searcher};
use crate::skyline::{Skyline, order_by};

/// The goal and the budgets of the solver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Stop at a peak of at most this many bytes; `None`: as low as possible.
    pub capacity_bytes: Option<u64>,
    /// Stop after this time. With a time limit the plan may differ from run to run.
    pub time_limit: Option<Duration>,
    /// Equal seeds give equal plans, if one thread searches and no time limit is reached.
    pub seed: u64,
    /// Threads for the search.
    pub threads: NonZeroUsize,
    /// Buffers that random restarts may place, over all restarts.
    pub restart_budget: u64,
    /// Nodes that the search may visit.
    pub node_budget: u64,
}

impl Default for Options {
    /// About a second at most on one core; no time limit.
    fn default() -> Self {
        Self {
            capacity_bytes: None,
            time_limit: None,
            seed: 0,
            threads: NonZeroUsize::MIN,
            restart_budget: 500_000,
            node_budget: 500_000,
        }
    }
}

impl Options {
    /// Budgets without a limit other than this time.
    #[must_use]
    pub fn within(time_limit: Duration) -> Self {
        Self {
            time_limit: Some(time_limit),
            restart_budget: u64::MAX,
            node_budget: u64::MAX,
            ..Self::default()
        }
    }
}

/// Which stage found a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Skyline best fit by size, size x lifetime, or lifetime.
    Skyline,
    /// A greedy order.
    Greedy,
    /// A random restart of the skyline.
    Restart,
    /// Branch and bound.
    Search,
}

/// The best plan found, and a lower bound for better ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// The plan; it has passed the validator.
    pub plan: Plan,
    /// No plan has a lower peak than this many bytes: the lower bound, or more if a search has proved more.
    pub proved_bytes: u64,
    /// Which stage found it.
    pub stage: Stage,
    /// How long it took.
    pub elapsed: Duration,
}

impl Solution {
    /// Whether it is proved that no plan has a lower peak.
    #[must_use]
    pub fn is_optimal(&self) -> bool {
        self.plan.peak_bytes() == self.proved_bytes
    }
}

/// Plans an instance. Always returns a valid plan, the best found within the budgets.
///
/// # Panics
///
/// When a stage has produced an invalid plan, which would be a fault of this crate.
///
/// ```
/// # use arena_plan::{Buffer, Instance, Options, solve};
/// // Buffers that are born and die at these times, and their sizes.
/// let buffers = vec![Buffer::new(0, 2, 512), Buffer::new(1, 3, 256), Buffer::new(2, 4, 512)];
/// let solution = solve(&Instance::new(buffers)?, &Options::default());
/// assert_eq!(solution.plan.peak_bytes(), 768); // the third takes the bytes of the first
/// assert!(solution.is_optimal());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn solve(instance: &Instance, options: &Options) -> Solution {
    let begin = Instant::now();
    let packing = Packing::new(instance);
    let mut portfolio = Portfolio::new(&packing, options, begin);
    portfolio.run();
    let offsets_bytes = packing.offsets_bytes(instance, &portfolio.offsets);
    let plan = Plan::new(instance.clone(), offsets_bytes).expect("stages keep buffers apart");
    Solution {
        plan,
        proved_bytes: portfolio.proved * packing.unit_bytes,
        stage: portfolio.stage,
        elapsed: begin.elapsed(),
    }
}

struct Portfolio<'a> {
    packing: &'a Packing,
    options: &'a Options,
    deadline: Option<Instant>,
    /// Good enough: at or below this, in units.
    target: u64,
    proved: u64,
    /// Proved: the stated capacity is too small.
    impossible: bool,
    peak: u64,
    offsets: Vec<u64>,
    stage: Stage,
    groups: Vec<Vec<u32>>,
}

impl<'a> Portfolio<'a> {
    /// Greedy is quadratic: above this many buffers only the first order is tried, and only if needed.
    const GREEDY_BUFFERS: usize = 8_000;
    /// Buffers that restarts place per round, or one restart where that is more.
    const RESTARTS_PER_ROUND: u64 = 4_000;

    fn new(packing: &'a Packing, options: &'a Options, begin: Instant) -> Self {
        let capacity = options.capacity_bytes.map_or(0, |bytes| bytes / packing.unit_bytes);
        Self {
            packing,
            options,
            deadline: options.time_limit.and_then(|limit| begin.checked_add(limit)),
            target: packing.bound.max(capacity),
            proved: packing.bound,
            impossible: false,
            peak: u64::MAX,
            offsets: vec![0; packing.items.len()],
            stage: Stage::Skyline,
            groups: packing.components(),
        }
    }

    fn run(&mut self) {
        let hopeless = self
            .options
            .capacity_bytes
            .is_some_and(|bytes| bytes / self.packing.unit_bytes < self.packing.bound);
        let fixed = self.packing.has_fixed();
        if !fixed {
            self.skyline();
        }
        if self.done() {
            return;
        }
        if fixed || self.packing.items.len() <= Self::GREEDY_BUFFERS {
            self.greedy();
        }
        // Below the bound there is nothing to look for.
        if !self.done() && !hopeless {
            self.rounds(fixed);
        }
    }

    /// Restarts and search in turn, until a budget ends them.
    fn rounds(&mut self, fixed: bool) {
        let searcher = Searcher::new(self.packing);
        let mut orders = RandomOrders::new(self.packing, self.options.seed);
        let mut skyline = Skyline::new(self.packing);
        let each = self.packing.items.len().max(1) as u64;
        let mut restarts = if fixed { 0 } else { self.options.restart_budget / each };
        let nodes = AtomicU64::new(self.options.node_budget);
        let mut searching = searcher.can_search();
        for round in 0_u32.. {
            for _ in 0..Self::RESTARTS_PER_ROUND.div_ceil(each).min(restarts) {
                restarts -= 1;
                if let Some(peak) = skyline.pack(&orders.next_order(), self.peak) {
                    self.keep(peak, &skyline.offsets, Stage::Restart);
                }
                if self.done() {
                    return;
                }
            }
            if searching {
                self.search(&searcher, round, &nodes);
                searching = nodes.load(Ordering::Relaxed) > 0 && !self.impossible;
            }
            if self.done() || (restarts == 0 && !searching) {
                return;
            }
        }
    }

    /// One round of search for the target; where no capacity was given, now and then also for the middle
    /// between it and what is there.
    fn search(&mut self, searcher: &Searcher<'_>, round: u32, nodes: &AtomicU64) {
        let deadline = self.deadline;
        let budget = Budget {
            nodes,
            stop: &|| deadline.is_some_and(|deadline| Instant::now() >= deadline),
            threads: self.options.threads.get(),
            seed: self.options.seed,
        };
        let mut aim = self.target;
        while aim < self.peak {
            let mut offsets = self.offsets.clone();
            let answer = searcher.round(round, aim, &mut offsets, &budget);
            // Equal peaks are taken over too: one group may have got lower.
            let peak = self.packing.peak(&offsets);
            if peak < self.peak {
                self.stage = Stage::Search;
            }
            self.peak = peak;
            self.offsets = offsets;
            if answer == Answer::Infeasible {
                self.proved = self.proved.max(aim + 1);
                self.target = self.target.max(aim + 1);
                self.impossible = self.options.capacity_bytes.is_some();
            }
            let only_target = self.options.capacity_bytes.is_some() || round % 4 < 3;
            if only_target || self.done() {
                return;
            }
            if answer == Answer::Found {
                return;
            }
            let middle = aim + (self.peak - aim).div_ceil(2);
            if middle == self.peak {
                return;
            }
            aim = middle;
        }
    }

    fn done(&self) -> bool {
        self.impossible || self.peak <= self.target || (self.peak != u64::MAX && self.late())
    }

    fn late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn keep(&mut self, peak: u64, offsets: &[u64], stage: Stage) {
        if peak < self.peak {
            self.stage = stage;
        }
        // Groups are independent: each keeps its best offsets.
        let top = |offsets: &[u64], item: u32| {
            offsets[item as usize] + self.packing.items[item as usize].size
        };
        for group in &self.groups {
            let peak_of = |offsets: &[u64]| group.iter().map(|&item| top(offsets, item)).max();
            if self.peak == u64::MAX || peak_of(offsets) < peak_of(&self.offsets) {
                for &item in group {
                    self.offsets[item as usize] = offsets[item as usize];
                }
            }
        }
        self.peak = self.packing.peak(&self.offsets);
    }

    fn skyline(&mut self) {
        let items = &self.packing.items;
        let mut skyline = Skyline::new(self.packing);
        for key in 0..3 {
            let order = match key {
                0 => order_by(self.packing, |i| items[i].size),
                1 => {
                    let area = |i: usize| u128::from(items[i].size) * u128::from(items[i].width());
                    order_by(self.packing, area)
                }
                _ => order_by(self.packing, |i| items[i].width()),
            };
            if let Some(peak) = skyline.pack(&order, self.peak) {
                self.keep(peak, &skyline.offsets, Stage::Skyline);
            }
            if self.done() {
                return;
            }
        }
    }

    fn greedy(&mut self) {
        for order in greedy::orders(self.packing) {
            for fit in [Fit::First, Fit::Best] {
                if let Some(offsets) = greedy::place(self.packing, &order, fit, self.peak) {
                    self.keep(self.packing.peak(&offsets), &offsets, Stage::Greedy);
                }
                if self.done() {
                    return;
                }
            }
        }
    }
}
