//! Primary contexts, contexts of the caller's own, and the current one.

use crate::abi::{Code, CuResult, Handle, Out};
use crate::driver::{Class, Driver, call};
use crate::schedule::Queued;
use crate::stream::Recorded;
use crate::work::Work;
use std::ffi::{c_int, c_void};

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) -> u32 {
    call("cuDevicePrimaryCtxRetain", Class::Global, |d| {
        let index = d.device_index(device)?;
        let primary = match d.devices[index].primary {
            Some(primary) => primary,
            None => {
                let flags = d.devices[index].primary_flags;
                d.create_context(index, true, flags)?
            }
        };
        context.set(primary)?;
        d.devices[index].primary = Some(primary);
        d.devices[index].retains += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> u32 {
    call("cuDevicePrimaryCtxRelease_v2", Class::Global, |d| {
        let index = d.device_index(device)?;
        d.release_primary(index)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxReset_v2(device: c_int) -> u32 {
    call("cuDevicePrimaryCtxReset_v2", Class::Global, |d| {
        let index = d.device_index(device)?;
        match d.devices[index].primary.take() {
            Some(primary) => {
                d.devices[index].retains = 0;
                d.destroy_context(primary)
            }
            None => Ok(()),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxGetState(
    device: c_int,
    flags: Out<u32>,
    active: Out<c_int>,
) -> u32 {
    call("cuDevicePrimaryCtxGetState", Class::Global, |d| {
        let device = &d.devices[d.device_index(device)?];
        flags.set(device.primary_flags)?;
        active.set(c_int::from(device.primary.is_some()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: u32) -> u32 {
    call("cuDevicePrimaryCtxSetFlags_v2", Class::Global, |d| {
        let index = d.device_index(device)?;
        d.devices[index].primary_flags = flags;
        Ok(())
    })
}

fn create(d: &mut Driver, context: Out<Handle>, flags: u32, device: c_int) -> Result<(), Code> {
    let index = d.device_index(device)?;
    let made = d.create_context(index, false, flags)?;
    d.push_current(made)?;
    context.set(made)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v2(context: Out<Handle>, flags: u32, device: c_int) -> u32 {
    call("cuCtxCreate_v2", Class::Global, |d| create(d, context, flags, device))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v3(
    context: Out<Handle>,
    _affinity: *const c_void,
    _affinities: c_int,
    flags: u32,
    device: c_int,
) -> u32 {
    call("cuCtxCreate_v3", Class::Global, |d| create(d, context, flags, device))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v4(
    context: Out<Handle>,
    _params: *const c_void,
    flags: u32,
    device: c_int,
) -> u32 {
    call("cuCtxCreate_v4", Class::Global, |d| create(d, context, flags, device))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: Handle) -> u32 {
    call("cuCtxDestroy_v2", Class::Global, |d| {
        if d.contexts.get(context).map_err(|_| Code::INVALID_CONTEXT)?.primary {
            return Err(Code::INVALID_CONTEXT);
        }
        if d.current_or_none() == context {
            d.pop_current()?;
        }
        d.destroy_context(context)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<Handle>) -> u32 {
    call("cuCtxGetCurrent", Class::Global, |d| context.set(d.current_or_none()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: Handle) -> u32 {
    call("cuCtxSetCurrent", Class::Global, |d| d.set_current(context))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: Handle) -> u32 {
    call("cuCtxPushCurrent_v2", Class::Global, |d| d.push_current(context))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: Out<Handle>) -> u32 {
    call("cuCtxPopCurrent_v2", Class::Global, |d| {
        let popped = d.pop_current()?;
        context.set_if_wanted(popped);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: Out<c_int>) -> u32 {
    call("cuCtxGetDevice", Class::Global, |d| device.set(d.current_device()? as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> u32 {
    call("cuCtxSynchronize", Class::Context, |d| {
        let context = d.current()?;
        d.synchronize_context(context)
    })
}

/// Records an event behind all that was queued in a context, whatever the stream.
fn record_context(d: &mut Driver, context: Handle, event: Handle) -> CuResult<()> {
    d.contexts.get(context).map_err(|_| Code::INVALID_CONTEXT)?;
    if d.events.get(event)?.context != context {
        return Err(Code::INVALID_HANDLE);
    }
    let capturing: Vec<_> = d
        .streams
        .iter()
        .filter(|(_, s)| s.context == context)
        .filter_map(|(_, s)| s.capture)
        .collect();
    if !capturing.is_empty() {
        capturing.into_iter().for_each(|id| d.invalidate(id));
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    d.sound(context)?;
    let last = d.streams.iter().filter(|(_, s)| s.context == context).filter_map(|(_, s)| s.last);
    let after: Vec<_> = last.collect();
    let stream = d.contexts.get(context)?.null_stream;
    let op = d.schedule.submit(Queued { context, stream, work: Work::Record { event } }, after);
    d.settle(op);
    d.events.get_mut(event)?.recorded = Recorded::Queued(op);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxRecordEvent(context: Handle, event: Handle) -> u32 {
    call("cuCtxRecordEvent", Class::Global, |d| record_context(d, context, event))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetFlags(flags: Out<u32>) -> u32 {
    call("cuCtxGetFlags", Class::Context, |d| flags.set(d.contexts.get(d.current()?)?.flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetFlags(flags: u32) -> u32 {
    call("cuCtxSetFlags", Class::Context, |d| {
        let context = d.current()?;
        d.contexts.get_mut(context)?.flags = flags;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetLimit(value: Out<usize>, limit: u32) -> u32 {
    call("cuCtxGetLimit", Class::Context, |d| {
        let context = d.contexts.get(d.current()?)?;
        let found = context.limits.get(&limit).ok_or(Code::UNSUPPORTED_LIMIT)?;
        value.set(*found as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetLimit(limit: u32, value: usize) -> u32 {
    call("cuCtxSetLimit", Class::Context, |d| {
        let context = d.current()?;
        let limits = &mut d.contexts.get_mut(context)?.limits;
        *limits.get_mut(&limit).ok_or(Code::UNSUPPORTED_LIMIT)? = value as u64;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCacheConfig(config: Out<u32>) -> u32 {
    call("cuCtxGetCacheConfig", Class::Context, |d| {
        config.set(d.contexts.get(d.current()?)?.cache_config)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCacheConfig(config: u32) -> u32 {
    call("cuCtxSetCacheConfig", Class::Context, |d| {
        let context = d.current()?;
        d.contexts.get_mut(context)?.cache_config = config;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) -> u32 {
    call("cuCtxGetStreamPriorityRange", Class::Context, |_| {
        least.set_if_wanted(0);
        greatest.set_if_wanted(-5);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetApiVersion(context: Handle, version: Out<u32>) -> u32 {
    call("cuCtxGetApiVersion", Class::Global, |d| {
        d.contexts.get(context).map_err(|_| Code::INVALID_CONTEXT)?;
        version.set(3020)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetId(context: Handle, id: Out<u64>) -> u32 {
    call("cuCtxGetId", Class::Global, |d| {
        let context = if context == 0 { d.current()? } else { context };
        d.contexts.get(context).map_err(|_| Code::INVALID_CONTEXT)?;
        id.set(context)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(peer: Handle, flags: u32) -> u32 {
    call("cuCtxEnablePeerAccess", Class::Context, |d| {
        let here = d.current()?;
        let device = d.contexts.get(peer).map_err(|_| Code::INVALID_CONTEXT)?.device;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if device == d.current_device()? {
            return Err(Code::PEER_ACCESS_UNSUPPORTED);
        }
        let peers = &mut d.contexts.get_mut(here)?.peers;
        if peers.contains(&peer) {
            return Err(Code::PEER_ACCESS_ALREADY_ENABLED);
        }
        peers.push(peer);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDisablePeerAccess(peer: Handle) -> u32 {
    call("cuCtxDisablePeerAccess", Class::Context, |d| {
        let here = d.current()?;
        let peers = &mut d.contexts.get_mut(here)?.peers;
        let at = peers.iter().position(|p| *p == peer).ok_or(Code::PEER_ACCESS_NOT_ENABLED)?;
        peers.remove(at);
        Ok(())
    })
}
