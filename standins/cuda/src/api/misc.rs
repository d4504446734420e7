//! Errors, versions and entry points.

use crate::abi::{Code, In, Out, Text, Uuid};
use crate::driver::{Class, call};
use crate::error_names::describe;
use std::ffi::{c_char, c_int, c_void};

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: u32) -> u32 {
    call("cuInit", Class::Anytime, |d| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if d.devices.is_empty() {
            return Err(Code::NO_DEVICE);
        }
        d.initialised = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> u32 {
    call("cuDriverGetVersion", Class::Anytime, |d| version.set(d.settings.driver_version))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: u32, text: Out<*const c_char>) -> u32 {
    // Not counted: callers ask for it while they format, which is no work of the program.
    outcome(describe(code).map(|(name, _)| name.as_ptr()), text)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: u32, text: Out<*const c_char>) -> u32 {
    outcome(describe(code).map(|(_, string)| string.as_ptr()), text)
}

fn outcome(found: Option<*const c_char>, text: Out<*const c_char>) -> u32 {
    let written = text.set(found.unwrap_or(std::ptr::null()));
    match (found, written) {
        (Some(_), Ok(())) => 0,
        _ => Code::INVALID_VALUE.0,
    }
}

/// NVRTC and others ask for private tables here; there are none, and they cope with the error.
#[unsafe(no_mangle)]
extern "C" fn cuGetExportTable(table: Out<*const c_void>, _id: In<Uuid>) -> u32 {
    call("cuGetExportTable", Class::Anytime, |_| {
        table.set_if_wanted(std::ptr::null());
        Err(Code::NOT_FOUND)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress(
    name: Text,
    function: Out<*mut c_void>,
    _version: c_int,
    _flags: u64,
) -> u32 {
    call("cuGetProcAddress", Class::Anytime, |_| {
        name.bytes()?;
        function.set_if_wanted(std::ptr::null_mut());
        Err(Code::NOT_FOUND)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress_v2(
    name: Text,
    function: Out<*mut c_void>,
    _version: c_int,
    _flags: u64,
    status: Out<u32>,
) -> u32 {
    call("cuGetProcAddress_v2", Class::Anytime, |_| {
        name.bytes()?;
        function.set_if_wanted(std::ptr::null_mut());
        // 1: symbol not found.
        status.set_if_wanted(1);
        Err(Code::NOT_FOUND)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuProfilerStart() -> u32 {
    call("cuProfilerStart", Class::Context, |_| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn cuProfilerStop() -> u32 {
    call("cuProfilerStop", Class::Context, |_| Ok(()))
}
