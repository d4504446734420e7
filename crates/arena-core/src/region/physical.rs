//! The physical memory of a region that grows: committed where it is needed, given back where it is not.
//!
//! All of it comes through [`Region::commit`]. A region of one allocation has all of its memory from the start, and
//! nothing here does anything for it.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use super::{Region, unless_it_panics};
use crate::bytes::Alignment;
use crate::committed::{Committed, Step};
use crate::device::Device;
use crate::error::{DeviceError, DeviceErrorKind, Error, ErrorKind};
use crate::layout::Span;
use crate::pressure::{OnPressure, Pressure, with_retry};

impl<D: Device> Region<D> {
    /// What another thread's panic left behind is whole: a chunk is noted after its call.
    fn committed(&self) -> MutexGuard<'_, Committed> {
        self.committed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Bytes that have physical memory.
    pub(crate) fn committed_bytes(&self) -> u64 {
        self.committed_bytes.load(Ordering::Relaxed)
    }

    /// How far up the cursor may go, in bytes from the base.
    pub(crate) fn bottom_end_bytes(&self) -> u64 {
        self.committed().bottom_end_bytes()
    }

    /// Commits what is missing up to `to_bytes`.
    ///
    /// # Errors
    ///
    /// As for [`commit`](Self::commit).
    pub(crate) fn commit_up_to(&self, to_bytes: u64) -> Result<(), Error> {
        let mut committed = self.committed();
        let step = committed.step_up(to_bytes);
        step.map_or(Ok(()), |step| self.take_step(&mut committed, step))
    }

    /// Commits what is missing from `from_bytes` on, up to the region's end.
    ///
    /// # Errors
    ///
    /// As for [`commit`](Self::commit).
    pub(crate) fn commit_down_to(&self, from_bytes: u64) -> Result<(), Error> {
        let mut committed = self.committed();
        let step = committed.step_down(from_bytes);
        step.map_or(Ok(()), |step| self.take_step(&mut committed, step))
    }

    /// What is ahead of the need is only a wish.
    fn take_step(&self, committed: &mut Committed, step: Step) -> Result<(), Error> {
        let wished_bytes = committed.bytes().saturating_add(step.wish.len_bytes());
        if step.wish != step.need
            && wished_bytes <= self.soft_limit_bytes()
            && self.commit(committed, step.wish, None).is_ok()
        {
            return Ok(());
        }
        self.commit(committed, step.need, self.on_pressure.as_ref())
    }

    /// The one place where physical memory is committed: `chunk` lies at an end of the hole.
    ///
    /// # Errors
    ///
    /// The device's refusal, also in a capture; or [`ErrorKind::Forked`]. Nothing is changed then.
    fn commit(
        &self,
        committed: &mut Committed,
        chunk: Span,
        on_pressure: Option<&OnPressure>,
    ) -> Result<(), Error> {
        self.refuse_in_fork()?;
        self.device.refuse_in_capture("commit")?;
        let Some(memory) = &self.memory else { return Ok(()) };
        let (address, bytes) = (self.address_of(chunk), chunk.len_bytes());
        let before_bytes = committed.bytes();
        with_retry(on_pressure, before_bytes, || {
            // SAFETY: the chunk lies in the hole, so inside what was reserved and where nothing is committed, and begins
            // and ends at multiples of the granularity, by invariant 1. After a failure nothing is.
            unsafe { self.device.commit(&memory.handle, address, bytes) }
        })?;
        self.count_driver_allocation();
        committed.add(chunk);
        self.note(committed);
        self.note_growth(before_bytes, committed.bytes());
        Ok(())
    }

    /// The soft limit, in bytes.
    pub(crate) fn soft_limit_bytes(&self) -> u64 {
        self.soft_limit_bytes
    }

    /// Physical memory was committed: if that went beyond the soft limit, the program is told, and the next close of
    /// a root scope looks for what can go back.
    fn note_growth(&self, before_bytes: u64, committed_bytes: u64) {
        let limit_bytes = self.soft_limit_bytes;
        if committed_bytes <= limit_bytes {
            return;
        }
        self.fences.set_beyond_limit(true);
        if let (true, Some(callback)) = (before_bytes <= limit_bytes, &self.on_pressure) {
            callback.call(Pressure::SoftLimit { limit_bytes, committed_bytes });
        }
    }

    /// # Safety
    ///
    /// No live buffer has a byte in `chunk`, which is one of `committed`.
    unsafe fn decommit(&self, committed: &mut Committed, chunk: Span) -> Result<(), Error> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let (address, bytes) = (self.address_of(chunk), chunk.len_bytes());
        // SAFETY: by invariant 1 the chunk was committed by one call; the caller says that it is free.
        unsafe { self.device.decommit(&memory.handle, address, bytes) }?;
        committed.remove(chunk);
        self.note(committed);
        Ok(())
    }

    /// Gives the physical memory of `free` back: whole chunks, and of those that are used in part what the device can
    /// give back of them. A chunk that is longer than it need be is replaced by a shorter one, if nothing in it is
    /// used: nothing below `used_bytes` and nothing above `free`. Returns the bytes given back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`]; or the device's refusal: what was given back before it stays so.
    ///
    /// # Safety
    ///
    /// No live buffer has a byte between `used_bytes` and the end of `free`, and every stream that used one is
    /// waited for by the arena's.
    pub(crate) unsafe fn give_back(&self, used_bytes: u64, free: Span) -> Result<u64, Error> {
        self.refuse_in_fork()?;
        let mut given_bytes = 0;
        if self.grows {
            let mut committed = self.committed();
            while let Some(chunk) = committed.next_in(free) {
                // SAFETY: the chunk lies in what is free.
                unsafe { self.decommit(&mut committed, chunk) }?;
                given_bytes += chunk.len_bytes();
            }
            let too_long = committed.too_long(used_bytes, free.start_bytes, free.end_bytes);
            if let Some((chunk, shorter)) = too_long {
                // SAFETY: nothing of the chunk is used.
                unsafe { self.decommit(&mut committed, chunk) }?;
                given_bytes += chunk.len_bytes();
                // If somebody else has the memory by now, it is asked for again when it is needed.
                if self.commit(&mut committed, shorter, None).is_ok() {
                    given_bytes -= shorter.len_bytes();
                }
            }
        }
        let hole = self.committed().hole();
        let parts = if hole.is_empty() {
            [free, Span { end_bytes: free.start_bytes, ..free }]
        } else {
            let below = Span { end_bytes: free.end_bytes.min(hole.start_bytes), ..free };
            let above = Span { start_bytes: free.start_bytes.max(hole.end_bytes), ..free };
            [below, above]
        };
        for part in parts.into_iter().filter(|part| part.start_bytes < part.end_bytes) {
            // SAFETY: the part has memory, and is free.
            let given = unsafe { self.device.give_back(self.address_of(part), part.len_bytes()) };
            match given {
                Ok(bytes) => given_bytes += bytes,
                // What is left is a part of a chunk.
                Err(error) if self.grows && error.kind == DeviceErrorKind::Unsupported => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(given_bytes)
    }

    /// Takes the memory of the next chunk, whatever lies in it, and returns the chunk; `None` if none is left.
    ///
    /// # Errors
    ///
    /// The device's refusal: the chunk still has its memory, but maybe not its contents.
    ///
    /// # Safety
    ///
    /// Nobody uses a byte of the region until all that was taken is [put back](Self::put_back) and written, and every
    /// stream that used one is waited for by the arena's.
    pub(crate) unsafe fn take_next(&self) -> Result<Option<Span>, Error> {
        let mut committed = self.committed();
        let all = Span { start_bytes: 0, end_bytes: self.reserved_bytes };
        let Some(chunk) = committed.next_in(all) else { return Ok(None) };
        // SAFETY: the caller's promise.
        unsafe { self.decommit(&mut committed, chunk) }?;
        Ok(Some(chunk))
    }

    /// Commits a chunk again. They come in the reverse order of [`take_next`](Self::take_next).
    ///
    /// # Errors
    ///
    /// As for [`commit`](Self::commit).
    pub(crate) fn put_back(&self, chunk: Span) -> Result<(), Error> {
        self.commit(&mut self.committed(), chunk, self.on_pressure.as_ref())
    }

    /// At the region's end: takes all memory, as far as the device does it.
    pub(super) fn take_all(&self, memory: &D::Memory) {
        let mut committed = self.committed();
        let all = Span { start_bytes: 0, end_bytes: self.reserved_bytes };
        while let Some(chunk) = committed.next_in(all) {
            committed.remove(chunk);
            unless_it_panics(|| {
                // SAFETY: by invariant 1 the chunk was committed by one call; the region is nobody's any more.
                unsafe { self.device.decommit(memory, self.address_of(chunk), chunk.len_bytes()) }
            });
        }
    }

    /// All contents are given up for good.
    pub(crate) fn end_life(&self) {
        self.lives.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it can be paused: it gives its memory back, and the host holds no slices of it.
    pub(crate) fn grows(&self) -> bool {
        self.grows
    }

    /// Refuses a call in a fork of the process that built the arena: the device's memory is that process's. The host's
    /// own memory is copied by a fork, so there nothing is refused.
    pub(crate) fn refuse_in_fork(&self) -> Result<(), Error> {
        let (built_in, used_in) = (self.process, std::process::id());
        if built_in == used_in || D::HOST_VISIBLE {
            return Ok(());
        }
        Err(ErrorKind::Forked { built_in, used_in }.into())
    }

    fn note(&self, committed: &Committed) {
        let bytes = committed.bytes();
        self.committed_bytes.store(bytes, Ordering::Relaxed);
        if bytes <= self.soft_limit_bytes() && self.fences.is_beyond_limit() {
            self.fences.set_beyond_limit(false);
        }
    }

    fn address_of(&self, span: Span) -> u64 {
        self.base_address + span.start_bytes
    }
}

/// In what units a device commits memory.
pub(super) fn granularity<D: Device>(device: &D) -> Result<Alignment, Error> {
    device.commit_granularity().ok_or_else(|| {
        let reason = "it has no addresses without memory: build the arena with `RegionKind::Fixed`";
        DeviceError {
            device: device.name(),
            call: "reserve",
            reason: reason.to_owned(),
            kind: DeviceErrorKind::Unsupported,
        }
        .into()
    })
}

#[cfg(test)]
mod tests {
    use crate::bytes::ByteSize;
    use crate::device::{Call, Counting, Deferred, Device, Host};
    use crate::error::{Error, ErrorKind};
    use crate::layout::Span;
    use crate::region::Region;
    use crate::region_kind::{RegionKind, RegionOptions};

    /// A region that another process has built.
    fn built_elsewhere<D: Device>(device: D) -> Result<Region<D>, Error> {
        let options = RegionOptions {
            kind: RegionKind::Virtual,
            ahead: ByteSize::kib(0),
            ..RegionOptions::fixed(ByteSize::kib(64))
        };
        let mut region = Region::obtain(device, options)?;
        region.commit_up_to(1)?;
        region.process ^= 1;
        Ok(region)
    }

    #[test]
    fn a_fork_gets_a_typed_error_where_the_memory_is_not_its_own() -> Result<(), Error> {
        let region = built_elsewhere(Deferred::new(0))?;
        let refused = region.commit_up_to(2000).unwrap_err();
        let ErrorKind::Forked { built_in, used_in } = refused.kind() else { panic!("{refused}") };
        assert_eq!((*built_in, *used_in), (region.process, std::process::id()));
        assert_eq!(region.committed_bytes(), 1024, "nothing was changed");
        let on_the_host = built_elsewhere(Host::new())?;
        on_the_host.commit_up_to(5000)?; // A fork has its own copy.
        Ok(())
    }

    #[test]
    fn a_fork_gives_nothing_back_not_even_at_its_end() -> Result<(), Error> {
        let device = Counting::new(Deferred::new(0));
        let counts = device.counts();
        let region = built_elsewhere(device)?;
        let all = Span { start_bytes: 0, end_bytes: 64 << 10 };
        // SAFETY: nobody has a buffer in the region.
        let refused = unsafe { region.give_back(0, all) }.unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Forked { .. }), "{refused}");
        drop(region);
        for call in [Call::GiveBack, Call::Decommit, Call::Unreserve] {
            assert_eq!(counts.calls(call), 0, "{call:?}");
        }
        Ok(())
    }

    // A request that lies in no hole must not ask the device.
    #[test]
    fn what_is_committed_is_not_committed_again() -> Result<(), Error> {
        let region = built_elsewhere(Host::new())?;
        for to_bytes in [0, 1, 4096] {
            region.commit_up_to(to_bytes)?;
        }
        assert_eq!((region.committed_bytes(), region.driver_allocations()), (4096, 2));
        let all = Span { start_bytes: 0, end_bytes: 64 << 10 };
        // SAFETY: nobody has a buffer in the region.
        assert_eq!(unsafe { region.give_back(0, all) }?, 4096);
        Ok(())
    }
}
