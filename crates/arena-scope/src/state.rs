//! Everything that a scope is, kept in the arena: opening, closing, and what a forgotten guard
//! leaves behind.
//!
//! A scope is an entry of `frames`, and a [`Scope`](crate::Scope) is no more than its depth and a
//! reference to here. So a handle that is forgotten, leaked or swapped cannot take any state with
//! it. Opening or closing at a depth first settles whatever is deeper.

#![allow(unsafe_code)]

mod requests;

use std::cell::{Cell, RefCell};
use std::fmt;

use arena_core::{Checkpoint, Device, Error, ErrorKind, PlanId, RawArena, SlotTable, Span};

use crate::graph::CapturedKinds;
use crate::observer::{Moment, Observer};
use crate::plan_keys::PlanKeys;
use crate::planner::Planning;
use crate::reset::{Reset, ScopeOptions};
use crate::signature::{Running, StepSignature};
use crate::step_bump::StepBumps;

#[repr(C)] // What a request touches comes first, in one cache line: the signature, then the arena.
pub(crate) struct State<D: Device> {
    running: Running,
    pub(crate) raw: RawArena<D>,
    reset: Reset,
    frames: RefCell<Vec<Frame>>,
    bumps: StepBumps,
    /// Closes of any scope so far.
    generation: Cell<u64>,
    /// Closes of root scopes so far.
    resets: Cell<u64>,
    last_signature: Cell<Option<StepSignature>>,
    last_high_water_bytes: Cell<u64>,
    /// A range that a close was to clear and could not: tried again before the next scope opens.
    uncleared: Cell<Option<(Span, Reset)>>,
    pub(crate) observer: RefCell<Option<Observer>>,
    pub(crate) plans: RefCell<PlanKeys>,
    pub(crate) planning: RefCell<Option<Planning>>,
    /// What the open root scope was opened with.
    root: Cell<ScopeOptions>,
    /// The plan that it follows, or the next one will.
    root_plan: Option<PlanId>,
    /// The kinds of step that were captured, and the last signature of each.
    pub(crate) captured: CapturedKinds,
}

#[derive(Debug)]
struct Frame {
    start: Checkpoint,
    high_water_bytes: u64,
    name: &'static str,
    variant: u64,
    reset: Reset,
    /// On a profiler's timeline.
    range: Option<u64>,
}

impl Frame {
    fn end_range<D: Device>(&self, raw: &RawArena<D>) {
        if let Some(id) = self.range {
            raw.region().device().end_range(id);
        }
    }
}

impl<D: Device> State<D> {
    pub(crate) fn new(raw: RawArena<D>, reset: Reset, step_bump_bytes: usize) -> Self {
        Self {
            raw,
            reset,
            frames: RefCell::new(Vec::with_capacity(8)),
            running: Running::default(),
            bumps: StepBumps::new(step_bump_bytes),
            generation: Cell::new(0),
            resets: Cell::new(0),
            last_signature: Cell::new(None),
            last_high_water_bytes: Cell::new(0),
            uncleared: Cell::new(None),
            observer: RefCell::new(None),
            plans: RefCell::new(PlanKeys::default()),
            planning: RefCell::new(None),
            root: Cell::new(ScopeOptions::default()),
            root_plan: None,
            captured: CapturedKinds::default(),
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    pub(crate) fn resets(&self) -> u64 {
        self.resets.get()
    }

    pub(crate) fn last_signature(&self) -> Option<StepSignature> {
        self.last_signature.get()
    }

    pub(crate) fn last_high_water_bytes(&self) -> u64 {
        self.last_high_water_bytes.get()
    }

    /// Sets the mark, and begins to poison if that is the policy.
    pub(crate) fn set_mark(&self) -> Result<(), Error> {
        self.raw.set_mark()?;
        if self.reset == Reset::Poison {
            self.raw.poison_fresh_memory();
        }
        Ok(())
    }

    /// Opens a scope inside the one of depth `parent_depth` (0: a root scope) and returns its depth.
    /// On an error nothing is open that was not.
    ///
    /// The borrow of the parent proves that no buffer and no reference of a deeper scope is alive.
    pub(crate) fn open(&self, parent_depth: u32, options: ScopeOptions) -> Result<u32, Error> {
        self.settle(parent_depth);
        self.raw.take_deferred()?;
        self.clear_leftovers()?;
        if !self.raw.mark_is_set() {
            self.set_mark()?;
        }
        let depth = parent_depth + 1;
        let start = self.raw.checkpoint();
        if depth == 1 {
            // SAFETY: no scope is open, so every buffer's lifetime has ended.
            unsafe { self.raw.enter_root() }?;
        } else {
            self.raw.enter_inner();
        }
        // From here on the scope can be closed. What follows calls a heap counter and a device, and should
        // one of them panic, the scope is settled like one whose guard was forgotten.
        self.frames.borrow_mut().push(Frame {
            start,
            high_water_bytes: start.cursor_bytes(),
            name: options.name,
            variant: options.variant,
            reset: options.reset.unwrap_or(self.reset),
            range: None,
        });
        // SAFETY: everything deeper than the parent is settled, so whatever came from this depth's
        // bump carried the lifetime of a scope that has ended.
        unsafe { self.bumps.open(depth as usize) };
        if depth == 1 {
            self.begin_step(options);
        }
        let range = self.raw.region().device().begin_range(options.name);
        if let Some(frame) = self.frames.borrow_mut().last_mut() {
            frame.range = range;
        }
        Ok(depth)
    }

    fn begin_step(&self, options: ScopeOptions) {
        self.root.set(options);
        let plan_id = self.root_plan.and_then(|plan| self.raw.plan_table_id(plan));
        self.running.restart(plan_id.unwrap_or(0));
        if let Some(observer) = self.observer.borrow_mut().as_mut() {
            observer.open(&self.raw, options);
        }
    }

    /// Ends what a forgotten guard left open, and tells of earlier failures.
    pub(crate) fn ready(&self) -> Result<(), Error> {
        self.settle(0);
        self.raw.take_deferred()?;
        self.clear_leftovers()
    }

    /// Closes the scope of a depth, and what is deeper: lets the arena's stream wait for every other
    /// stream, clears as its policy says, releases what was an allocation of its own, then puts the
    /// cursor back to where it began. The cursor goes back even if one of these fails.
    ///
    /// The caller gives up the scope's lifetime, which proves that no buffer of it is alive.
    pub(crate) fn close(&self, depth: u32) -> Result<(), Error> {
        self.settle(depth);
        if self.frames.borrow().len() != depth as usize {
            return Ok(()); // The scope was settled with its parent already.
        }
        let Some(frame) = self.frames.borrow_mut().pop() else { return Ok(()) };
        let high_water_bytes = self.note_high_water(&frame);
        let used = Span { start_bytes: frame.start.cursor_bytes(), end_bytes: high_water_bytes };
        let joined = self.raw.join_declared(depth);
        let cleared = self.clear(used, frame.reset);
        if cleared.is_err() {
            self.uncleared.set(Some((used, frame.reset)));
        }
        let slots_cleared = self.clear_own_slots(frame.reset);
        if slots_cleared.is_err() {
            // No later scope gets these bytes: the root clears them with all others of its plan.
            self.raw.stop_plan();
            self.pass_on_reset(frame.reset);
        }
        let cleared = cleared.and(slots_cleared);
        // SAFETY: every buffer since the scope's start carried its lifetime, or that of a deeper
        // scope, and they have ended; the other streams were joined, or the arena is lost and knows it.
        let released = unsafe { self.raw.release_since(frame.start) };
        // SAFETY: as above.
        unsafe { self.raw.rewind(frame.start) };
        // SAFETY: as above.
        unsafe { self.raw.leave(depth == 1) };
        self.generation.set(self.generation.get() + 1);
        if depth == 1 {
            self.close_root(high_water_bytes, &frame);
        }
        frame.end_range(&self.raw);
        joined.and(cleared).and(released.map_err(|error| found_by(frame.name, error)))
    }

    fn close_root(&self, high_water_bytes: u64, frame: &Frame) {
        let signature = self.running.finish();
        self.captured.note(frame.name, frame.variant, signature);
        self.resets.set(self.resets.get() + 1);
        self.last_signature.set(Some(signature));
        self.last_high_water_bytes.set(high_water_bytes);
        if let Some(observer) = self.observer.borrow_mut().as_mut() {
            observer.close(&self.raw, Moment { signature, high_water_bytes });
        }
        self.tell_planner();
    }

    // --- plans ----------------------------------------------------------------------------------

    /// Installs a plan for a key, between root scopes.
    pub(crate) fn install_plan(
        &mut self,
        options: ScopeOptions,
        table: SlotTable,
    ) -> Result<(), Error> {
        if !self.raw.mark_is_set() {
            self.set_mark()?; // The plan would set it, but not begin to poison.
        }
        let known = self.plans.borrow().exact(options);
        match known {
            Some(plan) => {
                self.raw.replace_plan(plan, table)?;
                self.plans.borrow_mut().replaced(plan);
            }
            None => {
                let plan = self.raw.add_plan(table)?;
                self.plans.borrow_mut().insert(options, plan);
            }
        }
        self.captured.forget(options.name);
        if let Some(observer) = self.observer.borrow_mut().as_mut() {
            observer.expect_other_addresses(options.name);
        }
        Ok(())
    }

    /// Before a root scope opens: installs what the planner has ready, and selects the plan that the
    /// scope will follow.
    pub(crate) fn prepare_root(&mut self, options: ScopeOptions) {
        self.settle_all();
        self.install_ready();
        self.root_plan = self.plans.get_mut().find(options);
        self.raw.select_plan(self.root_plan);
    }

    /// A plan that does not fit (kept buffers may have grown) leaves its steps as they are.
    fn install_ready(&mut self) {
        while let Some(planning) = self.planning.get_mut()
            && let Some((options, table)) = planning.planner.ready()
        {
            let _ = self.install_plan(options, table);
        }
    }

    /// Tells the planner of a step that is worth a plan: the first of its kind if its name has none,
    /// or one that deviated like so many before it.
    fn tell_planner(&self) {
        let mut planning = self.planning.borrow_mut();
        let Some(Planning { planner, patience }) = planning.as_mut() else { return };
        let (options, plan) = (self.root.get(), self.root_plan);
        let deviated = plan.and_then(|plan| Some((plan, self.raw.plan_deviations(plan)?.steps)));
        let in_a_row =
            deviated.map_or(0, |(plan, steps)| self.plans.borrow_mut().note_step(plan, steps));
        let observer = self.observer.borrow();
        let Some((log, steps)) = observer.as_ref().and_then(|o| o.last(options)) else { return };
        let first = steps == 1 && plan.is_none();
        // At the patience, and again each time as many more have deviated.
        let again = in_a_row > 0 && in_a_row.is_multiple_of(*patience);
        if first || again {
            planner.recorded(options, log);
        }
    }

    /// Closes whatever a forgotten guard left open.
    pub(crate) fn settle_all(&mut self) {
        self.settle(0);
    }

    /// Ends what is deeper than `depth` and was not closed, because its guard was forgotten. Inside
    /// an open scope its bytes stay where they are until that scope closes, since newer buffers of
    /// that scope may lie above them.
    #[inline]
    fn settle(&self, depth: u32) {
        if self.frames.borrow().len() > depth as usize {
            self.settle_forgotten(depth);
        }
    }

    #[cold]
    #[inline(never)]
    fn settle_forgotten(&self, depth: u32) {
        while self.frames.borrow().len() > depth as usize {
            if depth == 0 {
                // A forgotten root: nothing is alive, so it closes like any other.
                if let Err(error) = self.close(1) {
                    self.raw.defer_error(error);
                }
                continue;
            }
            let Some(frame) = self.frames.borrow_mut().pop() else { return };
            self.note_high_water(&frame);
            self.pass_on_reset(frame.reset);
            self.raw.merge_inner();
            frame.end_range(&self.raw);
            self.generation.set(self.generation.get() + 1);
        }
    }

    /// The bytes of a scope that was not closed come back with its parent, and are cleared then.
    fn pass_on_reset(&self, reset: Reset) {
        if let Some(parent) = self.frames.borrow_mut().last_mut()
            && parent.reset == Reset::Keep
        {
            parent.reset = reset;
        }
    }

    /// The high-water of a frame that was just popped, told to its parent as well.
    fn note_high_water(&self, frame: &Frame) -> u64 {
        let high_water_bytes = frame.high_water_bytes.max(self.raw.checkpoint().cursor_bytes());
        if let Some(parent) = self.frames.borrow_mut().last_mut() {
            parent.high_water_bytes = parent.high_water_bytes.max(high_water_bytes);
        }
        high_water_bytes
    }

    fn clear(&self, span: Span, reset: Reset) -> Result<(), Error> {
        let Some(value) = reset.byte() else { return Ok(()) };
        // An inner scope's high-water may lie where a buffer was kept afterwards.
        let floor_bytes = self.floor_bytes();
        let span = Span { end_bytes: span.end_bytes.min(floor_bytes), ..span };
        // SAFETY: the span lies between a scope's start and its high-water, and no buffer of that
        // scope or a deeper one is alive; what is kept lies above the floor.
        unsafe { self.raw.fill(span, value) }
    }

    /// Clears what a plan gave out in an inner scope: it lies below the scope's start. The root's own
    /// lies between its start and its high-water.
    fn clear_own_slots(&self, reset: Reset) -> Result<(), Error> {
        match reset.byte() {
            // SAFETY: no buffer of the closing scope is alive.
            Some(value) if !self.frames.borrow().is_empty() => unsafe {
                self.raw.fill_own_slots(value)
            },
            _ => Ok(()),
        }
    }

    /// Clears what a close could not. Nothing below the cursor: an outer scope may live there now.
    fn clear_leftovers(&self) -> Result<(), Error> {
        let Some((span, reset)) = self.uncleared.get() else { return Ok(()) };
        let start_bytes = span.start_bytes.max(self.raw.checkpoint().cursor_bytes());
        if start_bytes < span.end_bytes.min(self.floor_bytes()) {
            self.clear(Span { start_bytes, ..span }, reset)?;
        }
        self.uncleared.set(None);
        Ok(())
    }

    /// Where the kept part begins, in bytes from the base.
    fn floor_bytes(&self) -> u64 {
        let stats = self.raw.stats();
        stats.capacity_bytes - stats.kept_bytes
    }

    pub(crate) fn bump(&self, depth: u32) -> &bumpalo::Bump {
        self.bumps.get(depth as usize)
    }
}

impl<D: Device> Drop for State<D> {
    /// Ends the ranges of what was forgotten for good.
    fn drop(&mut self) {
        for frame in self.frames.get_mut().iter().rev() {
            frame.end_range(&self.raw);
        }
    }
}

/// Names the scope whose close found a damaged guard zone.
fn found_by(scope: &'static str, mut error: Error) -> Error {
    if let ErrorKind::GuardZone(found) = error.kind_mut() {
        found.scope = scope;
    }
    error
}

impl<D: Device> fmt::Debug for State<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("raw", &self.raw)
            .field("depth", &self.frames.borrow().len())
            .field("resets", &self.resets.get())
            .finish_non_exhaustive()
    }
}

/// The way back out of a scope: the arena and the depth to close. Both scope forms end in it.
#[derive(Debug)]
pub(crate) struct WayBack<'a, D: Device> {
    pub(crate) state: &'a State<D>,
    pub(crate) depth: u32,
}

impl<D: Device> WayBack<'_, D> {
    pub(crate) fn close(self) -> Result<(), Error> {
        self.state.close(self.depth)
    }

    /// For a panic or a dropped guard: a failure waits for the next fallible call.
    pub(crate) fn close_quietly(self) {
        if let Err(error) = self.state.close(self.depth) {
            self.state.raw.defer_error(error);
        }
    }
}
