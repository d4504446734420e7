//! A plan while steps follow it.
//!
//! A step *repeats* an earlier one ([`Script`]) as long as the functions `…_as_before` say so. The moment
//! one says no, the step is *counted*: [`count_common`](Replay::count_common) counts what it had in common
//! with the script, and the rest is counted as it comes ([`Counters`]). Who calls knows which of the two
//! holds: it is the step's mode.
//!
//! All changes go through shared references, for requests and drops come from everywhere at once.
//! Nothing in here calls back into the arena, and only the arena's own thread calls it.

use std::cell::Cell;
use std::mem;
use std::panic::Location;

use super::as_bumped::AsBumped;
use super::counters::Counters;
use super::deviations::Deviations;
use super::script::{Kind, PackedEvent, Script};
use super::sites::DeviationSite;
use super::slots::Slots;
use super::table::SlotTable;
use crate::bytes::Alignment;
use crate::signature::StepSignature;

/// A plan, where it starts, and how far its step has got. A plan that no step follows now can be *folded*: then it
/// is little more than its table.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    table: SlotTable,
    start_address: u64,
    is_unfolded: bool,
    script: Script,
    counters: Counters,
    as_bumped: AsBumped,
    /// A step found no room though the bump would have had it, so the next one is bumped.
    is_outgrown: Cell<bool>,
}

impl Replay {
    /// A folded plan.
    pub(crate) fn new(table: SlotTable, start_address: u64) -> Self {
        Self { table, start_address, ..Self::default() }
    }

    /// A step is about to follow it. Whether it was folded.
    pub(crate) fn unfold(&mut self) -> bool {
        let was_folded = !mem::replace(&mut self.is_unfolded, true);
        if was_folded {
            self.script = Script::new(self.table.len());
            self.counters.unfold(Slots::of(&self.table));
        }
        was_folded
    }

    /// Forgets all but the plan and what was not as planned.
    pub(crate) fn fold(&mut self) {
        self.is_unfolded = false;
        self.script = Script::default();
        self.counters.fold();
    }

    /// The host memory that it takes: 16 bytes for each slot and 1 KiB; unfolded about 60 bytes more for each slot and
    /// 17 KiB. The list of plans may have as much room again.
    pub(crate) fn host_bytes(&self) -> u64 {
        let listed = 2 * size_of::<Option<Self>>() as u64;
        listed + self.table.host_bytes() + self.script.host_bytes() + self.counters.host_bytes()
    }

    /// Whether the next steps ask for less than its slots hold by design.
    pub(crate) fn expect_smaller(&self, by_design: bool) {
        self.counters.expect_smaller(by_design);
    }

    /// Whether a step found no room under it though the bump would have had it.
    pub(crate) fn is_outgrown(&self) -> bool {
        self.is_outgrown.get()
    }

    pub(crate) fn set_outgrown(&self, is_outgrown: bool) {
        self.is_outgrown.set(is_outgrown);
    }

    /// Where a request would end, had the bump served the step. The step is counted.
    pub(crate) fn bumped_end(&self, bytes: u64, alignment: Alignment) -> u64 {
        self.as_bumped.end_of(bytes, alignment)
    }

    /// The step was not served at all: there was no room for the plan.
    pub(crate) fn pass_over_step(&self) {
        self.counters.open_root();
        self.counters.end_step();
    }

    /// The end of the highest buffer that is alive. The step is counted.
    pub(crate) fn live_end(&self) -> u64 {
        self.start_address + self.counters.live_end()
    }

    /// For each open scope inside the root, the end of the highest buffer that lives around it.
    pub(crate) fn live_ends_around(&self, mut end: impl FnMut(usize, u64)) {
        self.counters
            .live_ends_around(|depth, end_bytes| end(depth, self.start_address + end_bytes));
    }

    /// The step, which is counted, goes on without its plan.
    pub(crate) fn leave_plan(&self) {
        self.counters.end_step();
        self.counters.rearm(); // Drops of what is alive are not counted any more.
        self.script.end_counted(false, StepSignature::default());
    }

    /// The bump served a request that the plan did not.
    pub(crate) fn note_bumped(&self, bytes: u64, alignment: Alignment) {
        self.as_bumped.take(bytes, alignment);
    }

    /// The address of its first byte.
    pub(crate) fn start_address(&self) -> u64 {
        self.start_address
    }

    pub(crate) fn table(&self) -> &SlotTable {
        &self.table
    }

    pub(crate) fn deviations(&self) -> Deviations {
        self.counters.deviations()
    }

    /// Where requests were not as planned.
    pub(crate) fn sites(&self) -> Vec<DeviationSite> {
        self.counters.sites()
    }

    /// The last such request.
    pub(crate) fn last_site(&self) -> Option<DeviationSite> {
        self.counters.last_site()
    }

    /// Between two steps: what was recorded may now be repeated. Without this all is counted.
    pub(crate) fn prepare(&mut self) {
        self.script.prepare(&mut self.counters.slots_mut().all);
    }

    /// A step begins: its root scope opens, and the bump would start at this address.
    pub(crate) fn begin(&self, bump_address: u64) {
        self.script.begin();
        self.counters.open_root();
        self.as_bumped.restart(bump_address);
    }

    /// Whether there is a step that this one may repeat.
    pub(crate) fn can_repeat(&self) -> bool {
        !self.script.is_empty()
    }

    // --- a step that repeats ----------------------------------------------------------------------

    /// The address and the slot for the next request, if it is the script's.
    #[inline(always)]
    pub(crate) fn place_as_before(&self, bytes: u64, alignment: Alignment) -> Option<(u64, u32)> {
        let slot = self.counters.next_slot()?;
        // The same alignment was served there before, so the address has it.
        if slot.bytes == bytes && slot.moment == self.script.moment(alignment) {
            return Some((self.start_address + slot.offset_bytes, self.counters.advance()));
        }
        None
    }

    /// Whether the drop of a slot's handle is the script's; it is done with then.
    #[inline(always)]
    pub(crate) fn drop_as_before(&self, slot: u32) -> bool {
        self.script.follow(PackedEvent::drop(slot, self.counters.requests()))
    }

    /// Whether the opening of a scope is the script's; it is done with then.
    pub(crate) fn open_as_before(&self) -> bool {
        let follows = self.script.follow(PackedEvent::open(self.counters.requests()));
        if follows {
            self.counters.open();
        }
        follows
    }

    /// Whether the close of a scope, not of the root, is the script's; it is done with then.
    pub(crate) fn close_as_before(&self) -> bool {
        let follows = self.script.follow(PackedEvent::close(self.counters.requests()));
        if follows {
            self.counters.leave();
        }
        follows
    }

    /// Ends the step, if it has repeated the whole script: the signature of both.
    pub(crate) fn end_as_before(&self) -> Option<StepSignature> {
        if !self.is_whole() {
            return None;
        }
        self.script.end_repeated();
        self.counters.leave();
        Some(self.script.signature())
    }

    /// Whether the step is all that the script is.
    pub(crate) fn is_whole(&self) -> bool {
        self.script.is_done() && self.counters.requests() == self.table().len()
    }

    /// Takes back the slot that was given out last. Whether it was this one.
    pub(crate) fn take_back_repeated(&self, slot: u32) -> bool {
        self.counters.step_back(slot)
    }

    /// From here on the step is counted, and so is what it had in common with the script. `sign` is told
    /// each of those requests: address, bytes, alignment, depth.
    #[cold]
    pub(crate) fn count_common(&self, mut sign: impl FnMut(u64, u64, Alignment, u32)) {
        let (requests, mut depth) = (self.counters.requests(), 1);
        self.counters.reopen();
        for &event in self.script.common() {
            self.count_requests(event.requests(), depth, &mut sign);
            self.script.record(event);
            match event.kind() {
                Kind::Drop(slot) => self.counters.drop_slot(slot),
                Kind::Open => {
                    self.as_bumped.open();
                    self.counters.open();
                    depth += 1;
                }
                Kind::Close => {
                    self.as_bumped.close();
                    self.counters.close();
                    depth -= 1;
                }
            }
        }
        self.count_requests(requests, depth, &mut sign);
    }

    /// Gives slots out until `requests` of them are given out.
    fn count_requests(
        &self,
        requests: usize,
        depth: u32,
        sign: &mut impl FnMut(u64, u64, Alignment, u32),
    ) {
        while self.counters.requests() < requests {
            if let Some(slot) = self.counters.next_slot() {
                let alignment = slot.moment.alignment();
                self.script.record_request(alignment);
                self.as_bumped.take(slot.bytes, alignment);
                sign(self.start_address + slot.offset_bytes, slot.bytes, alignment, depth);
            }
            self.counters.give_out_next();
        }
    }

    // --- a step that is counted -------------------------------------------------------------------

    /// The address and the slot for any request, or `None` if the bump must serve it.
    pub(crate) fn place(
        &self,
        bytes: u64,
        alignment: Alignment,
        call_site: &'static Location<'static>,
    ) -> Option<(u64, u32)> {
        let yields = self.table().yields();
        let highest_end = if yields {
            self.bumped_end(bytes, alignment).saturating_sub(self.start_address)
        } else {
            u64::MAX
        };
        let (slot, offset_bytes) = match self.counters.alloc(bytes, alignment, highest_end) {
            Some(as_planned) => {
                self.script.record_request(alignment);
                as_planned
            }
            None if yields => {
                self.counters.note_why(bytes, alignment, call_site);
                return None;
            }
            None => self.counters.alloc_off_plan(bytes, alignment, call_site)?,
        };
        self.as_bumped.take(bytes, alignment);
        Some((self.start_address + offset_bytes, slot))
    }

    /// The handle of a slot was dropped, for the first time: a handle does not outlive its scope.
    pub(crate) fn drop_slot(&self, slot: u32) {
        self.script.record(PackedEvent::drop(slot, self.counters.requests()));
        self.counters.drop_slot(slot);
    }

    /// The slot that was given out last was not used after all, and is the next one again. Whether it was
    /// the last; if not, it stays given out.
    pub(crate) fn take_back(&self, slot: u32) -> bool {
        let is_last = self.counters.take_back(slot);
        if is_last {
            self.as_bumped.take_back();
            self.script.take_back_request();
        }
        is_last
    }

    /// Opens a scope inside.
    pub(crate) fn open(&self) {
        self.script.record(PackedEvent::open(self.counters.requests()));
        self.as_bumped.open();
        self.counters.open();
    }

    /// Closes the innermost scope, which is not the root.
    pub(crate) fn close(&self) {
        self.script.record(PackedEvent::close(self.counters.requests()));
        self.as_bumped.close();
        self.counters.close();
    }

    /// Ends the step, which had this signature.
    pub(crate) fn end(&self, signature: StepSignature) {
        self.counters.close();
        self.script.end_counted(self.counters.is_as_planned(), signature);
    }

    /// Ends the innermost scope without freeing anything: its guard was forgotten, and buffers of the
    /// scope around it may have been given out since. They are freed with that.
    pub(crate) fn merge(&self) {
        self.as_bumped.merge();
        self.counters.merge();
    }

    // --- both -------------------------------------------------------------------------------------

    /// The first slot at or after `from` that was given out in the innermost scope, as addresses, and
    /// the number after it.
    pub(crate) fn own_range(&self, from: usize) -> Option<(usize, (u64, u64))> {
        let (next, (start, end)) = self.counters.own_range(from)?;
        Some((next, (self.start_address + start, self.start_address + end)))
    }
}
