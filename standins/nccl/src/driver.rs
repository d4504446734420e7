//! The stand-in driver's side doors, found in the library that the process has open as `libcuda.so`.

use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_NOW, Symbol};

use crate::status::{Outcome, Status, code, refused};

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
    submit: Symbol<Submit>,
    known: Symbol<extern "C" fn(u64) -> u32>,
    _library: Library,
}

fn doors() -> Result<&'static Doors, Status> {
    static DOORS: OnceLock<Option<Doors>> = OnceLock::new();
    DOORS.get_or_init(open).as_ref().ok_or(Status::UNHANDLED_CUDA_ERROR)
}

fn open() -> Option<Doors> {
    // SAFETY: the stand-in runs no code when it is opened; a real driver lacks the symbols and is given up again.
    let library = unsafe { Library::open(Some("libcuda.so"), RTLD_NOW) }.ok()?;
    // SAFETY: `cuda-standin` exports the symbol with this signature.
    let call = unsafe { library.get("standin_library_call") }.ok()?;
    // SAFETY: as above.
    let handle = unsafe { library.get("standin_library_handle") }.ok()?;
    // SAFETY: as above.
    let submit = unsafe { library.get("standin_library_submit") }.ok()?;
    // SAFETY: as above.
    let known = unsafe { library.get("standin_library_knows") }.ok()?;
    Some(Doors { call, handle, submit, known, _library: library })
}

/// Counts a call. Gives what a test wants it to fail with, and then whether a sound context is current.
fn note(name: &str) -> Result<Outcome, Status> {
    let name = CString::new(name).unwrap_or_default();
    match (doors()?.call)(name.as_ptr()) {
        0 => Ok(Ok(())),
        // Small numbers are statuses that a test injected; a broken or missing context is the driver's code.
        injected @ 1..=8 => Err(refused(Status(injected), "a test asked for it")),
        _ => Ok(Err(refused(Status::UNHANDLED_CUDA_ERROR, "no sound context is current"))),
    }
}

/// The frame of a function that uses the device: counted, failed if a test asked for that, refused without a sound
/// context.
pub(crate) fn framed(name: &str, body: impl FnOnce() -> Outcome) -> u32 {
    code(note(name).and_then(|sound| sound).and_then(|()| body()))
}

/// The frame of a function that needs no context.
pub(crate) fn on_the_host(name: &str, body: impl FnOnce() -> Outcome) -> u32 {
    code(note(name).and_then(|_| body()))
}

/// Notes a communicator that was made (1) or is gone (-1).
pub(crate) fn count_handle(change: i64) -> Outcome {
    (doors()?.handle)(change);
    Ok(())
}

/// Whether the driver knows the memory at an address.
pub(crate) fn is_known(address: u64) -> Result<bool, Status> {
    Ok((doors()?.known)(address) != 0)
}

/// Queues work on a stream. `ranges` are the device addresses and bytes that it touches; they are checked each time
/// before it runs. The work says whether it is done, and is asked again otherwise.
pub(crate) fn submit(
    stream: u64,
    name: &str,
    ranges: &[[u64; 2]],
    work: Box<dyn Fn() -> bool + Send + Sync>,
) -> Outcome {
    type Boxed = Box<dyn Fn() -> bool + Send + Sync>;

    extern "C" fn run(data: *mut c_void) -> u32 {
        // SAFETY: `data` is the box below, which the driver keeps until it calls `drop`.
        let work = unsafe { &*data.cast::<Boxed>() };
        u32::from(!work())
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
        code => {
            let why = format!("the driver refuses the stream with {code}");
            Err(refused(Status::UNHANDLED_CUDA_ERROR, why))
        }
    }
}
