//! The report that a loop is in its steady state: flat memory, stable addresses, no allocation.

use std::fmt;

use arena_core::{ByteSize, StepEvent, StepSignature};

use crate::step_key::StepKey;

/// The steps of one kind: root scopes with the same name and variant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepKind {
    /// The scopes' name and variant.
    pub key: StepKey,
    /// Steps observed.
    pub steps: u64,
    /// The signature of the first of them.
    pub signature: Option<StepSignature>,
    /// Steps whose signature was another one.
    pub unstable_steps: u64,
    /// The highest cursor of the first of them, in bytes from the base.
    pub high_water_bytes: u64,
    /// Driver allocations in the second step and later, all together.
    pub late_driver_allocations: u64,
    /// The most host heap allocations in one step, from the third step on, from its opening to its
    /// close on all threads; `None` without a counter or a third step.
    pub heap_allocations_per_step: Option<u64>,
    /// Bytes by which the kept part grew in the fourth step and later, all together.
    pub late_kept_bytes: u64,
}

impl StepKind {
    pub(crate) const fn new(key: StepKey) -> Self {
        Self {
            key,
            steps: 0,
            signature: None,
            unstable_steps: 0,
            high_water_bytes: 0,
            late_driver_allocations: 0,
            heap_allocations_per_step: None,
            late_kept_bytes: 0,
        }
    }

    /// Warm-up: a thread pool's queues, a host bump's second chunk and the observer's own log may
    /// still grow in the first two steps.
    pub(crate) fn note_heap(&mut self, allocations: Option<u64>) {
        if self.steps > 2 {
            self.heap_allocations_per_step = self.heap_allocations_per_step.max(allocations);
        }
    }

    pub(crate) fn note_driver(&mut self, allocations: u64) {
        if self.steps > 1 {
            self.late_driver_allocations += allocations;
        }
    }

    /// A buffer that each step replaces reaches its largest kept part in the third step: the new one,
    /// the one before, and the one before that, whose bytes come back with the close.
    pub(crate) fn note_kept(&mut self, grown_bytes: u64) {
        if self.steps > 3 {
            self.late_kept_bytes += grown_bytes;
        }
    }
}

/// What was seen of a loop, by kind of step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SteadyState {
    /// Each kind in the order of its first step.
    pub kinds: Vec<StepKind>,
    /// The first step that did not repeat the first of its kind.
    pub divergence: Option<Divergence>,
}

impl SteadyState {
    pub(crate) const fn empty() -> Self {
        Self { kinds: Vec::new(), divergence: None }
    }

    /// Steps observed, of all kinds.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.steps).sum()
    }

    /// Whether every step got the addresses of the first of its kind.
    #[must_use]
    pub fn is_stable(&self) -> bool {
        self.divergence.is_none()
    }

    /// Driver allocations after the first step of each kind.
    #[must_use]
    pub fn late_driver_allocations(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.late_driver_allocations).sum()
    }

    /// The most host heap allocations in one step, from the third of each kind on; `None` without a
    /// counter or a third step of any kind.
    #[must_use]
    pub fn heap_allocations_per_step(&self) -> Option<u64> {
        self.kinds.iter().filter_map(|kind| kind.heap_allocations_per_step).max()
    }

    /// Asserts the steady state.
    ///
    /// # Errors
    ///
    /// The first promise of the steady state that the loop broke.
    pub fn check(&self) -> Result<(), NotSteady> {
        if let Some(divergence) = &self.divergence {
            return Err(NotSteady::Addresses(divergence.clone()));
        }
        for kind in &self.kinds {
            let key = kind.key;
            if kind.late_driver_allocations > 0 {
                let allocations = kind.late_driver_allocations;
                return Err(NotSteady::DriverAllocations { key, allocations });
            }
            if kind.late_kept_bytes > 0 {
                let grown_bytes = kind.late_kept_bytes;
                return Err(NotSteady::KeptGrows { key, grown_bytes });
            }
            if let Some(allocations @ 1..) = kind.heap_allocations_per_step {
                return Err(NotSteady::HeapAllocations { key, allocations });
            }
        }
        Ok(())
    }
}

/// A step that differed from the first step of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Divergence {
    /// The scopes' name and variant.
    pub key: StepKey,
    /// The step, counted from 1 among those of its kind.
    pub step: u64,
    /// Where it first differed, if the steps were recorded.
    pub at: Option<DivergenceAt>,
}

/// Where a step first differed from another.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DivergenceAt {
    /// Requests before the one that differed.
    pub request: u64,
    /// What the first step did there; `None` if it had ended.
    pub expected: Option<StepEvent>,
    /// What this step did there; `None` if it had ended.
    pub found: Option<StepEvent>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, step, at } = self;
        match at {
            Some(DivergenceAt { request, expected, found }) => {
                write!(f, "step {step} of {key}, after {request} requests: ")?;
                write!(f, "{}, where step 1 {}", Did(*found), Did(*expected))
            }
            None => write!(
                f,
                "step {step} of {key} has other addresses than step 1; record the steps \
                 (`Arena::record`) to see from which request on"
            ),
        }
    }
}

/// An event as a predicate: "asked for 40 bytes at offset 256".
struct Did(Option<StepEvent>);

impl fmt::Display for Did {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(StepEvent::Alloc { offset_bytes, bytes, alignment }) => {
                write!(f, "got {bytes} bytes (alignment {alignment}) at offset {offset_bytes}")
            }
            Some(StepEvent::Open) => f.write_str("opened a scope"),
            Some(StepEvent::Close) => f.write_str("closed a scope"),
            Some(StepEvent::Merge) => f.write_str("ended a scope whose guard was forgotten"),
            Some(_) => f.write_str("dropped a buffer"),
            None => f.write_str("had ended"),
        }
    }
}

/// A loop that is not in its steady state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotSteady {
    /// A step's requests differ from the first step's.
    #[error("addresses changed: {0}")]
    Addresses(Divergence),
    /// The device was asked for memory after the first step.
    #[error("{key}: {allocations} driver allocations after its first step")]
    DriverAllocations {
        /// The scopes' name and variant.
        key: StepKey,
        /// How many.
        allocations: u64,
    },
    /// The kept part grows: the loop makes persistent buffers and does not drop them.
    #[error(
        "{key} makes persistent buffers in its steps: {} kept after the third",
        ByteSize::bytes_exact(*grown_bytes)
    )]
    KeptGrows {
        /// The scopes' name and variant.
        key: StepKey,
        /// By how many bytes.
        grown_bytes: u64,
    },
    /// A steady step allocated on the host's heap.
    #[error("{key}: {allocations} host heap allocations in a steady step")]
    HeapAllocations {
        /// The scopes' name and variant.
        key: StepKey,
        /// The most in one step.
        allocations: u64,
    },
}
