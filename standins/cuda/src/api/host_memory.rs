//! Pinned host memory.

use crate::abi::{Address, Code, Out};
use crate::driver::{Class, Driver, call};
use crate::memory::{Block, Kind};

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(pointer: Out<Address>, bytes: usize, flags: u32) -> u32 {
    call("cuMemHostAlloc", Class::Context, |d| pointer.set(d.allocate_pinned(bytes as u64, flags)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocHost_v2(pointer: Out<Address>, bytes: usize) -> u32 {
    call("cuMemAllocHost_v2", Class::Context, |d| pointer.set(d.allocate_pinned(bytes as u64, 0)?))
}

fn host_block(d: &Driver, pointer: Address, wanted: fn(Kind) -> bool) -> Option<Block> {
    d.memory.at(pointer).copied().filter(|block| wanted(block.kind))
}

/// Waits for the device first, as a driver does.
#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(pointer: Address) -> u32 {
    call("cuMemFreeHost", Class::Release, |d| {
        d.refuse_in_capture()?;
        let block = host_block(d, pointer, |kind| matches!(kind, Kind::Pinned { .. }))
            .ok_or(Code::INVALID_VALUE)?;
        d.run_until(|d| !d.schedule.is_busy(block.context));
        d.memory.remove(pointer).map(|_| ())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetDevicePointer_v2(
    device: Out<Address>,
    pointer: Address,
    _flags: u32,
) -> u32 {
    call("cuMemHostGetDevicePointer_v2", Class::Context, |d| {
        let block = d
            .memory
            .around(pointer)
            .filter(|block| block.device.is_none())
            .ok_or(Code::INVALID_VALUE)?;
        device.set(block.base + (pointer - block.base))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetFlags(flags: Out<u32>, pointer: Address) -> u32 {
    call("cuMemHostGetFlags", Class::Context, |d| {
        match d.memory.around(pointer).map(|block| block.kind) {
            Some(Kind::Pinned { flags: found }) => flags.set(found),
            _ => Err(Code::INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(pointer: Address, bytes: usize, _flags: u32) -> u32 {
    call("cuMemHostRegister_v2", Class::Context, |d| d.register_host(pointer, bytes as u64))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(pointer: Address) -> u32 {
    call("cuMemHostUnregister", Class::Release, |d| {
        d.refuse_in_capture()?;
        let block = host_block(d, pointer, |kind| kind == Kind::Registered)
            .ok_or(Code::HOST_MEMORY_NOT_REGISTERED)?;
        d.run_until(|d| !d.schedule.is_busy(block.context));
        d.memory.remove(pointer).map(|_| ())
    })
}
