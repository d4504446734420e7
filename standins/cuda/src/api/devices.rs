//! Devices and their properties.

use crate::abi::{Code, Handle, Out, TextOut, Uuid};
use crate::device;
use crate::driver::{Class, call};
use std::ffi::c_int;

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> u32 {
    call("cuDeviceGetCount", Class::Global, |d| count.set(d.devices.len() as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) -> u32 {
    call("cuDeviceGet", Class::Global, |d| device.set(d.device_index(ordinal)? as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: TextOut, len: c_int, device: c_int) -> u32 {
    call("cuDeviceGetName", Class::Global, |d| {
        let index = d.device_index(device)?;
        name.set(len, &format!("CUDA stand-in {index}"))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetPCIBusId(name: TextOut, len: c_int, device: c_int) -> u32 {
    call("cuDeviceGetPCIBusId", Class::Global, |d| {
        let index = d.device_index(device)?;
        name.set(len, &format!("0000:{:02X}:00.0", index + 1))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(uuid: Out<Uuid>, device: c_int) -> u32 {
    call("cuDeviceGetUuid", Class::Global, |d| uuid.set(uuid_of(d.device_index(device)?)))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: c_int) -> u32 {
    call("cuDeviceGetUuid_v2", Class::Global, |d| uuid.set(uuid_of(d.device_index(device)?)))
}

fn uuid_of(index: usize) -> Uuid {
    let mut bytes = *b"cuda-stand-in-00";
    bytes[15] += index as u8;
    Uuid(bytes)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) -> u32 {
    call("cuDeviceTotalMem_v2", Class::Global, |d| {
        d.device_index(device)?;
        bytes.set(d.settings.total_bytes as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: u32, device: c_int) -> u32 {
    call("cuDeviceGetAttribute", Class::Global, |d| {
        let index = d.device_index(device)?;
        value.set(device::attribute(&d.settings, index, attribute)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) -> u32 {
    call("cuDeviceCanAccessPeer", Class::Global, |d| {
        can.set(c_int::from(d.device_index(device)? != d.device_index(peer)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: c_int) -> u32 {
    call("cuDeviceGetDefaultMemPool", Class::Global, |d| {
        let index = d.device_index(device)?;
        pool.set(d.devices[index].default_pool)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetMemPool(pool: Out<Handle>, device: c_int) -> u32 {
    call("cuDeviceGetMemPool", Class::Global, |d| {
        let index = d.device_index(device)?;
        pool.set(d.devices[index].pool)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceSetMemPool(device: c_int, pool: Handle) -> u32 {
    call("cuDeviceSetMemPool", Class::Global, |d| {
        let index = d.device_index(device)?;
        if d.pools.get(pool)?.device != index {
            return Err(Code::INVALID_VALUE);
        }
        d.devices[index].pool = pool;
        Ok(())
    })
}
