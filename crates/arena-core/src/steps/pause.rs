//! Pausing: the region's physical memory goes back to the device, and its addresses stay.
//!
//! A pause first copies what it keeps to the host, and takes memory only when all of that was read. So whatever fails,
//! every byte that is kept is on the device or on the host. Until a resume has written all of it back, the arena stays
//! paused, and either call can be made again.

use scopeguard::ScopeGuard;

use super::Steps;
use super::saved::Paused;
use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::layout::Span;
use crate::region::Region;
use crate::region_kind::{Keep, RegionKind};

/// How much one copy moves.
const COPY_BYTES: u64 = 64 << 20;

impl<D: Device> Steps<D> {
    /// Whether the region has given its memory back, and waits to be resumed.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.region.fences().is_paused()
    }

    /// Waits for every stream of the device, copies what is kept to host memory, and gives all physical memory back; the
    /// addresses stay. What the host sees as slices is never paused: there it gives back what
    /// [`trim`](Self::trim) does. Returns the bytes given back.
    ///
    /// On a paused region it gives back what an earlier call could not.
    ///
    /// # Errors
    ///
    /// Nothing is paused after:
    ///
    /// - [`ErrorKind::NotVirtual`] for a region of another kind,
    /// - [`ErrorKind::WouldBeLost`] for [`Keep::Nothing`] while there is a persistent buffer,
    /// - [`ErrorKind::InUse`] while a buffer is lent,
    /// - [`ErrorKind::NoHostMemory`],
    /// - an error that a close left behind, or the device's refusal of a wait or a copy, also in a capture.
    ///
    /// If the device refuses to take memory back, the region is paused, and that memory stays until the next call.
    pub fn pause(&mut self, keep: Keep) -> Result<u64, Error> {
        if D::HOST_VISIBLE || D::MEASURES_ONLY {
            return self.trim(0);
        }
        self.region.refuse_in_fork()?;
        if !self.is_paused() {
            self.begin_pause(keep)?;
        }
        self.take_memory()
    }

    fn begin_pause(&self, keep: Keep) -> Result<(), Error> {
        if self.region.kind() != RegionKind::Virtual {
            return Err(ErrorKind::NotVirtual { call: "pause" }.into());
        }
        self.ready()?;
        self.region.device().refuse_in_capture("pause")?;
        let persistent = self.region.persistent();
        if keep == Keep::Nothing && persistent > 0 {
            return Err(ErrorKind::WouldBeLost { persistent }.into());
        }
        // From here on no thread gives the device new work on the region's bytes.
        self.region.fences().set_paused(true);
        let not_paused = scopeguard::guard((), |()| {
            self.region.fences().set_paused(false);
            self.choose_mode();
        });
        // They may be streams of another device.
        self.wait_for_declared()?;
        if self.region.any_lent() {
            let by = "the program that it is lent to";
            return Err(ErrorKind::InUse { what: "a buffer", by }.into());
        }
        // Nothing that is queued may find its memory gone, on whatever stream.
        self.region.device().synchronise_all()?;
        let contents = if keep == Keep::Persistent { self.read_kept()? } else { Vec::new() };
        ScopeGuard::into_inner(not_paused);
        *self.paused.borrow_mut() = Some(Paused { contents, taken: Vec::new() });
        if keep == Keep::Nothing {
            self.region.end_life();
        }
        self.choose_mode();
        Ok(())
    }

    /// The contents of everything that outlives a scope, piece by piece.
    fn read_kept(&self) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let bottom = Span { start_bytes: 0, end_bytes: self.zones.mark_bytes() };
        let (start_bytes, end_bytes) = (self.zones.floor_bytes(), self.zones.capacity_bytes());
        let mut contents = Vec::new();
        for mut rest in [bottom, Span { start_bytes, end_bytes }] {
            while !rest.is_empty() {
                let bytes = rest.len_bytes().min(COPY_BYTES);
                let mut piece = Vec::new();
                let len = usize::try_from(bytes).unwrap_or(usize::MAX);
                piece.try_reserve_exact(len).map_err(|_| ErrorKind::NoHostMemory { bytes })?;
                piece.resize(len, 0);
                let address = self.zones.base_address() + rest.start_bytes;
                // SAFETY: the range lies in the region, where memory is committed: below the mark, or above the kept
                // floor. Every stream that wrote there is waited for by the arena's.
                unsafe { self.region.device().copy_out(&mut piece, address) }?;
                contents.push((rest.start_bytes, piece));
                rest.start_bytes += bytes;
            }
        }
        Ok(contents)
    }

    fn take_memory(&mut self) -> Result<u64, Error> {
        let Some(paused) = self.paused.get_mut() else { return Ok(0) };
        let mut given_bytes = 0;
        // SAFETY: the region is paused, so nobody gets a buffer or works on one, until `resume` has put all of it back
        // and written what was kept; every stream was waited for.
        while let Some(chunk) = unsafe { self.region.take_next() }? {
            given_bytes += chunk.len_bytes();
            paused.taken.push(chunk);
        }
        Ok(given_bytes)
    }

    /// Takes the memory again and writes back what was kept. On a region that is not paused it does nothing.
    ///
    /// # Errors
    ///
    /// The device's refusal, also in a capture: there is no memory, or a copy failed. The region is still paused then,
    /// and holds no more memory than before; try again.
    pub fn resume(&mut self) -> Result<(), Error> {
        let Some(paused) = self.paused.get_mut() else { return Ok(()) };
        self.region.refuse_in_fork()?;
        self.region.device().health()?;
        self.region.device().refuse_in_capture("resume")?;
        let had = paused.taken.len();
        let back = Self::put_back(&self.region, paused);
        if let Err(error) = back {
            // Others may wait for this memory. What the device does not take now, the next try begins with.
            while paused.taken.len() < had
                // SAFETY: as in `take_memory`.
                && let Ok(Some(chunk)) = unsafe { self.region.take_next() }
            {
                paused.taken.push(chunk);
            }
            return Err(error);
        }
        *self.paused.get_mut() = None;
        // What is not kept holds anything now.
        self.forget_poison(self.zones.mark_bytes());
        self.region.fences().set_paused(false);
        self.choose_mode();
        Ok(())
    }

    fn put_back(region: &Region<D>, paused: &mut Paused) -> Result<(), Error> {
        while let Some(chunk) = paused.taken.last().copied() {
            region.put_back(chunk)?;
            paused.taken.pop();
        }
        for (offset_bytes, contents) in &paused.contents {
            let address = region.base_address() + offset_bytes;
            // SAFETY: the range was read from there: it lies in the region, all of whose memory is back, and the
            // region is paused, so nobody else uses it.
            unsafe { region.device().copy_in(address, contents) }?;
        }
        // Another stream may use a persistent buffer right after, and is not made to wait for the copies.
        Ok(region.device().synchronise()?)
    }
}
