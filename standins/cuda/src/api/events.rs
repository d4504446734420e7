//! Events.

use crate::abi::{Code, CuResult, Handle, Out};
use crate::driver::{Class, Driver, call};
use crate::schedule::OpId;
use crate::stream::{DISABLE_TIMING, Event, Recorded};

/// One operation of the stand-in counts as a microsecond, which no measurement should believe.
const MILLISECONDS_PER_OPERATION: f32 = 0.001;

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: Out<Handle>, flags: u32) -> u32 {
    call("cuEventCreate", Class::Context, |d| {
        // An event for other processes must not keep time.
        if flags > 7 || (flags & 4 != 0 && flags & DISABLE_TIMING == 0) {
            return Err(Code::INVALID_VALUE);
        }
        let context = d.current()?;
        event.set(d.events.add(Event { context, flags, recorded: Recorded::Never, stamp: 0 }))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: Handle) -> u32 {
    call("cuEventDestroy_v2", Class::Release, |d| d.events.remove(event).map(|_| ()))
}

fn record(d: &mut Driver, event: Handle, stream: Handle) -> CuResult<()> {
    let key = d.own_stream_key(stream)?;
    d.record_event(event, key)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> u32 {
    call("cuEventRecord", Class::Context, |d| record(d, event, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: u32) -> u32 {
    call("cuEventRecordWithFlags", Class::Context, |d| record(d, event, stream))
}

/// The operation that the event stands for; `None` when it was never recorded.
fn recorded_op(d: &mut Driver, event: Handle) -> CuResult<Option<(OpId, Handle)>> {
    let found = d.events.get(event)?;
    match found.recorded {
        Recorded::Never => Ok(None),
        Recorded::Queued(op) => Ok(Some((op, found.context))),
        Recorded::Captured(id, _) => {
            d.invalidate(id);
            Err(Code::CAPTURED_EVENT)
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: Handle) -> u32 {
    call("cuEventQuery", Class::Global, |d| match recorded_op(d, event)? {
        Some((op, context)) => {
            d.refuse_in_capture()?;
            d.poll(op, context)
        }
        None => Ok(()),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: Handle) -> u32 {
    call("cuEventSynchronize", Class::Context, |d| match recorded_op(d, event)? {
        Some((op, context)) => {
            d.refuse_in_capture()?;
            d.wait_for(op, context)?;
            d.trim_pools();
            Ok(())
        }
        None => Ok(()),
    })
}

fn elapsed(d: &mut Driver, milliseconds: Out<f32>, start: Handle, end: Handle) -> CuResult<()> {
    let (Some((first, home)), Some((last, other_home))) =
        (recorded_op(d, start)?, recorded_op(d, end)?)
    else {
        return Err(Code::INVALID_HANDLE);
    };
    let (from, to) = (d.events.get(start)?, d.events.get(end)?);
    if home != other_home || (from.flags | to.flags) & DISABLE_TIMING != 0 {
        return Err(Code::INVALID_HANDLE);
    }
    if !d.schedule.is_done(first) || !d.schedule.is_done(last) {
        return Err(Code::NOT_READY);
    }
    milliseconds.set((to.stamp as f32 - from.stamp as f32) * MILLISECONDS_PER_OPERATION)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) -> u32 {
    call("cuEventElapsedTime", Class::Context, |d| elapsed(d, milliseconds, start, end))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) -> u32 {
    call("cuEventElapsedTime_v2", Class::Context, |d| elapsed(d, milliseconds, start, end))
}
