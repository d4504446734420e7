//! Modules and functions.

use crate::abi::{Address, Code, CuResult, Handle, Out, Text};
use crate::device::limits;
use crate::driver::{Class, Driver, call};
use crate::image::Image;
use std::ffi::{c_char, c_int, c_void};

fn load(d: &mut Driver, image: Image) -> CuResult<Handle> {
    match image.elf_header()? {
        Some(header) => Err(d.refuse_cubin(&header)),
        None => d.load_module(image.text().bytes()?),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(module: Out<Handle>, image: Image) -> u32 {
    call("cuModuleLoadData", Class::Context, |d| module.set(load(d, image)?))
}

/// The options are about the compiler, which there is none of.
#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadDataEx(
    module: Out<Handle>,
    image: Image,
    _count: u32,
    _options: *const u32,
    _values: *const *const c_void,
) -> u32 {
    call("cuModuleLoadDataEx", Class::Context, |d| module.set(load(d, image)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoad(module: Out<Handle>, path: Text) -> u32 {
    call("cuModuleLoad", Class::Context, |d| {
        let image = std::fs::read(path.str()?).map_err(|_| Code::FILE_NOT_FOUND)?;
        match image.first_chunk() {
            Some(header) if header.starts_with(b"\x7FELF") => Err(d.refuse_cubin(header)),
            _ => module.set(d.load_module(&image)?),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: Handle) -> u32 {
    call("cuModuleUnload", Class::Release, |d| {
        d.refuse_in_capture()?;
        let context = d.modules.get(module)?.context;
        // A kernel that is still queued would lose its code.
        d.run_until(|d| !d.schedule.is_busy(context));
        d.unload_module(module)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) -> u32 {
    call("cuModuleGetFunction", Class::Context, |d| {
        function.set(d.module_function(module, name.str()?)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetGlobal_v2(
    address: Out<Address>,
    bytes: Out<usize>,
    module: Handle,
    name: Text,
) -> u32 {
    call("cuModuleGetGlobal_v2", Class::Context, |d| {
        let (base, len) = d.module_variable(module, name.str()?)?;
        address.set_if_wanted(base);
        bytes.set_if_wanted(len as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetAttribute(value: Out<c_int>, attribute: u32, function: Handle) -> u32 {
    call("cuFuncGetAttribute", Class::Context, |d| {
        let function = d.functions.get(function)?;
        let (major, minor) = d.settings.capability;
        let kernel = function.kernel();
        value.set(match attribute {
            0 => function.max_threads() as c_int,
            1 => kernel.shared_bytes as c_int,
            2 => 0,
            3 => kernel.local_bytes as c_int,
            // Of a made-up register allocation; enough to see whether a caller looks at it.
            4 => kernel.register_count.min(255) as c_int,
            5 | 6 => 10 * major + minor,
            7 => 0,
            8 => {
                (function.dynamic_shared_limit.max(limits::SHARED_BYTES) - kernel.shared_bytes)
                    as c_int
            }
            9 => function.carveout,
            10..=15 => 0,
            _ => return Err(Code::INVALID_VALUE),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(function: Handle, attribute: u32, value: c_int) -> u32 {
    call("cuFuncSetAttribute", Class::Context, |d| {
        let function = d.functions.get_mut(function)?;
        match attribute {
            8 => {
                let wanted = u64::try_from(value).map_err(|_| Code::INVALID_VALUE)?;
                let limit = wanted + function.kernel().shared_bytes;
                if limit > limits::OPT_IN_SHARED_BYTES {
                    return Err(Code::INVALID_VALUE);
                }
                function.dynamic_shared_limit = limit;
            }
            9 => function.carveout = value,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetCacheConfig(function: Handle, _config: u32) -> u32 {
    call("cuFuncSetCacheConfig", Class::Context, |d| d.functions.get(function).map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetName(name: Out<*const c_char>, function: Handle) -> u32 {
    call("cuFuncGetName", Class::Context, |d| name.set(d.functions.get(function)?.name.as_ptr()))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetModule(module: Out<Handle>, function: Handle) -> u32 {
    call("cuFuncGetModule", Class::Context, |d| module.set(d.functions.get(function)?.module))
}
