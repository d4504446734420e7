//! Address ranges taken from the operating system, handed out once unless they are given back.
//!
//! Each range is reserved without access and committed piece by piece. A released piece loses its pages and its
//! access, so a stale address can neither alias a newer allocation nor be read by accident.

use crate::abi::{Address, Code, CuResult};
use rustix::fd::BorrowedFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect};
use std::ffi::c_void;

/// Pages of the host; every piece begins on one.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// What one space reserves at a time. Reserving costs no memory.
const RESERVE_BYTES: u64 = 1 << 38;

/// A growing supply of addresses for one kind of memory.
#[derive(Debug, Default)]
pub(crate) struct AddressSpace {
    next: Address,
    end: Address,
    /// Ranges that were given back: start and bytes, the newest last.
    released: Vec<(Address, u64)>,
}

impl AddressSpace {
    /// Takes `len` bytes of addresses (rounded up to pages) at a multiple of `align`, with no access yet, and leaves at
    /// least one page unused behind them.
    pub(crate) fn carve(&mut self, len: u64, align: u64) -> CuResult<Address> {
        let align = align.max(PAGE_BYTES);
        let taken = with_gap(len).ok_or(Code::OUT_OF_MEMORY)?;
        let fits = |(start, room): &(Address, u64)| *room >= taken && start.is_multiple_of(align);
        if let Some(at) = self.released.iter().rposition(fits) {
            let (start, room) = self.released.remove(at);
            if room > taken {
                self.released.push((start + taken, room - taken));
            }
            return Ok(start);
        }
        if taken + align > RESERVE_BYTES {
            return Err(Code::OUT_OF_MEMORY);
        }
        if self.end - self.next < taken + align {
            self.next = reserve(RESERVE_BYTES)?;
            self.end = self.next + RESERVE_BYTES;
        }
        let start = self.next.next_multiple_of(align);
        self.next = start + taken;
        Ok(start)
    }

    /// Takes back a range that `carve` gave out for `len` bytes, to give it out again.
    pub(crate) fn give_back(&mut self, start: Address, len: u64) {
        self.released.extend(with_gap(len).map(|taken| (start, taken)));
    }

    /// What was given back is never given out again.
    pub(crate) fn forget_released(&mut self) {
        self.released.clear();
    }
}

/// Bytes rounded up to pages, and at least one page more.
fn with_gap(len: u64) -> Option<u64> {
    Some(len.checked_add(2 * PAGE_BYTES)? & !(PAGE_BYTES - 1))
}

fn os_error(_: rustix::io::Errno) -> Code {
    Code::OPERATING_SYSTEM
}

fn pointer(address: Address) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

fn rounded(len: u64) -> usize {
    len.next_multiple_of(PAGE_BYTES) as usize
}

fn reserve(len: u64) -> CuResult<Address> {
    let (hint, none) = (std::ptr::null_mut(), ProtFlags::empty());
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a null hint lets the kernel choose addresses that nothing else uses.
    let start = unsafe { mmap_anonymous(hint, len as usize, none, flags) };
    Ok(start.map_err(os_error)?.expose_provenance() as Address)
}

/// Makes carved addresses readable and writable.
pub(crate) fn commit(start: Address, len: u64) -> CuResult<()> {
    let flags = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
    // SAFETY: callers pass ranges that `carve` gave out, which belong to this process's stand-in alone.
    unsafe { mprotect(pointer(start), rounded(len), flags) }.map_err(os_error)
}

/// Maps the shared memory object `fd` over carved addresses.
pub(crate) fn map_object(start: Address, len: u64, fd: BorrowedFd<'_>) -> CuResult<()> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: as in `commit`; replacing the reservation's pages is what `FIXED` is for.
    let at = unsafe {
        mmap(pointer(start), rounded(len), access, MapFlags::SHARED | MapFlags::FIXED, fd, 0)
    };
    at.map(|_| ()).map_err(os_error)
}

/// Takes pages and access away again; the addresses stay reserved for good.
pub(crate) fn retire(start: Address, len: u64) -> CuResult<()> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: as in `commit`.
    let at = unsafe { mmap_anonymous(pointer(start), rounded(len), ProtFlags::empty(), flags) };
    at.map(|_| ()).map_err(os_error)
}
