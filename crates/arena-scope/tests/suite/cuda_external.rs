//! An arena over memory that the program holds: the program's work on it comes first, and it gets the memory back
//! when the arena's work on it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cuda::Seen;
use arena_scope::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use arena_scope::{Arena, ByteSize, Cuda, ErrorKind, Placement};
use cuda_standin::Standin;

const X: [f32; 4] = [1.0, 2.0, 3.0, 4.0];
const BYTES: usize = 4096;

fn stream() -> Arc<CudaStream> {
    CudaContext::new(0).unwrap().new_stream().unwrap()
}

fn memory(stream: &Arc<CudaStream>) -> CudaSlice<u8> {
    stream.alloc_zeros(BYTES).unwrap()
}

#[test]
fn the_region_is_the_slice_and_the_program_gets_it_back() {
    let standin = Standin::load().unwrap();
    let stream = stream();
    let memory = memory(&stream);
    let address = memory.device_ptr(&stream).0;
    standin.clear_calls();
    let mut arena = Arena::over(memory).unwrap().build().unwrap();
    assert_eq!((arena.base_address(), arena.stats().capacity_bytes), (address, BYTES as u64));
    arena.scope(|step| step.upload(&X).map(drop)).unwrap();
    let weights = arena.persistent_from(&X).unwrap();
    drop(weights);
    let memory = arena.into_slice().unwrap();
    assert_eq!((memory.device_ptr(&stream).0, memory.len()), (address, BYTES));
    let calls = ["cuMemAlloc_v2", "cuMemAllocAsync", "cuMemFree_v2", "cuMemFreeAsync"];
    assert_eq!(calls.map(|name| standin.calls(name)), [0; 4]);
    let bytes = stream.clone_dtoh(&memory.slice(..4)).unwrap();
    assert_eq!(bytes, X[0].to_ne_bytes());
    drop((memory, stream));
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

/// The arena is on another stream than the slice, which two more streams read when the arena begins; and when it ends,
/// its own stream and a declared one still work on it.
#[test]
fn the_program_s_work_comes_first_and_the_arena_s_ends_before_the_slice_is_back_for_200_seeds() {
    let standin = Standin::load().unwrap();
    for seed in 0..200 {
        standin.reset(seed);
        standin.set_free_waits(false);
        let stream = stream();
        let (first, second) = (stream.fork().unwrap(), stream.fork().unwrap());
        let mut seen = [(); 3].map(|()| Seen::new(stream.context()));
        let x = stream.clone_htod(bytes_of(&X)).unwrap();
        let mut memory = memory(&stream);
        stream.memcpy_dtod(&x, &mut memory.slice_mut(..16)).unwrap();
        {
            // SAFETY: the first bytes are four floats.
            let floats = unsafe { memory.transmute::<f32>(4) }.unwrap();
            seen[0].copy(&first, &floats);
            seen[1].copy(&second, &floats);
        }
        let own = stream.fork().unwrap();
        let device = Cuda::on(own).unwrap().over(memory).unwrap();
        let size = ByteSize::bytes_exact(BYTES as u64);
        let mut arena = Arena::builder(device).capacity(size).build().unwrap();
        let side = arena.device().new_stream().unwrap();
        let step = arena.scope(|step| {
            let y = step.upload(&[9.0_f32; 4])?;
            seen[2].copy(&side, &y);
            arena_scope::Ok(())
        });
        step.unwrap();
        let mut memory = arena.into_slice().unwrap();
        stream.memset_zeros(&mut memory).unwrap();
        stream.synchronize().unwrap();
        assert_eq!([seen[0].after(&first), seen[1].after(&second)], [X; 2], "seed {seed}");
        assert_eq!(seen[2].after(&side), [9.0; 4], "seed {seed}");
        assert_eq!(stream.clone_dtoh(&memory).unwrap(), [0; BYTES]);
    }
}

fn bytes_of(values: &[f32; 4]) -> &[u8] {
    // SAFETY: 16 initialised bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), 16) }
}

#[test]
fn a_slice_that_is_still_in_use_is_freed_with_the_last_persistent_buffer() {
    let standin = Standin::load().unwrap();
    let stream = stream();
    let arena = Arena::over(memory(&stream)).unwrap().build().unwrap();
    let weights = arena.persistent_from(&X).unwrap();
    standin.clear_calls();
    assert!(arena.into_slice().is_none());
    assert_eq!(weights.view().to_vec().unwrap(), X);
    assert_eq!(standin.calls("cuMemFreeAsync"), 0);
    drop(weights);
    assert_eq!(standin.calls("cuMemFreeAsync"), 1);
    drop(stream);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

#[test]
fn memory_behind_a_pointer_goes_back_to_its_keeper() {
    struct Keeper(
        #[expect(dead_code, reason = "it keeps the memory")] CudaSlice<u8>,
        Arc<AtomicBool>,
    );
    impl Drop for Keeper {
        fn drop(&mut self) {
            self.1.store(true, Ordering::Relaxed);
        }
    }
    let standin = Standin::load().unwrap();
    let stream = stream();
    let memory = memory(&stream);
    let address = memory.device_ptr(&stream).0 + 4;
    let dropped = Arc::new(AtomicBool::new(false));
    let keeper = Keeper(memory, Arc::clone(&dropped));
    // SAFETY: the bytes are the keeper's, who uses them no more.
    let device = unsafe { Cuda::on(stream.clone()).unwrap().over_raw(address, 4000, keeper) };
    let builder = Arena::builder(device).capacity(ByteSize::bytes_exact(3000));
    // The separate buffers come from the driver.
    let mut arena = builder.placement(Placement::Separate).build().unwrap();
    assert_eq!(arena.base_address(), address);
    let step = arena.scope(|step| {
        let x = step.upload(&X)?;
        assert!(!(address..address + 4000).contains(&x.address()));
        step.read(x.view())
    });
    assert_eq!(step.unwrap(), X);
    assert_eq!(
        arena.persistent_from(&X).unwrap().address() % 256,
        0,
        "aligned, not only the offset"
    );
    assert!(!dropped.load(Ordering::Relaxed));
    assert!(arena.into_slice().is_none(), "it is no slice");
    assert!(dropped.load(Ordering::Relaxed));
    drop(stream);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

#[test]
fn memory_that_is_too_small_or_of_another_device_is_refused() {
    let standin = Standin::load().unwrap();
    standin.set_devices(2);
    let stream = stream();
    let device = Cuda::on(stream.clone()).unwrap().over(memory(&stream)).unwrap();
    let refused = Arena::builder(device).capacity(ByteSize::kib(5)).build().unwrap_err();
    assert!(refused.to_string().contains("has 4096 bytes, not 5120"), "{refused}");
    let elsewhere = memory(&CudaContext::new(1).unwrap().new_stream().unwrap());
    let refused = Cuda::on(stream).unwrap().over(elsewhere).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::WrongDevice { .. }), "{refused}");
    let driver_s = crate::cuda::arena();
    assert!(driver_s.into_slice().is_none());
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

/// What the arena has queued could not be waited for: the memory is neither freed nor given back.
#[test]
fn memory_whose_work_has_no_known_end_is_given_up() {
    let standin = Standin::load().unwrap();
    let stream = stream();
    let mut arena = Arena::over(memory(&stream)).unwrap().build().unwrap();
    arena.scope(|step| step.upload(&X).map(drop)).unwrap();
    standin.fail_nth("cuStreamSynchronize", 1, 999);
    standin.fail_nth("cuStreamSynchronize", 2, 999);
    standin.clear_calls();
    assert!(arena.into_slice().is_none());
    assert_eq!(standin.calls("cuMemFreeAsync"), 0);
}
