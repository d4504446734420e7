//! The arena: a region, its mark, and the scopes above it.

use std::fmt;

use arena_core::for_scopes::Steps;
use arena_core::{
    Alignment, ByteSize, Capacity, DeviationSite, Deviations, Device, Error, ErrorKind, EventLog,
    Host, Persistent, Placement, Pod, Probe, Reset, SlotTable, Span, Stats, StepSignature,
};

use crate::guard::Guard;
use crate::observer::Observer;
use crate::options::ScopeOptions;
use crate::planner::{Planner, Planning};
use crate::scope::{Scope, run};
use crate::state::State;
use crate::steady_state::{NotSteady, SteadyState};
use crate::step_key::StepKey;

/// One device region: persistent buffers at its bottom, the mark where they end, and scopes above
/// it that reset to it.
///
/// It can be sent to another thread, but not shared with one. Its region goes back to the device
/// when the arena and the last [`Persistent`] are gone.
pub struct Arena<D: Device = Host> {
    pub(crate) state: State<D>,
}

/// What an arena is built with.
#[derive(Debug, Clone)]
pub struct ArenaBuilder<D> {
    device: D,
    capacity: Option<Capacity>,
    reset: Reset,
    host_bump: ByteSize,
    placement: Placement,
}

impl<D: Device> ArenaBuilder<D> {
    /// The region's size: a [`ByteSize`], which is never rounded, or a [`Capacity`], such as a fraction of the
    /// device's memory. It must be given: no default would be right. An arena on the device [`Probe`] tells the
    /// [smallest](Arena::smallest_capacity_bytes) that serves a program.
    ///
    /// ```
    /// use arena_scope::{Arena, ByteSize, Capacity, Host};
    ///
    /// let capacity = Capacity::fraction_of_free(0.01).headroom(ByteSize::mib(64));
    /// let arena = Arena::builder(Host::new()).capacity(capacity).build()?;
    /// assert!(arena.stats().capacity_bytes > 0);
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn capacity(mut self, capacity: impl Into<Capacity>) -> Self {
        self.capacity = Some(capacity.into());
        self
    }

    /// What closing scopes do with their bytes, unless they say otherwise: [`Reset::Keep`] unless
    /// set here.
    #[must_use]
    pub const fn reset(mut self, reset: Reset) -> Self {
        self.reset = reset;
        self
    }

    /// The size with which the host bump of each depth begins: 16 KiB unless set here. It grows when
    /// a step needs more.
    #[must_use]
    pub const fn host_bump(mut self, size: ByteSize) -> Self {
        self.host_bump = size;
        self
    }

    /// Where transient buffers lie: [`Placement::Bump`] unless set here; the others are for hunting
    /// bugs.
    #[must_use]
    pub const fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Obtains the region: one call of the device.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoCapacity`] without a [capacity](Self::capacity); [`ErrorKind::Device`] when the device
    /// refuses, has not so much memory, or cannot tell of how much a fraction is asked. Nothing is held then.
    pub fn build(self) -> Result<Arena<D>, Error> {
        let capacity = self.capacity.ok_or(ErrorKind::NoCapacity)?.on(&self.device)?;
        let steps = Steps::new(self.device, capacity, self.placement, self.reset)?;
        let host_bump_bytes = usize::try_from(self.host_bump.bytes()).unwrap_or(usize::MAX);
        Ok(Arena { state: State::new(steps, host_bump_bytes) })
    }
}

impl<D: Device> Arena<D> {
    /// Begins to build an arena on `device`.
    #[must_use]
    pub const fn builder(device: D) -> ArenaBuilder<D> {
        ArenaBuilder {
            device,
            capacity: None,
            reset: Reset::Keep,
            host_bump: ByteSize::kib(16),
            placement: Placement::Bump,
        }
    }

    // --- persistent buffers and the mark ------------------------------------------------------

    /// A persistent buffer of `len` elements with unspecified but initialised contents: below the
    /// mark until that is set, afterwards kept at the region's top.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`](arena_core::ErrorKind::Exhausted) when it does not fit,
    /// [`ErrorKind::TooBig`](arena_core::ErrorKind::TooBig) when it never can, or an error that an
    /// earlier close left behind.
    #[track_caller]
    pub fn persistent<T: Pod>(&self, len: usize) -> Result<Persistent<T, D>, Error> {
        self.state.steps.persistent(len, Alignment::DEFAULT, 0)
    }

    /// [`persistent`](Self::persistent), filled with zero bytes in stream order.
    ///
    /// # Errors
    ///
    /// As for [`persistent`](Self::persistent), or the device's refusal of the fill.
    #[track_caller]
    pub fn persistent_zeroed<T: Pod>(&self, len: usize) -> Result<Persistent<T, D>, Error> {
        self.state.steps.persistent_zeroed(len, Alignment::DEFAULT)
    }

    /// A persistent buffer that holds `values`, copied in stream order.
    ///
    /// # Errors
    ///
    /// As for [`persistent`](Self::persistent), or the device's refusal of the copy.
    #[track_caller]
    pub fn persistent_from<T: Pod>(&self, values: &[T]) -> Result<Persistent<T, D>, Error> {
        self.state.steps.persistent_from(values, Alignment::DEFAULT)
    }

    /// Sets the mark where the persistent buffers end. The first scope sets it if this was not
    /// called.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MarkAlreadySet`](arena_core::ErrorKind::MarkAlreadySet) when it is set already.
    pub fn mark(&mut self) -> Result<(), Error> {
        self.state.steps.set_mark()
    }

    // --- scopes -------------------------------------------------------------------------------

    /// Runs `body` in a scope above the mark. When it ends, however it ends, the cursor is back at
    /// the mark.
    ///
    /// # Errors
    ///
    /// What `body` returns; or an error of opening (an earlier failure) or closing (a refused
    /// clearing).
    pub fn scope<'a, R, E: From<Error>>(
        &'a mut self,
        body: impl for<'s> FnOnce(&mut Scope<'s, 'a, D>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.scope_with(ScopeOptions::default(), body)
    }

    /// [`scope`](Self::scope) with a name, which errors show, and which says which steps repeat each
    /// other.
    ///
    /// # Errors
    ///
    /// As for [`scope`](Self::scope).
    pub fn scope_named<'a, R, E: From<Error>>(
        &'a mut self,
        name: &'static str,
        body: impl for<'s> FnOnce(&mut Scope<'s, 'a, D>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.scope_with(ScopeOptions::named(name), body)
    }

    /// [`scope`](Self::scope) with options.
    ///
    /// # Errors
    ///
    /// As for [`scope`](Self::scope).
    pub fn scope_with<'a, R, E: From<Error>>(
        &'a mut self,
        options: impl Into<ScopeOptions>,
        body: impl for<'s> FnOnce(&mut Scope<'s, 'a, D>) -> Result<R, E>,
    ) -> Result<R, E> {
        let options = options.into();
        self.state.prepare_root(options.key());
        run(&self.state, self.state.open_root(options)?, body)
    }

    /// Opens a scope in the guard form, where a closure does not fit.
    ///
    /// # Errors
    ///
    /// An error that an earlier close left behind.
    pub fn enter(&mut self) -> Result<Guard<'_, D>, Error> {
        self.enter_with(ScopeOptions::default())
    }

    /// [`enter`](Self::enter) with options.
    ///
    /// # Errors
    ///
    /// As for [`enter`](Self::enter).
    pub fn enter_with(&mut self, options: impl Into<ScopeOptions>) -> Result<Guard<'_, D>, Error> {
        let options = options.into();
        self.state.prepare_root(options.key());
        Ok(Guard::of(&self.state, self.state.open_root(options)?))
    }

    // --- figures ------------------------------------------------------------------------------

    /// Where the arena stands.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.state.steps.stats()
    }

    /// Scopes closed so far, of any depth.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.state.steps.generation()
    }

    /// Root scopes closed so far: resets to the mark.
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.state.steps.resets()
    }

    /// The signature of the last root scope that closed, if it was observed, recorded or planned, or if the
    /// device captures graphs. A plain bump step has none: it costs nothing there.
    #[must_use]
    pub fn signature(&self) -> Option<StepSignature> {
        self.state.steps.last_step().signature
    }

    /// The highest cursor of the last root scope that closed, in bytes from the base.
    #[must_use]
    pub fn high_water_bytes(&self) -> u64 {
        self.state.steps.last_step().high_water_bytes
    }

    /// The device that the region came from.
    #[must_use]
    pub fn device(&self) -> &D {
        self.state.steps.region().device()
    }

    /// The device address of the region's first byte.
    #[must_use]
    pub fn base_address(&self) -> u64 {
        self.state.steps.region().base_address()
    }

    /// What the arena stands on, for its own tests.
    #[doc(hidden)]
    #[must_use]
    pub fn steps(&self) -> &Steps<D> {
        &self.state.steps
    }

    /// Gives the physical memory between the last root scope's high-water and the kept part back to
    /// the device, while every address stays. Returns the bytes given back.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    pub fn trim(&mut self) -> Result<u64, Error> {
        self.state.settle_all();
        self.state.steps.trim(self.state.steps.last_step().high_water_bytes)
    }

    /// Returns the error that an earlier close left behind, if there is one, and else tries again what a close
    /// left undone. Every request and opening does so too; a loop that ends with a guard may want to ask.
    ///
    /// # Errors
    ///
    /// That error, once.
    pub fn check(&mut self) -> Result<(), Error> {
        self.state.settle_all();
        self.state.steps.ready()
    }

    // --- plans ----------------------------------------------------------------------------------

    /// Lets root scopes of this key follow a plan from now on, and those of the same name that have no plan
    /// of their own. Their transient buffers lie where the plan says, above the mark; whatever is not as
    /// planned is served by the bump, above the plan.
    ///
    /// It sets the mark if that is not set. A plan installed for the same key before is replaced.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`](arena_core::ErrorKind::Exhausted) when the plan does not fit above the
    /// mark; nothing is changed then.
    pub fn install_plan(&mut self, key: impl Into<StepKey>, table: SlotTable) -> Result<(), Error> {
        self.state.settle_all();
        self.state.install_plan(key.into(), table)
    }

    /// Lets `planner` make plans while the loop runs: it is told the first step of each kind, and another
    /// one when `patience` steps in a row deviated from their plan (at least 1) and the next does so too.
    /// What it has ready is installed when the next root scope opens. Steps are observed from now on, and
    /// those that it is told of are recorded.
    pub fn set_planner(&mut self, planner: Box<dyn Planner>, patience: u32) {
        if self.state.observer.get_mut().is_none() {
            self.observe(None);
        }
        self.state.set_planner(Planning { planner, patience: patience.max(1) });
    }

    /// What was not as planned since the plan for this key was installed; `None` without a plan.
    #[must_use]
    pub fn plan_deviations(&self, key: impl Into<StepKey>) -> Option<Deviations> {
        let plan = self.state.plans.borrow().exact(key.into())?;
        self.state.steps.plan_deviations(plan)
    }

    /// Where in the program requests were not as planned since the plan for this key was installed:
    /// the first 32 places, each with how often.
    #[must_use]
    pub fn plan_deviation_sites(&self, key: impl Into<StepKey>) -> Vec<DeviationSite> {
        let plan = self.state.plans.borrow().exact(key.into());
        plan.map_or_else(Vec::new, |plan| self.state.steps.plan_deviation_sites(plan))
    }

    /// Where the plan for this key lies in the region; `None` without a plan.
    #[must_use]
    pub fn plan_span(&self, key: impl Into<StepKey>) -> Option<Span> {
        let plan = self.state.plans.borrow().exact(key.into())?;
        self.state.steps.plan_span(plan)
    }

    /// The requests, drops and scopes of the first step of a kind, to be planned; `None` without
    /// [`record`](Self::record) or such a step.
    #[must_use]
    pub fn recorded(&self, key: impl Into<StepKey>) -> Option<EventLog> {
        self.state.observer.borrow().as_ref()?.recorded(key.into())
    }

    // --- the steady state ---------------------------------------------------------------------

    /// Watches root scopes from now on: the signature of each step is compared with that of the first of
    /// its kind, and driver allocations and kept bytes are counted. It costs a few nanoseconds a request,
    /// and may stay on; [`record`](Self::record) says more.
    ///
    /// `heap_allocations`, if given, returns the number of host heap allocations so far; only a
    /// program knows its global allocator.
    pub fn observe(&mut self, heap_allocations: Option<fn() -> u64>) {
        self.watch(Observer::new(heap_allocations, false));
    }

    /// [`observe`](Self::observe), and records each request, drop and scope as well: the first request that
    /// differs is named, and a step can be planned from its [record](Self::recorded). Each request takes a
    /// slower way meanwhile.
    pub fn record(&mut self, heap_allocations: Option<fn() -> u64>) {
        self.watch(Observer::new(heap_allocations, true));
    }

    fn watch(&mut self, observer: Observer) {
        self.state.settle_all();
        *self.state.observer.get_mut() = Some(observer);
        self.state.watch();
    }

    /// What was seen since [`observe`](Self::observe) or [`record`](Self::record); `None` without.
    #[must_use]
    pub fn observed(&self) -> Option<SteadyState> {
        self.state.observer.borrow().as_ref().map(Observer::report)
    }

    /// Stops watching and returns what was seen.
    pub fn stop_observing(&mut self) -> Option<SteadyState> {
        self.state.settle_all();
        self.state.observer.get_mut().take().map(|observer| observer.report())
    }

    /// Runs `step` so many times, records each, and measures whether the loop is in its steady state.
    ///
    /// # Errors
    ///
    /// What `step` returns.
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

impl Arena<Probe> {
    /// The smallest capacity in bytes that serves the requests made so far, in their order and with
    /// the padding of the kept part.
    #[must_use]
    pub fn smallest_capacity_bytes(&self) -> u64 {
        self.state.steps.smallest_capacity_bytes()
    }
}

impl<D: Device> fmt::Debug for Arena<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Arena").field(&self.state).finish()
    }
}
