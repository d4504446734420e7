//! What a test may make of the device and its driver: speed, addresses, versions; and the driver's functions by name.

use cuda_standin::{Addresses, Mode, Standin};
use cudarc::driver::{CudaContext, CudaStream, DriverError, sys};
use cudarc::nvrtc::Ptx;
use std::collections::BTreeSet;
use std::ffi::{CString, c_int, c_void};
use sys::CUresult as R;

/// The code of a refusal, or success.
fn code(outcome: Result<(), DriverError>) -> R {
    outcome.map_or_else(|error| error.0, |()| R::CUDA_SUCCESS)
}

#[test]
fn an_endless_device_does_nothing_until_somebody_waits() {
    let standin = Standin::load().unwrap();
    standin.set_mode(Mode::Endless);
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let data = stream.alloc_zeros::<u8>(16).unwrap();
    let event = stream.record_event(None).unwrap();
    let queued = standin.queued();
    assert!(queued > 0);
    assert!((0..100).all(|_| !event.is_complete()));
    assert_eq!(standin.queued(), queued);
    event.synchronize().unwrap();
    assert!(event.is_complete());
    drop(data);
}

#[test]
fn a_device_of_drawn_speed_gets_now_more_and_now_less_done_between_calls() {
    let standin = Standin::load().unwrap();
    let mut left = BTreeSet::new();
    for seed in 0..20 {
        standin.reset(seed);
        standin.set_mode(Mode::Drawn);
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        let data = stream.alloc_zeros::<u8>(16).unwrap();
        CudaContext::device_count().unwrap();
        left.insert(standin.queued());
        assert_eq!(stream.clone_dtoh(&data).unwrap(), [0; 16]);
    }
    assert!(left.len() > 1, "{left:?}");
    assert!(left.contains(&0), "the device was never fast: {left:?}");
}

fn plain(bytes: usize) -> u64 {
    let mut address = 0;
    // SAFETY: the address goes into a live variable.
    unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) }.result().unwrap();
    address
}

fn ordered(bytes: usize, stream: &CudaStream) -> u64 {
    let mut address = 0;
    // SAFETY: the address goes into a live variable.
    unsafe { sys::cuMemAllocAsync(&raw mut address, bytes, stream.cu_stream()) }.result().unwrap();
    address
}

fn free(address: u64) {
    // SAFETY: the tests give back what they were given, once.
    unsafe { sys::cuMemFree_v2(address) }.result().unwrap();
}

#[test]
fn device_memory_begins_on_a_multiple_of_256_bytes_and_of_no_more() {
    let _standin = Standin::load().unwrap();
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    for bytes in [1, 256, 4096, 1 << 20] {
        for address in [plain(bytes), ordered(bytes, &stream)] {
            assert_eq!(address % 512, 256, "{bytes} bytes at {address:#x}");
            free(address);
        }
    }
}

#[test]
fn released_addresses_are_given_out_again_at_once_where_that_is_asked_for() {
    let standin = Standin::load().unwrap();
    for addresses in [Addresses::Fresh, Addresses::Reused] {
        standin.reset(0);
        standin.set_addresses(addresses);
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        let raw = stream.cu_stream();
        let passing = |bytes| {
            let address = plain(bytes);
            free(address);
            address
        };
        let first = passing(10_000);
        let again = [passing(10_000), passing(100)].map(|address| address == first);
        let life = |value: u8| {
            let address = ordered(64, &stream);
            // SAFETY: 64 live bytes, in stream order.
            unsafe { sys::cuMemsetD8Async(address, value, 64, raw) }.result().unwrap();
            let mut host = [0u8; 64];
            if value == 3 {
                // SAFETY: as above, and the host's bytes are as many.
                unsafe { sys::cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), address, 64, raw) }
                    .result()
                    .unwrap();
                assert_eq!(host, [3; 64]);
            }
            // SAFETY: the address is released once.
            unsafe { sys::cuMemFreeAsync(address, raw) }.result().unwrap();
            address
        };
        // Nothing has run when the second and the third allocation take over.
        let lives = BTreeSet::from([life(1), life(2), life(3)]);
        stream.synchronize().unwrap();
        let reused = addresses == Addresses::Reused;
        assert_eq!(again, [reused; 2]);
        assert_eq!(lives.len(), if reused { 1 } else { 3 });
        assert_eq!(standin.leaks().device_blocks, 0);
    }
}

/// Some PTX of a version, for a device.
fn ptx(version: &str, target: &str) -> Ptx {
    Ptx::from_src(format!(".version {version}\n.target {target}\n.address_size 64\n"))
}

#[test]
fn ptx_that_is_newer_than_the_driver_or_the_device_is_refused() {
    let standin = Standin::load().unwrap();
    let cases = [
        ((12, 0), "8.0", R::CUDA_SUCCESS),
        ((12, 0), "8.1", R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
        ((12, 8), "8.7", R::CUDA_SUCCESS),
        ((12, 8), "8.8", R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
        ((12, 9), "8.8", R::CUDA_SUCCESS),
        ((13, 0), "9.0", R::CUDA_SUCCESS),
        ((13, 0), "9.1", R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
    ];
    for ((major, minor), version, wanted) in cases {
        standin.reset(0);
        assert!(standin.set_driver(major, minor));
        let context = CudaContext::new(0).unwrap();
        let mut found: c_int = 0;
        // SAFETY: the version goes into a live variable.
        unsafe { sys::cuDriverGetVersion(&raw mut found) }.result().unwrap();
        assert_eq!(found, 1000 * major + 10 * minor);
        let loaded = context.load_module(ptx(version, "sm_75")).map(drop);
        assert_eq!(code(loaded), wanted, "PTX {version} on a driver for {major}.{minor}");
    }
    assert!(!standin.set_driver(11, 8), "no version that the stand-in knows");
    for (capability, target, wanted) in [
        ((7, 5), "sm_75", R::CUDA_SUCCESS),
        ((7, 5), "sm_80", R::CUDA_ERROR_INVALID_PTX),
        ((12, 0), "sm_90", R::CUDA_SUCCESS),
        ((12, 0), "sm_120", R::CUDA_SUCCESS),
    ] {
        standin.reset(0);
        standin.set_capability(capability.0, capability.1);
        let context = CudaContext::new(0).unwrap();
        let loaded = context.load_module(ptx("8.0", target)).map(drop);
        assert_eq!(code(loaded), wanted, "{target} on {capability:?}");
    }
}

#[test]
fn machine_code_is_answered_so_that_a_program_tries_ptx_and_its_header_is_read() {
    let standin = Standin::load().unwrap();
    let context = CudaContext::new(0).unwrap();
    // As NVRTC 12.9 writes it for sm_90.
    let mut header = [0u8; 64];
    header[..5].copy_from_slice(b"\x7FELF\x02");
    (header[8], header[18], header[20], header[48]) = (7, 190, 129, 90);
    let load = |header: &[u8]| {
        let loaded = context.load_module(Ptx::from_binary(header.to_vec())).map(drop);
        (code(loaded), standin.last_fault())
    };
    let (answer, why) = load(&header);
    assert_eq!(answer, R::CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert!(why.contains("runs no machine code"), "{why}");
    header[48] = 80;
    let (answer, why) = load(&header);
    assert_eq!(answer, R::CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert!(why.contains("compute capability 8.0, the device has 9.0"), "{why}");
    header[18] = 62;
    assert_eq!(load(&header).0, R::CUDA_ERROR_INVALID_IMAGE);
}

/// What both forms of `cuGetProcAddress` say of a name: the address, the code and the status.
fn entry_point(name: &str) -> (*mut c_void, R, u32) {
    let name = CString::new(name).unwrap();
    let text = &name;
    let (mut address, mut older) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut status = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
    let (text, old) = (text.as_ptr(), old_get_proc_address());
    // SAFETY: the name ends with a NUL, and the results go into live variables.
    let code =
        unsafe { sys::cuGetProcAddress_v2(text, &raw mut address, 12_080, 0, &raw mut status) };
    // SAFETY: as above.
    let other = unsafe { old(text, &raw mut older, 12_080, 0) };
    assert_eq!((address, code), (older, other), "{name:?}");
    (address, code, status as u32)
}

type OldGetProcAddress = unsafe extern "C" fn(*const i8, *mut *mut c_void, c_int, u64) -> R;

/// The form that the bindings of CUDA 12 have no more.
fn old_get_proc_address() -> OldGetProcAddress {
    use libloading::os::unix::{Library, RTLD_NOW};
    // SAFETY: the stand-in is open under this name already.
    let library = unsafe { Library::open(Some("libcuda.so"), RTLD_NOW) }.unwrap();
    // SAFETY: the function has this type.
    *unsafe { library.get::<OldGetProcAddress>("cuGetProcAddress") }.unwrap()
}

#[test]
fn functions_are_found_by_name_in_their_newest_version() {
    let _standin = Standin::load().unwrap();
    let (address, code, status) = entry_point("cuDriverGetVersion");
    assert_eq!((code, status), (R::CUDA_SUCCESS, 0));
    // SAFETY: the address is that of the function of this name.
    let get: unsafe extern "C" fn(*mut c_int) -> R = unsafe { std::mem::transmute(address) };
    let mut version = 0;
    // SAFETY: the version goes into a live variable.
    assert_eq!(unsafe { get(&raw mut version) }, R::CUDA_SUCCESS);
    assert_eq!(version, 12_090);
    for (plain, newest) in [("cuMemAlloc", "cuMemAlloc_v2"), ("cuCtxCreate", "cuCtxCreate_v4")] {
        assert_eq!(entry_point(plain).0, entry_point(newest).0, "{plain}");
    }
    for missing in ["cuNothing", "cuserid", "malloc", "standin_reset", ""] {
        assert_eq!(
            entry_point(missing),
            (std::ptr::null_mut(), R::CUDA_ERROR_NOT_FOUND, 1),
            "{missing}"
        );
    }
}

#[test]
fn a_primary_context_is_active_from_its_first_retain_to_its_last_release() {
    let _standin = Standin::load().unwrap();
    let state = || {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the results go into live variables.
        let code = unsafe { sys::cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active) };
        assert_eq!(code, R::CUDA_SUCCESS);
        active == 1
    };
    // SAFETY: no pointers are passed.
    unsafe { sys::cuInit(0) }.result().unwrap();
    assert!(!state());
    let first = CudaContext::new(0).unwrap();
    let second = CudaContext::new(0).unwrap();
    assert!(state());
    drop(first);
    assert!(state());
    drop(second);
    assert!(!state());
}
