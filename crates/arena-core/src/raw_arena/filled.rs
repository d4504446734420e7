//! Buffers that are handed out with contents. If the device refuses those, the request is taken back,
//! as if it had not been made.

#![forbid(unsafe_code)]

use bytemuck::Pod;

use super::RawArena;
use crate::buffer::{Persistent, Transient, View, ViewMut};
use crate::bytes::Alignment;
use crate::device::Device;
use crate::error::Error;

impl<D: Device> RawArena<D> {
    /// A persistent buffer that holds `values`, at the default alignment.
    ///
    /// # Errors
    ///
    /// As for [`persistent`](Self::persistent), or the device's refusal of the copy. Nothing is
    /// changed then.
    #[track_caller]
    pub fn persistent_from<T: Pod>(&self, values: &[T]) -> Result<Persistent<T, D>, Error> {
        self.persistent_from_aligned(values, Alignment::DEFAULT)
    }

    /// A persistent buffer that holds `values`.
    ///
    /// # Errors
    ///
    /// As for [`persistent_from`](Self::persistent_from).
    #[track_caller]
    pub fn persistent_from_aligned<T: Pod>(
        &self,
        values: &[T],
        alignment: Alignment,
    ) -> Result<Persistent<T, D>, Error> {
        self.persistent_filled(values.len(), alignment, |mut buffer| buffer.write(values))
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
        self.persistent_filled(len, alignment, |mut buffer| buffer.zero())
    }

    /// A persistent copy of a view, made on the device.
    ///
    /// # Errors
    ///
    /// As for [`persistent_from`](Self::persistent_from).
    #[track_caller]
    pub fn persistent_copy<T: Pod>(
        &self,
        view: View<'_, T, D>,
        alignment: Alignment,
    ) -> Result<Persistent<T, D>, Error> {
        self.persistent_filled(view.len(), alignment, |mut buffer| buffer.copy_from(view))
    }

    /// `fill` makes no request of its own.
    #[track_caller]
    fn persistent_filled<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        fill: impl FnOnce(ViewMut<'_, T, D>) -> Result<(), Error>,
    ) -> Result<Persistent<T, D>, Error> {
        let before = self.checkpoint();
        let mut buffer = self.persistent(len, alignment)?;
        let Err(error) = fill(buffer.view_mut()) else { return Ok(buffer) };
        match buffer.into_kept_span() {
            Some(span) => self.give_back_kept(span),
            None => self.zones.take_back(before.cursor_bytes),
        }
        Err(error)
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
    ) -> Result<Transient<'_, T, D>, Error> {
        self.transient_filled(len, alignment, |mut buffer| buffer.zero())
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
    ) -> Result<Transient<'_, T, D>, Error> {
        self.transient_filled(values.len(), alignment, |mut buffer| buffer.write(values))
    }

    /// `fill` makes no request of its own.
    #[track_caller]
    fn transient_filled<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
        fill: impl FnOnce(ViewMut<'_, T, D>) -> Result<(), Error>,
    ) -> Result<Transient<'_, T, D>, Error> {
        let before = self.checkpoint();
        let mut buffer = self.transient(len, alignment)?;
        let Err(error) = fill(buffer.view_mut()) else { return Ok(buffer) };
        if let Some(slot) = buffer.slot()
            && let Some(planned) = self.plans.followed()
            && !planned.take_back(slot)
        {
            return Err(error); // Its drop gives the slot back.
        }
        std::mem::forget(buffer); // Its drop would be logged, and it never was.
        self.take_back_alone(before);
        self.zones.take_back(before.cursor_bytes);
        if let Some(log) = self.log.borrow_mut().as_mut() {
            log.pop();
        }
        Err(error)
    }
}
