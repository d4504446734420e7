//! Steps that follow a plan.
//!
//! A step that repeats an earlier one is compared with it ([`Script`]). The moment it does something
//! else, what it has in common with that step is counted ([`Counters`]), and the rest is counted as it
//! comes.
//!
//! All changes go through shared references, for requests and drops come from everywhere at once.
//! Nothing in here calls anybody back, and nobody but the arena's own thread comes here.

use std::panic::Location;

use super::counters::Counters;
use super::deviations::Deviations;
use super::script::{Event, Kind, Script};
use super::sites::DeviationSite;
use super::slots::SlotTable;
use crate::bytes::Alignment;

/// A plan while steps follow it.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    script: Script,
    counters: Counters,
}

impl Replay {
    pub(crate) fn new(table: SlotTable) -> Self {
        Self { script: Script::new(table.len()), counters: Counters::new(table) }
    }

    pub(crate) fn table(&self) -> &SlotTable {
        self.counters.table()
    }

    pub(crate) fn deviations(&self) -> Deviations {
        self.counters.deviations()
    }

    pub(crate) fn sites(&self) -> Vec<DeviationSite> {
        self.counters.sites()
    }

    pub(crate) fn last_site(&self) -> Option<DeviationSite> {
        self.counters.last_site()
    }

    /// Between two steps: what was recorded may now be compared with. Without this all is counted.
    pub(crate) fn prepare(&mut self) {
        self.script.prepare(&mut self.counters.table_mut().slots);
    }

    /// Whether the step has repeated the script to its end.
    #[cfg(test)]
    pub(crate) fn repeats(&self) -> bool {
        self.is_whole()
    }

    /// Whether the step is all that the script is.
    fn is_whole(&self) -> bool {
        self.script.is_done() && self.counters.requests() == self.table().len()
    }

    /// Opens the root scope: a step begins.
    pub(crate) fn open_root(&self) {
        self.script.begin();
        self.counters.open_root();
    }

    /// Opens a scope inside.
    pub(crate) fn open(&self) {
        let event = Event::open(self.counters.requests());
        if !self.script.follow(event) {
            self.leave_script();
            self.script.record(event);
        }
        self.counters.open();
    }

    /// Closes the innermost scope, which is not the root.
    pub(crate) fn close(&self) {
        let event = Event::close(self.counters.requests());
        if self.script.follow(event) {
            return self.counters.leave();
        }
        self.leave_script();
        self.script.record(event);
        self.counters.close();
    }

    /// Closes the root: the step ends.
    pub(crate) fn close_root(&self) {
        if self.is_whole() {
            self.script.end_done();
            return self.counters.leave();
        }
        self.leave_script();
        self.counters.close();
        self.script.end_left(self.counters.is_as_planned());
    }

    /// Ends the innermost scope without freeing anything: its guard was forgotten, and buffers of the
    /// scope around it may have been given out since. They are freed with that.
    pub(crate) fn merge(&self) {
        self.leave_script();
        self.counters.merge();
    }

    /// The slot and the address for a request that repeats the script, in a plan that starts at
    /// `start_address`.
    #[inline]
    pub(crate) fn alloc_as_before(
        &self,
        bytes: u64,
        alignment: Alignment,
        start_address: u64,
    ) -> Option<(u32, u64)> {
        let slot = self.counters.next_slot()?;
        let address = start_address + slot.offset_bytes;
        if slot.bytes == bytes && self.script.goes_on_with(slot) && alignment.divides(address) {
            return Some((self.counters.advance(), address));
        }
        None
    }

    /// The slot and the offset for a request that is just as planned.
    pub(crate) fn alloc_counted(&self, bytes: u64, alignment: Alignment) -> Option<(u32, u64)> {
        self.leave_script();
        let (slot, offset_bytes) = self.counters.alloc(bytes, alignment)?;
        self.script.record_request();
        Some((slot, offset_bytes))
    }

    /// The slot and the offset for any request, or `None` if the bump must serve it.
    pub(crate) fn alloc(
        &self,
        bytes: u64,
        alignment: Alignment,
        call_site: &'static Location<'static>,
    ) -> Option<(u32, u64)> {
        self.alloc_counted(bytes, alignment)
            .or_else(|| self.counters.alloc_off_plan(bytes, alignment, call_site))
    }

    /// Whether the drop of a slot's handle repeats the script; it is done with then.
    #[inline]
    pub(crate) fn drop_as_before(&self, slot: u32) -> bool {
        self.script.follow(Event::drop(slot, self.counters.requests()))
    }

    /// The handle of a slot was dropped, for the first time: a handle does not outlive its scope.
    pub(crate) fn drop_counted(&self, slot: u32) {
        self.leave_script();
        self.script.record(Event::drop(slot, self.counters.requests()));
        self.counters.drop_slot(slot);
    }

    /// The slot that was given out last was not used after all, and is the next one again. Whether it was
    /// the last; if not, it stays given out.
    pub(crate) fn take_back(&self, slot: u32) -> bool {
        self.leave_script();
        let is_last = self.counters.take_back(slot);
        if is_last {
            self.script.take_back_request();
        }
        is_last
    }

    /// Gives nothing more out in this step.
    pub(crate) fn stop(&self) {
        self.leave_script();
        self.counters.stop();
    }

    /// Where the first slot at or after `from` lies that was given out in the innermost scope, as a
    /// range from the plan's start, and the number after it.
    pub(crate) fn own_range(&self, from: usize) -> Option<(usize, (u64, u64))> {
        self.counters.own_range(from)
    }

    /// The step will not be ended: it repeats nothing more, and the next one begins anew.
    pub(crate) fn abandon(&self) {
        let _ = self.script.leave();
    }

    /// From here on the step is counted, and so is what it had in common with the script.
    pub(crate) fn leave_script(&self) {
        if let Some(common) = self.script.leave() {
            self.count(common);
        }
    }

    #[cold]
    fn count(&self, common: &[Event]) {
        let requests = self.counters.requests();
        self.counters.reopen();
        for &event in common {
            self.count_requests(event.requests());
            self.script.record(event);
            match event.kind() {
                Kind::Drop(slot) => self.counters.drop_slot(slot),
                Kind::Open => self.counters.open(),
                Kind::Close => self.counters.close(),
            }
        }
        self.count_requests(requests);
    }

    /// Gives slots out until there are so many.
    fn count_requests(&self, requests: usize) {
        while self.counters.requests() < requests {
            self.script.record_request();
            self.counters.give_out_next();
        }
    }
}
