//! What the drop of a transient buffer's handle means: nothing to the bump, and free bytes to a plan.

use super::{Mode, Steps};
use crate::device::Device;
use crate::packed::{NO_SLOT, slot_of};
use crate::step_log::StepEvent;

impl<D: Device> Steps<D> {
    /// The handle of a buffer of this address was dropped; `packed` holds its length and slot.
    #[inline]
    pub(crate) fn note_drop(&self, address: u64, packed: u64) {
        if self.mode.get() > Mode::Observed {
            self.note_drop_otherwise(address, packed);
        }
    }

    #[inline(never)]
    fn note_drop_otherwise(&self, address: u64, packed: u64) {
        let repeats = self.mode.get() == Mode::Repeating
            && !self.region.fences().is_busy()
            && self.plans.current().drop_as_before(slot_of(packed));
        if !repeats {
            self.note_detached_drops(None); // They came first.
            self.note_drop_in_order(address, packed);
        }
    }

    #[inline(never)]
    pub(super) fn note_drop_in_order(&self, address: u64, packed: u64) {
        if packed == 0 {
            return; // An empty buffer has no byte; its offset may be another's.
        }
        let slot = slot_of(packed);
        // While another stream may use the scope's buffers, a dropped one lives until its scope's close
        // has waited for that stream.
        if slot != NO_SLOT
            && let Some(planned) = self.plans.followed()
            && !self.region.fences().any_in_scopes()
        {
            let repeats = self.mode.get() == Mode::Repeating;
            if !(repeats && planned.drop_as_before(slot)) {
                self.count_from_here();
                planned.drop_slot(slot);
            }
        }
        self.log_event(StepEvent::Drop { offset_bytes: self.offset_of_buffer(address) });
    }
}
