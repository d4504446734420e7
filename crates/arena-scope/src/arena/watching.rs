//! Watching a loop: what was seen of its steps, and whether they repeat each other.

use std::collections::HashMap;

use arena_core::Device;
use arena_core::for_scopes::Demand;

use super::Arena;
use crate::observer::Observer;
use crate::steady_state::{NotSteady, SteadyState};
use crate::step_key::StepKey;

/// What a run demanded of its region: the highest cursors, and each buffer that was kept or given back. It takes about
/// 24 bytes of host memory for each of these buffers.
#[derive(Debug, Clone)]
pub struct RunDemand {
    demand: Demand,
    /// The kinds of step, by their numbers.
    keys: HashMap<u64, StepKey>,
}

impl RunDemand {
    /// The smallest capacity in bytes in which the same run fits, if the steps of a key had their highest cursor at
    /// `end_bytes` from the base, from their opening to their close, as under a plan that ends there. Steps for which
    /// it is `None` keep the cursors that they had.
    ///
    /// It is exact for a device whose regions have the same alignment, and for requests with at most that alignment.
    #[must_use]
    pub fn smallest_capacity_bytes(&self, end_bytes: impl Fn(StepKey) -> Option<u64>) -> u64 {
        let key = |kind: u32| self.keys.get(&kind.into()).copied();
        self.demand.with_ends(|kind| key(kind).and_then(&end_bytes)).smallest_capacity_bytes()
    }
}

impl<D: Device> Arena<D> {
    /// Observes root scopes from now on: compares the signature of each step with that of the first step of its
    /// kind, and counts driver allocations and kept bytes. It costs a few nanoseconds for each request, so it
    /// can stay on. [`record`](Self::record) also keeps the requests.
    ///
    /// `heap_allocations`, if given, returns the number of host heap allocations so far. The program gives it
    /// because only the program knows its global allocator.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.observe(None);
    /// for len in [8, 8, 9] {
    ///     arena.scope(|step| step.alloc::<f32>(len).map(drop))?;
    /// }
    /// let seen = arena.observed().expect("it is observed");
    /// assert_eq!((seen.kinds[0].steps, seen.kinds[0].unstable_steps), (3, 1));
    /// # arena_scope::Ok(())
    /// ```
    pub fn observe(&mut self, heap_allocations: Option<fn() -> u64>) {
        self.watch(heap_allocations, false);
    }

    /// [`observe`](Self::observe) that also records each request, drop and scope. So the report names the first
    /// request that differs, and a plan can be made from the [record](Self::recorded). What the run
    /// [demands](Self::recorded_demand) of the region is noted as well. Requests are slower while steps are recorded.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.record(None);
    /// for len in [8, 9] {
    ///     arena.scope(|step| step.alloc::<f32>(len).map(drop))?;
    /// }
    /// let difference = arena.observed().and_then(|seen| seen.divergence).expect("they differ");
    /// assert_eq!(difference.step, 2);
    /// assert_eq!(difference.at.expect("the steps were recorded").request, 0); // the first one
    /// # arena_scope::Ok(())
    /// ```
    pub fn record(&mut self, heap_allocations: Option<fn() -> u64>) {
        self.watch(heap_allocations, true);
    }

    fn watch(&mut self, heap_allocations: Option<fn() -> u64>, records: bool) {
        self.state.settle_all();
        self.state.set_observer(Some(Observer::new(heap_allocations, records)));
        self.state.steps.record_demand(records);
    }

    /// What the run has demanded of the region since [`record`](Self::record) was called, so that a capacity can be
    /// found for it. On a [`Probe`](arena_core::Probe) it is what was demanded from the beginning.
    ///
    /// Call `record` before the first buffer is [kept](arena_core::Persistent::is_kept). Kept buffers that are older
    /// count with the padding that they have.
    ///
    /// ```
    /// use arena_scope::{Arena, ByteSize, Host};
    ///
    /// let mut arena = Arena::builder(Host::new()).capacity(ByteSize::mib(1)).build()?;
    /// arena.record(None);
    /// let moment = arena.scope_named("train", |step| {
    ///     step.alloc::<u8>(1000)?;
    ///     step.persistent::<u8>(256)
    /// })?;
    /// let demand = arena.recorded_demand();
    /// assert_eq!(demand.smallest_capacity_bytes(|_| None), 1024 + 256); // as it was
    /// assert_eq!(demand.smallest_capacity_bytes(|_| Some(500)), 512 + 256); // if a step ended at 500
    /// # drop(moment);
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn recorded_demand(&self) -> RunDemand {
        let keys = self
            .state
            .kinds
            .borrow()
            .iter()
            .filter_map(|kind| kind.watched.number_and_key())
            .collect();
        RunDemand { demand: self.state.steps.demand(), keys }
    }

    /// The report since [`observe`](Self::observe) or [`record`](Self::record) was called; `None` if neither
    /// was.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// assert!(arena.observed().is_none());
    /// arena.observe(None);
    /// arena.scope(|step| step.alloc::<f32>(8).map(drop))?;
    /// assert_eq!(arena.observed().map(|seen| seen.steps()), Some(1));
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn observed(&self) -> Option<SteadyState> {
        let kinds = self.state.kinds.borrow();
        let watched = kinds.iter().map(|kind| &kind.watched).collect();
        self.state.observer.borrow().as_ref().map(|observer| observer.report(watched))
    }

    /// Stops observing and returns the report.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.observe(None);
    /// arena.scope(|step| step.alloc::<f32>(8).map(drop))?;
    /// assert_eq!(arena.stop_observing().map(|seen| seen.steps()), Some(1));
    /// assert!(arena.observed().is_none());
    /// # arena_scope::Ok(())
    /// ```
    pub fn stop_observing(&mut self) -> Option<SteadyState> {
        self.state.settle_all();
        let seen = self.observed();
        self.state.steps.record_demand(false);
        self.state.set_observer(None);
        seen
    }

    /// The host memory for what is remembered of each kind of step; see
    /// [`ArenaBuilder::step_memory`](crate::ArenaBuilder::step_memory).
    #[must_use]
    pub fn step_memory_bytes(&self) -> u64 {
        self.state.kinds.borrow().bytes()
    }

    /// Runs `step` as often as `steps` says, records each time, and reports whether the loop is in its steady
    /// state.
    ///
    /// # Errors
    ///
    /// What `step` returns.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let seen = arena.steady_state(4, |arena, n| {
    ///     let len = if n == 3 { 9 } else { 8 };
    ///     arena.scope(|step| step.alloc::<f32>(len).map(drop))
    /// })?;
    /// assert_eq!(seen.divergence.map(|difference| difference.step), Some(4));
    /// # arena_scope::Ok(())
    /// ```
    pub fn steady_state<E>(
        &mut self,
        steps: u64,
        mut step: impl FnMut(&mut Self, u64) -> Result<(), E>,
    ) -> Result<SteadyState, E> {
        self.record(None);
        let outcome = (0..steps).try_for_each(|n| step(self, n));
        let seen = self.stop_observing().unwrap_or_else(SteadyState::empty);
        outcome.map(|()| seen)
    }

    /// [`steady_state`](Self::steady_state), asserted: flat memory, the same addresses, no driver
    /// allocation and no new persistent buffers after the first step.
    ///
    /// # Errors
    ///
    /// What `step` returns, or the promise that the loop broke.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let seen = arena.assert_steady_state(4, |arena, _| -> Result<(), Box<dyn std::error::Error>> {
    ///     Ok(arena.scope(|step| step.alloc::<f32>(8).map(drop))?)
    /// })?;
    /// assert_eq!((seen.steps(), seen.late_driver_allocations()), (4, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn assert_steady_state<E: From<NotSteady>>(
        &mut self,
        steps: u64,
        step: impl FnMut(&mut Self, u64) -> Result<(), E>,
    ) -> Result<SteadyState, E> {
        let seen = self.steady_state(steps, step)?;
        seen.check()?;
        Ok(seen)
    }
}
