//! The functions that this library exports, by name.

use libloading::os::unix::{Library, RTLD_NOW};
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// Suffixes of the versions of a function, the newest first. A name without one asks for the newest that there is.
const VERSIONS: [&str; 4] = ["_v4", "_v3", "_v2", ""];
/// Only a library that the process has open already; the C library's number for it.
const NO_LOAD: c_int = 4;

/// The address of a driver function, or `None` when there is none of that name.
pub(crate) fn find(name: &str) -> Option<*mut c_void> {
    static OWN: OnceLock<Option<Library>> = OnceLock::new();
    // `dlsym` looks into the C library as well, which has a `cuserid`.
    let is_ours = name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(char::is_uppercase));
    if !is_ours {
        return None;
    }
    // SAFETY: nothing is loaded that is not loaded already; the name is this library's own.
    let open = || unsafe { Library::open(Some("libcuda.so"), RTLD_NOW | NO_LOAD) }.ok();
    let own = OWN.get_or_init(open).as_ref()?;
    VERSIONS.iter().find_map(|version| {
        // SAFETY: the address is only handed on; who calls it knows the function's type.
        let symbol =
            unsafe { own.get::<*mut c_void>(format!("{name}{version}").as_bytes()) }.ok()?;
        Some(symbol.into_raw())
    })
}
