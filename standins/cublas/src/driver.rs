//! The stand-in driver's side doors, found in the library that the process has open as `libcuda.so`.

use crate::status::{Outcome, Status, code};
use libloading::os::unix::{Library, RTLD_NOW, Symbol};
use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

type Submit = extern "C" fn(
    stream: u64,
    name: *const c_char,
    ranges: *const [u64; 2],
    count: usize,
    run: extern "C" fn(*mut c_void) -> u32,
    data: *mut c_void,
    drop: extern "C" fn(*mut c_void),
) -> u32;

struct Doors {
    call: Symbol<extern "C" fn(*const c_char) -> u32>,
    handle: Symbol<extern "C" fn(i64)>,
    stream: Symbol<extern "C" fn(u64) -> u32>,
    submit: Symbol<Submit>,
    allocate: Symbol<extern "C" fn(*mut u64, usize) -> u32>,
    release: Symbol<extern "C" fn(u64) -> u32>,
    synchronize: Symbol<extern "C" fn(u64) -> u32>,
    rounding: Symbol<extern "C" fn() -> u64>,
    known: Symbol<extern "C" fn(u64) -> u32>,
    _library: Library,
}

fn doors() -> Result<&'static Doors, Status> {
    static DOORS: OnceLock<Option<Doors>> = OnceLock::new();
    DOORS.get_or_init(open).as_ref().ok_or(Status::NOT_INITIALIZED)
}

fn open() -> Option<Doors> {
    // SAFETY: the stand-in runs no code when it is opened; a real driver lacks the symbols and is given up again.
    let library = unsafe { Library::open(Some("libcuda.so"), RTLD_NOW) }.ok()?;
    // SAFETY: `cuda-standin` exports the symbol with this signature.
    let call = unsafe { library.get("standin_library_call") }.ok()?;
    // SAFETY: as above.
    let handle = unsafe { library.get("standin_library_handle") }.ok()?;
    // SAFETY: as above.
    let stream = unsafe { library.get("standin_library_stream") }.ok()?;
    // SAFETY: as above.
    let submit = unsafe { library.get("standin_library_submit") }.ok()?;
    // SAFETY: as above, and as the driver's interface has it.
    let allocate = unsafe { library.get("cuMemAlloc_v2") }.ok()?;
    // SAFETY: as above.
    let release = unsafe { library.get("cuMemFree_v2") }.ok()?;
    // SAFETY: as above.
    let synchronize = unsafe { library.get("cuStreamSynchronize") }.ok()?;
    // SAFETY: `cuda-standin` exports the symbol with this signature.
    let rounding = unsafe { library.get("standin_rounding") }.ok()?;
    // SAFETY: as above.
    let known = unsafe { library.get("standin_library_knows") }.ok()?;
    Some(Doors {
        call,
        handle,
        stream,
        submit,
        allocate,
        release,
        synchronize,
        rounding,
        known,
        _library: library,
    })
}

/// Counts a call. Gives what a test wants it to fail with, and then whether a sound context is current.
///
/// # Errors
///
/// What a test asked for.
pub fn note(name: &str) -> Result<Outcome, Status> {
    let name = CString::new(name).unwrap_or_default();
    match (doors()?.call)(name.as_ptr()) {
        0 => Ok(Ok(())),
        // Small numbers are statuses that a test injected; a broken or missing context is the driver's code.
        injected @ 1..=16 => Err(Status(injected)),
        _ => Ok(Err(Status::EXECUTION_FAILED)),
    }
}

/// The frame of every function: counted, failed if a test asked for that, refused without a sound context.
pub fn framed(name: &str, body: impl FnOnce() -> Outcome) -> u32 {
    code(note(name).and_then(|sound| sound).and_then(|()| body()))
}

/// Notes a handle that was made (1) or destroyed (-1).
///
/// # Errors
///
/// Without the stand-in for the driver.
pub fn count_handle(change: i64) -> Outcome {
    (doors()?.handle)(change);
    Ok(())
}

/// Refuses a stream that does not exist.
pub(crate) fn check_stream(stream: u64) -> Outcome {
    if (doors()?.stream)(stream) == 0 { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

/// Takes device memory from the driver, as the library does behind its caller's back.
pub(crate) fn allocate(bytes: u64) -> Result<u64, Status> {
    let mut address = 0;
    match (doors()?.allocate)(&raw mut address, bytes as usize) {
        0 => Ok(address),
        _ => Err(Status::ALLOC_FAILED),
    }
}

/// Gives it back.
pub(crate) fn release(address: u64) -> Outcome {
    if (doors()?.release)(address) == 0 { Ok(()) } else { Err(Status::EXECUTION_FAILED) }
}

/// Waits for a stream.
pub(crate) fn synchronize(stream: u64) -> Outcome {
    if (doors()?.synchronize)(stream) == 0 { Ok(()) } else { Err(Status::EXECUTION_FAILED) }
}

/// Which device's arithmetic is asked for; 0 for exact sums.
pub(crate) fn rounding() -> Result<u64, Status> {
    Ok((doors()?.rounding)())
}

/// Whether the driver knows the memory at an address.
pub(crate) fn is_known(address: u64) -> Result<bool, Status> {
    Ok((doors()?.known)(address) != 0)
}

/// Queues work on a stream. `ranges` are the device addresses and bytes that it touches; they are checked when its
/// turn comes, before it runs.
pub(crate) fn submit(
    stream: u64,
    name: &str,
    ranges: &[[u64; 2]],
    work: Box<dyn Fn() + Send + Sync>,
) -> Outcome {
    type Boxed = Box<dyn Fn() + Send + Sync>;

    extern "C" fn run(data: *mut c_void) -> u32 {
        // SAFETY: `data` is the box below, which the driver keeps until it calls `drop`.
        let work = unsafe { &*data.cast::<Boxed>() };
        work();
        0
    }

    extern "C" fn drop_work(data: *mut c_void) {
        // SAFETY: `data` is the box below, and the driver calls this once.
        drop(unsafe { Box::from_raw(data.cast::<Boxed>()) });
    }

    let doors = doors()?;
    let name = CString::new(name).unwrap_or_default();
    let data = Box::into_raw(Box::new(work)).cast();
    match (doors.submit)(stream, name.as_ptr(), ranges.as_ptr(), ranges.len(), run, data, drop_work)
    {
        0 => Ok(()),
        _ => Err(Status::EXECUTION_FAILED),
    }
}
