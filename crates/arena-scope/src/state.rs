//! What an arena knows beside its region: who watches its steps, which plans they follow, and host memory
//! for their own data. Root scopes open and close through here; the close itself is the core's.
//!
//! A [`Scope`](crate::Scope) is only a depth and a reference to this state. So a handle that is forgotten,
//! leaked or swapped cannot take any state with it.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::fmt;

use arena_core::for_scopes::{FrameId, PlanId, Steps, UsedOnSeveralThreads, Watch};
use arena_core::{Device, Error, SlotTable};

use crate::captured::CapturedKinds;
use crate::observer::Observer;
use crate::options::ScopeOptions;
use crate::plan_keys::PlanKeys;
use crate::planner::Planning;
use crate::step_bump::StepBumps;
use crate::step_key::StepKey;

#[repr(C)] // What a request touches comes first.
pub(crate) struct State<D: Device> {
    pub(crate) steps: Steps<D>,
    bumps: StepBumps,
    /// Whether a root scope has anybody to tell of it, or any plan to look for.
    watches: bool,
    pub(crate) observer: RefCell<Option<Observer>>,
    pub(crate) plans: RefCell<PlanKeys>,
    planning: RefCell<Option<Planning>>,
    /// The kind of the open root scope.
    root: Cell<StepKey>,
    /// The plan that it follows, or the next one will, and how many steps have deviated from that before.
    root_plan: Option<PlanId>,
    deviated_before: u64,
    /// The kinds of step that were captured, and the last signature of each.
    pub(crate) captured: CapturedKinds,
}

// SAFETY: nothing implements the trait, so this promises nothing.
unsafe impl<D: Device> Sync for State<D> where Self: UsedOnSeveralThreads {}

impl<D: Device> State<D> {
    pub(crate) fn new(steps: Steps<D>, step_bump_bytes: usize) -> Self {
        Self {
            steps,
            bumps: StepBumps::new(step_bump_bytes),
            watches: D::CAPTURES,
            observer: RefCell::new(None),
            plans: RefCell::default(),
            planning: RefCell::new(None),
            root: Cell::default(),
            root_plan: None,
            deviated_before: 0,
            captured: CapturedKinds::default(),
        }
    }

    // --- opening and closing ----------------------------------------------------------------------

    /// Before a root scope opens: closes whatever a forgotten guard left open, installs what the planner
    /// has ready, and selects the plan that the scope will follow.
    #[inline]
    pub(crate) fn prepare_root(&mut self, key: StepKey) {
        self.settle_all();
        if self.watches {
            self.prepare_watched(key);
        }
    }

    #[cold]
    #[inline(never)]
    fn prepare_watched(&mut self, key: StepKey) {
        self.install_ready();
        self.root_plan = self.plans.get_mut().find(key);
        self.deviated_before = self.root_plan.map_or(0, |plan| self.deviating_steps(plan));
        self.steps.select_plan(self.root_plan);
    }

    /// Closes whatever a forgotten guard left open.
    #[inline]
    pub(crate) fn settle_all(&mut self) {
        if self.steps.depth() > 0 {
            // SAFETY: `&mut self` proves that nothing borrows the arena, and every buffer of a scope does.
            self.tell_if_root(|state| unsafe { state.steps.settle(0) });
        }
    }

    /// Opens a root scope, for which [`prepare_root`](Self::prepare_root) was called. On an error nothing
    /// is open.
    #[inline]
    pub(crate) fn open_root(&self, options: ScopeOptions) -> Result<FrameId, Error> {
        if self.watches || options.needs_bytes > 0 {
            return self.open_root_slowly(options);
        }
        // SAFETY: the borrow of the arena proves that no root scope is open, but for one whose guard was
        // forgotten, and so every transient buffer's lifetime has ended. A session asks first; its buffers have no
        // lifetime, and are refused from now on.
        unsafe { self.steps.open_root(options.key().name, options.reset) }
    }

    #[cold]
    #[inline(never)]
    fn open_root_slowly(&self, options: ScopeOptions) -> Result<FrameId, Error> {
        if options.needs_bytes > 0 {
            self.steps.check_needs(1, options.key().name, options.needs_bytes)?;
        }
        let watch = self.begin_watch(options.key());
        // SAFETY: as in `open_root`.
        unsafe { self.steps.open_root_watched(options.key().name, options.reset, watch) }
    }

    /// Opens a scope inside the one of depth `parent_depth`. On an error nothing is open that was not.
    #[inline]
    pub(crate) fn open_inner(
        &self,
        parent_depth: u32,
        options: ScopeOptions,
    ) -> Result<FrameId, Error> {
        if options.needs_bytes > 0 {
            let name = options.key().name;
            self.steps.check_needs(parent_depth + 1, name, options.needs_bytes)?;
        }
        // SAFETY: the mutable borrow of the parent proves that no buffer of a deeper scope is alive; in a session the
        // parent is the innermost scope.
        unsafe { self.steps.open_inner(parent_depth, options.key().name, options.reset) }
    }

    /// Closes a scope. The caller gives up the scope's lifetime, which proves that no buffer of it is alive.
    #[inline]
    fn close(&self, frame: FrameId) -> Result<(), Error> {
        // SAFETY: every buffer since the frame opened carried its scope's lifetime, or that of a deeper
        // scope, and they have ended; one without a lifetime is refused from now on.
        let close = |state: &Self| unsafe { state.steps.close(frame) };
        if self.watches { self.tell_if_root(close) } else { close(self) }
    }

    /// Runs a close, and tells of the step if that was its root.
    #[cold]
    #[inline(never)]
    fn tell_if_root<R>(&self, close: impl FnOnce(&Self) -> R) -> R {
        let resets = self.steps.resets();
        let outcome = close(self);
        if self.watches && self.steps.resets() != resets {
            self.end_watch();
        }
        outcome
    }

    pub(crate) fn bump(&self, depth: u32) -> &bumpalo::Bump {
        // SAFETY: a scope of this depth asks, so its frame is open. What other frames of the depth got
        // carried the lifetimes of scopes that have ended.
        unsafe { self.bumps.get(depth as usize, self.steps.frame(depth)) }
    }

    // --- who watches ------------------------------------------------------------------------------

    /// Lets root scopes be told of, from now on.
    pub(crate) fn watch(&mut self) {
        self.watches = true;
    }

    #[cold]
    #[inline(never)]
    fn begin_watch(&self, key: StepKey) -> Watch {
        self.root.set(key);
        let record = self.planner_wants(key);
        let mut observer = self.observer.borrow_mut();
        match observer.as_mut() {
            Some(observer) => observer.open(key, record, &self.steps.stats()),
            None if D::CAPTURES => Watch::Figures,
            None => Watch::Nothing,
        }
    }

    #[cold]
    #[inline(never)]
    fn end_watch(&self) {
        let (step, log) = (self.steps.last_step(), self.steps.take_log());
        let recorded = log.is_some();
        if let Some(signature) = step.signature {
            self.captured.note(self.root.get(), signature);
        }
        if let Some(observer) = self.observer.borrow_mut().as_mut() {
            observer.close(step, log, &self.steps.stats());
        }
        self.tell_planner(recorded);
    }

    // --- plans ------------------------------------------------------------------------------------

    /// Installs a plan for a key, between root scopes.
    pub(crate) fn install_plan(&mut self, key: StepKey, table: SlotTable) -> Result<(), Error> {
        let plan = match self.plans.get_mut().own(key) {
            Some(plan) => self.steps.replace_plan(plan, table).map(|()| plan)?,
            None => self.steps.add_plan(table)?,
        };
        self.plans.get_mut().insert(key, plan, false);
        self.captured.forget(key);
        if let Some(observer) = self.observer.get_mut() {
            observer.expect_other_addresses(key);
        }
        self.watches = true;
        Ok(())
    }

    fn deviating_steps(&self, plan: PlanId) -> u64 {
        self.steps.plan_deviations(plan).map_or(0, |deviations| deviations.steps)
    }

    /// Lets steps of `key` follow the plan of steps of `with`. Whether there is one.
    pub(crate) fn share_plan(&mut self, key: StepKey, with: StepKey) -> bool {
        let Some(plan) = self.plans.get_mut().find(with) else { return false };
        self.plans.get_mut().insert(key, plan, true);
        self.captured.forget(key);
        if let Some(observer) = self.observer.get_mut() {
            observer.expect_other_addresses(key);
        }
        true
    }

    pub(crate) fn set_planner(&mut self, planning: Planning) {
        *self.planning.get_mut() = Some(planning);
        self.watches = true;
    }

    /// A plan that does not fit (kept buffers may have grown) leaves its steps as they are.
    fn install_ready(&mut self) {
        while let Some(planning) = self.planning.get_mut()
            && let Some((key, table)) = planning.planner.ready()
        {
            let _ = self.install_plan(key, table);
        }
    }

    /// Whether the next step of this kind is to be recorded for the planner: it has no plan, and no step of it was
    /// taken by the planner; or steps before it deviated as often in a row as the planner's patience lasts.
    fn planner_wants(&self, key: StepKey) -> bool {
        let planning = self.planning.borrow();
        let Some(Planning { patience, taken, .. }) = &*planning else { return false };
        match self.root_plan {
            None => taken.get(key).is_none(),
            Some(_) => self.plans.borrow().wants_another(key, *patience),
        }
    }

    /// Tells the planner of a recorded step that is worth a plan.
    fn tell_planner(&self, recorded: bool) {
        let mut planning = self.planning.borrow_mut();
        let Some(Planning { planner, taken, .. }) = planning.as_mut() else { return };
        let mut worth = true;
        if let Some(plan) = self.root_plan {
            let mut plans = self.plans.borrow_mut();
            plans.note_step(self.root.get(), self.deviating_steps(plan) > self.deviated_before);
            worth = plans.deviated_in_a_row(self.root.get()) > 0;
        }
        if let (true, Some(observer)) = (recorded && worth, &*self.observer.borrow())
            && planner.recorded(self.root.get(), observer.last())
        {
            taken.get_or_insert_with(self.root.get(), || ());
        }
    }
}

impl<D: Device> fmt::Debug for State<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.fmt(f)
    }
}

/// The way back out of a scope: the arena and the frame to close. Both scope forms end in it.
#[derive(Debug)]
pub(crate) struct WayBack<'a, D: Device> {
    pub(crate) state: &'a State<D>,
    pub(crate) frame: FrameId,
}

impl<D: Device> WayBack<'_, D> {
    pub(crate) fn close(self) -> Result<(), Error> {
        self.state.close(self.frame)
    }

    /// For a panic, an error or a dropped guard: a failure waits for the next fallible call.
    pub(crate) fn close_quietly(self) {
        self.state.steps.quietly(self.frame, || self.state.close(self.frame));
    }
}
