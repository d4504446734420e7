//! What a real driver refuses, the stand-in refuses with the same code.

use cuda_standin::{FRESH_WORD, Standin};
use cudarc::driver::{CudaContext, CudaStream, sys};
use std::sync::Arc;
use sys::CUresult as R;

fn context() -> Arc<CudaContext> {
    let context = CudaContext::new(0).expect("a device");
    // SAFETY: the tests order everything themselves.
    unsafe { context.disable_event_tracking() };
    context
}

fn alloc(bytes: usize) -> Result<u64, R> {
    let mut address = 0;
    // SAFETY: the address goes into a live variable.
    match unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) } {
        R::CUDA_SUCCESS => Ok(address),
        code => Err(code),
    }
}

fn free(address: u64) -> R {
    // SAFETY: the stand-in checks the address; that is what is tested.
    unsafe { sys::cuMemFree_v2(address) }
}

fn fill(address: u64, bytes: usize, stream: &CudaStream) -> R {
    // SAFETY: the stand-in checks the range; that is what is tested.
    unsafe { sys::cuMemsetD8Async(address, 1, bytes, stream.cu_stream()) }
}

fn read(address: u64, bytes: usize) -> Result<Vec<u8>, R> {
    let mut host = vec![0; bytes];
    // SAFETY: `host` has that many bytes, and the stand-in checks the device range.
    match unsafe { sys::cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), address, bytes) } {
        R::CUDA_SUCCESS => Ok(host),
        code => Err(code),
    }
}

#[test]
fn nothing_works_before_init_and_without_a_context() {
    let standin = Standin::load().unwrap();
    assert_eq!(alloc(16), Err(R::CUDA_ERROR_NOT_INITIALIZED));
    // SAFETY: no pointers are passed.
    assert_eq!(unsafe { sys::cuInit(0) }, R::CUDA_SUCCESS);
    assert_eq!(alloc(16), Err(R::CUDA_ERROR_INVALID_CONTEXT));
    standin.set_devices(0);
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuInit(0) }, R::CUDA_ERROR_NO_DEVICE);
}

#[test]
fn empty_and_oversized_requests_are_errors_and_leave_the_context_sound() {
    let standin = Standin::load().unwrap();
    standin.set_memory(1 << 20, 1 << 19);
    let context = context();
    assert_eq!(context.mem_get_info().unwrap(), (1 << 19, 1 << 20));
    assert_eq!(alloc(0), Err(R::CUDA_ERROR_INVALID_VALUE));
    assert_eq!(alloc((1 << 19) + 1), Err(R::CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(alloc(usize::MAX), Err(R::CUDA_ERROR_OUT_OF_MEMORY));
    let address = alloc(1 << 19).unwrap();
    assert_eq!(address % 256, 0);
    assert_eq!(context.mem_get_info().unwrap().0, 0);
    assert_eq!(free(address), R::CUDA_SUCCESS);
    assert!(standin.leaks().device_blocks == 0);
}

#[test]
fn fresh_memory_holds_a_pattern_and_addresses_are_never_reused() {
    let _standin = Standin::load().unwrap();
    let _context = context();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let address = alloc(1000).unwrap();
        assert!(seen.insert(address));
        let bytes = read(address, 1000).unwrap();
        assert!(bytes.chunks(4).all(|word| word == FRESH_WORD.to_le_bytes()));
        assert_eq!(free(address), R::CUDA_SUCCESS);
        assert_eq!(read(address, 1), Err(R::CUDA_ERROR_INVALID_VALUE));
    }
}

#[test]
fn freeing_twice_or_inside_a_block_is_an_invalid_value() {
    let _standin = Standin::load().unwrap();
    let context = context();
    let stream = context.new_stream().unwrap();
    let address = alloc(4096).unwrap();
    assert_eq!(free(address + 256), R::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(free(address), R::CUDA_SUCCESS);
    assert_eq!(free(address), R::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(free(0), R::CUDA_SUCCESS);
    let mut ordered = 0;
    // SAFETY: live variable, live stream.
    unsafe { sys::cuMemAllocAsync(&raw mut ordered, 64, stream.cu_stream()) }.result().unwrap();
    // SAFETY: the second call is refused, which is what is tested.
    let codes = [(); 2].map(|()| unsafe { sys::cuMemFreeAsync(ordered, stream.cu_stream()) });
    assert_eq!(codes, [R::CUDA_SUCCESS, R::CUDA_ERROR_INVALID_VALUE]);
}

#[test]
fn an_overrun_is_a_sticky_illegal_address_at_the_next_synchronisation() {
    let standin = Standin::load().unwrap();
    let context = context();
    let stream = context.new_stream().unwrap();
    let address = alloc(100).unwrap();
    assert_eq!(fill(address, 101, &stream), R::CUDA_SUCCESS, "the call itself is fine");
    assert_eq!(stream.synchronize().unwrap_err().0, R::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(standin.last_fault().contains("101 bytes"), "{}", standin.last_fault());
    assert_eq!(alloc(16), Err(R::CUDA_ERROR_ILLEGAL_ADDRESS));
    assert_eq!(fill(address, 1, &stream), R::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(context.synchronize().unwrap_err().0, R::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(free(address), R::CUDA_ERROR_ILLEGAL_ADDRESS, "a release reports it too");
    drop(stream);
    drop(context);
    assert!(standin.leaks().is_clean(), "but what was released is gone: {:?}", standin.leaks());
    let again = CudaContext::new(0).unwrap();
    again.synchronize().expect("a new context is sound");
}

#[test]
fn memory_that_is_freed_while_work_still_needs_it_is_found_out() {
    let standin = Standin::load().unwrap();
    standin.set_free_waits(false);
    let context = context();
    let stream = context.new_stream().unwrap();
    let address = alloc(100).unwrap();
    assert_eq!(fill(address, 100, &stream), R::CUDA_SUCCESS);
    assert_eq!(free(address), R::CUDA_SUCCESS);
    assert_eq!(stream.synchronize().unwrap_err().0, R::CUDA_ERROR_ILLEGAL_ADDRESS);

    standin.reset(0);
    let context = self::context();
    let stream = context.new_stream().unwrap();
    let address = alloc(100).unwrap();
    assert_eq!(fill(address, 100, &stream), R::CUDA_SUCCESS);
    assert_eq!(free(address), R::CUDA_SUCCESS);
    stream.synchronize().expect("by default a free waits, as drivers do");
}

#[test]
fn stream_ordered_memory_exists_in_the_order_of_its_stream() {
    let standin = Standin::load().unwrap();
    let mut faults = 0;
    for seed in 0..40 {
        standin.reset(seed);
        let context = context();
        let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let mut address = 0;
        // SAFETY: live variable, live stream.
        unsafe { sys::cuMemAllocAsync(&raw mut address, 64, a.cu_stream()) }.result().unwrap();
        assert_eq!(fill(address, 64, &b), R::CUDA_SUCCESS);
        let ended = context.synchronize().map_err(|error| error.0);
        assert!(matches!(ended, Ok(()) | Err(R::CUDA_ERROR_ILLEGAL_ADDRESS)), "{ended:?}");
        faults += u32::from(ended != Ok(()));
    }
    assert!(
        (5..=35).contains(&faults),
        "use on another stream without a wait faulted in {faults} of 40 seeds"
    );
}

#[test]
fn destroyed_handles_are_invalid() {
    let _standin = Standin::load().unwrap();
    let context = context();
    let (mut stream, mut event) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: a live variable.
    unsafe { sys::cuStreamCreate(&raw mut stream, 1) }.result().unwrap();
    // SAFETY: a live variable.
    unsafe { sys::cuEventCreate(&raw mut event, 0) }.result().unwrap();
    // SAFETY: the stand-in checks handles; that is what is tested, here and below.
    let destroy_stream = |stream| unsafe { sys::cuStreamDestroy_v2(stream) };
    // SAFETY: as above.
    let destroy_event = |event| unsafe { sys::cuEventDestroy_v2(event) };
    assert_eq!(destroy_stream(event.cast()), R::CUDA_ERROR_INVALID_HANDLE, "an event is no stream");
    assert_eq!(destroy_stream(stream), R::CUDA_SUCCESS);
    // SAFETY: as above.
    let synchronised = unsafe { sys::cuStreamSynchronize(stream) };
    assert_eq!(synchronised, R::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(destroy_stream(stream), R::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(destroy_event(event), R::CUDA_SUCCESS);
    // SAFETY: as above.
    let queried = unsafe { sys::cuEventQuery(event) };
    assert_eq!(queried, R::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(destroy_event(event), R::CUDA_ERROR_INVALID_HANDLE);
    context.synchronize().unwrap();
}

#[test]
fn pinned_memory_is_known_until_it_is_freed() {
    let standin = Standin::load().unwrap();
    let context = context();
    let mut pinned: *mut std::ffi::c_void = std::ptr::null_mut();
    // SAFETY: a live variable.
    unsafe { sys::cuMemHostAlloc(&raw mut pinned, 4096, 0) }.result().unwrap();
    assert_eq!(standin.leaks().host_blocks, 1);
    // SAFETY: the stand-in checks the pointer; that is what is tested.
    let free = |pointer| unsafe { sys::cuMemFreeHost(pointer) };
    assert_eq!(free(pinned.wrapping_byte_add(64)), R::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(free(pinned), R::CUDA_SUCCESS);
    assert_eq!(free(pinned), R::CUDA_ERROR_INVALID_VALUE);

    let mut own = vec![0u8; 8192];
    let base = own.as_mut_ptr().cast();
    // SAFETY: `own` outlives the registration.
    let register = |bytes| unsafe { sys::cuMemHostRegister_v2(base, bytes, 0) };
    // SAFETY: the stand-in checks the pointer.
    let unregister = || unsafe { sys::cuMemHostUnregister(base) };
    assert_eq!(register(8192), R::CUDA_SUCCESS);
    assert_eq!(register(16), R::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    assert_eq!(unregister(), R::CUDA_SUCCESS);
    assert_eq!(unregister(), R::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    context.synchronize().unwrap();
}

#[test]
fn pools_keep_what_was_released_up_to_their_threshold() {
    let _standin = Standin::load().unwrap();
    let context = context();
    let stream = context.new_stream().unwrap();
    let mut pool = std::ptr::null_mut();
    // SAFETY: live variable.
    unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, 0) }.result().unwrap();
    let get = |attribute| {
        let mut bytes = 0u64;
        // SAFETY: these attributes are 64-bit numbers.
        unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()) }
            .result()
            .unwrap();
        bytes
    };
    use sys::CUmemPool_attribute as A;
    for (threshold, kept) in [(0u64, 0), (u64::MAX, 3000)] {
        let mut value = threshold;
        let attribute = A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: as above.
        unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()) }
            .result()
            .unwrap();
        let (a, b) =
            (stream.alloc_zeros::<u8>(1000).unwrap(), stream.alloc_zeros::<u8>(2000).unwrap());
        assert_eq!(get(A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 3000);
        drop((a, b));
        stream.synchronize().unwrap();
        assert_eq!(get(A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
        assert_eq!(get(A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), kept);
        assert_eq!(get(A::CU_MEMPOOL_ATTR_USED_MEM_HIGH), 3000);
    }
    let (free, total) = context.mem_get_info().unwrap();
    assert_eq!(total - free, 3000, "what a pool keeps is not free");
}

#[test]
fn calls_are_counted_by_name_and_leaks_by_kind() {
    let standin = Standin::load().unwrap();
    let context = context();
    standin.clear_calls();
    let address = alloc(64).unwrap();
    let other = alloc(64).unwrap();
    let stream = context.new_stream().unwrap();
    let event = context.new_event(None).unwrap();
    assert_eq!(standin.calls("cuMemAlloc_v2"), 2);
    assert_eq!(standin.calls("cuStreamCreate"), 1);
    assert_eq!(standin.all_calls(), standin.call_names().len() as u64);
    assert_eq!(standin.call_names()[..2], ["cuMemAlloc_v2", "cuMemAlloc_v2"]);
    let leaks = standin.leaks();
    assert_eq!(
        (leaks.device_blocks, leaks.device_bytes, leaks.streams, leaks.events),
        (2, 128, 1, 1)
    );
    assert_eq!(free(address), R::CUDA_SUCCESS);
    drop((stream, event));
    drop(context);
    let leaks = standin.leaks();
    assert_eq!(
        (leaks.device_blocks, leaks.streams, leaks.contexts),
        (1, 0, 0),
        "a context's end hides no leak"
    );
    let _ = other;
}

#[test]
fn the_nth_call_fails_once_and_a_failed_release_has_released() {
    let standin = Standin::load().unwrap();
    let context = context();
    standin.fail_nth("cuMemAlloc_v2", 2, R::CUDA_ERROR_OUT_OF_MEMORY as u32);
    let first = alloc(16).unwrap();
    assert_eq!(alloc(16), Err(R::CUDA_ERROR_OUT_OF_MEMORY));
    let third = alloc(16).unwrap();
    assert_eq!(standin.failures_to_come(), 0);
    standin.fail_nth_call(1, R::CUDA_ERROR_UNKNOWN as u32);
    assert_eq!(free(first), R::CUDA_ERROR_UNKNOWN);
    assert_eq!(free(third), R::CUDA_SUCCESS);
    assert_eq!(standin.leaks().device_blocks, 0);
    standin.fail_nth("cuCtxSynchronize", 1, R::CUDA_ERROR_ILLEGAL_ADDRESS as u32);
    assert_eq!(context.synchronize().unwrap_err().0, R::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(alloc(16), Err(R::CUDA_ERROR_ILLEGAL_ADDRESS), "such a code breaks the context");
}

#[test]
fn poison_breaks_the_context_for_good() {
    let standin = Standin::load().unwrap();
    let context = context();
    standin.poison(R::CUDA_ERROR_ECC_UNCORRECTABLE as u32);
    assert_eq!(context.synchronize().unwrap_err().0, R::CUDA_ERROR_ECC_UNCORRECTABLE);
    assert_eq!(alloc(16), Err(R::CUDA_ERROR_ECC_UNCORRECTABLE));
}

#[test]
fn error_names_and_texts_are_cudas() {
    let _standin = Standin::load().unwrap();
    let error = cudarc::driver::DriverError(R::CUDA_ERROR_ILLEGAL_ADDRESS);
    let shown = format!("{error:?}");
    assert!(shown.contains("an illegal memory access was encountered"), "{shown}");
}

#[test]
fn each_call_of_a_piece_of_work_can_be_failed_in_turn_without_a_leak() {
    let standin = Standin::load().unwrap();
    let context = context();
    let stream = context.new_stream().unwrap();
    let before = standin.leaks();
    let work = || -> Result<Vec<u8>, cudarc::driver::DriverError> {
        let mut a = stream.alloc_zeros::<u8>(64)?;
        let b = stream.clone_htod(&[5u8; 64])?;
        stream.memcpy_dtod(&b, &mut a)?;
        let event = stream.record_event(None)?;
        event.synchronize()?;
        stream.clone_dtoh(&a)
    };
    standin.clear_calls();
    work().unwrap();
    let names = standin.call_names();
    assert!(names.len() > 20, "{names:?}");
    for n in 1..=names.len() as u64 {
        standin.clear_calls();
        standin.fail_nth_call(n, R::CUDA_ERROR_UNKNOWN as u32);
        let outcome = work();
        assert_eq!(standin.failures_to_come(), 0, "call {n}");
        let failed = &names[n as usize - 1];
        // What fails in a drop is reported by the next call of cudarc that can.
        let reported = outcome.err().or_else(|| context.check_err().err()).map(|error| error.0);
        assert_eq!(reported, Some(R::CUDA_ERROR_UNKNOWN), "call {n}, {failed}");
        stream.synchronize().unwrap();
        assert_eq!(standin.leaks(), before, "call {n}, {failed}");
    }
    assert_eq!(work().unwrap(), [5; 64]);
}
