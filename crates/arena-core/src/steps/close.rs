//! Closing a scope: a transaction.
//!
//! 1. The frame ends, what the device has to do for it is written down as a [debt](super::debts), and the
//!    cursor goes back. None of that can fail.
//! 2. The debts are paid: wait for the declared streams, clear, release, give kept bytes back. The device
//!    may fail in each, or panic. What it did not do stays owed.
//!
//! Proof that no byte is used too early: while a close pays, the mode is [`Hunting`](super::Mode::Hunting),
//! and so it stays if something is still owed when the close returns or unwinds. There every request, like
//! every opening, pays first and is refused if that fails. So before all is paid no byte above the cursor
//! is given out. A declared stream is forgotten only by a close that has waited for it. If a stream can be
//! waited for neither on the device nor on the host, the arena refuses everything from then on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::frames::Frame;
use super::{FrameId, Mode, StepFigures, Steps};
use crate::device::Device;
use crate::error::{DeviceError, DeviceErrorKind, Error, ErrorKind};
use crate::layout::Span;
use crate::region::unless_it_panics;
use crate::step_log::StepEvent;

impl<D: Device> Steps<D> {
    /// Closes a scope, and what a forgotten guard left open inside it: lets the arena's stream wait for
    /// every declared stream, clears as the frame says, releases what was an allocation of its own, and
    /// puts the cursor back to where the frame began. The cursor is back whatever fails. A frame that was
    /// settled with the one around it has closed already, and that is no error.
    ///
    /// # Errors
    ///
    /// The first failure of the device, or a damaged guard zone. What was not done is tried again by the
    /// next fallible call. [`ErrorKind::ForeignFrame`] for a frame of another arena; nothing is closed then.
    ///
    /// # Panics
    ///
    /// If the device does. The cursor is back, and what was not done is tried again.
    ///
    /// # Safety
    ///
    /// No transient buffer that was made since the frame opened is used again.
    #[inline]
    pub unsafe fn close(&self, frame: FrameId) -> Result<(), Error> {
        if self.frames.is_innermost(frame) {
            self.close_innermost()
        } else {
            self.close_outer(frame)
        }
    }

    /// Closes a frame in which others are open, or one that has ended.
    #[cold]
    #[inline(never)]
    fn close_outer(&self, frame: FrameId) -> Result<(), Error> {
        if !self.frames.is_of_this_arena(frame) {
            return Err(ErrorKind::ForeignFrame.into());
        }
        let Some(depth) = self.frames.depth_of(frame) else { return Ok(()) };
        self.settle_slowly(depth);
        self.close_innermost()
    }

    /// Runs the close of a frame where no error can be returned: a failure, or a panic of the device, is
    /// told by the next fallible call.
    pub fn quietly(&self, frame: FrameId, close: impl FnOnce() -> Result<(), Error>) {
        let depth = self.frames.depth_of(frame).unwrap_or(0);
        let scope = self.frames.at(depth).map_or("", |frame| frame.label);
        let cause = match catch_unwind(AssertUnwindSafe(close)) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(panic) => panicked(self.region.device(), &*panic),
        };
        self.region.keep_failure(ErrorKind::ClosingFailed { scope, depth, cause }.into());
        self.choose_mode();
    }

    /// Ends what is open deeper than `depth`, because its guard was forgotten. Inside an open scope its
    /// bytes stay where they are until that scope closes, since newer buffers of that scope may lie above
    /// them; a forgotten root scope closes like any other.
    ///
    /// # Safety
    ///
    /// No transient buffer of a deeper scope is used again.
    #[inline]
    pub unsafe fn settle(&self, depth: u32) {
        if self.depth() > depth {
            self.settle_slowly(depth);
        }
    }

    #[cold]
    #[inline(never)]
    fn settle_slowly(&self, depth: u32) {
        while self.depth() > depth.max(1) {
            self.merge_innermost();
        }
        if depth == 0
            && let Some(root) = self.frames.innermost_id()
        {
            self.quietly(root, || self.close_innermost());
        }
    }

    /// The innermost scope ends with the one around it: what it has given out stays taken until then, and
    /// is cleared then as it would have been.
    fn merge_innermost(&self) {
        self.note_detached_drops(None);
        let Some(ended) = self.frames.pop(self.zones.cursor_bytes()) else { return };
        self.frames.pass_on(ended.reset);
        if let Some(planned) = self.plans.followed() {
            self.count_from_here();
            planned.merge();
        }
        self.log_event(StepEvent::Merge);
        if let Some(id) = ended.range {
            self.region.device().end_range(id);
        }
    }

    /// The caller says that no transient buffer that was made since the innermost frame opened is used
    /// again.
    #[inline]
    fn close_innermost(&self) -> Result<(), Error> {
        let Some(frame) = self.frames.pop(self.zones.cursor_bytes()) else { return Ok(()) };
        let root = self.depth() == 0;
        let owes = self.needs_device(&frame);
        if owes {
            self.owe(&frame);
        }
        self.note_cursor();
        self.zones.rewind(frame.start_bytes);
        let mut signature = None;
        if self.mode.get() != Mode::Bump {
            signature = self.leave_frame(&frame, root);
        }
        if root {
            self.resets.set(self.resets() + 1);
            self.last.set(StepFigures { signature, high_water_bytes: frame.high_water_bytes });
        }
        if owes { self.pay().map_err(|error| found_by(frame.label, error)) } else { Ok(()) }
    }

    /// Whether the frame's close has anything for the device to do.
    #[inline]
    fn needs_device(&self, frame: &Frame) -> bool {
        frame.reset.byte().is_some()
            || frame.range.is_some()
            || self.mode.get() == Mode::Hunting // Separate allocations, or a close that owes something.
            || self.region.fences().is_busy()
            || self.region.any_returned()
            || self.debts.holds_returned()
    }

    /// Writes down what the close of a frame, which has just ended, owes.
    #[cold]
    #[inline(never)]
    fn owe(&self, frame: &Frame) {
        let depth = self.depth() + 1;
        self.debts.begin(frame.label, depth);
        self.debts.wait.set(Some(depth.min(self.debts.wait.get().unwrap_or(depth))));
        if let Some(value) = frame.reset.byte() {
            let used = Span {
                start_bytes: frame.start_bytes,
                end_bytes: frame.high_water_bytes.max(frame.start_bytes),
            };
            self.debts.clear(used, value);
            // What a plan gave out in an inner scope lies below that scope's start; the root's own lies
            // between its start and its high-water.
            if depth > 1 {
                self.owe_own_slots(value);
            }
        }
        let earlier = self.debts.value_of_returned.get().filter(|_| self.debts.holds_returned());
        self.debts.value_of_returned.set(frame.reset.or(self.reset).byte().or(earlier));
        if self.separate.is_some() {
            let before = self.debts.release.get().unwrap_or(frame.start_bytes);
            self.debts.release.set(Some(before.min(frame.start_bytes)));
        }
        if depth == 1 && self.region.fences().is_beyond_limit() {
            self.debts.trim.set(Some(frame.high_water_bytes));
        }
        self.debts.ranges.borrow_mut().extend(frame.range);
    }

    /// Owes the clearing of the slots that a plan gave out in the innermost scope. They held no byte of a
    /// buffer that lived before them; and nobody else took their bytes since, for while the scope was the
    /// innermost, requests came from it alone.
    fn owe_own_slots(&self, value: u8) {
        let Some(planned) = self.plans.followed() else { return };
        let mut from = 0;
        while let Some((next, (start_address, end_address))) = planned.own_range(from) {
            from = next;
            let start_bytes = self.zones.offset_of(start_address);
            let span = Span { start_bytes, end_bytes: self.zones.offset_of(end_address) };
            self.debts.clear(span, value);
        }
    }

    /// A frame ends in a step that is watched or planned. The signature of the step, if this was its root
    /// and it has one.
    #[cold]
    #[inline(never)]
    fn leave_frame(&self, frame: &Frame, root: bool) -> Option<crate::StepSignature> {
        self.note_detached_drops(Some(frame.id()));
        let repeats = self.mode.get() == Mode::Repeating;
        let mut signature = None;
        if let Some(planned) = self.plans.followed() {
            let as_before = match (repeats, root) {
                (false, _) => false,
                (true, false) => planned.close_as_before(),
                (true, true) => {
                    signature = planned.end_as_before();
                    signature.is_some()
                }
            };
            if !as_before {
                self.count_from_here();
                if root {
                    planned.end(self.running.finish());
                } else {
                    planned.close();
                }
            }
        }
        self.log_event(StepEvent::Close);
        if root {
            if let Some(finder) = self.region.uses().end()
                && let Some(log) = self.log.borrow_mut().as_mut()
            {
                log.end(finder);
            }
            signature = signature.or_else(|| self.signs.get().then(|| self.running.finish()));
            self.plans.end();
            self.signs.set(false);
            self.mode.set(Mode::Bump); // Nothing is left to be counted.
            self.choose_mode();
        }
        signature
    }

    // --- debts --------------------------------------------------------------------------------

    /// Pays what an earlier close owes, and returns an error that was kept. Every fallible call of the arena
    /// does this first.
    ///
    /// # Errors
    ///
    /// That error, once, unless it is the end of the device or of the arena; or
    /// [`ErrorKind::ClosingFailed`] if a close can still not be finished.
    #[inline]
    pub fn ready(&self) -> Result<(), Error> {
        self.region.device().health()?;
        if self.debts.any() || self.region.fences().is_busy() {
            self.become_ready()
        } else {
            Ok(())
        }
    }

    #[cold]
    #[inline(never)]
    fn become_ready(&self) -> Result<(), Error> {
        let told = self.region.fences().check();
        if told.is_ok() && self.debts.any() {
            let (scope, depth) = self.debts.of();
            self.pay().map_err(|cause| ErrorKind::ClosingFailed { scope, depth, cause })?;
        }
        self.choose_mode();
        told
    }

    /// Pays all that can be paid; what fails stays owed, and the first failure is returned.
    #[cold]
    #[inline(never)]
    fn pay(&self) -> Result<(), Error> {
        // However it ends, by a panic too: a step whose closes were paid goes on as it was.
        let before = self.mode.replace(Mode::Hunting);
        let _mode = scopeguard::guard((), |()| {
            self.mode.set(before);
            self.choose_mode();
        });
        let mut outcome = Ok(());
        if let Some(depth) = self.debts.wait.get() {
            // What is dropped after this wait may have been used after it too: it is for the next one.
            self.region.drain_returned(|span| self.debts.hold_returned(span));
            outcome = self.region.wait_for_declared(depth);
            self.debts.wait.set(None);
        }
        let cleared = self.pay_clearings();
        if let (Some(separate), Some(from_bytes)) = (&self.separate, self.debts.release.get()) {
            // SAFETY: who closed said that no such buffer is used again, and every stream that used one
            // was waited for.
            outcome = outcome.and(unsafe { separate.release_from(from_bytes) });
            self.debts.release.set(None);
        }
        let given_back = if cleared.is_ok() { self.give_back_returned() } else { Ok(()) };
        if let (true, Some(needed_bytes)) = (cleared.is_ok(), self.debts.trim.take()) {
            self.trim_to_soft_limit(needed_bytes);
        }
        while let Some(id) = self.debts.next_range() {
            self.region.device().end_range(id);
        }
        if cleared.is_ok() && given_back.is_ok() {
            self.debts.end();
        }
        outcome.and(cleared).and(given_back)
    }

    fn pay_clearings(&self) -> Result<(), Error> {
        while let Some((span, value)) = self.debts.next_clearing() {
            // SAFETY: the span was given back by a close, whose caller said that no buffer of it is used
            // again, and no request was served since; what is kept lies above the floor.
            unsafe { self.fill(span, value) }?;
            self.debts.cleared();
        }
        Ok(())
    }

    /// Gives the bytes of dropped kept buffers back, cleared like the rest; none while the region is
    /// pinned.
    fn give_back_returned(&self) -> Result<(), Error> {
        while !self.region.is_pinned()
            && let Some(span) = self.debts.next_returned()
        {
            if let Some(value) = self.debts.value_of_returned.get() {
                // SAFETY: its buffer is gone, and every stream that used it was waited for.
                unsafe { self.fill_kept(span, value) }?;
            }
            self.give_back_kept(span);
            self.debts.gave_back();
        }
        Ok(())
    }

    /// Fills the bytes of a kept buffer.
    ///
    /// # Safety
    ///
    /// `span` was placed in the kept zone and is not given back yet; its buffer is not used again.
    pub(super) unsafe fn fill_kept(&self, span: Span, value: u8) -> Result<(), Error> {
        let (address, bytes) = (self.address_of(span), span.len_bytes());
        // SAFETY: the range lies in the region, and is nobody's by the caller's promise.
        Ok(unsafe { self.region.device().fill(address, bytes, value.into()) }?)
    }

    /// Between root scopes: makes the arena's stream wait for every declared stream.
    ///
    /// # Errors
    ///
    /// The device's refusal, also if the stream was waited for on the host instead.
    pub fn wait_for_declared(&self) -> Result<(), Error> {
        let waited = self.region.wait_for_declared(1);
        if waited.is_err() {
            self.choose_mode();
        }
        waited
    }

    /// Puts the cursor back to the mark without frames, as a root scope's close would. That no transient
    /// buffer is alive is what `&mut self` proves; a failure is told by the next fallible call.
    pub fn reset_to_mark(&mut self) {
        self.settle_slowly(0);
        self.select_plan(None);
        if !self.mark_is_set() {
            let _ = self.set_mark();
        }
        let all = self.frames.push(self.zones.mark_bytes(), "reset_to_mark", crate::Reset::Keep);
        self.quietly(all, || self.close_innermost());
    }
}

/// Names the scope whose close found a damaged guard zone.
fn found_by(scope: &'static str, mut error: Error) -> Error {
    if let ErrorKind::GuardZone(found) = error.kind_mut() {
        found.scope = scope;
    }
    error
}

/// A panic of a device as an error.
fn panicked<D: Device>(device: &D, panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    DeviceError {
        device: unless_it_panics(|| device.name()).unwrap_or_default(),
        call: "close",
        reason: format!("the device panicked: {}", text.unwrap_or("it gave no message")),
        kind: DeviceErrorKind::Refused,
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::{Alignment, ByteSize};
    use crate::device::Host;
    use crate::placement::Placement;
    use crate::reset::Reset;

    // Its last use may be newer than the wait, on a stream that was declared.
    #[test]
    fn the_bytes_of_a_kept_buffer_that_goes_after_the_join_wait_for_the_next_one() {
        let steps = steps();
        steps.set_mark().unwrap();
        let kept = steps.persistent::<u8>(256, Alignment::DEFAULT, 0).unwrap();
        let debts = &steps.debts;
        debts.begin("between two", 1);
        debts.wait.set(Some(1));
        steps.pay().unwrap();
        drop(kept);
        debts.begin("between two", 1);
        steps.pay().unwrap();
        assert_eq!(steps.stats().kept_bytes, 256, "no wait came since");
        // SAFETY: there is no transient buffer.
        let next = unsafe { steps.open_root("next", None) }.unwrap();
        // SAFETY: as above.
        unsafe { steps.close(next) }.unwrap();
        assert_eq!(steps.stats().kept_bytes, 0);
    }

    #[test]
    fn a_frame_of_another_arena_or_one_that_has_ended_is_refused() {
        let (one, other) = (steps(), steps());
        // SAFETY: there is no transient buffer, here and below.
        let open = |steps: &Steps| unsafe { steps.open_root("root", None) }.unwrap();
        let (first, foreign) = (open(&one), open(&other));
        let _buffer = one.transient::<u8>(100, Alignment::DEFAULT, 1).unwrap();
        // SAFETY: as above: nothing is closed.
        let error = unsafe { one.close(foreign) }.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ForeignFrame), "{error}");
        assert_eq!((one.depth(), one.stats().used_bytes), (1, 100));
        // SAFETY: the buffer is not used again.
        unsafe { one.close(first) }.unwrap();
        let second = open(&one);
        let _buffer = one.transient::<u8>(100, Alignment::DEFAULT, 1).unwrap();
        // SAFETY: as above: nothing is closed.
        unsafe { one.close(first) }.unwrap();
        assert_eq!((one.depth(), one.stats().used_bytes), (1, 100), "the frame is the second one");
        // SAFETY: the buffer is not used again.
        unsafe { one.close(second) }.unwrap();
        assert_eq!((one.depth(), one.stats().used_bytes), (0, 0));
    }

    fn steps() -> Steps {
        Steps::new(Host::new(), ByteSize::kib(4), Placement::Bump, Reset::Keep).unwrap()
    }
}
