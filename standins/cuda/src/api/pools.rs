//! Stream-ordered allocation and memory pools.

use crate::abi::{AccessDesc, Address, AnyOut, Code, CuResult, Handle, In, Out, PoolProps};
use crate::driver::{Class, call};
use crate::pool::Pool;
use std::ffi::c_int;

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(address: Out<Address>, bytes: usize, stream: Handle) -> u32 {
    call("cuMemAllocAsync", Class::Context, |d| {
        let key = d.own_stream_key(stream)?;
        let device = d.contexts.get(d.streams.get(key)?.context)?.device;
        let pool = d.devices[device].pool;
        address.set(d.allocate_ordered(bytes as u64, pool, key)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocFromPoolAsync(
    address: Out<Address>,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> u32 {
    call("cuMemAllocFromPoolAsync", Class::Context, |d| {
        let key = d.own_stream_key(stream)?;
        address.set(d.allocate_ordered(bytes as u64, pool, key)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: Address, stream: Handle) -> u32 {
    call("cuMemFreeAsync", Class::Release, |d| {
        let key = d.own_stream_key(stream)?;
        d.free_ordered(address, key)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolCreate(pool: Out<Handle>, props: In<PoolProps>) -> u32 {
    call("cuMemPoolCreate", Class::Global, |d| {
        let props = props.get()?;
        if props.kind != 1 || props.location.kind != 1 {
            return Err(Code::INVALID_VALUE);
        }
        let device = d.device_index(props.location.id)?;
        pool.set(d.pools.add(Pool::new(device, false)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolDestroy(pool: Handle) -> u32 {
    call("cuMemPoolDestroy", Class::ReleaseAnywhere, |d| {
        let found = d.pools.get_mut(pool)?;
        if found.built_in || found.destroyed {
            return Err(Code::INVALID_VALUE);
        }
        found.destroyed = true;
        if found.used == 0 {
            d.pools.remove(pool)?;
        }
        for device in d.devices.iter_mut().filter(|device| device.pool == pool) {
            device.pool = device.default_pool;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolTrimTo(pool: Handle, keep: usize) -> u32 {
    call("cuMemPoolTrimTo", Class::Context, |d| {
        d.pools.get_mut(pool)?.trim(keep as u64);
        Ok(())
    })
}

/// The memory of a pool is open to its own device only; the stand-in has no peer access to pools.
#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAccess(pool: Handle, _access: In<AccessDesc>, _count: usize) -> u32 {
    call("cuMemPoolSetAccess", Class::Context, |d| {
        d.pools.get(pool)?;
        Err(Code::NOT_SUPPORTED)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolGetAttribute(pool: Handle, attribute: u32, value: AnyOut) -> u32 {
    call("cuMemPoolGetAttribute", Class::Global, |d| {
        let pool = d.pools.get(pool)?;
        let bytes = match attribute {
            1..=3 => return value.of::<c_int>().set(pool.reuse[attribute as usize - 1]),
            4 => pool.threshold,
            5 => pool.reserved,
            6 => pool.reserved_high,
            7 => pool.used,
            8 => pool.used_high,
            _ => return Err(Code::INVALID_VALUE),
        };
        value.of::<u64>().set(bytes)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: AnyOut) -> u32 {
    call("cuMemPoolSetAttribute", Class::Global, |d| {
        let pool = d.pools.get_mut(pool)?;
        let bytes = || value.of::<u64>().read();
        match attribute {
            1..=3 => pool.reuse[attribute as usize - 1] = value.of::<c_int>().read()?,
            4 => pool.threshold = bytes()?,
            // The high-water marks can only be put back.
            6 => pool.reserved_high = reset_to(bytes()?, pool.reserved)?,
            8 => pool.used_high = reset_to(bytes()?, pool.used)?,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    })
}

fn reset_to(wanted: u64, current: u64) -> CuResult<u64> {
    if wanted == 0 { Ok(current) } else { Err(Code::INVALID_VALUE) }
}
