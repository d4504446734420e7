//! The same tests on the machine's own driver.

use libloading::os::unix::Library;

/// The environment variable that, set to 1, runs tests on the machine's own driver.
pub const REAL_DRIVER: &str = "ARENA_REAL_DRIVER";

/// How the message of a test begins that ends on a real driver because it needs the stand-in.
pub const NEEDS_STANDIN: &str = "only the stand-in has";

pub(crate) fn is_asked_for() -> bool {
    std::env::var_os(REAL_DRIVER).is_some_and(|value| value == "1")
}

/// How many devices the machine has; 0 when the driver does not tell.
pub(crate) fn devices() -> u32 {
    count().ok().and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
}

fn count() -> Result<i32, libloading::Error> {
    type Init = unsafe extern "C" fn(u32) -> i32;
    type Count = unsafe extern "C" fn(*mut i32) -> i32;
    // SAFETY: opening a driver runs its initialisers, as any program may.
    let library = unsafe { Library::new("libcuda.so") }
        // SAFETY: as above.
        .or_else(|_| unsafe { Library::new("libcuda.so.1") })?;
    // SAFETY: this and the next have the signatures of the driver's documentation.
    let init = unsafe { library.get::<Init>(b"cuInit")? };
    // SAFETY: as above.
    let get = unsafe { library.get::<Count>(b"cuDeviceGetCount")? };
    let mut count = 0;
    // SAFETY: flags are zero, as they must be.
    if unsafe { init(0) } == 0 {
        // SAFETY: the number goes into a live variable, which stays 0 where the call fails.
        let _ = unsafe { get(&raw mut count) };
    }
    Ok(count)
}
