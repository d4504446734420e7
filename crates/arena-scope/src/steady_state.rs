//! The report on the steady state of a loop: flat memory, stable addresses, no allocation.

use std::fmt;

use arena_core::{ByteSize, StepEvent, StepSignature};

use crate::growth::Growth;
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
    /// Steps with a signature other than that of the first.
    pub unstable_steps: u64,
    /// The highest cursor of the first of them, in bytes from the base.
    pub high_water_bytes: u64,
    /// The sum of driver allocations in the second step and later.
    pub late_driver_allocations: u64,
    /// The most host heap allocations in one step, on all threads, from the opening of its scope to the close.
    /// The first two steps do not count. `None` without a counter or without a third step.
    pub heap_allocations_per_step: Option<u64>,
    /// The bytes by which the kept part grew in the fourth step and later.
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

    /// Takes the figures of a kind that is forgotten to those of others. The key is that of the last kind that broke a
    /// promise.
    pub(crate) fn add(&mut self, other: &Self) {
        if other.check().is_err() {
            self.key = other.key;
        }
        self.steps += other.steps;
        self.unstable_steps += other.unstable_steps;
        self.late_driver_allocations += other.late_driver_allocations;
        self.heap_allocations_per_step =
            self.heap_allocations_per_step.max(other.heap_allocations_per_step);
        self.late_kept_bytes += other.late_kept_bytes;
    }

    fn check(&self) -> Result<(), NotSteady> {
        let key = self.key;
        if self.late_driver_allocations > 0 {
            let allocations = self.late_driver_allocations;
            return Err(NotSteady::DriverAllocations { key, allocations });
        }
        if self.late_kept_bytes > 0 {
            let grown_bytes = self.late_kept_bytes;
            return Err(NotSteady::KeptGrows { key, grown_bytes });
        }
        if let Some(allocations @ 1..) = self.heap_allocations_per_step {
            return Err(NotSteady::HeapAllocations { key, allocations });
        }
        Ok(())
    }

    /// A buffer that each step replaces reaches its largest kept part in the third step: the new one,
    /// the one before, and the one before that, whose bytes come back with the close.
    pub(crate) fn note_kept(&mut self, grown_bytes: u64) {
        if self.steps > 3 {
            self.late_kept_bytes += grown_bytes;
        }
    }
}

/// The report on a loop, by kind of step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SteadyState {
    /// Each kind in the order of its first step.
    pub kinds: Vec<StepKind>,
    /// The first step that differs from the first step of its kind.
    pub divergence: Option<Divergence>,
    /// How the run grew in one root scope that stayed open: recorded steps only, and only where that scope was opened
    /// once and most of the run's requests were made in it.
    pub growth: Option<Growth>,
    /// How often a kind, or the record of one, was forgotten, because the [budget](crate::ArenaBuilder::step_memory)
    /// was full. A forgotten kind is not in `kinds`, but its steps and allocations are in the sums below.
    pub forgotten: u64,
    pub(crate) forgotten_figures: StepKind,
}

impl SteadyState {
    pub(crate) const fn empty() -> Self {
        let forgotten_figures = StepKind::new(StepKey::named(""));
        Self { kinds: Vec::new(), divergence: None, growth: None, forgotten: 0, forgotten_figures }
    }

    fn all(&self) -> impl Iterator<Item = &StepKind> {
        self.kinds.iter().chain([&self.forgotten_figures])
    }

    /// Steps observed, of all kinds.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.all().map(|kind| kind.steps).sum()
    }

    /// Whether every step got the addresses of the first step of its kind.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let seen = arena.steady_state(3, |arena, n| {
    ///     arena.scope(|step| step.alloc::<f32>(8 + n as usize % 2).map(drop))
    /// })?;
    /// assert!(!seen.is_stable());
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn is_stable(&self) -> bool {
        self.divergence.is_none()
    }

    /// Driver allocations after the first step of each kind.
    #[must_use]
    pub fn late_driver_allocations(&self) -> u64 {
        self.all().map(|kind| kind.late_driver_allocations).sum()
    }

    /// The most host heap allocations in one step. The first two steps of each kind do not count. `None` without
    /// a counter or without a third step.
    #[must_use]
    pub fn heap_allocations_per_step(&self) -> Option<u64> {
        self.all().filter_map(|kind| kind.heap_allocations_per_step).max()
    }

    /// Checks that the loop is in its steady state.
    ///
    /// # Errors
    ///
    /// The first promise of the steady state that the loop broke.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let seen = arena.steady_state(3, |arena, n| {
    ///     let len = if n == 0 { 8 } else { 9 };
    ///     arena.scope(|step| step.alloc::<f32>(len).map(drop))
    /// })?;
    /// let broken = seen.check().unwrap_err();
    /// assert!(broken.to_string().starts_with("addresses changed: step 2"));
    /// # arena_scope::Ok(())
    /// ```
    pub fn check(&self) -> Result<(), NotSteady> {
        if let Some(divergence) = &self.divergence {
            return Err(NotSteady::Addresses(divergence.clone()));
        }
        if let Some(growth) = &self.growth {
            return Err(NotSteady::Grows(growth.clone()));
        }
        self.all().try_for_each(StepKind::check)
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
                write!(
                    f,
                    "step {step} of {key} differs at its request {request}, counted from 0: "
                )?;
                write!(f, "it {}, where step 1 {}", Did(*found), Did(*expected))
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
                write!(
                    f,
                    "got a buffer of size {bytes} (alignment {alignment}) at offset {offset_bytes}"
                )
            }
            Some(StepEvent::Open { name }) => write!(f, "opened the scope `{name}`"),
            Some(StepEvent::Close) => f.write_str("closed a scope"),
            Some(StepEvent::Merge) => f.write_str("ended a scope whose guard was forgotten"),
            Some(_) => f.write_str("dropped a buffer"),
            None => f.write_str("had already ended"),
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
    /// A root scope that stays open grows.
    #[error("{0}")]
    Grows(Growth),
    /// The device was asked for memory after the first step.
    #[error("{key}: driver allocations after the first step: {allocations}")]
    DriverAllocations {
        /// The scopes' name and variant.
        key: StepKey,
        /// How many.
        allocations: u64,
    },
    /// The kept part grows: the loop makes persistent buffers and does not drop them.
    #[error(
        "{key} makes persistent buffers in its steps and keeps them (kept after the third step: {})",
        ByteSize::bytes_exact(*grown_bytes)
    )]
    KeptGrows {
        /// The scopes' name and variant.
        key: StepKey,
        /// By how many bytes.
        grown_bytes: u64,
    },
    /// A steady step allocated on the host's heap.
    #[error("{key}: host heap allocations in a steady step: {allocations}")]
    HeapAllocations {
        /// The scopes' name and variant.
        key: StepKey,
        /// The most in one step.
        allocations: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const KEY: StepKey = StepKey::named("train");

    fn divergence(at: Option<DivergenceAt>) -> NotSteady {
        NotSteady::Addresses(Divergence { key: KEY, step: 2, at })
    }

    #[rstest]
    #[case(
        divergence(Some(DivergenceAt { request: 0, expected: None, found: None })),
        "addresses changed: step 2 of `train` (0) differs at its request 0, counted from 0: it had already \
         ended, where step 1 had already ended"
    )]
    #[case(
        divergence(None),
        "addresses changed: step 2 of `train` (0) has other addresses than step 1; record the steps \
         (`Arena::record`) to see from which request on"
    )]
    #[case(
        NotSteady::DriverAllocations { key: KEY, allocations: 1 },
        "`train` (0): driver allocations after the first step: 1"
    )]
    #[case(
        NotSteady::KeptGrows { key: KEY, grown_bytes: 1 },
        "`train` (0) makes persistent buffers in its steps and keeps them (kept after the third step: 1 byte)"
    )]
    #[case(
        NotSteady::HeapAllocations { key: KEY, allocations: 1 },
        "`train` (0): host heap allocations in a steady step: 1"
    )]
    fn a_broken_promise_reads_as_a_sentence(#[case] broken: NotSteady, #[case] text: &str) {
        assert_eq!(broken.to_string(), text);
    }
}
