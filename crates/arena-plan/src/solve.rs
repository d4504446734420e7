//! The stages, the cheapest first. A stage starts only if the stages before it were not enough.

use std::cell::OnceCell;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::greedy::{self, Fit};
use crate::instance::Instance;
use crate::ladder::Ladder;
use crate::packing::Packing;
use crate::plan::Plan;
use crate::repair::Repair;
use crate::restarts::RandomOrders;
use crate::search::{Answer, Budget, Searcher};
use crate::skyline::{Skyline, order_by};
use crate::sweep;

/// The goal and the budgets of the solver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Stop at a peak of at most this many bytes; `None`: as low as possible.
    pub capacity_bytes: Option<u64>,
    /// Return after this time, with the best plan so far. Reading the buffers, a first plan and the check of
    /// the plan cannot be left out: for a million buffers they take most of a second. With a time limit the
    /// plan may differ from run to run.
    pub time_limit: Option<Duration>,
    /// Equal seeds give equal plans, if one thread searches and no time limit is reached.
    pub seed: u64,
    /// Threads for the search.
    pub threads: NonZeroUsize,
    /// Buffers that random restarts may place, over all restarts.
    pub restart_budget: u64,
    /// How long the search may last, in nodes that look at 2,000 buffers and moments; most look at fewer.
    /// Instances too large for it are repaired instead, for a tenth of this.
    pub node_budget: u64,
}

impl Default for Options {
    /// No time limit, and a fixed amount of work: most instances take less than a second. The hardest take
    /// about ten seconds of one core for up to 100,000 buffers, and about ten microseconds more for each one
    /// above. (With fixed offsets the time is quadratic in the buffers.)
    fn default() -> Self {
        Self {
            capacity_bytes: None,
            time_limit: None,
            seed: 0,
            threads: NonZeroUsize::MIN,
            restart_budget: 500_000,
            node_budget: 6_000_000,
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
    /// Each buffer in its turn into the tightest free range: there was no time for more. Where offsets are
    /// fixed: one above another.
    Sweep,
    /// Skyline best fit by size, size x lifetime, or lifetime.
    Skyline,
    /// A greedy order.
    Greedy,
    /// A random restart of the skyline.
    Restart,
    /// The repair of a plan that was slightly above its target.
    Repair,
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
    let mut portfolio = Portfolio::new(&packing, options);
    if options.time_limit.is_some() {
        portfolio.sweep();
        let kept = begin.elapsed().mul_f64(Portfolio::KEPT_FOR_THE_END);
        portfolio.deadline = Deadline::new(begin, options.time_limit, kept);
    }
    portfolio.run();
    let offsets_bytes = packing.offsets_bytes(instance, &portfolio.offsets);
    let plan = Plan::with_bound(instance.clone(), offsets_bytes, packing.bound_bytes)
        .expect("stages keep buffers apart");
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
    deadline: Deadline,
    /// Good enough: at or below this, in units.
    target: u64,
    proved: u64,
    /// Proved: the stated capacity is too small.
    impossible: bool,
    peak: u64,
    offsets: Vec<u64>,
    stage: Stage,
    /// Made when a second plan is to be merged with the first.
    groups: OnceCell<Vec<Vec<u32>>>,
}

impl<'a> Portfolio<'a> {
    /// Greedy is quadratic: above this many buffers only the first order is tried, and only if needed.
    const GREEDY_BUFFERS: usize = 8_000;
    /// Buffers that restarts place per round, or one restart where that is more.
    const RESTARTS_PER_ROUND: u64 = 4_000;
    /// Looks at items and sections for each node of the budget.
    const WORK_PER_NODE: u64 = 2_000;
    /// A plan is repaired if it is above its target by at most one part in so many.
    const SLIGHTLY_ABOVE: u64 = 200;
    /// Rounds of restarts from one attempt to repair to the next.
    const ROUNDS_PER_REPAIR: u64 = 64;
    /// The part of the node budget that repairs may use: one in so many.
    const REPAIR_SHARE: u64 = 10;
    /// The time that is kept for the order that is being made and for the check at the end, as a multiple of the
    /// time for preparing and sweeping. All of these sort the buffers and keep the live ones in a map.
    const KEPT_FOR_THE_END: f64 = 1.5;

    fn new(packing: &'a Packing, options: &'a Options) -> Self {
        let capacity = options.capacity_bytes.map_or(0, |bytes| bytes / packing.unit_bytes);
        Self {
            packing,
            options,
            deadline: Deadline::NEVER,
            target: packing.bound.max(capacity),
            proved: packing.bound,
            impossible: false,
            peak: u64::MAX,
            offsets: vec![0; packing.items.len()],
            stage: Stage::Skyline,
            groups: OnceCell::new(),
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
        let mut skyline = Skyline::new(self.packing, self.deadline);
        let each = self.packing.items.len().max(1) as u64;
        let mut restarts = if fixed { 0 } else { self.options.restart_budget };
        let work = AtomicU64::new(self.options.node_budget.saturating_mul(Self::WORK_PER_NODE));
        let mut searching = searcher.can_search(&|| self.deadline.has_passed());
        let mut ladder = Ladder::default();
        let mut repair = (!fixed && !searching)
            .then(|| Repair::new(self.packing, self.deadline, self.options.seed));
        let mut repair_work = work.load(Ordering::Relaxed) / Self::REPAIR_SHARE;
        for round in 0_u64.. {
            // Most attempts succeed; where one does not, restarts may find a plan to begin from.
            if let Some(repair) = &mut repair
                && round % Self::ROUNDS_PER_REPAIR == 0
                && self.repair(repair, &mut repair_work)
            {
                return;
            }
            for _ in 0..Self::RESTARTS_PER_ROUND.div_ceil(each) {
                if restarts < each {
                    restarts = 0;
                    break;
                }
                let cost = skyline.cost();
                let packed = skyline.pack(&orders.next_order(), self.peak);
                restarts = restarts.saturating_sub(each.max(skyline.cost() - cost));
                if let Some(peak) = packed {
                    self.keep(peak, &skyline.offsets, Stage::Restart);
                }
                if self.done() {
                    return;
                }
            }
            if searching {
                self.search(&searcher, &mut ladder, &work);
                searching = work.load(Ordering::Relaxed) > 0 && !self.impossible;
            }
            if self.done() || (restarts == 0 && !searching) {
                return;
            }
        }
    }

    /// Whether the best plan so far, if it is slightly above the target, could be brought down to it.
    fn repair(&mut self, repair: &mut Repair<'_>, work: &mut u64) -> bool {
        if self.peak - self.target > self.target / Self::SLIGHTLY_ABOVE {
            return false;
        }
        let Some(offsets) = repair.attempt(&self.offsets, self.target, work) else {
            return false;
        };
        self.keep(self.packing.peak(&offsets), &offsets, Stage::Repair);
        self.done()
    }

    /// One round of search, for the target or for an aim between it and what is there.
    fn search(&mut self, searcher: &Searcher<'_>, ladder: &mut Ladder, work: &AtomicU64) {
        let deadline = self.deadline;
        let budget = Budget {
            work,
            stop: &|| deadline.has_passed(),
            threads: self.options.threads.get(),
            seed: self.options.seed,
        };
        let aim = match self.options.capacity_bytes {
            Some(_) => self.target,
            None => ladder.next(self.target, self.peak),
        };
        let between = aim != self.target;
        let round = ladder.begin(aim);
        let before = work.load(Ordering::Relaxed);
        let mut offsets = self.offsets.clone();
        let answer = searcher.round(round, !between, aim, &mut offsets, &budget);
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
        ladder.end(!between, before - work.load(Ordering::Relaxed));
    }

    fn done(&self) -> bool {
        self.impossible || self.peak <= self.target || self.deadline.has_passed()
    }

    /// The plan for when the time is over before a better stage has ended.
    fn sweep(&mut self) {
        let fixed = self.packing.has_fixed();
        let offsets = if fixed { self.packing.stacked() } else { sweep::place(self.packing) };
        self.keep(self.packing.peak(&offsets), &offsets, Stage::Sweep);
    }

    fn keep(&mut self, peak: u64, offsets: &[u64], stage: Stage) {
        if peak < self.peak {
            self.stage = stage;
        }
        if self.peak == u64::MAX {
            self.offsets.copy_from_slice(offsets);
            self.peak = peak;
            return;
        }
        // Groups are independent: each keeps its best offsets.
        let top = |offsets: &[u64], item: u32| {
            offsets[item as usize] + self.packing.items[item as usize].size
        };
        for group in self.groups.get_or_init(|| self.packing.components()) {
            let peak_of = |offsets: &[u64]| group.iter().map(|&item| top(offsets, item)).max();
            if peak_of(offsets) < peak_of(&self.offsets) {
                for &item in group {
                    self.offsets[item as usize] = offsets[item as usize];
                }
            }
        }
        self.peak = self.packing.peak(&self.offsets);
    }

    fn skyline(&mut self) {
        let items = &self.packing.items;
        let mut skyline = Skyline::new(self.packing, self.deadline);
        for key in 0..3 {
            if self.done() {
                return;
            }
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
        }
    }

    fn greedy(&mut self) {
        let large = self.packing.items.len() > Self::GREEDY_BUFFERS;
        for order in greedy::orders(self.packing).take(if large { 1 } else { usize::MAX }) {
            for fit in [Fit::First, Fit::Best] {
                if self.done() {
                    return;
                }
                let (limit, deadline) = (self.peak, self.deadline);
                if let Some(offsets) = greedy::place(self.packing, &order, fit, limit, deadline) {
                    self.keep(self.packing.peak(&offsets), &offsets, Stage::Greedy);
                }
            }
        }
    }
}
