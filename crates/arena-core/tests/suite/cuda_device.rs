//! The CUDA device on the stand-in driver: memory, sizes, reads, several devices.

use arena_core::cudarc::driver::{CudaContext, result, sys};
use arena_core::{
    Alignment, ByteSize, Capacity, Cuda, Device, DeviceErrorKind, Error, ErrorKind, RawArena,
};
use cuda_standin::Standin;
use rstest::rstest;

fn arena(capacity: ByteSize) -> RawArena<Cuda> {
    RawArena::new(Cuda::new(0).unwrap(), capacity).unwrap()
}

fn kind(error: &Error) -> DeviceErrorKind {
    match error.kind() {
        ErrorKind::Device(error) => error.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_region_is_one_allocation_and_one_free() {
    let standin = Standin::load().unwrap();
    let arena = arena(ByteSize::mib(1));
    let weights = arena.persistent_from(&[1.0_f32; 100]).unwrap();
    arena.set_mark().unwrap();
    for _ in 0..50 {
        let _scratch = arena.transient::<f32>(10, Alignment::DEFAULT).unwrap();
    }
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuMemAlloc_v2"), 1);
        assert_eq!(standin.leaks().device_bytes, 1 << 20, "the capacity is not rounded");
    }
    drop(arena);
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuMemFree_v2"), 0, "the last persistent buffer holds the region");
    }
    assert_eq!(weights.view().to_vec().unwrap(), [1.0; 100]);
    drop(weights);
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuMemFree_v2"), 1);
        assert_eq!(standin.calls("cuMemAllocAsync") + standin.calls("cuMemFreeAsync"), 0);
    }
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

// B066
#[test]
fn dropping_the_arena_gives_the_memory_back_each_time() {
    let standin = Standin::load().unwrap();
    standin.needed_for("memory that nobody else uses");
    let context = CudaContext::new(0).unwrap();
    let before = context.mem_get_info().unwrap();
    for _ in 0..10 {
        let device = Cuda::in_context(&context).unwrap();
        let arena = RawArena::new(device, ByteSize::mib(256)).unwrap();
        let buffer = arena.persistent_from(&[1_u8; 1000]).unwrap();
        assert_eq!(context.mem_get_info().unwrap().0, before.0 - (256 << 20));
        drop((arena, buffer));
        assert_eq!(context.mem_get_info().unwrap(), before);
    }
    assert_eq!((standin.calls("cuMemAlloc_v2"), standin.calls("cuMemFree_v2")), (10, 10));
}

#[test]
fn an_empty_region_costs_no_driver_memory_call() {
    let standin = Standin::load().unwrap();
    drop(arena(ByteSize::bytes_exact(0)));
    if !standin.is_real_driver() {
        assert_eq!((standin.calls("cuMemAlloc_v2"), standin.calls("cuMemFree_v2")), (0, 0));
    }
}

// B065
#[test]
fn a_refused_region_tells_asked_free_total_and_what_to_do() {
    let standin = Standin::load().unwrap();
    standin.set_memory(1000, 850);
    let device = Cuda::new(0).unwrap();
    let memory = device.memory().unwrap();
    assert_eq!((memory.free_bytes, memory.total_bytes), (850, 1000));
    assert_eq!(Capacity::fraction_of_free(0.9).of(&memory).unwrap().bytes(), 765);
    let expected = DeviceErrorKind::OutOfMemory(Some(memory.shortage(900)));
    let asked = Capacity::fraction_of_total(0.9).of(&memory).unwrap_err();
    assert_eq!(kind(&asked), expected);
    let refused = RawArena::new(device, ByteSize::bytes_exact(900)).unwrap_err();
    assert_eq!(kind(&refused), expected);
    for text in [asked.to_string(), refused.to_string()] {
        for part in ["900", "850", "1000", "other programs", "a fraction of what is free"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }
    assert!(standin.leaks().is_clean(), "nothing half-built remains: {:?}", standin.leaks());
}

// B061
#[test]
fn headroom_leaves_room_for_a_library() {
    let standin = Standin::load().unwrap();
    standin.set_memory(1000 << 20, 1000 << 20);
    let device = Cuda::new(0).unwrap();
    let everything = Capacity::fraction_of_free(1.0);
    assert!(everything.on(&device).unwrap_err().to_string().contains("headroom"));
    let capacity = everything.headroom(ByteSize::mib(100)).on(&device).unwrap();
    assert_eq!(capacity, ByteSize::mib(900));
    let context = device.context().clone();
    let arena = RawArena::new(device, capacity).unwrap();
    let library = context.default_stream().alloc_zeros::<u8>(80 << 20).map_err(|error| error.0);
    assert!(library.is_ok());
    assert_eq!(arena.stats().capacity_bytes, 900 << 20);
}

#[test]
fn an_absent_device_is_named() {
    let standin = Standin::load().unwrap();
    let count = Cuda::device_count().unwrap();
    let refused = Cuda::new(count).unwrap_err();
    assert_eq!(kind(&refused), DeviceErrorKind::Unavailable);
    for part in [format!("cuda:{count}"), format!("0 to {}", count - 1)] {
        assert!(refused.to_string().contains(&part), "{refused}");
    }
    if standin.is_real_driver() {
        return; // There is a device.
    }
    standin.set_devices(0);
    let refused = Cuda::new(0).unwrap_err();
    assert_eq!(kind(&refused), DeviceErrorKind::Unavailable);
    assert!(refused.to_string().contains("there is no CUDA device"), "{refused}");
    assert_eq!(kind(&Cuda::device_count().unwrap_err()), DeviceErrorKind::Unavailable);
}

#[test]
fn a_stub_library_is_called_one() {
    let standin = Standin::load().unwrap();
    standin.fail_nth("cuInit", 1, 34);
    let refused = Cuda::new(0).unwrap_err();
    assert_eq!(kind(&refused), DeviceErrorKind::Unavailable);
    assert!(refused.to_string().contains("stub"), "{refused}");
}

// B051
#[test]
fn a_host_read_comes_after_the_work_queued_before_it() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(40) {
        standin.reset(seed);
        let mut arena = arena(ByteSize::kib(4));
        for value in [5_u8, 6] {
            let mut x = arena.transient::<u8>(64, Alignment::DEFAULT).unwrap();
            x.view_mut().zero().unwrap();
            let (address, stream) = (x.address(), arena.device().stream().cu_stream());
            // A kernel's part is played by a fill. SAFETY: 64 live bytes, on the arena's stream.
            unsafe { sys::cuMemsetD8Async(address, value, 64, stream) }.result().unwrap();
            if !standin.is_real_driver() {
                assert!(standin.queued() > 0, "nothing has run yet");
            }
            assert_eq!(x.view().to_vec().unwrap(), [value; 64]);
            drop(x);
            arena.reset_to_mark();
        }
    }
}

#[test]
fn a_read_waits_for_the_arena_s_stream_alone() {
    let standin = Standin::load().unwrap();
    let arena = arena(ByteSize::kib(4));
    let x = arena.persistent_from(&[1_u8; 64]).unwrap();
    let busy = arena.device().new_stream().unwrap();
    let mut other = busy.alloc_zeros::<u8>(64).unwrap();
    busy.memset_zeros(&mut other).unwrap();
    standin.clear_calls();
    assert_eq!(x.view().to_vec().unwrap(), [1; 64]);
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuStreamSynchronize"), 1);
        assert_eq!(standin.calls("cuCtxSynchronize"), 0);
    }
}

#[test]
fn a_pinned_source_too_may_be_changed_when_the_call_returns() {
    let _standin = Standin::load().unwrap();
    let arena = arena(ByteSize::kib(4));
    // SAFETY: it is written before it is read.
    let pinned = unsafe { arena.device().context().alloc_pinned::<u8>(64) };
    let mut pinned = pinned.map_err(|error| error.0).unwrap();
    pinned.as_mut_slice().map_err(|error| error.0).unwrap().fill(3);
    let x = arena.persistent_from(pinned.as_slice().map_err(|error| error.0).unwrap()).unwrap();
    pinned.as_mut_slice().map_err(|error| error.0).unwrap().fill(9);
    assert_eq!(x.view().to_vec().unwrap(), [3; 64]);
}

#[test]
fn a_read_into_pinned_memory_has_arrived_when_it_returns() {
    let _standin = Standin::load().unwrap();
    let arena = arena(ByteSize::kib(4));
    let x = arena.persistent_from(&[5_u8; 64]).unwrap();
    // SAFETY: it is written before it is read.
    let pinned = unsafe { arena.device().context().alloc_pinned::<u8>(64) };
    let mut pinned = pinned.map_err(|error| error.0).unwrap();
    let host = pinned.as_mut_slice().map_err(|error| error.0).unwrap();
    host.fill(0);
    x.view().read_into(host).unwrap();
    assert_eq!(host, [5; 64]);
}

// B052
#[test]
fn the_region_is_freed_after_the_work_that_is_queued_on_it() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(20) {
        standin.reset(seed);
        // A driver whose free waits for nothing would find the fill outside live memory.
        standin.set_free_waits(false);
        let arena = arena(ByteSize::kib(4));
        let mut x = arena.persistent::<u8>(64, Alignment::DEFAULT).unwrap();
        x.view_mut().fill_bytes(1).unwrap();
        drop((x, arena));
        assert_eq!(standin.last_fault(), "", "seed {seed}");
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
}

#[rstest]
#[case::once(1, 0)]
#[case::always(2, 1)]
fn memory_is_not_freed_before_a_wait_has_told_that_its_work_has_ended(
    #[case] waits_that_fail: u64,
    #[case] blocks_given_up: u64,
) {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(20) {
        standin.reset(seed);
        standin.set_free_waits(false);
        let device = Cuda::new(0).unwrap();
        let stream = device.stream().clone();
        let arena = RawArena::new(device, ByteSize::kib(4)).unwrap();
        let mut x = arena.persistent::<u8>(64, Alignment::DEFAULT).unwrap();
        x.view_mut().fill_bytes(1).unwrap();
        (1..=waits_that_fail).for_each(|n| standin.fail_nth("cuStreamSynchronize", n, 801));
        drop((x, arena));
        stream.synchronize().unwrap();
        assert_eq!(standin.last_fault(), "", "seed {seed}");
        assert_eq!(standin.leaks().device_blocks, blocks_given_up, "seed {seed}");
    }
}

// B055
#[test]
fn in_a_capture_what_would_break_it_is_refused_before_the_driver_is_called() {
    let standin = Standin::load().unwrap();
    let device = Cuda::new(0).unwrap();
    let stream = device.stream().clone();
    let arena = RawArena::new(device, ByteSize::kib(4)).unwrap();
    let mut x = arena.persistent_from(&[1_u8; 64]).unwrap();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    stream.begin_capture(mode).unwrap();
    standin.clear_calls();
    x.view_mut().fill_bytes(7).unwrap();
    let device = arena.device();
    let refusals = [
        x.view().to_vec().map(drop).unwrap_err(),
        x.view_mut().write(&[1; 64]).unwrap_err(),
        device.synchronise().unwrap_err().into(),
        device.obtain(16).map(drop).unwrap_err().into(),
    ];
    for refused in &refusals {
        assert_eq!(kind(refused), DeviceErrorKind::InCapture, "{refused}");
    }
    let forbidden =
        ["cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize", "cuMemAlloc_v2"];
    if !standin.is_real_driver() {
        assert_eq!(forbidden.map(|name| standin.calls(name)), [0; 4]);
    }
    let flags = sys::CUgraphInstantiate_flags(0);
    let graph = stream.end_capture(flags).map_err(|error| error.0).unwrap().unwrap();
    assert_eq!(x.view().to_vec().unwrap(), [1; 64], "the fill was recorded, not run");
    graph.launch().unwrap();
    assert_eq!(x.view().to_vec().unwrap(), [7; 64]);
}

// B063
#[test]
fn each_call_makes_its_device_current_and_puts_the_other_back() {
    let standin = Standin::load().unwrap();
    assert!(standin.set_devices(2));
    let zero = CudaContext::new(0).unwrap();
    let current = || result::ctx::get_current().unwrap();
    assert_eq!(current(), Some(zero.cu_ctx()));

    let one = Cuda::new(1).unwrap();
    assert_eq!(current(), Some(zero.cu_ctx()), "after making a device");
    assert_eq!(one.name(), "cuda:1");
    let side = one.new_stream().unwrap();
    let mut arena_one = RawArena::new(one, ByteSize::kib(4)).unwrap();
    standin.clear_calls();
    let mut x = arena_one.persistent_from(&[1_u8; 64]).unwrap();
    assert_eq!(current(), Some(zero.cu_ctx()), "after a copy in");
    let names = standin.call_names();
    let made_current = names.iter().position(|name| name == "cuCtxSetCurrent").unwrap();
    let copied = names.iter().position(|name| name == "cuMemcpyHtoDAsync_v2").unwrap();
    let put_back = names.iter().rposition(|name| name == "cuCtxSetCurrent").unwrap();
    assert!(made_current < copied && copied < put_back, "{names:?}");
    x.view_mut().fill_bytes(2).unwrap();
    x.declare_stream(&side).unwrap();
    assert_eq!(x.view().to_vec().unwrap(), [2; 64]);
    arena_one.reset_to_mark();
    assert_eq!(current(), Some(zero.cu_ctx()), "after fill, event, wait, read and reset");

    let arena_zero = RawArena::new(Cuda::in_context(&zero).unwrap(), ByteSize::kib(4)).unwrap();
    let mut y = arena_zero.persistent::<u8>(64, Alignment::DEFAULT).unwrap();
    y.view_mut().copy_from(x.view()).unwrap();
    assert_eq!(current(), Some(zero.cu_ctx()), "after a copy from another device");
    assert_eq!(y.view().to_vec().unwrap(), [2; 64]);
    y.declare_stream(&side).unwrap();
    assert_eq!(current(), Some(zero.cu_ctx()), "after declaring a stream of another device");
    drop((x, arena_one));
    assert_eq!(current(), Some(zero.cu_ctx()), "after the end of the arena");
    drop((y, arena_zero, side, zero));
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

#[test]
fn a_thread_without_a_context_can_use_the_arena() {
    let _standin = Standin::load().unwrap();
    let arena = arena(ByteSize::kib(4));
    let weights = arena.persistent_from(&[3_u8; 16]).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| assert_eq!(weights.view().to_vec().unwrap(), [3; 16]));
    });
    let moved = std::thread::spawn(move || {
        let x = arena.transient::<u8>(16, Alignment::DEFAULT).unwrap();
        x.view().to_vec().map(drop)
    });
    moved.join().unwrap().unwrap();
}

#[test]
fn the_per_thread_stream_is_refused() {
    let _standin = Standin::load().unwrap();
    let device = Cuda::new(0).unwrap();
    let per_thread = device.context().per_thread_stream();
    assert!(!device.owns_stream(&per_thread));
    let refused = Cuda::on(per_thread).unwrap_err();
    assert!(refused.to_string().contains("per-thread"), "{refused}");
}

#[test]
fn an_arena_can_belong_to_a_stream_that_is_there_already() {
    let standin = Standin::load().unwrap();
    let stream = CudaContext::new(0).unwrap().default_stream();
    let arena = RawArena::new(Cuda::on(stream).unwrap(), ByteSize::kib(4)).unwrap();
    let x = arena.persistent_from(&[3_u8; 16]).unwrap();
    assert_eq!(x.view().to_vec().unwrap(), [3; 16]);
    drop((x, arena));
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

#[test]
fn a_broken_device_is_final_and_leaks_nothing() {
    let standin = Standin::load().unwrap();
    standin.needed_for("a device that can be broken");
    let arena = arena(ByteSize::kib(4));
    let x = arena.persistent_from(&[3_u8; 16]).unwrap();
    let outside = x.address() + 8192;
    let stream = arena.device().stream().clone();
    // SAFETY: the range is not the arena's; that the device stops at it is what is tested.
    let code = unsafe { sys::cuMemcpyDtoDAsync_v2(x.address(), outside, 16, stream.cu_stream()) };
    if code != sys::CUresult::CUDA_SUCCESS {
        standin.poison(700); // The driver refused the range at the call.
    }
    assert_eq!(kind(&x.view().to_vec().unwrap_err()), DeviceErrorKind::Final);
    let calls = standin.all_calls();
    let refused = arena.persistent::<u8>(1, Alignment::ONE).unwrap_err();
    assert!(refused.is_final(), "{refused}");
    assert_eq!(kind(&x.view().to_vec().unwrap_err()), DeviceErrorKind::Final);
    assert_eq!(standin.all_calls(), calls, "a lost device is not called again");
    assert!(refused.to_string().contains("700"), "{refused}");
    drop((x, arena, stream));
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

// B067
#[test]
fn a_context_that_was_dropped_first_lives_on_in_the_arena() {
    let standin = Standin::load().unwrap();
    let context = CudaContext::new(0).unwrap();
    let arena = RawArena::new(Cuda::on(context.new_stream().unwrap()).unwrap(), ByteSize::kib(4));
    let arena = arena.unwrap();
    drop(context);
    let x = arena.persistent_from(&[3_u8; 16]).unwrap();
    drop(arena);
    assert_eq!(x.view().to_vec().unwrap(), [3; 16]);
    drop(x);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}
