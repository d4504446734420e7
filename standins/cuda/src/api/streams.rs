//! Streams, host functions and capture.

use crate::abi::{Address, Code, Handle, HostFunction, Out};
use crate::capture::{CaptureMode, exchange_thread_mode};
use crate::driver::{Class, Driver, call};
use crate::graph::Graph;
use crate::stream::Stream;
use crate::work::Work;
use std::ffi::{c_int, c_void};

fn create(d: &mut Driver, stream: Out<Handle>, flags: u32, priority: c_int) -> Result<(), Code> {
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let context = d.current()?;
    stream.set(d.streams.add(Stream::new(context, flags, priority.clamp(-5, 0), false)))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: Out<Handle>, flags: u32) -> u32 {
    call("cuStreamCreate", Class::Context, |d| create(d, stream, flags, 0))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: u32, priority: c_int) -> u32 {
    call("cuStreamCreateWithPriority", Class::Context, |d| create(d, stream, flags, priority))
}

/// What the stream still holds runs on; only the handle is gone.
#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: Handle) -> u32 {
    call("cuStreamDestroy_v2", Class::Release, |d| {
        if d.streams.get(stream)?.implicit {
            return Err(Code::INVALID_HANDLE);
        }
        d.abandon_captures(stream);
        d.streams.remove(stream).map(|_| ())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: Handle) -> u32 {
    call("cuStreamSynchronize", Class::Context, |d| {
        let key = d.stream_key(stream)?;
        d.synchronize_stream(key)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: Handle) -> u32 {
    call("cuStreamQuery", Class::Context, |d| {
        let key = d.stream_key(stream)?;
        if let Some(id) = d.streams.get(key)?.capture {
            d.invalidate(id);
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        d.refuse_implicit_dependency(key)?;
        let context = d.streams.get(key)?.context;
        for op in d.stream_order(key)? {
            d.poll(op, context)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) -> u32 {
    call("cuStreamWaitEvent", Class::Context, |d| {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let key = d.stream_key(stream)?;
        d.wait_event(key, event)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) -> u32 {
    call("cuStreamGetCtx", Class::Context, |d| {
        let key = d.stream_key(stream)?;
        context.set(d.streams.get(key)?.context)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetFlags(stream: Handle, flags: Out<u32>) -> u32 {
    call("cuStreamGetFlags", Class::Context, |d| {
        let key = d.stream_key(stream)?;
        flags.set(d.streams.get(key)?.flags)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetPriority(stream: Handle, priority: Out<c_int>) -> u32 {
    call("cuStreamGetPriority", Class::Context, |d| {
        let key = d.stream_key(stream)?;
        priority.set(d.streams.get(key)?.priority)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetId(stream: Handle, id: Out<u64>) -> u32 {
    call("cuStreamGetId", Class::Context, |d| id.set(d.stream_key(stream)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(stream: Handle, function: HostFunction, data: *mut c_void) -> u32 {
    call("cuLaunchHostFunc", Class::Context, |d| {
        if function.is_none() {
            return Err(Code::INVALID_VALUE);
        }
        let key = d.own_stream_key(stream)?;
        d.enqueue(key, Work::Host { function, data: data.expose_provenance() }, &[]).map(|_| ())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) -> u32 {
    call("cuStreamBeginCapture_v2", Class::Context, |d| {
        let mode = CaptureMode::from_raw(mode)?;
        let key = d.own_stream_key(stream)?;
        d.begin_capture(key, mode)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) -> u32 {
    call("cuStreamEndCapture", Class::Context, |d| {
        let key = d.own_stream_key(stream)?;
        let context = d.streams.get(key)?.context;
        match d.end_capture(key) {
            Ok(nodes) => graph.set(d.graphs.add(Graph { nodes: nodes.into(), context })),
            Err(code) => {
                graph.set_if_wanted(0);
                Err(code)
            }
        }
    })
}

fn capture_status(d: &mut Driver, stream: Handle) -> Result<(u32, u64), Code> {
    let key = d.stream_key(stream)?;
    d.refuse_implicit_dependency(key)?;
    Ok(match d.streams.get(key)?.capture {
        None => (0, 0),
        Some(id) if d.is_invalid(id) => (2, id),
        Some(id) => (1, id),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: Handle, status: Out<u32>) -> u32 {
    call("cuStreamIsCapturing", Class::Context, |d| status.set(capture_status(d, stream)?.0))
}

/// Status and number of the capture; the graph and its last nodes are not shown.
#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: Handle,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<Handle>,
    nodes: Out<*const Handle>,
    count: Out<usize>,
) -> u32 {
    call("cuStreamGetCaptureInfo_v2", Class::Context, |d| {
        let (found, number) = capture_status(d, stream)?;
        status.set(found)?;
        id.set_if_wanted(number);
        graph.set_if_wanted(0);
        nodes.set_if_wanted(std::ptr::null());
        count.set_if_wanted(0);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) -> u32 {
    call("cuThreadExchangeStreamCaptureMode", Class::Global, |_| {
        let wanted = CaptureMode::from_raw(mode.read()?)?;
        mode.set(exchange_thread_mode(wanted) as u32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamAttachMemAsync(
    stream: Handle,
    memory: Address,
    bytes: usize,
    flags: u32,
) -> u32 {
    call("cuStreamAttachMemAsync", Class::Context, |d| {
        let key = d.own_stream_key(stream)?;
        d.attach_managed(memory, bytes as u64, flags, key)
    })
}
