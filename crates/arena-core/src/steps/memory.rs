//! The physical memory behind the zones: it grows where a request needs it, and is given back between steps.
//!
//! A request looks at one limit, the lower of the kept floor and the end of what is committed. So growing costs the
//! requests nothing that need not grow, and a region that has all its memory never comes here.

use super::Steps;
use crate::bytes::Alignment;
use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::layout::Span;

impl<D: Device> Steps<D> {
    /// The zones learn what is committed now.
    pub(super) fn follow_memory(&self) {
        self.zones.set_committed(self.region.bottom_end_bytes());
    }

    /// Memory for everything up to `to_bytes`.
    ///
    /// # Errors
    ///
    /// The device's refusal; nothing is changed then.
    #[inline]
    pub(super) fn grow_to(&self, to_bytes: u64) -> Result<(), Error> {
        if to_bytes <= self.zones.committed_bytes() { Ok(()) } else { self.grow(to_bytes) }
    }

    #[cold]
    #[inline(never)]
    fn grow(&self, to_bytes: u64) -> Result<(), Error> {
        self.region.commit_up_to(to_bytes)?;
        self.follow_memory();
        Ok(())
    }

    /// The bump with the error, into memory that is committed for it.
    pub(super) fn bump_grown(&self, bytes: u64, alignment: Alignment) -> Result<Span, Error> {
        if bytes > 0
            && let Some(address) = self.zones.bump(bytes, alignment)
        {
            let start_bytes = self.offset_of(address);
            return Ok(Span { start_bytes, end_bytes: start_bytes + bytes });
        }
        if let Some(end_bytes) = self.zones.end_of(bytes, alignment) {
            self.grow_to(end_bytes)?;
        }
        self.zones.bump_checked(bytes, alignment)
    }

    /// Room for a persistent buffer, and memory for it; whether it is kept at the top.
    pub(super) fn place_persistent(
        &self,
        bytes: u64,
        alignment: Alignment,
    ) -> Result<(Span, bool), Error> {
        if !self.mark_is_set() {
            return Ok((self.bump_grown(bytes, alignment)?, false));
        }
        let (span, kept) = self.zones.place_persistent(bytes, alignment)?;
        let is_whole = self.zones.committed_bytes() == self.zones.capacity_bytes();
        if kept && !is_whole {
            let floor_bytes = self.zones.floor_bytes();
            if let Err(error) = self.region.commit_down_to(floor_bytes) {
                self.zones.give_back_kept(span);
                return Err(error);
            }
            self.follow_memory();
        }
        Ok((span, kept))
    }

    /// Gives the physical memory between `above_bytes` (or the cursor, if that is higher) and the kept part back to
    /// the device, while every address stays. Returns the bytes given back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InUse`] while the region is pinned; the device's refusal, also in a capture, of the kind
    /// [`Unsupported`](crate::DeviceErrorKind::Unsupported) where it never gives back; [`ErrorKind::Forked`]; or an
    /// error that a close left behind.
    pub fn trim(&mut self, above_bytes: u64) -> Result<u64, Error> {
        self.ready()?;
        self.region.device().refuse_in_capture("trim")?;
        if self.region.is_pinned() {
            return Err(ErrorKind::InUse { what: "the region", by: "a graph" }.into());
        }
        let used_bytes = self.zones.cursor_bytes();
        let start_bytes = above_bytes.max(used_bytes);
        let free = Span { start_bytes, end_bytes: self.zones.floor_bytes() };
        if start_bytes >= free.end_bytes {
            return Ok(0);
        }
        // Of a chunk that becomes shorter, what lies below `above_bytes` is lost as well.
        let kept_bytes = if self.region.grows() { used_bytes } else { start_bytes };
        self.forget_poison(kept_bytes);
        // SAFETY: between cursor and kept floor no buffer lies, for `&mut self` says that no transient one is alive;
        // what the closed scopes' streams did there was waited for at their closes.
        unsafe { self.give_back(used_bytes, free) }
    }

    /// [`trim`](Self::trim) by the arena itself, not by its user. Memory that the device does not take back stays
    /// committed. An error that waits is left for the next call that can return it.
    pub fn trim_quietly(&mut self, above_bytes: u64) {
        match self.ready() {
            Ok(()) => drop(self.trim(above_bytes)),
            Err(error) => self.region.keep_failure(error),
        }
    }

    /// [`Region::give_back`](crate::region::Region::give_back), after which the zones know what there is.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn give_back(&self, used_bytes: u64, free: Span) -> Result<u64, Error> {
        // However it ends: no byte without memory may be given out.
        let _reach = scopeguard::guard((), |()| self.follow_memory());
        // SAFETY: the caller's promise.
        unsafe { self.region.give_back(used_bytes, free) }
    }

    /// Gives back what the step that has just closed did not need, above the soft limit. What the device refuses to
    /// take is kept: the next close asks again.
    pub(super) fn trim_to_soft_limit(&self, needed_bytes: u64) {
        let is_held =
            self.region.is_pinned() || self.region.device().refuse_in_capture("trim").is_err();
        let used_bytes = self.zones.cursor_bytes();
        let start_bytes = needed_bytes.max(self.region.soft_limit_bytes()).max(used_bytes);
        let free = Span { start_bytes, end_bytes: self.zones.floor_bytes() };
        if is_held || start_bytes >= free.end_bytes || self.depth() > 0 {
            return;
        }
        self.forget_poison(used_bytes);
        // SAFETY: the root scope has closed, whose caller said that no transient buffer is used again; what the
        // streams of the closed scopes did was waited for just before.
        let _ = unsafe { self.give_back(used_bytes, free) };
    }

    /// What lies from `from_bytes` on may hold anything again.
    pub(super) fn forget_poison(&self, from_bytes: u64) {
        if let Some(poisoned_to) = self.poisoned_to.get() {
            self.poisoned_to.set(Some(poisoned_to.min(from_bytes)));
        }
    }
}
