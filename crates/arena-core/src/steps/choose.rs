//! Which mode an arena is in: chosen when a root scope opens, and again only where a repeating step
//! differs, or where an error begins or ceases to wait.

use super::{Mode, Steps};
use crate::device::Device;

impl<D: Device> Steps<D> {
    /// Chooses the mode for what holds now. A step that has begun to count does not repeat again.
    #[cold]
    pub(super) fn choose_mode(&self) {
        let repeats = self.mode.get() == Mode::Repeating;
        let mode = if self.hunts() {
            Mode::Hunting
        } else if self.records() {
            Mode::Recorded
        } else if self.plans.followed().is_some() {
            if repeats { Mode::Repeating } else { Mode::Counted }
        } else if self.signs.get() {
            Mode::Observed
        } else {
            Mode::Bump
        };
        if repeats && mode != Mode::Repeating {
            self.count_common();
        }
        self.mode.set(mode);
    }

    fn hunts(&self) -> bool {
        self.separate.is_some()
            || self.poisoned_to.get().is_some()
            || self.debts.any()
            || self.region.fences().has_failure()
    }

    /// Whether the open step is logged.
    fn records(&self) -> bool {
        self.frames.depth() > 0 && self.log.borrow().is_some()
    }

    /// The repeating step does something else than the one before it: from here on it is counted.
    #[cold]
    pub(super) fn count_from_here(&self) {
        if self.mode.get() == Mode::Repeating {
            self.count_common();
            self.mode.set(Mode::Counted);
        }
    }

    /// Counts and signs what a repeating step had in common with the one before it.
    fn count_common(&self) {
        self.plans.current().count_common(|address, bytes, alignment, depth| {
            self.running.add(self.zones.offset_of(address), bytes, alignment, depth);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::{Alignment, ByteSize};
    use crate::device::Host;
    use crate::error::ErrorKind;
    use crate::placement::Placement;
    use crate::reset::Reset;

    #[test]
    fn the_mode_is_what_it_was_once_a_close_is_paid_for_and_an_error_told() {
        let capacity = ByteSize::kib(4);
        let steps = Steps::new(Host::new(), capacity, Placement::Bump, Reset::Zero).unwrap();
        // SAFETY: no buffer is used after its scope, here and below.
        let root = unsafe { steps.open_root("root", None) }.unwrap();
        // SAFETY: as above.
        let inner = unsafe { steps.open_inner(1, "inner", None) }.unwrap();
        drop(steps.transient::<u8>(100, Alignment::DEFAULT, 2).unwrap());
        // SAFETY: as above.
        unsafe { steps.close(inner) }.unwrap();
        assert_eq!(steps.mode.get(), Mode::Bump);
        steps.quietly(root, || Err(ErrorKind::ForeignFrame.into()));
        assert_eq!(steps.mode.get(), Mode::Hunting);
        steps.ready().unwrap_err();
        assert_eq!(steps.mode.get(), Mode::Bump);
    }
}
