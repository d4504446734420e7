//! Plain device memory.

use crate::abi::{Address, AnyOut, Code, CuResult, Handle, In, MemLocation, Out};
use crate::driver::{Class, Driver, call};
use crate::memory::Kind;
use std::ffi::c_int;

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: Out<Address>, bytes: usize) -> u32 {
    call("cuMemAlloc_v2", Class::Context, |d| address.set(d.allocate_plain(bytes as u64)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: Address) -> u32 {
    call("cuMemFree_v2", Class::Release, |d| d.free_plain(address))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> u32 {
    call("cuMemGetInfo_v2", Class::Context, |d| {
        let device = d.current_device()?;
        free.set(d.free_bytes(device) as usize)?;
        total.set(d.settings.total_bytes as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAddressRange_v2(
    base: Out<Address>,
    bytes: Out<usize>,
    address: Address,
) -> u32 {
    call("cuMemGetAddressRange_v2", Class::Context, |d| {
        let block = d.memory.around(address).ok_or(Code::NOT_FOUND)?;
        base.set_if_wanted(block.base);
        bytes.set_if_wanted(block.len as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocManaged(address: Out<Address>, bytes: usize, flags: u32) -> u32 {
    call("cuMemAllocManaged", Class::Context, |d| {
        address.set(d.allocate_managed(bytes as u64, flags)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPrefetchAsync(
    address: Address,
    bytes: usize,
    _device: c_int,
    stream: Handle,
) -> u32 {
    call("cuMemPrefetchAsync", Class::Context, |d| {
        let key = d.own_stream_key(stream)?;
        d.prefetch(address, bytes as u64, key)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPrefetchAsync_v2(
    address: Address,
    bytes: usize,
    _location: MemLocation,
    flags: u32,
    stream: Handle,
) -> u32 {
    call("cuMemPrefetchAsync_v2", Class::Context, |d| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let key = d.own_stream_key(stream)?;
        d.prefetch(address, bytes as u64, key)
    })
}

/// The attributes that name an owner: context, kind of memory, device, and the block's range.
fn attribute(d: &Driver, data: AnyOut, attribute: u32, address: Address) -> CuResult<()> {
    let block = d.memory.around(address).ok_or(Code::INVALID_VALUE)?;
    let is_managed = matches!(block.kind, Kind::Managed { .. });
    let is_host = matches!(block.kind, Kind::Pinned { .. } | Kind::Registered);
    match attribute {
        1 => data.of::<u64>().set(block.context),
        2 => data.of::<u32>().set(if is_host { 1 } else { 2 }),
        3 | 11 => data.of::<u64>().set(if attribute == 3 { address } else { block.base }),
        4 if is_host || is_managed => data.of::<u64>().set(address),
        8 => data.of::<u8>().set(u8::from(is_managed)),
        9 => data.of::<c_int>().set(block.device.unwrap_or(0) as c_int),
        12 => data.of::<u64>().set(block.len),
        13 => data.of::<u8>().set(1),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// What the plural call says of an address that it does not know: nothing, without an error.
fn no_attribute(data: AnyOut, attribute: u32) -> CuResult<()> {
    match attribute {
        1 | 3 | 4 | 11 | 12 => data.of::<u64>().set(0),
        2 => data.of::<u32>().set(0),
        8 | 13 => data.of::<u8>().set(0),
        9 => data.of::<c_int>().set(-2),
        _ => Err(Code::INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttribute(data: AnyOut, name: u32, address: Address) -> u32 {
    call("cuPointerGetAttribute", Class::Context, |d| attribute(d, data, name, address))
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttributes(
    count: u32,
    names: In<u32>,
    data: In<AnyOut>,
    address: Address,
) -> u32 {
    call("cuPointerGetAttributes", Class::Context, |d| {
        let is_known = d.memory.around(address).is_some();
        let names = names.list(count as usize)?;
        for (name, data) in names.into_iter().zip(data.list(count as usize)?) {
            match is_known {
                true => attribute(d, data, name, address)?,
                false => no_attribute(data, name)?,
            }
        }
        Ok(())
    })
}
