//! Virtual memory: reserved addresses, physical allocations, and mappings of one onto the other.

use crate::abi::{Address, AllocationProp, Code, CuResult, Handle};
use crate::address_space;
use crate::driver::Driver;
use crate::memory::{Block, Kind, Phase, fill_fresh};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Sizes and addresses are multiples of this, in bytes, if no setting says otherwise.
pub(crate) const GRANULARITY_BYTES: u64 = 2 << 20;

/// A reserved range of addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    base: Address,
    len: u64,
}

/// Memory that may be mapped.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) device: usize,
    pub(crate) len: u64,
    object: OwnedFd,
    /// Handles that the caller still holds.
    references: u64,
    mappings: u64,
}

/// The device of an allocation request: pinned memory on a device is the only kind there is.
pub(crate) fn requested_device(driver: &Driver, prop: &AllocationProp) -> CuResult<usize> {
    if prop.kind != 1 || prop.location.kind != 1 {
        return Err(Code::INVALID_VALUE);
    }
    driver.device_index(prop.location.id)
}

impl Driver {
    /// Whether a size or an address is one that the device maps; none is where it maps none.
    fn is_granular(&self, value: u64) -> bool {
        let unit = self.settings.granularity_bytes;
        unit > 0 && value.is_multiple_of(unit)
    }

    /// `cuMemAddressReserve`; a wish for a fixed address is not granted, as a driver is free to do.
    pub(crate) fn reserve_addresses(&mut self, len: u64, align: u64) -> CuResult<Address> {
        self.refuse_in_capture()?;
        if len == 0 || !self.is_granular(len) || (align != 0 && !align.is_power_of_two()) {
            return Err(Code::INVALID_VALUE);
        }
        let base = self.memory.carve_device(len, align.max(GRANULARITY_BYTES))?;
        self.reservations.push(Reservation { base, len });
        Ok(base)
    }

    /// `cuMemAddressFree`: the whole reservation, with nothing mapped in it.
    pub(crate) fn free_addresses(&mut self, base: Address, len: u64) -> CuResult<()> {
        self.refuse_in_capture()?;
        let at = self
            .reservations
            .iter()
            .position(|r| r.base == base && r.len == len)
            .ok_or(Code::INVALID_VALUE)?;
        if self.mappings_in(base, len).next().is_some() {
            return Err(Code::INVALID_VALUE);
        }
        self.reservations.remove(at);
        Ok(())
    }

    /// `cuMemCreate`.
    pub(crate) fn create_physical(&mut self, device: usize, len: u64) -> CuResult<Handle> {
        self.refuse_in_capture()?;
        if len == 0 || !self.is_granular(len) {
            return Err(Code::INVALID_VALUE);
        }
        self.require_free(device, len)?;
        let object =
            memfd_create(c"physical", MemfdFlags::CLOEXEC).map_err(|_| Code::OPERATING_SYSTEM)?;
        ftruncate(&object, len).map_err(|_| Code::OPERATING_SYSTEM)?;
        // Filled through a window of its own, which no caller ever sees.
        let window = self.memory.carve_device(len, GRANULARITY_BYTES)?;
        address_space::map_object(window, len, object.as_fd())?;
        fill_fresh(window, len);
        address_space::retire(window, len)?;
        Ok(self.physicals.add(Physical { device, len, object, references: 1, mappings: 0 }))
    }

    /// `cuMemRelease`: the memory goes when it is mapped nowhere and no handle is left.
    pub(crate) fn release_physical(&mut self, handle: Handle) -> CuResult<()> {
        self.refuse_in_capture()?;
        let physical = self.physicals.get_mut(handle).map_err(|_| Code::INVALID_VALUE)?;
        physical.references = physical.references.checked_sub(1).ok_or(Code::INVALID_VALUE)?;
        self.drop_unused(handle)
    }

    /// `cuMemRetainAllocationHandle`: one more reference to what is mapped at an address.
    pub(crate) fn retain_physical(&mut self, address: Address) -> CuResult<Handle> {
        match self.memory.around(address).map(|block| block.kind) {
            Some(Kind::Mapped { physical, .. }) => {
                self.physicals.get_mut(physical)?.references += 1;
                Ok(physical)
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn drop_unused(&mut self, handle: Handle) -> CuResult<()> {
        let physical = self.physicals.get(handle)?;
        if physical.references == 0 && physical.mappings == 0 {
            self.physicals.remove(handle)?;
        }
        Ok(())
    }

    /// `cuMemMap`: a whole physical allocation onto free addresses of one reservation, without access yet.
    pub(crate) fn map_physical(
        &mut self,
        base: Address,
        len: u64,
        offset: u64,
        handle: Handle,
    ) -> CuResult<()> {
        self.refuse_in_capture()?;
        let physical = self.physicals.get(handle).map_err(|_| Code::INVALID_VALUE)?;
        let end = base.checked_add(len).ok_or(Code::INVALID_VALUE)?;
        let reserved = self.reservations.iter().any(|r| base >= r.base && end <= r.base + r.len);
        if offset != 0
            || len != physical.len
            || !self.is_granular(base)
            || !reserved
            || physical.references == 0
        {
            return Err(Code::INVALID_VALUE);
        }
        let occupied = self.memory.around(base).is_some()
            || self.memory.blocks().any(|b| b.base >= base && b.base < end);
        if occupied {
            return Err(Code::INVALID_VALUE);
        }
        address_space::map_object(base, len, physical.object.as_fd())?;
        let device = Some(physical.device);
        let kind = Kind::Mapped { physical: handle, access: 0 };
        self.memory.insert(Block {
            base,
            len,
            device,
            context: 0,
            kind,
            phase: Phase::Live,
            released: false,
            released_on: None,
            successors: 0,
        });
        self.physicals.get_mut(handle)?.mappings += 1;
        Ok(())
    }

    /// `cuMemSetAccess` for one device on whole mappings.
    pub(crate) fn set_access(
        &mut self,
        base: Address,
        len: u64,
        device: usize,
        flags: u32,
    ) -> CuResult<()> {
        if !matches!(flags, 0 | 3) {
            // A device knows no read-only access.
            return Err(Code::INVALID_VALUE);
        }
        for mapping in self.whole_mappings(base, len)? {
            if let Some(Block { kind: Kind::Mapped { access, .. }, .. }) =
                self.memory.at_mut(mapping)
            {
                match flags {
                    0 => *access &= !(1 << device),
                    _ => *access |= 1 << device,
                }
            }
        }
        Ok(())
    }

    /// `cuMemUnmap` of whole mappings. It waits for nothing: queued work that still needs them will fault.
    pub(crate) fn unmap(&mut self, base: Address, len: u64) -> CuResult<()> {
        self.refuse_in_capture()?;
        for mapping in self.whole_mappings(base, len)? {
            let block = self.memory.remove(mapping)?;
            if let Kind::Mapped { physical, .. } = block.kind {
                self.physicals.get_mut(physical)?.mappings -= 1;
                self.drop_unused(physical)?;
            }
        }
        Ok(())
    }

    fn mappings_in(&self, base: Address, len: u64) -> impl Iterator<Item = &Block> {
        let inside = move |block: &&Block| block.base < base + len && block.end() > base;
        self.memory
            .blocks()
            .filter(|block| matches!(block.kind, Kind::Mapped { .. }))
            .filter(inside)
    }

    /// The mappings that together are exactly this range.
    fn whole_mappings(&self, base: Address, len: u64) -> CuResult<Vec<Address>> {
        let end = base.checked_add(len).ok_or(Code::INVALID_VALUE)?;
        let mut at = base;
        let mut found = Vec::new();
        for block in self.mappings_in(base, len) {
            if block.base != at {
                return Err(Code::INVALID_VALUE);
            }
            found.push(at);
            at = block.end();
        }
        if found.is_empty() || at != end { Err(Code::INVALID_VALUE) } else { Ok(found) }
    }
}
