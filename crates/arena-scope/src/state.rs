//! What an arena knows beside its region: who watches its steps, which plans they follow, and host memory
//! for their own data. Root scopes open and close through here; the close itself is the core's.
//!
//! A [`Scope`](crate::Scope) is only a depth and a reference to this state. So a handle that is forgotten,
//! leaked or swapped cannot take any state with it.

#![allow(unsafe_code)]

mod plans;

use std::cell::{Cell, RefCell};
use std::fmt;

use arena_core::for_scopes::{FrameId, PlanId, Steps, UsedOnSeveralThreads, Watch};
use arena_core::{Device, Error};

use crate::kinds::Kinds;
use crate::observer::Observer;
use crate::options::ScopeOptions;
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
    pub(crate) kinds: RefCell<Kinds>,
    planning: RefCell<Option<Planning>>,
    /// The kind of the open root scope.
    root: Cell<StepKey>,
    /// The plan that it follows, or the next one will, and how many steps have deviated from that before.
    root_plan: Option<PlanId>,
    deviated_before: u64,
}

// SAFETY: nothing implements the trait, so this promises nothing.
unsafe impl<D: Device> Sync for State<D> where Self: UsedOnSeveralThreads {}

impl<D: Device> State<D> {
    pub(crate) fn new(steps: Steps<D>, step_bump_bytes: usize, step_memory_bytes: u64) -> Self {
        Self {
            steps,
            bumps: StepBumps::new(step_bump_bytes),
            watches: D::CAPTURES,
            observer: RefCell::new(None),
            kinds: RefCell::new(Kinds::new(step_memory_bytes)),
            planning: RefCell::new(None),
            root: Cell::default(),
            root_plan: None,
            deviated_before: 0,
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
        let kind = self.kinds.get_mut().open(key);
        let installed = match kind.plan {
            None if !kind.was_asked => self.ask_planner(key),
            installed => installed,
        };
        self.select_plan(key, installed);
        if self.kinds.get_mut().is_too_large() {
            self.make_room();
        }
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
        // forgotten, and so every transient buffer's lifetime has ended.
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
        let frame =
            unsafe { self.steps.open_root_watched(options.key().name, options.reset, watch) }?;
        if let Some(observer) = self.observer.borrow().as_ref().filter(|it| it.records()) {
            let kinds = self.kinds.borrow();
            let number = kinds.get(options.key()).and_then(|kind| observer.number(&kind.watched));
            self.steps.set_kind(number);
        }
        Ok(frame)
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
        // SAFETY: the mutable borrow of the parent proves that no buffer of a deeper scope is alive.
        unsafe { self.steps.open_inner(parent_depth, options.key().name, options.reset) }
    }

    /// Closes a scope. The caller gives up the scope's lifetime, which proves that no buffer of it is alive.
    #[inline]
    fn close(&self, frame: FrameId) -> Result<(), Error> {
        // SAFETY: every buffer since the frame opened carried its scope's lifetime, or that of a deeper
        // scope, and they have ended.
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

    /// Observes root scopes anew from now on.
    pub(crate) fn set_observer(&mut self, observer: Option<Observer>) {
        self.watches |= observer.is_some();
        *self.observer.get_mut() = observer;
        self.kinds.get_mut().stop_watching();
    }

    #[cold]
    #[inline(never)]
    fn begin_watch(&self, key: StepKey) -> Watch {
        self.root.set(key);
        let record = self.planner_wants(key);
        let mut observer = self.observer.borrow_mut();
        match observer.as_mut() {
            Some(observer) => observer.open(record, &self.steps.stats()),
            None if D::CAPTURES => Watch::Figures,
            None => Watch::Nothing,
        }
    }

    #[cold]
    #[inline(never)]
    fn end_watch(&self) {
        let (step, log) = (self.steps.last_step(), self.steps.take_log());
        self.steps.set_kind(None);
        let (recorded, key) = (log.is_some(), self.root.get());
        let (mut observer, mut kinds) = (self.observer.borrow_mut(), self.kinds.borrow_mut());
        kinds.change(key, |kind| {
            if let Some(signature) = step.signature {
                kind.captured.note(signature);
            }
            if let Some(observer) = observer.as_mut() {
                observer.close(&mut kind.watched, step, log, &self.steps.stats());
            }
        });
        if let Some(planning) = self.planning.borrow_mut().as_mut()
            && let Some(kind) = kinds.get_mut(key)
        {
            self.tell_planner(planning, kind, observer.as_ref().filter(|_| recorded));
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
