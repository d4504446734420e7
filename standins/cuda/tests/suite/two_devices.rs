//! Two devices: their work, memory and errors are kept apart, and cross only where that was allowed.

use cuda_standin::Standin;
use cudarc::driver::{CudaContext, DevicePtr, DevicePtrMut, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use sys::CUresult as R;

#[test]
fn work_of_two_devices_is_kept_apart() {
    let standin = Standin::load().unwrap();
    assert!(standin.set_devices(2));
    let (one, two) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
    assert_eq!(CudaContext::device_count().unwrap(), 2);
    assert!(!standin.set_devices(1), "not while contexts exist");
    let (first, second) = (one.new_stream().unwrap(), two.new_stream().unwrap());
    let source = first.clone_htod(&[7u8; 64]).unwrap();
    let mut target = second.alloc_zeros::<u8>(64).unwrap();
    first.synchronize().unwrap();
    second.memcpy_dtod(&source, &mut target).unwrap();
    assert_eq!(second.clone_dtoh(&target).unwrap(), [7; 64]);
    let (free_one, _) = one.mem_get_info().unwrap();
    assert_eq!(free_one, two.mem_get_info().unwrap().0);
    let event = two.new_event(None).unwrap();
    // SAFETY: both handles are live; that they are of two contexts is what is tested.
    let code = unsafe { sys::cuEventRecord(event.cu_event(), first.cu_stream()) };
    assert_eq!(code, R::CUDA_ERROR_INVALID_HANDLE);
    // A fault on one device leaves the other alone.
    two.bind_to_thread().unwrap();
    standin.poison(R::CUDA_ERROR_ILLEGAL_ADDRESS as u32);
    assert_eq!(two.synchronize().unwrap_err().0, R::CUDA_ERROR_ILLEGAL_ADDRESS);
    one.synchronize().unwrap();
    let address = source.device_ptr(&first).0;
    // SAFETY: the range is live; the context of the other device is broken.
    let code = unsafe {
        sys::cuMemcpyPeerAsync(address, two.cu_ctx(), address, one.cu_ctx(), 4, first.cu_stream())
    };
    assert_eq!(
        code,
        R::CUDA_ERROR_INVALID_VALUE,
        "the address is not of the device that was named"
    );
}

#[test]
fn copies_between_devices_wait_for_nothing_but_their_own_stream() {
    let standin = Standin::load().unwrap();
    let mut early = 0;
    for seed in 0..40 {
        standin.reset(seed);
        standin.set_devices(2);
        let (one, two) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
        for context in [&one, &two] {
            // SAFETY: the test is about the missing order.
            unsafe { context.disable_event_tracking() };
        }
        let (first, second) = (one.new_stream().unwrap(), two.new_stream().unwrap());
        let mut source = first.clone_htod(&[1u8; 16]).unwrap();
        let target = second.alloc_zeros::<u8>(16).unwrap();
        first.synchronize().unwrap();
        second.synchronize().unwrap();
        let (from, to) = (source.device_ptr_mut(&first).0, target.device_ptr(&second).0);
        one.bind_to_thread().unwrap();
        // SAFETY: 16 live bytes.
        unsafe { sys::cuMemsetD8Async(from, 2, 16, first.cu_stream()) }.result().unwrap();
        two.bind_to_thread().unwrap();
        let (there, here) = (two.cu_ctx(), one.cu_ctx());
        // SAFETY: both ranges are 16 live bytes of the devices that are named.
        unsafe { sys::cuMemcpyPeerAsync(to, there, from, here, 16, second.cu_stream()) }
            .result()
            .unwrap();
        second.synchronize().unwrap();
        early += u32::from(second.clone_dtoh(&target).unwrap() == [1; 16]);
        first.synchronize().unwrap();
    }
    assert!((5..=35).contains(&early), "{early} of 40 seeds copied before the fill");
}

#[test]
fn a_kernel_reaches_another_device_only_as_a_peer() {
    for allowed in [false, true] {
        let standin = Standin::load().unwrap();
        standin.set_devices(2);
        let (one, two) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
        let (first, second) = (one.new_stream().unwrap(), two.new_stream().unwrap());
        let far = first.clone_htod(&[4.0f32; 32]).unwrap();
        let mut near = second.alloc_zeros::<f32>(32).unwrap();
        first.synchronize().unwrap();
        two.bind_to_thread().unwrap();
        let (mut can, mut codes) = (0, Vec::new());
        // SAFETY: a live variable.
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, 1, 0) }.result().unwrap();
        assert_eq!(can, 1);
        for _ in 0..if allowed { 2 } else { 0 } {
            // SAFETY: a live context.
            codes.push(unsafe { sys::cuCtxEnablePeerAccess(one.cu_ctx(), 0) });
        }
        let module = two.load_module(Ptx::from_src(include_str!("../ptx/numeric.ptx"))).unwrap();
        let kernel = module.load_function("unchecked_copy").unwrap();
        let (far_address, config) = (far.device_ptr(&first).0, LaunchConfig::for_num_elems(32));
        let config = LaunchConfig { block_dim: (32, 1, 1), ..config };
        let mut launch = second.launch_builder(&kernel);
        launch.arg(&far_address).arg(&mut near);
        // SAFETY: the kernel's arguments; whether it may read the far memory is what is tested.
        unsafe { launch.launch(config) }.unwrap();
        if allowed {
            assert_eq!(codes, [R::CUDA_SUCCESS, R::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED]);
            assert_eq!(second.clone_dtoh(&near).unwrap(), [4.0; 32]);
        } else {
            assert_eq!(second.synchronize().unwrap_err().0, R::CUDA_ERROR_ILLEGAL_ADDRESS);
            assert!(standin.last_fault().contains("unchecked_copy"), "{}", standin.last_fault());
        }
    }
}

#[test]
fn a_kernel_is_launched_on_a_stream_of_its_own_context() {
    let standin = Standin::load().unwrap();
    standin.set_devices(2);
    let (one, two) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
    let module = one.load_module(Ptx::from_src(include_str!("../ptx/numeric.ptx"))).unwrap();
    let kernel = module.load_function("traps").unwrap();
    let stream = two.new_stream().unwrap();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&99i32);
    // SAFETY: refused.
    let refused = unsafe { launch.launch(LaunchConfig::for_num_elems(32)) };
    assert_eq!(refused.unwrap_err().0, R::CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn a_call_on_a_stream_of_a_context_that_is_not_current_is_refused_unless_it_copies_or_waits() {
    let standin = Standin::load().unwrap();
    standin.set_devices(2);
    let (one, two) = (CudaContext::new(0).unwrap(), CudaContext::new(1).unwrap());
    let stream = one.new_stream().unwrap();
    let event = one.new_event(None).unwrap();
    let data = stream.alloc_zeros::<u8>(64).unwrap();
    let address = data.device_ptr(&stream).0;
    stream.synchronize().unwrap();
    two.bind_to_thread().unwrap();
    let (raw, recorded) = (stream.cu_stream(), event.cu_event());
    let (mut fresh, mut host) = (0, [0u8; 64]);
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let to = host.as_mut_ptr().cast();
    /// The codes of some calls, with their names.
    macro_rules! codes {
        ($($name:ident($($argument:expr),*);)*) => {
            // SAFETY: all handles are live, both ranges are 64 live bytes, and the address goes into a live variable.
            [$((stringify!($name), unsafe { sys::$name($($argument),*) })),*]
        };
    }
    let refused = codes! {
        cuMemsetD8Async(address, 1, 64, raw);
        cuMemAllocAsync(&raw mut fresh, 64, raw);
        cuMemFreeAsync(address, raw);
        cuEventRecord(recorded, raw);
        cuStreamBeginCapture_v2(raw, mode);
    };
    let allowed = codes! {
        cuMemcpyDtoHAsync_v2(to, address, 64, raw);
        cuStreamWaitEvent(raw, recorded, 0);
        cuEventSynchronize(recorded);
        cuStreamSynchronize(raw);
    };
    for (calls, wanted) in
        [(&refused[..], R::CUDA_ERROR_INVALID_HANDLE), (&allowed[..], R::CUDA_SUCCESS)]
    {
        for (name, code) in calls {
            assert_eq!(*code, wanted, "{name}");
        }
    }
}
