//! Opening a scope: a frame at the cursor, and for a root scope the way in which its requests are served.

use super::{FrameId, Mode, Steps};
use crate::bytes::Alignment;
use crate::device::Device;
use crate::error::Error;
use crate::reset::Reset;
use crate::step_log::{StepEvent, StepLog};

/// What is noted of a step beside serving it.
#[derive(Debug)]
pub enum Watch {
    /// Nothing.
    Nothing,
    /// Its signature, how many requests it makes, and the largest.
    Figures,
    /// Each request, drop and scope as well, in this log.
    Record(StepLog),
}

impl<D: Device> Steps<D> {
    /// Opens a root scope that nobody watches. What a forgotten guard left open is closed first, and the mark
    /// is set if it is not. If a plan is selected, the step follows it, and the cursor goes above the plan's
    /// bytes.
    ///
    /// # Errors
    ///
    /// An error that a close left behind; [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted) when what
    /// is kept has grown into the plan's bytes; or the device's refusal to poison fresh memory. Nothing is
    /// open then.
    ///
    /// # Safety
    ///
    /// No transient buffer is used again.
    #[inline]
    pub unsafe fn open_root(
        &self,
        label: &'static str,
        reset: Option<Reset>,
    ) -> Result<FrameId, Error> {
        if !self.opens_plainly() {
            // SAFETY: the caller's promise.
            return unsafe { self.open_root_watched(label, reset, Watch::Nothing) };
        }
        self.region.device().health()?;
        let id = self.push_frame(self.zones.cursor_bytes(), label, reset);
        self.begin_range(label);
        Ok(id)
    }

    /// Whether a root scope is just a frame: nothing is open, owed or to be told, and no plan is selected.
    #[inline]
    fn opens_plainly(&self) -> bool {
        self.mode.get() == Mode::Bump
            && self.depth() == 0
            && self.mark_is_set()
            && self.plans.selected().is_none()
            && !self.region.fences().is_busy()
    }

    /// [`open_root`](Self::open_root), and something is noted of the step.
    ///
    /// # Errors
    ///
    /// As for [`open_root`](Self::open_root).
    ///
    /// # Safety
    ///
    /// As for [`open_root`](Self::open_root).
    #[cold]
    #[inline(never)]
    pub unsafe fn open_root_watched(
        &self,
        label: &'static str,
        reset: Option<Reset>,
        watch: Watch,
    ) -> Result<FrameId, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.settle(0) };
        self.ready()?;
        if !self.mark_is_set() {
            self.set_mark()?;
        }
        let start_bytes = self.zones.cursor_bytes();
        let planned = self.separate.is_none() && self.take_room_for_plan()?;
        let id = self.push_frame(start_bytes, label, reset);
        if planned || self.mode.get() != Mode::Bump || !matches!(watch, Watch::Nothing) {
            self.begin_step(label, planned, start_bytes, watch);
        }
        self.begin_range(label);
        Ok(id)
    }

    /// Opens a scope inside the one of depth `parent_depth`. What a forgotten guard left open inside that
    /// is ended first.
    ///
    /// # Errors
    ///
    /// An error that a close left behind. Nothing is open then.
    ///
    /// # Safety
    ///
    /// No transient buffer of a scope inside the parent is used again.
    #[inline]
    pub unsafe fn open_inner(
        &self,
        parent_depth: u32,
        label: &'static str,
        reset: Option<Reset>,
    ) -> Result<FrameId, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.settle(parent_depth) };
        self.ready()?;
        let id = self.push_frame(self.zones.cursor_bytes(), label, reset);
        if self.mode.get() > Mode::Observed {
            self.enter_inner(label);
        }
        self.begin_range(label);
        Ok(id)
    }

    /// Refuses a scope that is about to open, if the bytes that it needs do not fit below what is kept. They
    /// are counted from the cursor on; in a step that follows a plan from the plan's start on, whose bytes
    /// were taken when the root scope opened. `depth` will be the scope's: 1 is a root scope, before which
    /// nothing is open.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted); the device's refusal to commit memory for it; or an
    /// error that a close left behind.
    #[cold]
    #[inline(never)]
    pub fn check_needs(
        &self,
        depth: u32,
        label: &'static str,
        needs_bytes: u64,
    ) -> Result<(), Error> {
        self.ready()?; // Paying what is owed may free kept bytes.
        let plan_start = |planned| self.span_of(planned).start_bytes;
        let start_bytes = self.plans.followed().map_or(self.zones.cursor_bytes(), plan_start);
        let room_bytes = self.zones.floor_bytes() - start_bytes;
        if needs_bytes <= room_bytes {
            self.grow_to(start_bytes + needs_bytes)?;
            if let Some(demand) = &self.demand {
                // It is asked for under a plan as well.
                demand.borrow_mut().note_cursor_of(None, start_bytes + needs_bytes);
            }
            return Ok(());
        }
        let mut exhausted = self.zones.exhausted(needs_bytes, Alignment::ONE);
        exhausted.missing_bytes = needs_bytes - room_bytes;
        let counts = depth > 1 && self.signs.get();
        exhausted.scope = Some(self.scope_facts(label, depth, counts));
        Err(self.off_plan(exhausted.into(), needs_bytes, Alignment::ONE))
    }

    #[inline]
    fn push_frame(&self, start_bytes: u64, label: &'static str, reset: Option<Reset>) -> FrameId {
        self.frames.push(start_bytes, label, reset.unwrap_or(self.reset))
    }

    /// Should the device panic, the scope is open, and is settled like one whose guard was forgotten.
    #[inline]
    fn begin_range(&self, label: &'static str) {
        if let Some(id) = self.region.device().begin_range(label) {
            self.frames.set_range(id);
        }
    }

    /// Whether the step can follow the selected plan: not without one, after the plan has been outgrown, or when
    /// what is kept has grown into its bytes.
    fn take_room_for_plan(&self) -> Result<bool, Error> {
        let Some(planned) = self.plans.selected() else { return Ok(false) };
        let span = self.span_of(planned);
        // Without memory for all of the plan the bump may still have enough.
        if planned.is_outgrown()
            || span.end_bytes > self.zones.floor_bytes()
            || self.grow_to(span.end_bytes).is_err()
        {
            planned.pass_over_step();
            return Ok(false);
        }
        self.poison_fresh(span)?;
        self.zones.raise(span.end_bytes);
        Ok(true)
    }

    #[cold]
    fn begin_step(&self, label: &'static str, planned: bool, start_bytes: u64, watch: Watch) {
        if let Some(separate) = &self.separate {
            separate.restart_count();
        }
        let plan_id = if planned { self.plans.current().table().id() } else { 0 };
        self.running.restart(plan_id);
        self.signs.set(planned || !matches!(watch, Watch::Nothing));
        if let Watch::Record(mut log) = watch {
            self.region.uses().begin(log.begin());
            *self.log.borrow_mut() = Some(log);
            self.log_event(StepEvent::Open { name: label });
        }
        if planned {
            self.plans.begin(self.zones.base_address() + start_bytes);
            if self.plans.current().can_repeat() {
                self.mode.set(Mode::Repeating);
            }
        }
        self.choose_mode();
    }

    /// A scope opens inside a step that is planned or recorded.
    #[cold]
    fn enter_inner(&self, label: &'static str) {
        self.note_detached_drops(None);
        if let Some(planned) = self.plans.followed() {
            let repeats = self.mode.get() == Mode::Repeating;
            if !(repeats && planned.open_as_before()) {
                self.count_from_here();
                planned.open();
            }
        }
        self.log_event(StepEvent::Open { name: label });
    }

    /// Names what is asked for from here on, in the record of the step, if there is one.
    #[cold]
    pub fn tag(&self, name: &'static str) {
        if self.log.borrow().is_some() {
            self.note_detached_drops(None);
            self.log_event(StepEvent::Tag { name });
        }
    }

    pub(super) fn log_event(&self, event: StepEvent) {
        if let Some(log) = self.log.borrow_mut().as_mut() {
            log.push(event);
            self.region.uses().set_events(log.events().len());
        }
    }

    /// The log of the last recorded step, once.
    pub fn take_log(&self) -> Option<StepLog> {
        self.log.borrow_mut().take()
    }
}
