//! Inside the shared library: the functions of NVTX, and the side door to what they remember.

use std::ffi::{CStr, c_char};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A call as it crosses the library's border.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawCall {
    pub(crate) id: u64,
    pub(crate) ends: bool,
    /// The name of a range that begins, cut to fit, and zeros.
    pub(crate) name: [u8; 64],
}

impl RawCall {
    pub(crate) const NONE: Self = Self { id: 0, ends: false, name: [0; 64] };
}

/// A name: null, or a text that ends in NUL. Only foreign callers make one.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Name(*const c_char);

/// A place for a call: null, or valid for one write. Only foreign callers make one.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out(*mut RawCall);

static CALLS: Mutex<Vec<RawCall>> = Mutex::new(Vec::new());

fn calls() -> MutexGuard<'static, Vec<RawCall>> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
extern "C" fn nvtxRangeStartA(name: Name) -> u64 {
    let mut call = RawCall::NONE;
    if !name.0.is_null() {
        // SAFETY: not null, and by the type's rule a text that ends in NUL.
        let text = unsafe { CStr::from_ptr(name.0) }.to_bytes();
        call.name.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
    }
    let mut calls = calls();
    call.id = calls.len() as u64 + 1;
    calls.push(call);
    call.id
}

#[unsafe(no_mangle)]
extern "C" fn nvtxRangeEnd(id: u64) {
    calls().push(RawCall { id, ends: true, ..RawCall::NONE });
}

/// The `n`-th call since the last clearing, counted from 0; false if there were not so many.
#[unsafe(no_mangle)]
extern "C" fn nvtx_standin_call(n: usize, to: Out) -> bool {
    let calls = calls();
    let Some(call) = calls.get(n) else { return false };
    if to.0.is_null() {
        return false;
    }
    // SAFETY: not null, and by the type's rule valid for this write.
    unsafe { to.0.write(*call) };
    true
}

#[unsafe(no_mangle)]
extern "C" fn nvtx_standin_clear() {
    calls().clear();
}
