//! Errors, versions and entry points.

use crate::abi::{Code, CuResult, In, Out, Text, Uuid};
use crate::driver::{Class, call};
use crate::error_names::describe;
use crate::symbols;
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

/// The newest function of a name, whatever version of CUDA the caller is of. The flag 2 asks for functions on the
/// calling thread's own stream, which are not there.
fn entry_point(name: Text, function: Out<*mut c_void>, flags: u64) -> CuResult<()> {
    let name = name.str()?;
    match flags {
        0 | 1 => match symbols::find(name) {
            Some(address) => function.set(address),
            None => {
                function.set(std::ptr::null_mut())?;
                Err(Code::NOT_FOUND)
            }
        },
        2 => Err(Code::NOT_FOUND),
        _ => Err(Code::INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress(
    name: Text,
    function: Out<*mut c_void>,
    _version: c_int,
    flags: u64,
) -> u32 {
    call("cuGetProcAddress", Class::Anytime, |_| entry_point(name, function, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress_v2(
    name: Text,
    function: Out<*mut c_void>,
    _version: c_int,
    flags: u64,
    status: Out<u32>,
) -> u32 {
    call("cuGetProcAddress_v2", Class::Anytime, |_| {
        let found = entry_point(name, function, flags);
        // 0: found, 1: no such symbol.
        status.set_if_wanted(u32::from(found == Err(Code::NOT_FOUND)));
        found
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
