//! Buffers without a lifetime: taking one out of it, and giving access to it while its scope is open.

use std::mem::ManuallyDrop;

use bytemuck::Pod;

use super::{FrameId, Mode, Steps};
use crate::buffer::{Transient, View, ViewMut};
use crate::detached::{Detached, MadeIn};
use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::packed::{len_of, slot_of};

impl<D: Device> Steps<D> {
    /// Takes a buffer out of its lifetime. From here on it belongs to the open scope of `depth`, which must not
    /// outlive the one that made it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ForeignBuffer`] for a buffer of another arena; it is dropped then.
    pub fn detach<T: Pod>(
        &self,
        buffer: Transient<'_, T, D>,
        depth: u32,
    ) -> Result<Detached<T>, Error> {
        self.note_detached_drops(None);
        let made_in = self.scope_at(depth);
        if !std::ptr::eq(buffer.steps(), self) {
            let theirs = buffer.steps();
            let made_in_theirs = theirs.scope_at(theirs.depth());
            return Err(foreign(made_in_theirs, made_in));
        }
        let buffer = ManuallyDrop::new(buffer);
        Ok(Detached::new(buffer.address(), buffer.packed(), made_in, &self.detached))
    }

    /// Gives a detached buffer its lifetime back, in a scope of `depth`. A buffer that is refused is dropped.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::StaleBuffer`] or [`ErrorKind::ForeignBuffer`].
    pub fn attach<T: Pod>(
        &self,
        buffer: Detached<T>,
        depth: u32,
    ) -> Result<Transient<'_, T, D>, Error> {
        self.check_open(buffer.made_in, depth)?;
        let (address, packed) = buffer.into_parts();
        // SAFETY: 1 and 2: they held for the buffer that was detached. 3: it gave the bytes up to nobody, its
        // scope is open, and who closes that scope answers for what was made in it, as for any buffer.
        Ok(unsafe { Transient::new(address, len_of(packed), self, slot_of(packed)) })
    }

    /// Shared access to a detached buffer, in a scope of `depth`.
    ///
    /// # Errors
    ///
    /// As for [`attach`](Self::attach).
    #[inline]
    pub fn view_of<'v, T: Pod>(
        &'v self,
        buffer: &'v Detached<T>,
        depth: u32,
    ) -> Result<View<'v, T, D>, Error> {
        self.check_open(buffer.made_in, depth)?;
        // SAFETY: 1 and 2: they held for the buffer that was detached. 3: the handle is borrowed shared, and
        // its scope is open: who closes it answers for this view, as for any buffer.
        Ok(unsafe { View::new(buffer.address, buffer.len(), self.region()) })
    }

    /// Exclusive access to a detached buffer, in a scope of `depth`.
    ///
    /// # Errors
    ///
    /// As for [`attach`](Self::attach).
    #[inline]
    pub fn view_mut_of<'v, T: Pod>(
        &'v self,
        buffer: &'v mut Detached<T>,
        depth: u32,
    ) -> Result<ViewMut<'v, T, D>, Error> {
        self.check_open(buffer.made_in, depth)?;
        // SAFETY: as in `view_of`; the handle is borrowed mutably.
        Ok(unsafe { ViewMut::new(buffer.address, buffer.len(), self.region()) })
    }

    /// That a buffer's scope is open, and is the one of `depth` or around it. A deeper scope that is still
    /// open has lost its guard: it ends as soon as the scope of `depth` is used again.
    #[inline]
    fn check_open(&self, made_in: MadeIn, depth: u32) -> Result<(), Error> {
        if self.frames.is_innermost(made_in.frame) && made_in.depth <= depth {
            return Ok(());
        }
        self.check_outer(made_in, depth)
    }

    #[cold]
    #[inline(never)]
    fn check_outer(&self, made_in: MadeIn, depth: u32) -> Result<(), Error> {
        let used_in = self.scope_at(depth);
        if !self.frames.is_of_this_arena(made_in.frame) {
            return Err(foreign(made_in, used_in));
        }
        if made_in.depth <= depth && self.frames.depth_of(made_in.frame).is_some() {
            return Ok(());
        }
        Err(ErrorKind::StaleBuffer { made_in: made_in.id(), used_in: used_in.id() }.into())
    }

    /// The scope of `depth`: open, or none at all.
    fn scope_at(&self, depth: u32) -> MadeIn {
        let (frame, name) = self.frames.named(depth);
        MadeIn { frame, depth, name }
    }

    /// Detached buffers that were dropped count like any other, if their scope is open, or is the one that is
    /// `closing`.
    #[inline]
    pub(super) fn note_detached_drops(&self, closing: Option<FrameId>) {
        if self.detached.any() {
            self.note_detached_drops_slowly(closing);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_detached_drops_slowly(&self, closing: Option<FrameId>) {
        self.detached.drain(|dropped| {
            let open =
                closing == Some(dropped.frame) || self.frames.depth_of(dropped.frame).is_some();
            if open && self.mode.get() > Mode::Observed {
                self.note_drop_in_order(dropped.address, dropped.packed);
            }
        });
    }
}

#[cold]
fn foreign(made_in: MadeIn, used_in: MadeIn) -> Error {
    ErrorKind::ForeignBuffer { made_in: made_in.id(), used_in: used_in.id() }.into()
}
