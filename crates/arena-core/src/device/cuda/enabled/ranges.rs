//! Named ranges for profilers, by NVTX.
//!
//! They are started and ended by id, not pushed and popped: a stack is a thread's own, and the range of
//! a forgotten guard may end on another thread than it began on.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Mutex;

use cudarc::nvtx::sys;

use super::presence::unavailable;
use crate::error::DeviceError;

/// NVTX, known to be there: without the library cudarc panics.
#[derive(Debug)]
pub(super) struct Ranges {
    /// Each name as NVTX takes it, so that a step whose names are known makes none anew.
    names: Mutex<HashMap<&'static str, CString>>,
}

impl Ranges {
    pub(super) fn load(device: &str) -> Result<Self, DeviceError> {
        // SAFETY: loading NVTX runs its initialisers, which any program may do at any time.
        if !unsafe { sys::is_culib_present() } {
            let reason = "no NVTX: the loader finds no libnvToolsExt.so".to_owned();
            return Err(unavailable(device, "load", reason));
        }
        Ok(Self { names: Mutex::new(HashMap::new()) })
    }

    pub(super) fn begin(&self, name: &'static str) -> u64 {
        let mut names = self.names.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let text = names.entry(name).or_insert_with(|| up_to_nul(name));
        // SAFETY: the text ends in NUL and lives through the call, which copies it.
        unsafe { sys::nvtxRangeStartA(text.as_ptr()) }
    }

    pub(super) fn end(&self, id: u64) {
        // SAFETY: an id is a number; NVTX ignores one that is no range's.
        unsafe { sys::nvtxRangeEnd(id) }
    }
}

/// A name as C has it, which ends at its first NUL.
fn up_to_nul(name: &str) -> CString {
    CString::new(name.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_at_its_first_nul() {
        let cut = ["train", "tr\0ain", "\0", ""].map(|name| up_to_nul(name).into_string().unwrap());
        assert_eq!(cut, ["train", "tr", "", ""]);
    }
}
