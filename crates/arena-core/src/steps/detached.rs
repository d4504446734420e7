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
        Ok(Detached::new(buffer.bare_address(), buffer.packed(), made_in, &self.detached))
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
    #[track_caller]
    pub fn view_of<'v, T: Pod>(
        &'v self,
        buffer: &'v Detached<T>,
        depth: u32,
    ) -> Result<View<'v, T, D>, Error> {
        self.check_open(buffer.made_in, depth)?;
        self.region().uses().note_taken(buffer.address, buffer.len_bytes());
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
    #[track_caller]
    pub fn view_mut_of<'v, T: Pod>(
        &'v self,
        buffer: &'v mut Detached<T>,
        depth: u32,
    ) -> Result<ViewMut<'v, T, D>, Error> {
        self.check_open(buffer.made_in, depth)?;
        self.region().uses().note_taken(buffer.address, buffer.len_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::{Alignment, ByteSize};
    use crate::device::Host;
    use crate::placement::Placement;
    use crate::plan::{PlannedSlot, SlotTable};
    use crate::reset::Reset;
    use crate::step_log::{StepEvent, StepLog};
    use crate::steps::Watch;

    const A256: Alignment = Alignment::DEFAULT;

    fn steps() -> Steps<Host> {
        Steps::new(Host::new(), ByteSize::kib(8), Placement::Bump, Reset::Keep).unwrap()
    }

    fn open(steps: &Steps<Host>) -> FrameId {
        // SAFETY: no test uses a transient buffer after its scope.
        unsafe { steps.open_root("root", None) }.unwrap()
    }

    fn open_inner(steps: &Steps<Host>, parent_depth: u32) -> FrameId {
        // SAFETY: as above.
        unsafe { steps.open_inner(parent_depth, "inner", None) }.unwrap()
    }

    fn close(steps: &Steps<Host>, frame: FrameId) {
        // SAFETY: as above.
        unsafe { steps.close(frame) }.unwrap();
    }

    fn made(steps: &Steps<Host>, depth: u32) -> Detached<u8> {
        steps.detach(steps.transient::<u8>(256, A256, depth).unwrap(), depth).unwrap()
    }

    fn is_stale<T>(used: Result<T, Error>) -> bool {
        used.is_err_and(|error| matches!(error.kind(), ErrorKind::StaleBuffer { .. }))
    }

    #[test]
    fn a_buffer_is_used_from_its_scope_on_inwards_while_that_is_open() {
        let steps = steps();
        let root = open(&steps);
        let outer = made(&steps, 1);
        let inner_frame = open_inner(&steps, 1);
        let mut inner = made(&steps, 2);
        assert!(steps.view_of(&outer, 2).is_ok() && steps.view_of(&outer, 1).is_ok());
        assert!(steps.view_mut_of(&mut inner, 2).is_ok());
        assert!(is_stale(steps.view_of(&inner, 1)), "the innermost, from around it");
        let innermost = open_inner(&steps, 2);
        assert!(is_stale(steps.view_of(&inner, 1)), "not the innermost, from around it");
        assert!(steps.view_of(&inner, 3).is_ok());
        close(&steps, innermost);
        close(&steps, inner_frame);
        let beside = open_inner(&steps, 1);
        assert!(is_stale(steps.view_mut_of(&mut inner, 2)));
        close(&steps, beside);
        close(&steps, root);
        open(&steps);
        assert!(is_stale(steps.attach(outer, 1)));
    }

    #[test]
    fn a_buffer_of_another_arena_is_neither_taken_nor_used() {
        let (mine, theirs) = (steps(), steps());
        open(&mine);
        open(&theirs);
        let buffer = made(&theirs, 1);
        let refused = [
            mine.view_of(&buffer, 1).map(drop).unwrap_err(),
            mine.detach(theirs.transient::<u8>(1, A256, 1).unwrap(), 1).map(drop).unwrap_err(),
        ];
        for refused in refused {
            let ErrorKind::ForeignBuffer { made_in, used_in } = refused.kind() else {
                panic!("{refused}")
            };
            assert_eq!(made_in.arena, used_in.arena + 1);
            assert_eq!((made_in.number, used_in.number), (1, 1));
        }
    }

    #[test]
    fn drops_are_logged_where_they_happened_and_late_ones_not_at_all() {
        let steps = steps();
        let watch = Watch::Record(StepLog::default());
        // SAFETY: as above.
        let root = unsafe { steps.open_root_watched("root", None, watch) };
        let [a, b, c, late] = [(); 4].map(|()| made(&steps, 1));
        drop(a);
        let plain = steps.transient::<u8>(256, A256, 1).unwrap();
        drop(b);
        drop(plain);
        drop(c);
        let inner_frame = open_inner(&steps, 1);
        let [inner, late_too] = [(); 2].map(|()| made(&steps, 2));
        drop(inner);
        close(&steps, inner_frame);
        drop(late_too);
        let last = made(&steps, 1);
        drop(last);
        close(&steps, root.unwrap());
        drop(late);
        let log = steps.take_log().unwrap();
        let seen: Vec<_> = log
            .events()
            .iter()
            .map(|event| match *event {
                StepEvent::Drop { offset_bytes } => Some(offset_bytes),
                _ => None,
            })
            .collect();
        let drop = |n: u64| Some(n * 256);
        let (other, asked) = (None, None);
        let inside = [other, asked, asked, drop(5), other];
        let before = [other, asked, asked, asked, asked, drop(0), asked, drop(1), drop(4), drop(2)];
        assert_eq!(seen, [&before[..], &inside, &[asked, drop(5), other]].concat());
        made(&steps, 0);
    }

    #[test]
    fn a_step_whose_drops_are_late_to_be_seen_is_repeated_like_any_other() {
        let mut steps = steps();
        let slot = PlannedSlot { offset_bytes: 0, bytes: 256, alignment: A256 };
        let plan = steps.add_plan(SlotTable::new(&[slot; 4]).unwrap()).unwrap();
        for n in 0..4 {
            steps.select_plan(Some(plan));
            let root = open(&steps);
            let mut address = 0;
            for _ in 0..3 {
                let buffer = made(&steps, 1);
                assert_eq!(address.max(buffer.address), buffer.address);
                address = buffer.address;
            }
            drop(steps.attach(made(&steps, 1), 1).unwrap());
            assert_eq!(steps.mode.get() == Mode::Repeating, n > 0);
            close(&steps, root);
            assert_eq!(steps.plan_deviations(plan).map(|seen| seen.total()), Some(0));
        }
    }
}
