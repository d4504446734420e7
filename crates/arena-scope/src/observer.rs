//! Watches steps while they run, and remembers the first one of each kind to compare with.

use arena_core::{Device, Event, EventLog, RawArena};

use crate::reset::ScopeOptions;
use crate::signature::StepSignature;
use crate::steady_state::{Divergence, SteadyState, StepKind};

/// What a root scope's close knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) signature: StepSignature,
    pub(crate) high_water_bytes: u64,
}

/// The watch over an arena's root scopes.
#[derive(Debug)]
pub(crate) struct Observer {
    heap_allocations: Option<fn() -> u64>,
    kinds: Vec<Watched>,
    open: Option<Opened>,
    /// The largest kept part at a close so far: what grows beyond it counts, made inside a step or
    /// between two. A kept buffer that each step replaces makes it rise and fall, and not grow.
    kept_bytes: Option<u64>,
    divergence: Option<Divergence>,
}

/// The steps of one kind: its figures, its first log to compare with, and the log in use.
#[derive(Debug)]
struct Watched {
    figures: StepKind,
    reference: EventLog,
    scratch: EventLog,
    /// The next step is the one to compare with: it is the first, or the first under another plan.
    fresh: bool,
}

/// What was counted when the open root scope began.
#[derive(Debug)]
struct Opened {
    kind: usize,
    heap_allocations: Option<u64>,
    driver_allocations: u64,
    kept_bytes: u64,
}

impl Observer {
    pub(crate) fn new(heap_allocations: Option<fn() -> u64>) -> Self {
        // Room for the kinds of a usual loop, so that a second kind allocates nothing in a step.
        Self {
            heap_allocations,
            kinds: Vec::with_capacity(16),
            open: None,
            kept_bytes: None,
            divergence: None,
        }
    }

    pub(crate) fn report(&self) -> SteadyState {
        SteadyState {
            kinds: self.kinds.iter().map(|watched| watched.figures.clone()).collect(),
            divergence: self.divergence.clone(),
        }
    }

    /// The requests, drops and scopes of the first step of a kind.
    pub(crate) fn recorded(&self, options: ScopeOptions) -> Option<EventLog> {
        let same = |watched: &&Watched| {
            watched.figures.name == options.name && watched.figures.variant == options.variant
        };
        let watched = self.kinds.iter().find(same)?;
        (watched.figures.steps > 0).then(|| watched.reference.clone())
    }

    /// The record of the last step of a kind, and how many of that kind there were.
    pub(crate) fn last(&self, options: ScopeOptions) -> Option<(&EventLog, u64)> {
        let same = |watched: &&Watched| {
            watched.figures.name == options.name && watched.figures.variant == options.variant
        };
        let watched = self.kinds.iter().find(same)?;
        Some((&watched.scratch, watched.figures.steps))
    }

    /// Steps of this name follow another plan from now on, so other addresses are to be expected.
    pub(crate) fn expect_other_addresses(&mut self, name: &'static str) {
        for watched in self.kinds.iter_mut().filter(|watched| watched.figures.name == name) {
            watched.fresh = true;
        }
    }

    /// A root scope was opened.
    pub(crate) fn open<D: Device>(&mut self, raw: &RawArena<D>, options: ScopeOptions) {
        let kind = self.kind_of(options);
        let mut log = std::mem::take(&mut self.kinds[kind].scratch);
        log.clear();
        raw.start_log(log);
        let stats = raw.stats();
        self.open = Some(Opened {
            kind,
            heap_allocations: self.count_heap(),
            driver_allocations: stats.driver_allocations,
            kept_bytes: self.kept_bytes.unwrap_or(stats.kept_bytes),
        });
    }

    /// The root scope was closed.
    pub(crate) fn close<D: Device>(&mut self, raw: &RawArena<D>, moment: Moment) {
        let heap_allocations = self.count_heap();
        let Some(log) = raw.stop_log() else { return };
        let Some(opened) = self.open.take() else { return };
        let stats = raw.stats();
        self.kept_bytes = Some(stats.kept_bytes.max(opened.kept_bytes));
        let watched = &mut self.kinds[opened.kind];
        watched.scratch = log;

        let figures = &mut watched.figures;
        figures.steps += 1;
        let heap_allocations = heap_allocations.zip(opened.heap_allocations);
        figures.note_heap(heap_allocations.map(|(now, then)| now.saturating_sub(then)));
        figures.note_driver(stats.driver_allocations - opened.driver_allocations);
        figures.note_kept(stats.kept_bytes.saturating_sub(opened.kept_bytes));
        if std::mem::take(&mut watched.fresh) {
            figures.signature = Some(moment.signature);
            figures.high_water_bytes = moment.high_water_bytes;
            watched.reference.clone_from(&watched.scratch);
        } else if figures.signature != Some(moment.signature) {
            figures.unstable_steps += 1;
            let first = self.divergence.is_none();
            if first {
                self.divergence = Some(watched.divergence());
            }
        }
    }

    fn kind_of(&mut self, options: ScopeOptions) -> usize {
        let same = |watched: &Watched| {
            watched.figures.name == options.name && watched.figures.variant == options.variant
        };
        self.kinds.iter().position(same).unwrap_or_else(|| {
            self.kinds.push(Watched {
                figures: StepKind::new(options.name, options.variant),
                reference: EventLog::default(),
                scratch: EventLog::default(),
                fresh: true,
            });
            self.kinds.len() - 1
        })
    }

    fn count_heap(&self) -> Option<u64> {
        self.heap_allocations.map(|count| count())
    }
}

impl Watched {
    /// Where this step's requests first differ from the first step's. Drops do not count: they
    /// decide no address of a bump.
    fn divergence(&self) -> Divergence {
        let mut expected = requests(&self.reference);
        let mut found = requests(&self.scratch);
        let mut request = 0;
        loop {
            let (expected, found) = (expected.next(), found.next());
            // Two logs without a difference cannot have different signatures, but if a hash ever
            // disagreed, the end of both would be named.
            if expected != found || expected.is_none() {
                let StepKind { name, variant, steps: step, .. } = self.figures;
                return Divergence { name, variant, step, request, expected, found };
            }
            request += u64::from(matches!(found, Some(Event::Alloc { .. })));
        }
    }
}

fn requests(log: &EventLog) -> impl Iterator<Item = Event> {
    log.events().iter().copied().filter(|event| !matches!(event, Event::Drop { .. }))
}
