//! Buffers that are handed out with contents. If the device refuses those, the request is taken back,
//! as if it had not been made; what it may have written is cleared as the scope's policy says.

use bytemuck::Pod;
use scopeguard::ScopeGuard;

use super::{Mode, Steps};
use crate::buffer::{Persistent, Transient, View, ViewMut};
use crate::bytes::Alignment;
use crate::device::{Device, Pattern};
use crate::error::Error;
use crate::layout::Span;
use crate::reset::Reset;

/// A fill with zero bytes.
const ZERO: Pattern = Pattern::Bits8(0);

impl<D: Device> Steps<D> {
    /// A persistent buffer that holds `values`, copied in stream order.
    ///
    /// # Errors
    ///
    /// As for [`persistent`](Self::persistent), or the device's refusal of the copy. Nothing is
    /// changed then.
    #[track_caller]
    pub fn persistent_from<T: Pod>(
        &self,
        values: &[T],
        alignment: Alignment,
    ) -> Result<Persistent<T, D>, Error> {
        self.persistent_filled(values.len(), alignment, 0, |mut buffer| buffer.copy_in(values))
    }

    /// A persistent buffer of zero bytes.
    ///
    /// # Errors
    ///
    /// As for [`persistent_from`](Self::persistent_from).
    #[track_caller]
    pub fn persistent_zeroed<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
    ) -> Result<Persistent<T, D>, Error> {
        self.persistent_filled(len, alignment, 0, |mut buffer| buffer.repeat(ZERO))
    }

    /// A persistent copy of a view, made on the device, asked for in the scope of `depth`.
    ///
    /// # Errors
    ///
    /// As for [`persistent_from`](Self::persistent_from).
    #[track_caller]
    pub fn persistent_copy<T: Pod>(
        &self,
        view: View<'_, T, D>,
        alignment: Alignment,
        depth: u32,
    ) -> Result<Persistent<T, D>, Error> {
        view.mark_used();
        self.persistent_filled(view.len(), alignment, depth, |mut buffer| buffer.copy_view(view))
    }

    #[track_caller]
    fn persistent_filled<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        depth: u32,
        fill: impl FnOnce(ViewMut<'_, T, D>) -> Result<(), Error>,
    ) -> Result<Persistent<T, D>, Error> {
        let before_bytes = self.zones.cursor_bytes();
        let buffer = self.persistent(len, alignment, depth)?;
        // Nothing else would give its bytes back, should the device panic.
        let mut buffer = scopeguard::guard(buffer, |buffer| {
            self.take_back_persistent(buffer, before_bytes, depth)
        });
        fill(buffer.view_mut())?;
        Ok(ScopeGuard::into_inner(buffer))
    }

    fn take_back_persistent<T: Pod>(
        &self,
        buffer: Persistent<T, D>,
        before_bytes: u64,
        depth: u32,
    ) {
        let span = span_from(buffer.offset_bytes(), buffer.view().len_bytes());
        match buffer.into_kept_span() {
            Some(span) => self.take_back_kept(span, depth),
            // Below the mark nothing was cleared before either.
            None => {
                self.zones.take_back(before_bytes, span);
            }
        }
    }

    /// Gives the bytes of a kept buffer back that was never handed out, cleared as the policy says. If the
    /// device refuses that too, the next call tries again.
    fn take_back_kept(&self, span: Span, depth: u32) {
        if let Some(value) = self.value_at(depth) {
            // SAFETY: the span was placed just now, and its buffer is gone.
            let fill = || unsafe { self.fill_kept(span, value) };
            if std::thread::panicking() || fill().is_err() {
                return self.region.queue_returned(span);
            }
        }
        self.give_back_kept(span);
    }

    /// What the scope of `depth`, or else one inside it whose guard was forgotten, or else the arena, sets
    /// free bytes to.
    fn value_at(&self, depth: u32) -> Option<u8> {
        let frames = (depth..=self.depth()).filter_map(|depth| self.frames.at(depth));
        frames.fold(Reset::Keep, |reset, frame| reset.or(frame.reset)).or(self.reset).byte()
    }

    /// [`transient`](Self::transient), filled with zero bytes in stream order.
    ///
    /// # Errors
    ///
    /// As for [`persistent_from`](Self::persistent_from).
    #[track_caller]
    pub fn transient_zeroed<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        depth: u32,
    ) -> Result<Transient<'_, T, D>, Error> {
        self.transient_filled(len, alignment, depth, |mut buffer| buffer.repeat(ZERO))
    }

    /// A transient buffer that holds `values`, copied in stream order.
    ///
    /// # Errors
    ///
    /// As for [`persistent_from`](Self::persistent_from).
    #[track_caller]
    pub fn transient_from<T: Pod>(
        &self,
        values: &[T],
        alignment: Alignment,
        depth: u32,
    ) -> Result<Transient<'_, T, D>, Error> {
        let write = |mut buffer: ViewMut<'_, T, D>| buffer.copy_in(values);
        self.transient_filled(values.len(), alignment, depth, write)
    }

    #[track_caller]
    fn transient_filled<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        depth: u32,
        fill: impl FnOnce(ViewMut<'_, T, D>) -> Result<(), Error>,
    ) -> Result<Transient<'_, T, D>, Error> {
        let before_bytes = self.zones.cursor_bytes();
        let (repeats, signed) = (self.mode.get() == Mode::Repeating, self.running.snapshot());
        let mut buffer = self.transient(len, alignment, depth)?;
        // Its contents are part of the request, not a use.
        let Err(error) = fill(buffer.access()) else { return Ok(buffer) };
        let span = span_from(buffer.offset_bytes(), buffer.len_bytes());
        let taken_back = match buffer.slot() {
            Some(slot) if self.mode.get() == Mode::Repeating => {
                self.plans.current().take_back_repeated(slot)
            }
            Some(slot) => self.plans.current().take_back(slot),
            None => self.zones.take_back(before_bytes, span),
        };
        if taken_back {
            self.take_back_alone(buffer.bare_address());
            std::mem::forget(buffer); // Its drop would be logged, and it never was.
            // While a step repeats, nothing is signed. If it ceased to with this request, what came before
            // that was signed since.
            if self.mode.get() != Mode::Repeating {
                self.running.restore(if repeats { self.signed_before.get() } else { signed });
            }
            if let Some(log) = self.log.borrow_mut().as_mut() {
                log.pop();
                self.region.uses().take_back(log.events().len());
            }
            // In a capture the device was not called, and a clearing would become part of the graph.
            if let (Some(value), None, false) =
                (self.value_at(depth), &self.separate, error.is_refused_in_capture())
            {
                let label = self.frames.at(depth).map_or("", |frame| frame.label);
                self.debts.begin(label, depth);
                self.debts.clear(span, value);
                self.choose_mode();
            }
        }
        Err(error)
    }
}

const fn span_from(start_bytes: u64, bytes: u64) -> Span {
    Span { start_bytes, end_bytes: start_bytes + bytes }
}
