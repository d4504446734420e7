//! The same tests on the machine's own driver.

use libloading::os::unix::Library;
use std::ffi::c_void;
use std::ptr;
use std::sync::Once;

/// The environment variable that, set to 1, runs tests on the machine's own driver.
pub const REAL_DRIVER: &str = "ARENA_REAL_DRIVER";

/// How the message of a test begins that ends on a real driver because it needs the stand-in.
pub const NEEDS_STANDIN: &str = "only the stand-in has";

pub(crate) fn is_asked_for() -> bool {
    std::env::var_os(REAL_DRIVER).is_some_and(|value| value == "1")
}

/// Keeps the first device's primary context until the process ends: a real driver takes a third of a second to make one,
/// and tests make and drop hundreds. Where it cannot be had, the test itself finds out why.
pub(crate) fn keep_context() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        println!("on the machine's driver: no order is drawn, and no leak is looked for");
        let _ = retain();
    });
}

fn retain() -> Result<(), libloading::Error> {
    type Init = unsafe extern "C" fn(u32) -> i32;
    type Get = unsafe extern "C" fn(*mut i32, i32) -> i32;
    type Retain = unsafe extern "C" fn(*mut *mut c_void, i32) -> i32;
    // SAFETY: opening a driver runs its initialisers, as any program may.
    let library = unsafe { Library::new("libcuda.so") }
        // SAFETY: as above.
        .or_else(|_| unsafe { Library::new("libcuda.so.1") })?;
    // Leaked on purpose: the context lives as long as the process.
    let library = Box::leak(Box::new(library));
    // SAFETY: this and the next two have the signatures of the driver's documentation.
    let init = unsafe { library.get::<Init>(b"cuInit")? };
    // SAFETY: as above.
    let get = unsafe { library.get::<Get>(b"cuDeviceGet")? };
    // SAFETY: as above.
    let retain = unsafe { library.get::<Retain>(b"cuDevicePrimaryCtxRetain")? };
    let (mut device, mut context) = (0, ptr::null_mut());
    // SAFETY: flags are zero, as they must be.
    if unsafe { init(0) } == 0
        // SAFETY: the number goes into a live variable.
        && unsafe { get(&raw mut device, 0) } == 0
    {
        // SAFETY: the handle goes into a live variable. A refusal leaves nothing to keep.
        let _ = unsafe { retain(&raw mut context, device) };
    }
    Ok(())
}
