//! The arena's plans: installing them, and what was not as planned.

use arena_core::{DeviationSite, Deviations, Device, Error, SlotTable, Span, StepLog};

use super::Arena;
use crate::options::ScopeOptions;
use crate::planner::{Planner, Planning};
use crate::step_key::StepKey;

impl<D: Device> Arena<D> {
    /// Root scopes of this key follow the plan from now on. Their transient buffers lie where the plan says, above
    /// the mark. The bump serves every request that is not as planned, above the plan; or from there on
    /// where the plan [yields](SlotTable::yielding). Other root scopes are bumped from the mark on, of the same name too:
    /// see [`share_plan`](Self::share_plan).
    ///
    /// This sets the mark if it is not set. It replaces an earlier plan for the same key. The arena keeps the plan for
    /// its whole life, also beyond its [budget](crate::ArenaBuilder::step_memory).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`](arena_core::ErrorKind::Exhausted) when the plan does not fit above the
    /// mark; nothing is changed then.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// # use arena_scope::Alignment;
    /// use arena_scope::plan::{PlannedSlot, SlotTable};
    ///
    /// let slot = PlannedSlot { offset_bytes: 0, bytes: 256, alignment: Alignment::DEFAULT };
    /// let table = SlotTable::new(&[slot, slot])?; // the second buffer gets the bytes of the first
    /// arena.install_plan("train", table)?;
    /// let peak_bytes = arena.scope_named("train", |step| {
    ///     drop(step.alloc::<u8>(256)?);
    ///     drop(step.alloc::<u8>(256)?);
    ///     arena_scope::Ok(step.stats().used_bytes)
    /// })?;
    /// assert_eq!(peak_bytes, 256);
    /// # arena_scope::Ok(())
    /// ```
    pub fn install_plan(&mut self, key: impl Into<StepKey>, table: SlotTable) -> Result<(), Error> {
        self.state.settle_all();
        self.state.install_plan(key.into(), table, true)
    }

    /// Root scopes of `key` follow the plan of `with` too, whose slots must serve them: the short last batch of an
    /// epoch asks for less than the whole ones, in the same order. [`SlotTable::serves`] tells whether they do.
    /// Returns whether `with` has a plan; if not, nothing is changed.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// # use arena_scope::Alignment;
    /// use arena_scope::StepKey;
    /// use arena_scope::plan::{PlannedSlot, SlotTable};
    ///
    /// let whole = StepKey::named("train").variant(32); // images
    /// let slot = PlannedSlot { offset_bytes: 0, bytes: 256, alignment: Alignment::DEFAULT };
    /// arena.install_plan(whole, SlotTable::new(&[slot; 2])?)?;
    /// assert!(arena.share_plan(whole.variant(7), whole));
    /// let used_bytes = arena.scope_with(whole.variant(7), |step| {
    ///     drop(step.alloc::<u8>(56)?);
    ///     drop(step.alloc::<u8>(56)?); // in the same place
    ///     arena_scope::Ok(step.stats().used_bytes)
    /// })?;
    /// assert_eq!(used_bytes, 256);
    /// # arena_scope::Ok(())
    /// ```
    pub fn share_plan(&mut self, key: impl Into<StepKey>, with: impl Into<StepKey>) -> bool {
        self.state.settle_all();
        self.state.share_plan(key.into(), with.into())
    }

    /// Options for a root scope of this key, which refuse a step for which there is no room before it begins. Its need
    /// is what the arena knows of the key: the bytes of its plan, or else what the first observed step of it took. Of a
    /// key that the arena does not know nothing is asked.
    ///
    /// No scope asks for this by itself: a step that happens to be shorter would be refused although it fits. A
    /// step that follows a plan does not need it either, for the plan's bytes are taken when its scope opens.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.observe(None);
    /// arena.scope_named("train", |step| step.alloc::<u8>(3000).map(drop))?;
    /// let _kept = arena.persistent::<u8>(2000)?; // it lies where the step was
    /// let refused = arena.scope_with(arena.options("train"), |_| -> Result<(), arena_scope::Error> {
    ///     unreachable!("the step does not begin")
    /// });
    /// assert!(refused.is_err_and(|error| error.is_exhausted()));
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn options(&self, key: impl Into<StepKey>) -> ScopeOptions {
        let key = key.into();
        let planned = self.plan_span(key).map(|span| span.end_bytes);
        let seen = || self.state.kinds.borrow().get(key)?.watched.high_water_bytes();
        let mark_bytes = self.state.steps.stats().mark_bytes;
        let end_bytes = planned.or_else(seen).unwrap_or(mark_bytes);
        ScopeOptions::from(key).needs(end_bytes.saturating_sub(mark_bytes))
    }

    /// Lets `planner` make plans while the loop runs. It is asked for the plan of each kind of step. If it has none,
    /// it gets the record of a step. It gets another record when `patience` consecutive steps (at least 1) deviated
    /// from their plan and the next one deviates too. A plan that is ready is installed when the next root scope opens.
    /// Steps are observed from now on.
    pub fn set_planner(&mut self, planner: Box<dyn Planner>, patience: u32) {
        if self.state.observer.get_mut().is_none() {
            self.observe(None);
        }
        self.state.set_planner(Planning { planner, patience: patience.max(1) });
    }

    /// How often steps deviated since the plan for this key was installed; `None` without a plan.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// # use arena_scope::Alignment;
    /// use arena_scope::plan::{PlannedSlot, SlotTable};
    ///
    /// let slot = PlannedSlot { offset_bytes: 0, bytes: 256, alignment: Alignment::DEFAULT };
    /// arena.install_plan("train", SlotTable::new(&[slot])?)?;
    /// arena.scope_named("train", |step| step.alloc::<u8>(300).map(drop))?;
    /// let deviations = arena.plan_deviations("train").expect("there is a plan");
    /// assert_eq!((deviations.larger, deviations.missing), (1, 1)); // no request took the slot
    /// assert_eq!(arena.plan_deviations("evaluation"), None);
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn plan_deviations(&self, key: impl Into<StepKey>) -> Option<Deviations> {
        let plan = self.state.plan_of(key.into())?;
        self.state.steps.plan_deviations(plan)
    }

    /// The calls in the program whose requests were not as planned since the plan for this key was installed,
    /// each with a count. At most the first 32 calls are kept.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// # use arena_scope::Alignment;
    /// use arena_scope::plan::{PlannedSlot, SlotTable};
    ///
    /// let slot = PlannedSlot { offset_bytes: 0, bytes: 256, alignment: Alignment::DEFAULT };
    /// arena.install_plan("train", SlotTable::new(&[slot])?)?;
    /// for _ in 0..2 {
    ///     arena.scope_named("train", |step| step.alloc::<u8>(300).map(drop))?;
    /// }
    /// let sites = arena.plan_deviation_sites("train");
    /// assert_eq!((sites.len(), sites[0].count), (1, 2)); // one call, twice
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn plan_deviation_sites(&self, key: impl Into<StepKey>) -> Vec<DeviationSite> {
        let plan = self.state.plan_of(key.into());
        plan.map_or_else(Vec::new, |plan| self.state.steps.plan_deviation_sites(plan))
    }

    /// Where the plan for this key lies in the region; `None` without a plan.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// # use arena_scope::Alignment;
    /// use arena_scope::plan::{PlannedSlot, SlotTable};
    ///
    /// let weights = arena.persistent::<u8>(256)?;
    /// let slot = PlannedSlot { offset_bytes: 0, bytes: 100, alignment: Alignment::DEFAULT };
    /// arena.install_plan("train", SlotTable::new(&[slot])?)?;
    /// let span = arena.plan_span("train").expect("there is a plan");
    /// assert_eq!((span.start_bytes, span.end_bytes), (256, 356)); // above the mark
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn plan_span(&self, key: impl Into<StepKey>) -> Option<Span> {
        let plan = self.state.plan_of(key.into())?;
        self.state.steps.plan_span(plan)
    }

    /// The requests, drops and scopes of the first step of a kind, from which a plan can be made. `None` if
    /// [`record`](Self::record) was not called, or no such step has closed since.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.record(None);
    /// arena.scope_named("train", |step| step.alloc::<f32>(8).map(drop))?;
    /// let log = arena.recorded("train").expect("the step was recorded");
    /// assert_eq!(log.events().len(), 4); // the scope opens, a request, its drop, the scope closes
    /// assert!(arena.recorded("evaluation").is_none());
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn recorded(&self, key: impl Into<StepKey>) -> Option<StepLog> {
        let (observer, kinds) = (self.state.observer.borrow(), self.state.kinds.borrow());
        observer.as_ref()?.recorded(&kinds.get(key.into())?.watched)
    }

    /// The same of the root scope that closed last, whatever its kind. `None` if it was not recorded.
    #[must_use]
    pub fn last_recorded(&self) -> Option<StepLog> {
        let observer = self.state.observer.borrow();
        let last = observer.as_ref().filter(|observer| observer.records())?.last();
        (!last.is_empty()).then(|| last.clone())
    }
}
