//! Observes steps while they run, and compares them with the first one of their kind.

use arena_core::for_scopes::{StepFigures, Watch};
use arena_core::{Stats, StepEvent, StepLog};

use crate::growth;
use crate::steady_state::{Divergence, DivergenceAt, SteadyState, StepKind};
use crate::step_key::StepKey;

/// The watch over an arena's root scopes.
#[derive(Debug)]
pub(crate) struct Observer {
    heap_allocations: Option<fn() -> u64>,
    /// Each step is recorded, so that the first request that differs can be named.
    records: bool,
    open: Option<Opened>,
    /// The log that the next recorded step is written to, or the last one was.
    log: StepLog,
    /// The largest kept part at a close so far: what grows beyond it counts, made inside a step or
    /// between two. A kept buffer that each step replaces makes it rise and fall, and not grow.
    kept_bytes: Option<u64>,
    divergence: Option<Divergence>,
    /// Requests of all steps, if each is recorded.
    requests: u64,
    kinds_seen: u64,
    /// How often a kind, or the record of one, was forgotten.
    forgotten: u64,
    /// The figures of forgotten kinds together.
    forgotten_figures: StepKind,
}

/// The steps of one kind: their figures, and the log of the first, if each is recorded.
#[derive(Debug)]
pub(crate) struct Watched {
    figures: StepKind,
    reference: StepLog,
    /// The next step is the one to compare with: it is the first, or the first under another plan.
    fresh: bool,
    /// How many kinds were seen before it.
    number: u64,
}

impl Watched {
    pub(crate) const fn new(key: StepKey) -> Self {
        Self { figures: StepKind::new(key), reference: StepLog::new(), fresh: true, number: 0 }
    }

    /// Its steps follow another plan from now on, so other addresses are to be expected.
    pub(crate) fn expect_other_addresses(&mut self) {
        self.fresh = true;
    }

    /// The highest cursor of the first of its steps.
    pub(crate) fn high_water_bytes(&self) -> Option<u64> {
        self.was_seen().then_some(self.figures.high_water_bytes)
    }

    /// Host memory beside itself.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.reference.host_bytes()
    }

    fn was_seen(&self) -> bool {
        self.figures.steps > 0
    }
}

/// What was counted when the open root scope began.
#[derive(Debug, Clone, Copy)]
struct Opened {
    heap_allocations: Option<u64>,
    driver_allocations: u64,
    kept_bytes: u64,
}

impl Observer {
    pub(crate) fn new(heap_allocations: Option<fn() -> u64>, records: bool) -> Self {
        Self {
            heap_allocations,
            records,
            open: None,
            log: StepLog::default(),
            kept_bytes: None,
            divergence: None,
            requests: 0,
            kinds_seen: 0,
            forgotten: 0,
            forgotten_figures: StepKind::new(StepKey::default()),
        }
    }

    pub(crate) fn report(&self, mut seen: Vec<&Watched>) -> SteadyState {
        seen.retain(|watched| watched.was_seen());
        seen.sort_unstable_by_key(|watched| watched.number);
        // One step in which most requests of the run were made holds the run's loop.
        let requests = |watched: &Watched| watched.reference.requests().len() as u64;
        let run = seen.iter().find(|watched| 2 * requests(watched) > self.requests);
        let growth = run.and_then(|run| growth::growth(run.figures.key, &run.reference));
        SteadyState {
            kinds: seen.into_iter().map(|watched| watched.figures.clone()).collect(),
            divergence: self.divergence.clone(),
            growth,
            forgotten: self.forgotten,
            forgotten_figures: self.forgotten_figures.clone(),
        }
    }

    /// The requests, drops and scopes of the first step of a kind, if each is recorded.
    pub(crate) fn recorded(&self, watched: &Watched) -> Option<StepLog> {
        (self.records && !watched.reference.is_empty()).then(|| watched.reference.clone())
    }

    /// Whether each step is recorded.
    pub(crate) const fn records(&self) -> bool {
        self.records
    }

    /// A kind is forgotten.
    pub(crate) fn forget(&mut self, watched: &Watched) {
        if watched.was_seen() {
            self.forgotten += 1;
            self.forgotten_figures.add(&watched.figures);
        }
    }

    /// The record of a kind is forgotten, if it has one.
    pub(crate) fn forget_record(&mut self, watched: &mut Watched) {
        if !watched.reference.is_empty() {
            self.forgotten += 1;
            watched.reference = StepLog::new();
        }
    }

    /// The record of the step that closed last, if it was recorded.
    pub(crate) fn last(&self) -> &StepLog {
        &self.log
    }

    /// A root scope is about to open; `record` asks for a record of it in any case.
    pub(crate) fn open(&mut self, record: bool, stats: &Stats) -> Watch {
        self.open = Some(Opened {
            heap_allocations: self.count_heap(),
            driver_allocations: stats.driver_allocations,
            kept_bytes: self.kept_bytes.unwrap_or(stats.kept_bytes),
        });
        let mut log = std::mem::take(&mut self.log);
        log.clear();
        if record || self.records {
            return Watch::Record(log);
        }
        self.log = log;
        Watch::Figures
    }

    /// The root scope of a kind has closed; `log` is its record, if it was recorded.
    pub(crate) fn close(
        &mut self,
        watched: &mut Watched,
        step: StepFigures,
        log: Option<StepLog>,
        stats: &Stats,
    ) {
        let heap_allocations = self.count_heap();
        let Some(opened) = self.open.take() else { return };
        self.kept_bytes = Some(stats.kept_bytes.max(opened.kept_bytes));
        self.log = log.unwrap_or_else(|| std::mem::take(&mut self.log));
        if self.records {
            self.requests += self.log.requests().len() as u64;
        }
        if !watched.was_seen() {
            watched.number = self.kinds_seen;
            self.kinds_seen += 1;
        }
        let figures = &mut watched.figures;
        figures.steps += 1;
        let heap_allocations = heap_allocations.zip(opened.heap_allocations);
        figures.note_heap(heap_allocations.map(|(now, then)| now.saturating_sub(then)));
        figures.note_driver(stats.driver_allocations - opened.driver_allocations);
        figures.note_kept(stats.kept_bytes.saturating_sub(opened.kept_bytes));
        if std::mem::take(&mut watched.fresh) {
            figures.signature = step.signature;
            figures.high_water_bytes = step.high_water_bytes;
            if self.records {
                watched.reference.clone_from(&self.log);
            }
        } else if figures.signature != step.signature {
            figures.unstable_steps += 1;
            if self.divergence.is_none() {
                let (key, step) = (figures.key, figures.steps);
                let is_known = self.records && !watched.reference.is_empty();
                let at = is_known.then(|| first_difference(&watched.reference, &self.log));
                self.divergence = Some(Divergence { key, step, at });
            }
        }
    }

    fn count_heap(&self) -> Option<u64> {
        self.heap_allocations.map(|count| count())
    }
}

/// Where a step's requests first differ from the first step's. Drops and tags do not count: they decide no address of a
/// bump.
fn first_difference(expected: &StepLog, found: &StepLog) -> DivergenceAt {
    let (mut expected, mut found) = (requests(expected), requests(found));
    let mut request = 0;
    loop {
        let (expected, found) = (expected.next(), found.next());
        // Two logs without a difference cannot have different signatures, but if a hash ever
        // disagreed, the end of both would be named.
        if expected != found || expected.is_none() {
            return DivergenceAt { request, expected, found };
        }
        request += u64::from(matches!(found, Some(StepEvent::Alloc { .. })));
    }
}

fn requests(log: &StepLog) -> impl Iterator<Item = StepEvent> {
    let others =
        |event: &StepEvent| matches!(event, StepEvent::Drop { .. } | StepEvent::Tag { .. });
    log.events().iter().copied().filter(move |event| !others(event))
}
