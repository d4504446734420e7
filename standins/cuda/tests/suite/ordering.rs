//! Deferred streams: a missing wait shows, a wait that is there helps, under any order that the device may choose.

use cuda_standin::{Mode, Standin};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut, sys};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A context without cudarc's own events, so that only the waits of the test order anything.
fn context() -> Arc<CudaContext> {
    let context = CudaContext::new(0).expect("a device");
    // SAFETY: no slice of these tests is used on a stream without the ordering that the test is about.
    unsafe { context.disable_event_tracking() };
    context
}

/// A buffer is read on one stream and reused on another. Gives whether the reader got what was there before.
fn reader_is_intact(with_wait: bool) -> bool {
    let context = context();
    let (reader, writer) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let mut shared = reader.clone_htod(&[1u8; 64]).unwrap();
    let mut seen = reader.clone_htod(&[0u8; 64]).unwrap();
    reader.synchronize().unwrap();
    reader.memcpy_dtod(&shared, &mut seen).unwrap();
    if with_wait {
        writer.join(&reader).unwrap();
    }
    let (address, _guard) = shared.device_ptr_mut(&writer);
    // SAFETY: the address is that of 64 live bytes.
    unsafe { sys::cuMemsetD8Async(address, 2, 64, writer.cu_stream()) }.result().unwrap();
    context.synchronize().unwrap();
    reader.clone_dtoh(&seen).unwrap() == [1; 64]
}

#[test]
fn a_missing_wait_shows_within_40_seeds_and_a_wait_is_clean_for_200() {
    let standin = Standin::load().unwrap();
    let mut corrupt = 0;
    for seed in 0..40 {
        standin.reset(seed);
        corrupt += u32::from(!reader_is_intact(false));
    }
    assert!((5..=35).contains(&corrupt), "{corrupt} of 40 seeds");
    for seed in 0..200 {
        standin.reset(seed);
        assert!(reader_is_intact(true), "seed {seed}");
    }
}

#[test]
fn eager_streams_hide_the_missing_wait() {
    let standin = Standin::load().unwrap();
    standin.set_mode(Mode::Eager);
    assert!(reader_is_intact(false));
    assert_eq!(standin.queued(), 0);
}

fn copy_in(stream: &CudaStream, to: sys::CUdeviceptr, from: &[u8]) {
    // SAFETY: both ranges are live and equally long.
    unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), stream.cu_stream()) }
        .result()
        .unwrap();
}

#[test]
fn a_copy_from_pageable_memory_takes_its_source_at_the_call() {
    let _standin = Standin::load().unwrap();
    let context = context();
    let stream = context.new_stream().unwrap();
    let device = stream.alloc_zeros::<u8>(16).unwrap();
    let mut host = vec![3u8; 16];
    copy_in(&stream, device.device_ptr(&stream).0, &host);
    host.fill(9);
    assert_eq!(stream.clone_dtoh(&device).unwrap(), [3; 16]);
}

#[test]
fn a_copy_from_pinned_memory_takes_its_source_when_it_runs() {
    let standin = Standin::load().unwrap();
    let context = context();
    let stream = context.new_stream().unwrap();
    let device = stream.alloc_zeros::<u8>(16).unwrap();
    // SAFETY: the memory is written before it is read.
    let mut host = unsafe { context.alloc_pinned::<u8>(16) }.unwrap();
    host.as_mut_slice().unwrap().fill(3);
    copy_in(&stream, device.device_ptr(&stream).0, host.as_slice().unwrap());
    host.as_mut_slice().unwrap().fill(9);
    assert!(standin.queued() > 0);
    assert_eq!(stream.clone_dtoh(&device).unwrap(), [9; 16]);
}

#[test]
fn a_copy_to_pinned_memory_is_not_there_before_somebody_waits() {
    let _standin = Standin::load().unwrap();
    let context = context();
    let stream = context.new_stream().unwrap();
    let device = stream.clone_htod(&[5u8; 16]).unwrap();
    // SAFETY: the memory is written before it is read.
    let mut host = unsafe { context.alloc_pinned::<u8>(16) }.unwrap();
    host.as_mut_slice().unwrap().fill(0);
    let to = host.as_mut_ptr().unwrap();
    // SAFETY: both ranges are 16 live bytes.
    unsafe {
        sys::cuMemcpyDtoHAsync_v2(to.cast(), device.device_ptr(&stream).0, 16, stream.cu_stream())
    }
    .result()
    .unwrap();
    // SAFETY: the copy above is still queued in the stand-in, which runs nothing by itself.
    assert_eq!(unsafe { to.read() }, 0);
    stream.synchronize().unwrap();
    assert_eq!(host.as_slice().unwrap(), [5; 16]);
}

#[test]
fn a_copy_to_pageable_memory_waits_for_its_own_stream_only() {
    let standin = Standin::load().unwrap();
    let context = context();
    let (busy, stream) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let other = busy.alloc_zeros::<u8>(16).unwrap();
    let device = stream.clone_htod(&[5u8; 16]).unwrap();
    let mut host = [0u8; 16];
    stream.memcpy_dtoh(&device, &mut host).unwrap();
    assert_eq!(host, [5; 16]);
    drop(other);
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..20 {
        busy.synchronize().unwrap();
        assert!(standin.set_seed(seed));
        let other = busy.alloc_zeros::<u8>(16).unwrap();
        stream.memcpy_dtoh(&device, &mut host).unwrap();
        orders.insert(standin.queued());
        drop(other);
    }
    assert!(orders.len() > 1, "the other stream always got equally far: {orders:?}");
}

#[test]
fn the_null_stream_waits_for_blocking_streams_and_they_for_it() {
    let standin = Standin::load().unwrap();
    for (flag, ordered) in [(0, true), (1, false)] {
        let mut intact = 0;
        for seed in 0..40 {
            standin.reset(seed);
            let context = context();
            let null = context.default_stream();
            let mut raw = std::ptr::null_mut();
            // SAFETY: a context is current, and the handle goes into a live variable.
            unsafe { sys::cuStreamCreate(&raw mut raw, flag) }.result().unwrap();
            let mut data = null.clone_htod(&[0u8; 32]).unwrap();
            null.synchronize().unwrap();
            let (to, _guard) = data.device_ptr_mut(&null);
            for (value, stream) in [(1, raw), (2, null.cu_stream()), (3, raw)] {
                // SAFETY: 32 live bytes and a live stream.
                unsafe { sys::cuMemsetD8Async(to, value, 32, stream) }.result().unwrap();
            }
            context.synchronize().unwrap();
            drop(_guard);
            intact += u32::from(null.clone_dtoh(&data).unwrap() == [3; 32]);
            // SAFETY: the stream was made above and is used no more.
            unsafe { sys::cuStreamDestroy_v2(raw) }.result().unwrap();
        }
        assert_eq!(intact == 40, ordered, "flag {flag}: {intact} of 40");
    }
}

#[test]
fn an_event_is_ready_when_its_work_has_run_and_keeps_time_only_when_asked() {
    let standin = Standin::load().unwrap();
    let context = context();
    let stream = context.new_stream().unwrap();
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let (start, end) = (context.new_event(timed).unwrap(), context.new_event(timed).unwrap());
    assert!(start.is_complete(), "an event that was never recorded is complete");
    start.record(&stream).unwrap();
    let mut data = stream.alloc_zeros::<u8>(16).unwrap();
    stream.memset_zeros(&mut data).unwrap();
    end.record(&stream).unwrap();
    assert!(!end.is_complete());
    let mut polls = 0;
    while !end.is_complete() {
        polls += 1;
        assert!(polls < 1000, "a device gets on although nobody waits");
    }
    assert!(start.elapsed_ms(&end).unwrap() > 0.0);
    let untimed = context.new_event(None).unwrap();
    untimed.record(&stream).unwrap();
    let error = start.elapsed_ms(&untimed).unwrap_err();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_INVALID_HANDLE);
    drop(data);
    stream.synchronize().unwrap();
    assert_eq!(standin.queued(), 0);
}

/// What the driver told the host function; 0 before it ran.
static CALLED_BACK: AtomicU32 = AtomicU32::new(0);

extern "C" fn call_back(_: *mut c_void) {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both pointers are to live variables.
    let code = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
    CALLED_BACK.store(code as u32, Ordering::SeqCst);
}

#[test]
fn a_host_function_runs_in_stream_order_and_may_not_call_the_driver() {
    let _standin = Standin::load().unwrap();
    let context = context();
    let stream = context.new_stream().unwrap();
    // SAFETY: the function takes no data, and the stream is live.
    unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), Some(call_back), std::ptr::null_mut()) }
        .result()
        .unwrap();
    assert_eq!(CALLED_BACK.load(Ordering::SeqCst), 0, "nothing has waited yet");
    stream.synchronize().unwrap();
    assert_eq!(CALLED_BACK.load(Ordering::SeqCst), sys::CUresult::CUDA_ERROR_NOT_PERMITTED as u32);
}
