//! Virtual memory: an address range that grows in place.

use cuda_standin::Standin;
use cudarc::driver::{CudaContext, sys};
use sys::CUresult as R;

const STEP: usize = 2 << 20;

fn prop() -> sys::CUmemAllocationProp {
    // SAFETY: all-zero bytes are a value of this plain C structure.
    let mut prop: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    prop
}

fn reserve(bytes: usize) -> Result<u64, R> {
    let mut base = 0;
    // SAFETY: live variable.
    match unsafe { sys::cuMemAddressReserve(&raw mut base, bytes, 0, 0, 0) } {
        R::CUDA_SUCCESS => Ok(base),
        code => Err(code),
    }
}

fn create(bytes: usize) -> Result<u64, R> {
    let (mut handle, prop) = (0, prop());
    // SAFETY: live variables.
    match unsafe { sys::cuMemCreate(&raw mut handle, bytes, &raw const prop, 0) } {
        R::CUDA_SUCCESS => Ok(handle),
        code => Err(code),
    }
}

fn map(base: u64, bytes: usize, handle: u64) -> R {
    // SAFETY: the stand-in checks addresses and handle.
    unsafe { sys::cuMemMap(base, bytes, 0, handle, 0) }
}

fn unmap(base: u64, bytes: usize) -> R {
    // SAFETY: the stand-in checks the range.
    unsafe { sys::cuMemUnmap(base, bytes) }
}

fn release(handle: u64) -> R {
    // SAFETY: the stand-in checks the handle.
    unsafe { sys::cuMemRelease(handle) }
}

fn give_up(base: u64, bytes: usize) -> R {
    // SAFETY: the stand-in checks the range.
    unsafe { sys::cuMemAddressFree(base, bytes) }
}

fn allow(base: u64, bytes: usize) -> R {
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = sys::CUmemAccessDesc { location: prop().location, flags };
    // SAFETY: live variable.
    unsafe { sys::cuMemSetAccess(base, bytes, &raw const access, 1) }
}

fn fill(base: u64, value: u8, bytes: usize) -> R {
    // SAFETY: the stand-in checks the range.
    unsafe { sys::cuMemsetD8_v2(base, value, bytes) }
}

fn read(base: u64, bytes: usize) -> Result<Vec<u8>, R> {
    let mut host = vec![0; bytes];
    // SAFETY: `host` has that many bytes, and the stand-in checks the device range.
    match unsafe { sys::cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), base, bytes) } {
        R::CUDA_SUCCESS => Ok(host),
        code => Err(code),
    }
}

#[test]
fn a_range_grows_in_place_and_keeps_its_bytes() {
    let standin = Standin::load().unwrap();
    let context = CudaContext::new(0).unwrap();
    let free = || context.mem_get_info().unwrap().0;
    let before = free();
    let base = reserve(4 * STEP).unwrap();
    assert_eq!(free(), before, "addresses cost no memory");
    let handles = [create(STEP).unwrap(), create(2 * STEP).unwrap()];
    assert_eq!(before - free(), 3 * STEP);
    let second = base + STEP as u64;
    assert_eq!(map(base, STEP, handles[0]), R::CUDA_SUCCESS);
    assert_eq!(allow(base, STEP), R::CUDA_SUCCESS);
    assert_eq!(fill(base, 7, STEP), R::CUDA_SUCCESS);
    assert_eq!(map(second, 2 * STEP, handles[1]), R::CUDA_SUCCESS);
    assert_eq!(allow(second, 2 * STEP), R::CUDA_SUCCESS);
    // One operation across the seam.
    assert_eq!(fill(second - 8, 9, 16), R::CUDA_SUCCESS);
    let seam = read(second - 16, 32).unwrap();
    assert_eq!((&seam[..8], &seam[8..24]), (&[7; 8][..], &[9; 16][..]));

    assert_eq!(give_up(base, 4 * STEP), R::CUDA_ERROR_INVALID_VALUE, "still mapped");
    assert_eq!(unmap(base, STEP / 2), R::CUDA_ERROR_INVALID_VALUE, "only whole mappings");
    assert_eq!(handles.map(release), [R::CUDA_SUCCESS; 2]);
    assert_eq!(before - free(), 3 * STEP, "mapped memory stays");
    assert_eq!(unmap(base, 3 * STEP), R::CUDA_SUCCESS);
    assert_eq!(free(), before);
    assert_eq!(give_up(base, 4 * STEP), R::CUDA_SUCCESS);
    assert_eq!(give_up(base, 4 * STEP), R::CUDA_ERROR_INVALID_VALUE);
    drop(context);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

#[test]
fn memory_is_out_of_reach_without_access() {
    let _standin = Standin::load().unwrap();
    let context = CudaContext::new(0).unwrap();
    let (base, handle) = (reserve(STEP).unwrap(), create(STEP).unwrap());
    assert_eq!(map(base, STEP, handle), R::CUDA_SUCCESS);
    assert_eq!(fill(base, 1, 16), R::CUDA_SUCCESS);
    assert_eq!(context.synchronize().unwrap_err().0, R::CUDA_ERROR_ILLEGAL_ADDRESS);
}

#[test]
fn unmapping_waits_for_nothing_so_queued_work_faults() {
    let _standin = Standin::load().unwrap();
    let context = CudaContext::new(0).unwrap();
    let (base, handle) = (reserve(STEP).unwrap(), create(STEP).unwrap());
    assert_eq!(map(base, STEP, handle), R::CUDA_SUCCESS);
    assert_eq!(allow(base, STEP), R::CUDA_SUCCESS);
    assert_eq!(fill(base, 1, 16), R::CUDA_SUCCESS);
    assert_eq!(unmap(base, STEP), R::CUDA_SUCCESS);
    assert_eq!(context.synchronize().unwrap_err().0, R::CUDA_ERROR_ILLEGAL_ADDRESS);
}

#[test]
fn contents_belong_to_the_physical_memory_not_to_the_address() {
    let _standin = Standin::load().unwrap();
    let _context = CudaContext::new(0).unwrap();
    let (first, second, handle) =
        (reserve(STEP).unwrap(), reserve(STEP).unwrap(), create(STEP).unwrap());
    for (base, filled) in [(first, true), (second, false)] {
        assert_eq!(map(base, STEP, handle), R::CUDA_SUCCESS);
        assert_eq!(allow(base, STEP), R::CUDA_SUCCESS);
        if filled {
            assert_eq!(fill(base, 5, STEP), R::CUDA_SUCCESS);
        }
        assert_eq!(read(base, 64).unwrap(), [5; 64]);
        assert_eq!(unmap(base, STEP), R::CUDA_SUCCESS);
        assert_eq!(read(base, 64), Err(R::CUDA_ERROR_INVALID_VALUE));
    }
}

#[test]
fn sizes_that_are_not_granular_and_places_that_are_taken_are_refused() {
    let standin = Standin::load().unwrap();
    standin.set_memory(8 << 20, 8 << 20);
    let _context = CudaContext::new(0).unwrap();
    let (mut granularity, prop) = (0, prop());
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: live variables.
    unsafe { sys::cuMemGetAllocationGranularity(&raw mut granularity, &raw const prop, minimum) }
        .result()
        .unwrap();
    assert_eq!(granularity, STEP);
    assert_eq!(reserve(STEP + 1), Err(R::CUDA_ERROR_INVALID_VALUE));
    assert_eq!(create(4096), Err(R::CUDA_ERROR_INVALID_VALUE));
    assert_eq!(create(5 * STEP), Err(R::CUDA_ERROR_OUT_OF_MEMORY));
    let (base, handle) = (reserve(2 * STEP).unwrap(), create(STEP).unwrap());
    assert_eq!(map(base, 2 * STEP, handle), R::CUDA_ERROR_INVALID_VALUE, "not the handle's size");
    assert_eq!(map(base + 2 * STEP as u64, STEP, handle), R::CUDA_ERROR_INVALID_VALUE, "outside");
    assert_eq!(map(base, STEP, handle), R::CUDA_SUCCESS);
    assert_eq!(map(base, STEP, handle), R::CUDA_ERROR_INVALID_VALUE, "taken");
    assert_eq!(allow(base, 2 * STEP), R::CUDA_ERROR_INVALID_VALUE, "only half of it is mapped");
}
