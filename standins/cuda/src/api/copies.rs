//! Copies and fills.

use crate::abi::{Address, Code, CuResult, Handle};
use crate::copy::Wait;
use crate::driver::{Class, Driver, call};

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: Address, from: Address, bytes: usize) -> u32 {
    call("cuMemcpyHtoD_v2", Class::Context, |d| {
        let key = d.stream_key(0)?;
        d.copy_in(to, from, bytes as u64, key, Wait::Sync)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(
    to: Address,
    from: Address,
    bytes: usize,
    stream: Handle,
) -> u32 {
    call("cuMemcpyHtoDAsync_v2", Class::Context, |d| {
        let key = d.stream_key(stream)?;
        d.copy_in(to, from, bytes as u64, key, Wait::Async)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: Address, from: Address, bytes: usize) -> u32 {
    call("cuMemcpyDtoH_v2", Class::Context, |d| {
        let key = d.stream_key(0)?;
        d.copy_out(to, from, bytes as u64, key, Wait::Sync)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(
    to: Address,
    from: Address,
    bytes: usize,
    stream: Handle,
) -> u32 {
    call("cuMemcpyDtoHAsync_v2", Class::Context, |d| {
        let key = d.stream_key(stream)?;
        d.copy_out(to, from, bytes as u64, key, Wait::Async)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: Address, from: Address, bytes: usize) -> u32 {
    call("cuMemcpyDtoD_v2", Class::Context, |d| {
        d.refuse_in_capture()?;
        let key = d.stream_key(0)?;
        d.copy_across(to, from, bytes as u64, key)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(
    to: Address,
    from: Address,
    bytes: usize,
    stream: Handle,
) -> u32 {
    call("cuMemcpyDtoDAsync_v2", Class::Context, |d| {
        let key = d.stream_key(stream)?;
        d.copy_across(to, from, bytes as u64, key)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy(to: Address, from: Address, bytes: usize) -> u32 {
    call("cuMemcpy", Class::Context, |d| {
        let key = d.stream_key(0)?;
        d.copy_any(to, from, bytes as u64, key, Wait::Sync)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyAsync(to: Address, from: Address, bytes: usize, stream: Handle) -> u32 {
    call("cuMemcpyAsync", Class::Context, |d| {
        let key = d.stream_key(stream)?;
        d.copy_any(to, from, bytes as u64, key, Wait::Async)
    })
}

/// Both ends of a peer copy must lie on the devices of the contexts that are named for them.
fn peer_copy(
    d: &mut Driver,
    ends: [(Address, Handle); 2],
    bytes: usize,
    stream: Handle,
) -> CuResult<()> {
    for (address, context) in ends {
        let device = d.contexts.get(context).map_err(|_| Code::INVALID_CONTEXT)?.device;
        if d.memory.around(address).and_then(|block| block.device) != Some(device) {
            return Err(Code::INVALID_VALUE);
        }
    }
    let key = d.stream_key(stream)?;
    d.copy_across(ends[0].0, ends[1].0, bytes as u64, key)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeer(
    to: Address,
    to_in: Handle,
    from: Address,
    from_in: Handle,
    bytes: usize,
) -> u32 {
    call("cuMemcpyPeer", Class::Context, |d| {
        d.refuse_in_capture()?;
        peer_copy(d, [(to, to_in), (from, from_in)], bytes, 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: Address,
    to_in: Handle,
    from: Address,
    from_in: Handle,
    bytes: usize,
    stream: Handle,
) -> u32 {
    call("cuMemcpyPeerAsync", Class::Context, |d| {
        peer_copy(d, [(to, to_in), (from, from_in)], bytes, stream)
    })
}

/// Without a stream a fill is queued on the null stream, which captures of other threads may forbid.
fn fill_now(d: &mut Driver, to: Address, pattern: &[u8], count: usize) -> CuResult<()> {
    d.refuse_in_capture()?;
    let key = d.stream_key(0)?;
    d.fill(to, pattern, count, key)
}

fn fill_later(
    d: &mut Driver,
    to: Address,
    pattern: &[u8],
    count: usize,
    stream: Handle,
) -> CuResult<()> {
    let key = d.own_stream_key(stream)?;
    d.fill(to, pattern, count, key)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(to: Address, value: u8, count: usize) -> u32 {
    call("cuMemsetD8_v2", Class::Context, |d| fill_now(d, to, &[value], count))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: Address, value: u8, count: usize, stream: Handle) -> u32 {
    call("cuMemsetD8Async", Class::Context, |d| fill_later(d, to, &[value], count, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD16_v2(to: Address, value: u16, count: usize) -> u32 {
    call("cuMemsetD16_v2", Class::Context, |d| fill_now(d, to, &value.to_le_bytes(), count))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD16Async(to: Address, value: u16, count: usize, stream: Handle) -> u32 {
    call("cuMemsetD16Async", Class::Context, |d| {
        fill_later(d, to, &value.to_le_bytes(), count, stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32_v2(to: Address, value: u32, count: usize) -> u32 {
    call("cuMemsetD32_v2", Class::Context, |d| fill_now(d, to, &value.to_le_bytes(), count))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32Async(to: Address, value: u32, count: usize, stream: Handle) -> u32 {
    call("cuMemsetD32Async", Class::Context, |d| {
        fill_later(d, to, &value.to_le_bytes(), count, stream)
    })
}
