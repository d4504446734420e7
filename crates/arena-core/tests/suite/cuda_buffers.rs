//! The arena's buffers inside cudarc's safe calls and launches.

use arena_core::cudarc::driver::{
    DevicePtr, DevicePtrMut, DeviceSlice, LaunchConfig, PushKernelArg, SyncOnDrop,
};
use arena_core::cudarc::nvrtc::Ptx;
use arena_core::{Alignment, ByteSize, Cuda, Device, Persistent, RawArena, Transient, View};
use cuda_standin::Standin;

const PTX: &str = include_str!("../../../../standins/cuda/tests/ptx/numeric.ptx");

fn arena() -> RawArena<Cuda> {
    RawArena::new(Cuda::new(0).unwrap(), ByteSize::kib(64)).unwrap()
}

#[test]
fn buffers_go_into_copies_and_memsets_without_an_event() {
    let standin = Standin::load().unwrap();
    let arena = arena();
    let stream = arena.device().stream().clone();
    let mut weights: Persistent<f32, Cuda> = arena.persistent(16, Alignment::DEFAULT).unwrap();
    let mut x: Transient<'_, f32, Cuda> = arena.transient(16, Alignment::DEFAULT).unwrap();
    standin.clear_calls();

    stream.memcpy_htod(&[2.0_f32; 16], &mut weights).unwrap();
    stream.memcpy_dtod(&weights, &mut x).unwrap();
    stream.memset_zeros(&mut weights).unwrap();
    stream.memcpy_dtod(&x.view(), &mut weights.view_mut()).unwrap();
    let half = x.view_mut().range(..8).unwrap();
    stream.memset_zeros(&mut { half }).unwrap();
    assert_eq!(stream.clone_dtoh(&weights).unwrap(), [2.0; 16]);
    let halves = stream.clone_dtoh(&x).unwrap();
    assert_eq!((&halves[..8], &halves[8..]), (&[0.0; 8][..], &[2.0; 8][..]));

    let memory_calls = ["cuMemAlloc_v2", "cuMemAllocAsync", "cuMemFree_v2", "cuMemFreeAsync"];
    let event_calls = ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize"];
    if !standin.is_real_driver() {
        assert_eq!(memory_calls.map(|name| standin.calls(name)), [0; 4]);
        assert_eq!(event_calls.map(|name| standin.calls(name)), [0; 4]);
    }
}

#[test]
fn a_buffer_is_its_address_its_length_and_the_arena_s_stream() {
    let _standin = Standin::load().unwrap();
    let arena = arena();
    let stream = arena.device().stream().clone();
    let mut x = arena.transient::<f32>(10, Alignment::DEFAULT).unwrap();
    assert_eq!((DeviceSlice::len(&x), DeviceSlice::num_bytes(&x)), (10, 40));
    assert!(DeviceSlice::stream(&x.view()) == &stream);
    let address = x.address();
    let (pointer, guard) = x.view().range(2..).map(|v| (v.device_ptr(&stream).0, v)).unwrap();
    assert_eq!((pointer, guard.len()), (address + 8, 8));
    let (pointer, sync) = x.device_ptr_mut(&stream);
    assert_eq!(pointer, address);
    assert!(matches!(sync, SyncOnDrop::Record(None)));
}

#[test]
fn every_kind_of_buffer_is_a_kernel_argument() {
    let standin = Standin::load().unwrap();
    let arena = arena();
    let stream = arena.device().stream().clone();
    let module = stream.context().load_module(Ptx::from_src(PTX)).unwrap();
    let scale = module.load_function("scale_float4").unwrap();
    let x: Persistent<f32, Cuda> = arena.persistent_from(&[1.5; 16]).unwrap();
    let mut y = arena.transient::<f32>(16, Alignment::DEFAULT).unwrap();
    let mut z = arena.transient::<f32>(16, Alignment::DEFAULT).unwrap();
    let mut w: Persistent<f32, Cuda> = arena.persistent(16, Alignment::DEFAULT).unwrap();
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (4, 1, 1), shared_mem_bytes: 0 };
    let (two, four) = (2.0_f32, 4_i32);
    standin.clear_calls();
    {
        let mut launch = stream.launch_builder(&scale);
        launch.arg(&x).arg(&mut y).arg(&two).arg(&four);
        // SAFETY: the kernel scales four `float4`, which both buffers have.
        unsafe { launch.launch(config) }.unwrap();
    }
    {
        let (from, mut to): (View<'_, f32, Cuda>, _) = (y.view(), z.view_mut());
        let mut launch = stream.launch_builder(&scale);
        launch.arg(&from).arg(&mut to).arg(&two).arg(&four);
        // SAFETY: as above.
        unsafe { launch.launch(config) }.unwrap();
    }
    {
        let from = z.view_mut();
        let mut launch = stream.launch_builder(&scale);
        launch.arg(&from).arg(&mut w).arg(&two).arg(&four);
        // SAFETY: as above.
        unsafe { launch.launch(config) }.unwrap();
    }
    {
        let mut launch = stream.launch_builder(&scale);
        launch.arg(&w).arg(&y).arg(&two).arg(&four);
        // SAFETY: as above; the arena's stream alone uses `y`.
        unsafe { launch.launch(config) }.unwrap();
    }
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuEventRecord") + standin.calls("cuStreamWaitEvent"), 0);
    }
    assert_eq!(w.view().to_vec().unwrap(), [12.0; 16]);
    assert_eq!(y.view().to_vec().unwrap(), [24.0; 16]);
}

#[test]
fn a_stream_that_the_device_made_is_declared_when_it_is_handed_over() {
    let standin = Standin::load().unwrap();
    let arena = arena();
    let side = arena.device().new_stream().unwrap();
    let x = arena.transient::<f32>(10, Alignment::DEFAULT).unwrap();
    standin.clear_calls();
    let (_, sync) = x.device_ptr(&side);
    assert!(matches!(sync, SyncOnDrop::Record(None)));
    if !standin.is_real_driver() {
        assert_eq!((standin.calls("cuEventRecord"), standin.calls("cuStreamWaitEvent")), (1, 1));
    }
    assert!(arena.steps().region().find_declared(|declared| *declared == side).is_some());
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuStreamSynchronize"), 0);
    }
}

#[test]
fn the_work_of_a_stream_that_nobody_knows_is_waited_for_at_once() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let unknown = arena.device().context().new_stream().unwrap();
    let mut x = arena.transient::<f32>(10, Alignment::DEFAULT).unwrap();
    x.view_mut().fill_bytes(0xff).unwrap();
    standin.clear_calls();
    unknown.memset_zeros(&mut x).unwrap();
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuStreamSynchronize"), 1);
    }
    assert!(arena.steps().region().find_declared(|_| true).is_none());
    drop(unknown);
    assert_eq!(x.view().to_vec().unwrap(), [0.0; 10]);
    drop(x);
    arena.reset_to_mark();
    assert!(arena.steps().ready().is_ok());
}

#[test]
fn a_failure_to_declare_waits_for_the_next_fallible_call() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let side = arena.device().new_stream().unwrap();
    let x = arena.transient::<f32>(10, Alignment::DEFAULT).unwrap();
    standin.fail_nth("cuStreamWaitEvent", 1, 999);
    let _ = x.device_ptr(&side);
    let told = arena.persistent::<f32>(1, Alignment::DEFAULT).unwrap_err();
    assert!(told.to_string().contains("cuStreamWaitEvent"), "{told}");
    assert!(arena.persistent::<f32>(1, Alignment::DEFAULT).is_ok(), "it is told once");
    assert!(arena.steps().region().find_declared(|declared| *declared == side).is_some());
    drop(x);
    arena.reset_to_mark();
    assert!(arena.steps().region().find_declared(|_| true).is_none());
}

#[test]
fn a_copy_between_two_arenas_tells_the_source_of_the_other_stream() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(40) {
        standin.reset(seed);
        let (mut first, second) = (arena(), arena());
        let mut x = first.transient::<u8>(64, Alignment::DEFAULT).unwrap();
        x.view_mut().fill_bytes(1).unwrap();
        let mut y: Persistent<u8, Cuda> = second.persistent(64, Alignment::DEFAULT).unwrap();
        y.view_mut().copy_from(x.view()).unwrap();
        drop(x);
        first.reset_to_mark();
        let mut reused = first.transient::<u8>(64, Alignment::DEFAULT).unwrap();
        reused.view_mut().fill_bytes(2).unwrap();
        first.device().synchronise().unwrap();
        assert_eq!(y.view().to_vec().unwrap(), [1; 64], "seed {seed}");
    }
}
