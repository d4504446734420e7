//! What sends requests the slow way: a log, and an error that waits to be told.

use std::hint::cold_path;

use super::RawArena;
use crate::buffer::{NO_SLOT, slot_of};
use crate::device::Device;
use crate::error::Error;
use crate::event_log::{Event, EventLog};

impl<D: Device> RawArena<D> {
    /// Logs every request and drop from now on, into `log`.
    pub fn start_log(&self, log: EventLog) {
        *self.log.borrow_mut() = Some(log);
        self.choose_path();
    }

    /// Stops logging and returns the log.
    pub fn stop_log(&self) -> Option<EventLog> {
        let log = self.log.borrow_mut().take();
        self.choose_path();
        log
    }

    #[inline]
    pub(super) fn log_event(&self, event: Event) {
        if let Some(log) = self.log.borrow_mut().as_mut() {
            log.push(event);
        }
    }

    /// What a dropped handle costs: one branch that is never taken unless somebody logs or plans.
    #[inline]
    pub(crate) fn note_drop(&self, address: u64, len_and_slot: u64) {
        if self.minds_drops.get() {
            cold_path();
            self.note_drop_slowly(address, len_and_slot);
        }
    }

    #[inline(never)]
    fn note_drop_slowly(&self, address: u64, len_and_slot: u64) {
        let repeats = !self.region.fences().is_busy()
            && self.plans.current().drop_as_before(slot_of(len_and_slot));
        if !repeats {
            self.note_drop_watched(address, len_and_slot);
        }
    }

    #[inline(never)]
    fn note_drop_watched(&self, address: u64, len_and_slot: u64) {
        if len_and_slot == 0 {
            return; // An empty buffer has no byte; its offset may be another's.
        }
        let slot = slot_of(len_and_slot);
        // While another stream may use the scope's buffers, a dropped one lives until its scope's close
        // has joined that stream.
        if slot != NO_SLOT
            && let Some(planned) = self.plans.followed()
            && !self.region.fences().any_in_scopes()
            && !planned.drop_as_before(slot)
        {
            planned.drop_slot(slot);
        }
        self.log_event(Event::Drop { offset_bytes: self.offset_of_buffer(address) });
    }

    /// Keeps an error that nobody could be told of, for the next fallible call. A second one is
    /// dropped: the first is the cause.
    pub fn defer_error(&self, error: Error) {
        self.deferred.borrow_mut().get_or_insert(error);
        self.choose_path();
    }

    /// The error that was kept, if there is one; it is told once, unless it is the end of the device or
    /// of the arena.
    ///
    /// # Errors
    ///
    /// That error.
    pub fn take_deferred(&self) -> Result<(), Error> {
        self.region.device().health()?;
        self.region.fences().check()?;
        let deferred = self.deferred.borrow_mut().take();
        match deferred {
            Some(error) => {
                self.choose_path();
                Err(error)
            }
            None => Ok(()),
        }
    }

    pub(super) fn choose_path(&self) {
        let (logs, plan) = (self.log.borrow().is_some(), self.plans.followed());
        let waits = self.deferred.borrow().is_some() || self.region.fences().is_lost();
        let is_watched = logs || waits || self.separate.is_some();
        self.is_watched.set(is_watched);
        self.minds_drops.set(logs || plan.is_some());
        if let (Some(planned), true) = (plan, is_watched) {
            planned.leave_script();
        }
        let is_barred = is_watched || plan.is_some() || self.poisoned_to.get().is_some();
        self.zones.set_fast_path(!is_barred);
    }
}
