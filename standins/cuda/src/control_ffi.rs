//! The functions by which tests steer the stand-in. [`crate::control`] is their safe side: a test program opens the
//! shared library, whose state is not that of the program's own copy of this crate.

use crate::abi::{Address, Code, CuResult, Handle, In, Out, Text, TextOut};
use crate::driver::{Driver, lock};
use crate::leaks::Leaks;
use crate::schedule::{Mode, Schedule};
use crate::settings::{MOST_DEVICES, Settings};
use crate::work::{Fault, LibraryCall, Work};
use std::ffi::c_void;
use std::sync::Arc;

fn with<R>(body: impl FnOnce(&mut Driver) -> R) -> R {
    body(lock().driver())
}

fn code(outcome: CuResult<()>) -> u32 {
    outcome.err().map_or(0, |code| code.0)
}

/// The name in a text, or `None` for null, which means "any".
fn name(text: &Text) -> Option<&str> {
    text.str().ok()
}

#[unsafe(no_mangle)]
extern "C" fn standin_reset(seed: u64) {
    with(|d| d.reset(seed));
}

#[unsafe(no_mangle)]
extern "C" fn standin_set_seed(seed: u64) -> u32 {
    with(|d| {
        if d.schedule.len() > 0 {
            return Code::ILLEGAL_STATE.0;
        }
        d.schedule = Schedule::new(d.schedule.mode, seed, d.schedule.next_id());
        0
    })
}

#[unsafe(no_mangle)]
extern "C" fn standin_set_mode(mode: u32) {
    with(|d| {
        d.schedule.mode = match mode {
            0 => Mode::Deferred,
            1 => Mode::Eager,
            2 => Mode::Endless,
            _ => Mode::Drawn,
        };
        if d.schedule.mode == Mode::Eager {
            d.run_until(|_| false);
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn standin_set_draws_threads(draws: u32) {
    with(|d| d.settings.draws_threads = draws != 0);
}

#[unsafe(no_mangle)]
extern "C" fn standin_set_reuses_addresses(reuses: u32) {
    with(|d| {
        d.settings.reuses_addresses = reuses != 0;
        d.memory.reuse_addresses(reuses != 0);
    });
}

#[unsafe(no_mangle)]
extern "C" fn standin_set_rounding(seed: u64) {
    with(|d| d.settings.rounding = seed);
}

/// The seed of the device's arithmetic, for another library.
#[unsafe(no_mangle)]
extern "C" fn standin_rounding() -> u64 {
    with(|d| d.settings.rounding)
}

/// Fails for a driver that the stand-in does not know.
#[unsafe(no_mangle)]
extern "C" fn standin_set_driver_version(version: i32) -> u32 {
    with(|d| {
        let settings = Settings { driver_version: version, ..d.settings };
        if settings.instruction_set().is_none() {
            return Code::INVALID_VALUE.0;
        }
        d.settings = settings;
        0
    })
}

#[unsafe(no_mangle)]
extern "C" fn standin_set_devices(count: u32) -> u32 {
    with(|d| {
        if d.contexts.count(|_| true) > 0 || count as usize > MOST_DEVICES {
            return Code::ILLEGAL_STATE.0;
        }
        d.set_devices(count as usize);
        0
    })
}

#[unsafe(no_mangle)]
extern "C" fn standin_set_memory(total_bytes: u64, free_bytes: u64) {
    with(|d| {
        d.settings.total_bytes = total_bytes;
        d.settings.taken_bytes = 0;
        let held = total_bytes - d.free_bytes(0).min(total_bytes);
        d.settings.taken_bytes = total_bytes.saturating_sub(free_bytes).saturating_sub(held);
    });
}

#[unsafe(no_mangle)]
extern "C" fn standin_set_capability(major: i32, minor: i32) {
    with(|d| d.settings.capability = (major, minor));
}

#[unsafe(no_mangle)]
extern "C" fn standin_set_granularity(bytes: u64) {
    with(|d| d.settings.granularity_bytes = bytes);
}

#[unsafe(no_mangle)]
extern "C" fn standin_set_pools(supported: u32) {
    with(|d| d.settings.pools = supported != 0);
}

#[unsafe(no_mangle)]
extern "C" fn standin_set_free_waits(waits: u32) {
    with(|d| d.settings.free_waits = waits != 0);
}

#[unsafe(no_mangle)]
extern "C" fn standin_set_stages_pageable(stages: u32) {
    with(|d| d.settings.stages_pageable = stages != 0);
}

#[unsafe(no_mangle)]
extern "C" fn standin_calls(wanted: Text) -> u64 {
    with(|d| d.calls.count(name(&wanted)))
}

/// Writes the name of the `index`-th call since the counts were cleared; false when there was none.
#[unsafe(no_mangle)]
extern "C" fn standin_call_name(index: u64, buffer: TextOut, len: i32) -> u32 {
    with(|d| match d.calls.in_order().get(index as usize) {
        Some(name) => u32::from(buffer.set(len, name).is_ok()),
        None => 0,
    })
}

#[unsafe(no_mangle)]
extern "C" fn standin_clear_calls() {
    with(|d| d.calls.clear_counts());
}

#[unsafe(no_mangle)]
extern "C" fn standin_fail_nth(wanted: Text, n: u64, code: u32) {
    with(|d| d.calls.fail_nth(name(&wanted), n, code));
}

#[unsafe(no_mangle)]
extern "C" fn standin_failures_to_come() -> u64 {
    with(|d| d.calls.plan_count())
}

#[unsafe(no_mangle)]
extern "C" fn standin_clear_failures() {
    with(|d| d.calls.clear_plans());
}

#[unsafe(no_mangle)]
extern "C" fn standin_leaks(leaks: Out<Leaks>) {
    leaks.set_if_wanted(with(|d| d.leaks()));
}

#[unsafe(no_mangle)]
extern "C" fn standin_last_fault(buffer: TextOut, len: i32) -> u32 {
    with(|d| u32::from(buffer.set(len, &d.last_fault).is_ok()))
}

#[unsafe(no_mangle)]
extern "C" fn standin_queued() -> u64 {
    with(|d| d.schedule.len() as u64)
}

/// Lets the device run up to `count` operations, though nobody waits; gives the number that ran.
#[unsafe(no_mangle)]
extern "C" fn standin_progress(count: u64) -> u64 {
    with(|d| {
        let before = d.clock;
        for _ in 0..count {
            if !d.step() {
                break;
            }
        }
        d.clock - before
    })
}

/// Breaks the current context, or every one when none is current.
#[unsafe(no_mangle)]
extern "C" fn standin_poison(error: u32) {
    with(|d| {
        let current = d.current_or_none();
        let all: Vec<Handle> = d.contexts.iter().map(|(handle, _)| handle).collect();
        for context in all.into_iter().filter(|context| current == 0 || *context == current) {
            d.poison(
                context,
                Fault { code: Code(error), text: "an injected device error".to_owned() },
            );
        }
    });
}

/// Counts a call of another library; gives the code that it has to fail with, or 0.
#[unsafe(no_mangle)]
extern "C" fn standin_library_call(called: Text) -> u32 {
    with(|d| {
        let injected = d.calls.note(name(&called).unwrap_or("?").to_owned());
        injected
            .map_or_else(|| code(d.current().and_then(|context| d.sound(context))), |code| code.0)
    })
}

/// Notes that another library made (`1`) or destroyed (`-1`) a handle.
#[unsafe(no_mangle)]
extern "C" fn standin_library_handle(change: i64) {
    with(|d| d.library_handles = d.library_handles.saturating_add_signed(change));
}

/// Whether the driver knows the memory at an address.
#[unsafe(no_mangle)]
extern "C" fn standin_library_knows(address: Address) -> u32 {
    with(|d| u32::from(d.memory.around(address).is_some()))
}

/// Whether a stream handle is good: 0, or the code of what is wrong with it.
#[unsafe(no_mangle)]
extern "C" fn standin_library_stream(stream: Handle) -> u32 {
    with(|d| code(d.stream_key(stream).map(|_| ())))
}

/// Queues work of another library, ordered and range-checked like a kernel. `run` gives 0 when it is done; otherwise it is
/// called again while somebody waits for the stream or asks, as for work that needs another process. `data` belongs to the stand-in from here
/// on, also when the call fails: `drop` frees it.
#[unsafe(no_mangle)]
extern "C" fn standin_library_submit(
    stream: Handle,
    called: Text,
    ranges: In<[Address; 2]>,
    count: usize,
    run: extern "C" fn(*mut c_void) -> u32,
    data: *mut c_void,
    drop: extern "C" fn(*mut c_void),
) -> u32 {
    let mut call = LibraryCall {
        name: name(&called).unwrap_or("?").to_owned(),
        ranges: Vec::new(),
        run,
        data: data.expose_provenance(),
        drop,
    };
    with(|d| {
        code((|| {
            call.ranges =
                ranges.list(count)?.into_iter().map(|[address, len]| (address, len)).collect();
            let key = d.own_stream_key(stream)?;
            d.enqueue(key, Work::Library(Arc::new(call)), &[]).map(|_| ())
        })())
    })
}
