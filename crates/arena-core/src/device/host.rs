//! The host's own memory.
//!
//! This module opens `unsafe` for five system calls and the raw copies. Each proof rests on the
//! range lying inside a mapping that this device made, which is what [`Device`] asks of callers.

mod limits;

use std::{ptr, slice};

use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap,
};

use super::{Device, DeviceMemory, HostVisible, Obtained, Pattern};
use crate::bytes::{Alignment, ByteSize};
use crate::error::{DeviceError, DeviceErrorKind};
use crate::shortage::LimitedBy;

/// The host device: one anonymous private mapping from the operating system.
///
/// The addresses are reserved at once, and the system provides each page when it is used for the first time. So
/// a large capacity costs nothing until it is used. New pages read as zero. Every call is complete when it
/// returns; there is no stream.
///
/// After a `fork` the child has a copy of its own of the whole region, as of all its memory: an arena works there,
/// and nothing that it does is seen by the parent.
#[derive(Debug, Clone, Default)]
pub struct Host(());

/// What a region's base is aligned to: a huge page, so that the kernel can use them, and so that
/// every alignment up to it costs the same padding on each run.
const BASE_ALIGNMENT_BYTES: u64 = 2 << 20;

impl Host {
    /// The host device.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }

    /// A private mapping of zeros, wherever the kernel has room.
    fn map(bytes: u64, mapped: Option<u64>, protection: ProtFlags) -> Result<Mapping, DeviceError> {
        let mapped = (mapped.and_then(|mapped| usize::try_from(mapped).ok()))
            .ok_or_else(|| Self::refused("mmap", bytes, "more than the address space"))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a null hint lets the kernel choose a range that nothing else uses.
        let address = unsafe { mmap_anonymous(ptr::null_mut(), mapped, protection, flags) }
            .map_err(|errno| Self::error("mmap", bytes, errno))?
            .expose_provenance();
        Ok(Mapping { address, bytes: mapped })
    }

    /// A mapping with an aligned base.
    fn map_region(
        &self,
        bytes: u64,
        protection: ProtFlags,
    ) -> Result<Obtained<Option<Mapping>>, DeviceError> {
        if bytes == 0 {
            // No byte will be read or written; the address is aligned and not null.
            return Ok(Obtained { base_address: BASE_ALIGNMENT_BYTES, handle: None });
        }
        let mapped = bytes.checked_add(BASE_ALIGNMENT_BYTES);
        let mapping = Self::map(bytes, mapped, protection)?;
        let base_address = (mapping.address as u64).next_multiple_of(BASE_ALIGNMENT_BYTES);
        Ok(Obtained { base_address, handle: Some(mapping) })
    }

    fn error(call: &'static str, bytes: u64, errno: Errno) -> DeviceError {
        let memory = (errno == Errno::NOMEM).then(limits::memory).flatten();
        if let Some(mut memory) = memory {
            if limits::is_out_of_mappings() {
                memory.limited_by = LimitedBy::Mappings;
            }
            return memory.shortage(bytes).refuse(memory.device, call);
        }
        Self::refused(call, bytes, errno)
    }

    fn refused(call: &'static str, bytes: u64, reason: impl std::fmt::Display) -> DeviceError {
        let (device, size) = (limits::HOST.to_owned(), ByteSize::bytes_exact(bytes));
        let (reason, kind) = (format!("{size}: {reason}"), DeviceErrorKind::Refused);
        DeviceError { device, call, reason, kind }
    }
}

/// A whole mapping, which is larger than what was asked for by what aligning its base took, or by its
/// guard pages.
#[derive(Debug)]
pub struct Mapping {
    address: usize,
    bytes: usize,
}

// SAFETY: by the duties' numbers. 1: both ways of obtaining return a private mapping of its own, which the
// kernel fills with zeros, and again when it took pages back; `reserve` does too, and its pages are closed
// until `commit`. 2: `obtain` and `reserve` round the base up, to more than a page; `obtain_guarded` ends at the
// page that it leaves closed; a page's size does not change. 3: each call
// writes exactly its range. 4: no call leaves this file but for system calls. 5: they fail before they have
// done anything, and copies never do. 6: nothing panics. 7 and 8: each call is done when it returns. 9:
// there is one stream, of no queued work. 10: it wraps nothing.
unsafe impl Device for Host {
    type Memory = Option<Mapping>;
    type Stream = ();
    type Event = ();
    const HOST_VISIBLE: bool = true;

    fn name(&self) -> String {
        limits::HOST.to_owned()
    }

    /// What this process can have: as its control group, its resource limits and the machine allow, whichever is the
    /// least. Without swapping; what other programs take of it meanwhile is not known.
    fn memory(&self) -> Result<DeviceMemory, DeviceError> {
        limits::memory().ok_or_else(|| DeviceError {
            device: self.name(),
            call: "/proc/meminfo",
            reason: "the system does not tell how much memory it has".to_owned(),
            kind: DeviceErrorKind::Refused,
        })
    }

    fn base_alignment(&self) -> Alignment {
        const { assert!(BASE_ALIGNMENT_BYTES.is_power_of_two()) }
        Alignment::new(BASE_ALIGNMENT_BYTES).unwrap_or(Alignment::DEFAULT)
    }

    fn obtain(&self, bytes: u64) -> Result<Obtained<Option<Mapping>>, DeviceError> {
        self.map_region(bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn guard_pages(&self) -> Option<Alignment> {
        Alignment::new(page_bytes()).ok()
    }

    fn obtain_guarded(&self, bytes: u64) -> Result<Obtained<Option<Mapping>>, DeviceError> {
        if bytes == 0 {
            return self.obtain(0);
        }
        let page_bytes = page_bytes();
        let open_bytes = bytes.checked_next_multiple_of(page_bytes);
        let mapped = open_bytes.and_then(|open_bytes| open_bytes.checked_add(2 * page_bytes));
        let mapping = Self::map(bytes, mapped, ProtFlags::empty())?;
        let start = mapping.address as u64 + page_bytes;
        let open_bytes = mapping.bytes as u64 - 2 * page_bytes;
        let opened = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: whole pages inside the mapping made just now, which nobody else knows.
        let opened = unsafe { mprotect(pointer(start).cast(), length(open_bytes), opened) };
        let base_address = start + open_bytes - bytes;
        let obtained = Obtained { base_address, handle: Some(mapping) };
        match opened {
            Ok(()) => Ok(obtained),
            Err(errno) => {
                // SAFETY: the mapping made just now, which nobody else knows.
                let _ = unsafe { self.release(obtained, bytes) };
                Err(Self::error("mprotect", bytes, errno))
            }
        }
    }

    unsafe fn release(
        &self,
        memory: Obtained<Option<Mapping>>,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let Some(mapping) = memory.handle else { return Ok(()) };
        let start = ptr::with_exposed_provenance_mut(mapping.address);
        // SAFETY: exactly the range that `mmap` returned, and the caller says nothing uses it.
        unsafe { munmap(start, mapping.bytes) }.map_err(|errno| Self::error("munmap", bytes, errno))
    }

    unsafe fn give_back(&self, address: u64, bytes: u64) -> Result<u64, DeviceError> {
        let page_bytes = page_bytes();
        let start = address.next_multiple_of(page_bytes);
        let end = (address + bytes) / page_bytes * page_bytes;
        if start >= end {
            return Ok(0);
        }
        // SAFETY: whole pages inside a range of a private anonymous mapping without live buffers:
        // they read as zero afterwards, so every byte stays initialised.
        unsafe { madvise(pointer(start).cast(), length(end - start), Advice::LinuxDontNeed) }
            .map_err(|errno| Self::error("madvise", bytes, errno))?;
        Ok(end - start)
    }

    fn commit_granularity(&self) -> Option<Alignment> {
        Alignment::new(page_bytes()).ok()
    }

    fn reserve(&self, bytes: u64) -> Result<Obtained<Option<Mapping>>, DeviceError> {
        self.map_region(bytes, ProtFlags::empty())
    }

    unsafe fn commit(
        &self,
        _memory: &Option<Mapping>,
        address: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let opened = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: whole pages inside a mapping of reserved addresses, in which nothing lives yet. They read as
        // zero: the kernel gave them nothing before, or took it all again in `decommit`.
        unsafe { mprotect(pointer(address).cast(), length(bytes), opened) }
            .map_err(|errno| Self::error("mprotect", bytes, errno))
    }

    unsafe fn decommit(
        &self,
        _memory: &Option<Mapping>,
        address: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let start = pointer(address).cast();
        // SAFETY: whole pages inside a private anonymous mapping without live buffers: they read as zero afterwards.
        unsafe { madvise(start, length(bytes), Advice::LinuxDontNeed) }
            .map_err(|errno| Self::error("madvise", bytes, errno))?;
        // SAFETY: as above. Nobody reads or writes there until the next `commit`.
        unsafe { mprotect(start, length(bytes), MprotectFlags::empty()) }
            .map_err(|errno| Self::error("mprotect", bytes, errno))
    }

    unsafe fn fill(&self, address: u64, bytes: u64, pattern: Pattern) -> Result<(), DeviceError> {
        // SAFETY: the caller owns this range of a live, writable mapping, whose bytes are initialised.
        let range = unsafe { slice::from_raw_parts_mut(pointer(address), length(bytes)) };
        pattern.repeat(range);
        Ok(())
    }

    unsafe fn copy_in(&self, to_address: u64, from: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: `from` is a live slice, and the caller owns the destination's range, so the two
        // do not overlap.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), pointer(to_address), from.len()) };
        Ok(())
    }

    unsafe fn copy_out(&self, to: &mut [u8], from_address: u64) -> Result<(), DeviceError> {
        let from = pointer(from_address).cast_const();
        // SAFETY: the caller gives a range of a live mapping, whose bytes are initialised; `to` is
        // borrowed mutably, so it does not overlap it.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn copy_within(
        &self,
        to_address: u64,
        from_address: u64,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let (to, from) = (pointer(to_address), pointer(from_address).cast_const());
        // SAFETY: both ranges lie in live mappings and do not overlap, as the caller promises.
        unsafe { ptr::copy_nonoverlapping(from, to, length(bytes)) };
        Ok(())
    }

    fn synchronise(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn stream(&self) -> &() {
        &()
    }

    fn owns_stream(&self, _stream: &()) -> bool {
        true
    }

    fn new_event(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn record(&self, _event: &(), _stream: &()) -> Result<(), DeviceError> {
        Ok(())
    }

    fn wait(&self, _stream: &(), _event: &()) -> Result<(), DeviceError> {
        Ok(())
    }

    fn synchronise_stream(&self, _stream: &()) -> Result<(), DeviceError> {
        Ok(())
    }
}

// SAFETY: by the duties' numbers. 1: a mapping is ordinary memory of this process until `munmap`. 2: the
// kernel fills it with zeros, and the calls above write whole bytes. 3: none of them queues anything.
unsafe impl HostVisible for Host {}

fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// A pointer into a mapping, whose provenance `obtain` exposed.
fn pointer(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(length(address))
}

/// Addresses and lengths inside a mapping came from `usize` values, so they fit one.
#[expect(clippy::cast_possible_truncation, reason = "see above")]
const fn length(bytes: u64) -> usize {
    bytes as usize
}
