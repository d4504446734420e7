//! Managed memory: the host and the device see the same bytes, and a stream may have them for itself.

use crate::common::{Bench, flat};
use cuda_standin::Standin;
use cudarc::driver::{CudaContext, CudaStream, sys};
use sys::CUmemAttach_flags as Attach;
use sys::CUresult as R;

fn allocate(bytes: usize, flags: u32) -> Result<u64, R> {
    let mut address = 0;
    // SAFETY: the address goes into a live variable.
    match unsafe { sys::cuMemAllocManaged(&raw mut address, bytes, flags) } {
        R::CUDA_SUCCESS => Ok(address),
        code => Err(code),
    }
}

fn attach(stream: &CudaStream, address: u64, bytes: usize, to: Attach) -> R {
    // SAFETY: the stand-in checks the block; the stream is live.
    unsafe { sys::cuStreamAttachMemAsync(stream.cu_stream(), address, bytes, to as u32) }
}

fn fill(stream: &CudaStream, address: u64) -> R {
    // SAFETY: the stand-in checks the range.
    unsafe { sys::cuMemsetD8Async(address, 3, 16, stream.cu_stream()) }
}

#[test]
fn the_host_sees_what_the_device_wrote_once_it_has_waited() {
    let bench = Bench::new(include_str!("../ptx/cnn.ptx"));
    let address = allocate(400, Attach::CU_MEM_ATTACH_GLOBAL as u32).unwrap();
    let first = std::ptr::with_exposed_provenance_mut::<f32>(address as usize);
    // SAFETY: managed memory is the host's as well; no work is queued on it.
    unsafe { first.write(7.0) };
    launch!(bench, "fill", flat(100), &address, &1.5f32, &100i32);
    // SAFETY: as above; the kernel has not run, for nobody has waited.
    assert_eq!(unsafe { first.read() }, 7.0);
    bench.finish();
    // SAFETY: as above, and the kernel is done.
    assert_eq!(unsafe { first.read() }, 1.5);
    assert_eq!(bench.standin.leaks().device_blocks, 1);
    // SAFETY: the block is released once.
    unsafe { sys::cuMemFree_v2(address) }.result().unwrap();
    assert_eq!(bench.standin.leaks().device_blocks, 0);
}

#[test]
fn memory_of_one_stream_is_not_for_another_until_it_is_given_back() {
    for given_back in [false, true] {
        let standin = Standin::load().unwrap();
        let context = CudaContext::new(0).unwrap();
        let (owner, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let address = allocate(16, Attach::CU_MEM_ATTACH_GLOBAL as u32).unwrap();
        assert_eq!(fill(&other, address), R::CUDA_SUCCESS);
        other.synchronize().unwrap();
        let single = Attach::CU_MEM_ATTACH_SINGLE;
        assert_eq!(attach(&owner, address, 16, single), R::CUDA_SUCCESS);
        assert_eq!(fill(&owner, address), R::CUDA_SUCCESS);
        if given_back {
            let all = Attach::CU_MEM_ATTACH_GLOBAL;
            assert_eq!(attach(&owner, address, 0, all), R::CUDA_SUCCESS);
        }
        owner.synchronize().unwrap();
        assert_eq!(fill(&other, address), R::CUDA_SUCCESS);
        let outcome = other.synchronize().map_err(|error| error.0);
        let wanted = if given_back { Ok(()) } else { Err(R::CUDA_ERROR_ILLEGAL_ADDRESS) };
        assert_eq!(outcome, wanted, "{}", standin.last_fault());
    }
}

#[test]
fn wrong_flags_parts_and_streams_are_refused() {
    let _standin = Standin::load().unwrap();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    assert_eq!(allocate(0, 1), Err(R::CUDA_ERROR_INVALID_VALUE));
    let single = Attach::CU_MEM_ATTACH_SINGLE;
    assert_eq!(allocate(16, single as u32), Err(R::CUDA_ERROR_INVALID_VALUE));
    let address = allocate(16, Attach::CU_MEM_ATTACH_HOST as u32).unwrap();
    assert_eq!(attach(&stream, address, 8, single), R::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(attach(&stream, address + 8, 0, single), R::CUDA_ERROR_INVALID_VALUE);
    let null = context.default_stream();
    assert_eq!(attach(&null, address, 0, single), R::CUDA_ERROR_INVALID_VALUE);
    let plain = stream.alloc_zeros::<u8>(16).unwrap();
    let plain = cudarc::driver::DevicePtr::device_ptr(&plain, &stream).0;
    assert_eq!(attach(&stream, plain, 0, single), R::CUDA_ERROR_INVALID_VALUE);
}
