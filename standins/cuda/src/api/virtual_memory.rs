//! Virtual memory.

use crate::abi::{AccessDesc, Address, AllocationProp, Code, Handle, In, MemLocation, Out};
use crate::driver::{Class, call};
use crate::memory::Kind;
use crate::vmm::requested_device;

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAllocationGranularity(
    bytes: Out<usize>,
    prop: In<AllocationProp>,
    option: u32,
) -> u32 {
    call("cuMemGetAllocationGranularity", Class::Global, |d| {
        requested_device(d, &prop.get()?)?;
        if option > 1 {
            return Err(Code::INVALID_VALUE);
        }
        bytes.set(d.settings.granularity_bytes as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressReserve(
    base: Out<Address>,
    bytes: usize,
    align: usize,
    _wish: Address,
    flags: u64,
) -> u32 {
    call("cuMemAddressReserve", Class::Global, |d| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        base.set(d.reserve_addresses(bytes as u64, align as u64)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(base: Address, bytes: usize) -> u32 {
    call("cuMemAddressFree", Class::ReleaseAnywhere, |d| d.free_addresses(base, bytes as u64))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemCreate(
    handle: Out<Handle>,
    bytes: usize,
    prop: In<AllocationProp>,
    flags: u64,
) -> u32 {
    call("cuMemCreate", Class::Global, |d| {
        let device = requested_device(d, &prop.get()?)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        handle.set(d.create_physical(device, bytes as u64)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(handle: Handle) -> u32 {
    call("cuMemRelease", Class::ReleaseAnywhere, |d| d.release_physical(handle))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRetainAllocationHandle(handle: Out<Handle>, address: Address) -> u32 {
    call("cuMemRetainAllocationHandle", Class::Global, |d| handle.set(d.retain_physical(address)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemMap(
    base: Address,
    bytes: usize,
    offset: usize,
    handle: Handle,
    flags: u64,
) -> u32 {
    call("cuMemMap", Class::Global, |d| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        d.map_physical(base, bytes as u64, offset as u64, handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemUnmap(base: Address, bytes: usize) -> u32 {
    call("cuMemUnmap", Class::ReleaseAnywhere, |d| d.unmap(base, bytes as u64))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemSetAccess(
    base: Address,
    bytes: usize,
    access: In<AccessDesc>,
    count: usize,
) -> u32 {
    call("cuMemSetAccess", Class::Global, |d| {
        if count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        for desc in access.list(count)? {
            if desc.location.kind != 1 {
                return Err(Code::INVALID_VALUE);
            }
            let device = d.device_index(desc.location.id)?;
            d.set_access(base, bytes as u64, device, desc.flags)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAccess(flags: Out<u64>, location: In<MemLocation>, address: Address) -> u32 {
    call("cuMemGetAccess", Class::Global, |d| {
        let device = d.device_index(location.get()?.id)?;
        match d.memory.around(address).map(|block| block.kind) {
            Some(Kind::Mapped { access, .. }) => {
                flags.set(if access >> device & 1 == 1 { 3 } else { 0 })
            }
            _ => Err(Code::INVALID_VALUE),
        }
    })
}
