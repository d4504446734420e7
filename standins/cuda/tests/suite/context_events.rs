//! `cuCtxRecordEvent`: one event for all that is queued in a context, as the driver's documentation has it.

use cuda_standin::Standin;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, sys};
use std::sync::Arc;
use sys::CUresult as R;

fn context(ordinal: usize) -> Arc<CudaContext> {
    let context = CudaContext::new(ordinal).expect("a device");
    // SAFETY: the tests order everything themselves.
    unsafe { context.disable_event_tracking() };
    context
}

fn record(context: &CudaContext, event: &CudaEvent) -> R {
    // SAFETY: both handles are live.
    unsafe { sys::cuCtxRecordEvent(context.cu_ctx(), event.cu_event()) }
}

#[test]
fn it_stands_for_what_every_stream_has_queued_and_for_nothing_later() {
    let standin = Standin::load().unwrap();
    let mut later_work_was_left = false;
    for seed in 0..40 {
        standin.reset(seed);
        let context = context(0);
        let streams = [
            context.new_stream().unwrap(),
            context.new_stream().unwrap(),
            context.default_stream(),
        ];
        let reader = context.new_stream().unwrap();
        let mut parts = [[0_u8; 8]; 3].map(|part| reader.clone_htod(&part).unwrap());
        reader.synchronize().unwrap();
        for (stream, part) in streams.iter().zip(&mut parts) {
            stream.memcpy_htod(&[1; 8], part).unwrap();
        }
        let event = context.new_event(None).unwrap();
        assert_eq!(record(&context, &event), R::CUDA_SUCCESS);
        let mut later = streams[0].alloc_zeros::<u8>(8).unwrap();
        streams[0].memcpy_htod(&[2; 8], &mut later).unwrap();
        reader.wait(&event).unwrap();
        for part in &parts {
            assert_eq!(reader.clone_dtoh(part).unwrap(), [1; 8], "seed {seed}");
        }
        event.synchronize().unwrap();
        later_work_was_left |= standin.queued() > 0;
    }
    assert!(later_work_was_left, "work that is queued later is waited for");
}

#[test]
fn the_event_is_of_the_same_context() {
    let standin = Standin::load().unwrap();
    standin.set_devices(2);
    let (one, two) = (context(0), context(1));
    let event = one.new_event(None).unwrap();
    assert_eq!(record(&two, &event), R::CUDA_ERROR_INVALID_HANDLE);
    // Which context is current does not matter.
    two.bind_to_thread().unwrap();
    assert_eq!(record(&one, &event), R::CUDA_SUCCESS);
}

fn begin(context: &CudaContext, stream: &CudaStream) {
    context.bind_to_thread().unwrap();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
}

fn end(context: &CudaContext, stream: &CudaStream) -> R {
    context.bind_to_thread().unwrap();
    let mut graph = std::ptr::null_mut();
    // SAFETY: the handle goes into a live variable.
    let code = unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) };
    if code == R::CUDA_SUCCESS {
        // SAFETY: the graph was just made and is used no more.
        unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
    }
    code
}

#[test]
fn it_is_refused_while_a_stream_of_its_context_captures_and_ends_those_captures_only() {
    let standin = Standin::load().unwrap();
    standin.set_devices(2);
    let (one, two) = (context(0), context(1));
    let captured = [one.new_stream().unwrap(), one.new_stream().unwrap()];
    let elsewhere = two.new_stream().unwrap();
    let event = one.new_event(None).unwrap();
    captured.iter().for_each(|stream| begin(&one, stream));
    begin(&two, &elsewhere);
    assert_eq!(record(&one, &event), R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    for stream in &captured {
        assert_eq!(end(&one, stream), R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    assert_eq!(end(&two, &elsewhere), R::CUDA_SUCCESS, "a capture of another context goes on");
    assert_eq!(record(&one, &event), R::CUDA_SUCCESS);
}
