//! Graph capture: what is refused meanwhile, and what a graph does when it is launched again.

use cuda_standin::{Mode, Standin};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, sys};
use std::sync::Arc;
use sys::CUresult as R;
use sys::CUstreamCaptureMode as M;
use sys::CUstreamCaptureStatus as S;

fn context() -> Arc<CudaContext> {
    let context = CudaContext::new(0).expect("a device");
    // SAFETY: the tests order everything themselves.
    unsafe { context.disable_event_tracking() };
    context
}

fn begin(stream: &CudaStream) {
    stream.begin_capture(M::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
}

fn end(stream: &CudaStream) -> R {
    let mut graph = std::ptr::null_mut();
    // SAFETY: the handle goes into a live variable.
    let code = unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) };
    if code == R::CUDA_SUCCESS {
        // SAFETY: the graph was just made and is used no more.
        unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
    }
    code
}

fn flags() -> sys::CUgraphInstantiate_flags {
    sys::CUgraphInstantiate_flags(0)
}

#[test]
fn a_graph_adds_its_work_each_time_it_is_launched() {
    let standin = Standin::load().unwrap();
    for mode in [Mode::Eager, Mode::Deferred] {
        standin.reset(1);
        standin.set_mode(mode);
        let context = context();
        let stream = context.new_stream().unwrap();
        let (mut a, mut b) =
            (stream.clone_htod(&[1u8; 8]).unwrap(), stream.clone_htod(&[2u8; 8]).unwrap());
        let mut c = stream.clone_htod(&[0u8; 8]).unwrap();
        stream.synchronize().unwrap();
        begin(&stream);
        assert_eq!(stream.capture_status().unwrap(), S::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        // One launch rotates three values.
        stream.memcpy_dtod(&a, &mut c).unwrap();
        stream.memcpy_dtod(&b, &mut a).unwrap();
        stream.memcpy_dtod(&c, &mut b).unwrap();
        let graph = stream.end_capture(flags()).unwrap().unwrap();
        assert_eq!(stream.capture_status().unwrap(), S::CU_STREAM_CAPTURE_STATUS_NONE);
        stream.synchronize().unwrap();
        assert_eq!(stream.clone_dtoh(&a).unwrap(), [1; 8], "capturing runs nothing");
        graph.upload().unwrap();
        graph.launch().unwrap();
        assert_eq!(stream.clone_dtoh(&a).unwrap(), [2; 8]);
        graph.launch().unwrap();
        assert_eq!(
            (stream.clone_dtoh(&a).unwrap(), stream.clone_dtoh(&b).unwrap()),
            (vec![1; 8], vec![2; 8])
        );
        assert_eq!((standin.leaks().graphs, standin.leaks().graph_execs), (1, 1));
        drop(graph);
        assert_eq!((standin.leaks().graphs, standin.leaks().graph_execs), (0, 0));
    }
}

#[test]
fn a_captured_copy_reads_the_host_address_at_each_launch() {
    let _standin = Standin::load().unwrap();
    let context = context();
    let stream = context.new_stream().unwrap();
    let mut device = stream.alloc_zeros::<u8>(8).unwrap();
    let mut host = Box::new([1u8; 8]);
    begin(&stream);
    stream.memcpy_htod(&host[..], &mut device).unwrap();
    let graph = stream.end_capture(flags()).unwrap().unwrap();
    for value in [3, 4] {
        host.fill(value);
        graph.launch().unwrap();
        assert_eq!(stream.clone_dtoh(&device).unwrap(), [value; 8]);
    }
}

#[test]
fn the_null_stream_cannot_be_captured_and_none_twice() {
    let _standin = Standin::load().unwrap();
    let context = context();
    let null = context.default_stream();
    let error = null.begin_capture(M::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap_err();
    assert_eq!(error.0, R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let stream = context.new_stream().unwrap();
    assert_eq!(end(&stream), R::CUDA_ERROR_ILLEGAL_STATE, "not capturing");
    begin(&stream);
    let error = stream.begin_capture(M::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap_err();
    assert_eq!(error.0, R::CUDA_ERROR_ILLEGAL_STATE);
    assert_eq!(end(&stream), R::CUDA_SUCCESS);
}

/// Something that must not be done while `stream` captures.
type Forbidden = (&'static str, fn(&Arc<CudaContext>, &CudaStream) -> R);

const FORBIDDEN: [Forbidden; 7] = [
    ("allocate", |_, _| {
        let mut address = 0;
        // SAFETY: live variable.
        unsafe { sys::cuMemAlloc_v2(&raw mut address, 16) }
    }),
    ("allocate in stream order", |_, stream| {
        let mut address = 0;
        // SAFETY: live variable.
        unsafe { sys::cuMemAllocAsync(&raw mut address, 16, stream.cu_stream()) }
    }),
    ("allocate pinned", |_, _| {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: live variable.
        unsafe { sys::cuMemHostAlloc(&raw mut pointer, 16, 0) }
    }),
    ("synchronise the stream", |_, stream| stream.synchronize().unwrap_err().0),
    ("synchronise the context", |context, _| context.synchronize().unwrap_err().0),
    ("query the stream", |_, stream| {
        // SAFETY: a live stream.
        unsafe { sys::cuStreamQuery(stream.cu_stream()) }
    }),
    ("fill without a stream", |_, _| {
        // SAFETY: refused before the address matters.
        unsafe { sys::cuMemsetD8_v2(4096, 0, 16) }
    }),
];

#[test]
fn allocating_and_synchronising_spoil_the_capture() {
    let _standin = Standin::load().unwrap();
    let context = context();
    let stream = context.new_stream().unwrap();
    for (what, attempt) in FORBIDDEN {
        begin(&stream);
        assert_eq!(attempt(&context, &stream), R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{what}");
        assert_eq!(
            stream.capture_status().unwrap(),
            S::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
            "{what}"
        );
        assert_eq!(end(&stream), R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "{what}");
        stream.synchronize().expect("the stream is usable again");
    }
}

#[test]
fn how_far_a_capture_forbids_calls_depends_on_its_mode() {
    let _standin = Standin::load().unwrap();
    let context = context();
    let stream = context.new_stream().unwrap();
    let allocate = || (FORBIDDEN[0].1)(&context, &stream);
    let elsewhere = || {
        let there = || {
            context.bind_to_thread().unwrap();
            allocate()
        };
        std::thread::scope(|scope| scope.spawn(there).join().unwrap())
    };
    let refused = R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for (mode, here, there) in [
        (M::CU_STREAM_CAPTURE_MODE_GLOBAL, refused, refused),
        (M::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, refused, R::CUDA_SUCCESS),
        (M::CU_STREAM_CAPTURE_MODE_RELAXED, R::CUDA_SUCCESS, R::CUDA_SUCCESS),
    ] {
        stream.begin_capture(mode).unwrap();
        assert_eq!(elsewhere(), there, "{mode:?}, another thread");
        assert_eq!(allocate(), here, "{mode:?}, this thread");
        end(&stream);
    }
}

#[test]
fn the_null_stream_may_not_depend_on_a_capturing_blocking_stream() {
    let _standin = Standin::load().unwrap();
    let context = context();
    let null = context.default_stream();
    let data = null.alloc_zeros::<u8>(16).unwrap();
    let mut blocking = std::ptr::null_mut();
    // SAFETY: live variable.
    unsafe { sys::cuStreamCreate(&raw mut blocking, 0) }.result().unwrap();
    let relaxed = M::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: a live stream.
    unsafe { sys::cuStreamBeginCapture_v2(blocking, relaxed) }.result().unwrap();
    // SAFETY: the address is of 16 live bytes.
    let code = unsafe { sys::cuMemsetD8Async(data.device_ptr(&null).0, 1, 16, null.cu_stream()) };
    assert_eq!(code, R::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    let mut graph = std::ptr::null_mut();
    // SAFETY: a live stream and a live variable.
    let code = unsafe { sys::cuStreamEndCapture(blocking, &raw mut graph) };
    assert_eq!(code, R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    // SAFETY: the stream is used no more.
    unsafe { sys::cuStreamDestroy_v2(blocking) }.result().unwrap();
}

#[test]
fn another_stream_joins_by_an_event_and_must_come_back() {
    let standin = Standin::load().unwrap();
    for (come_back, seed) in (0..40).map(|seed| (true, seed)).chain([(false, 3)]) {
        standin.reset(seed);
        let context = context();
        let (main, side) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let mut data = main.alloc_zeros::<u8>(16).unwrap();
        let mut out = main.alloc_zeros::<u8>(16).unwrap();
        main.synchronize().unwrap();
        begin(&main);
        let fork = main.record_event(None).unwrap();
        side.wait(&fork).unwrap();
        side.memset_zeros(&mut data).unwrap();
        let done = side.record_event(None).unwrap();
        if come_back {
            main.wait(&done).unwrap();
            main.memcpy_dtod(&data, &mut out).unwrap();
            let graph = main.end_capture(flags()).unwrap().unwrap();
            // The copy comes after the side stream's work at each launch.
            for _ in 0..2 {
                main.memcpy_htod(&[7_u8; 16], &mut data).unwrap();
                main.memcpy_htod(&[9_u8; 16], &mut out).unwrap();
                graph.launch().unwrap();
                assert_eq!(main.clone_dtoh(&out).unwrap(), [0; 16], "seed {seed}");
                assert_eq!(main.clone_dtoh(&data).unwrap(), [0; 16], "seed {seed}");
            }
        } else {
            assert_eq!(end(&main), R::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
            main.synchronize().unwrap();
            side.synchronize().unwrap();
        }
        assert_eq!(done.try_is_complete().unwrap_err().0, R::CUDA_ERROR_CAPTURED_EVENT);
    }
}

#[test]
fn work_outside_of_a_capture_cannot_be_waited_for_inside() {
    let _standin = Standin::load().unwrap();
    let context = context();
    let (main, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let outside = other.record_event(None).unwrap();
    begin(&main);
    assert_eq!(main.wait(&outside).unwrap_err().0, R::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    assert_eq!(end(&main), R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn a_capture_ends_on_its_own_stream_and_thread() {
    let _standin = Standin::load().unwrap();
    let context = context();
    let (main, side) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    begin(&main);
    let there = || {
        context.bind_to_thread().unwrap();
        end(&main)
    };
    let code = std::thread::scope(|scope| scope.spawn(there).join().unwrap());
    assert_eq!(code, R::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    side.wait(&main.record_event(None).unwrap()).unwrap();
    assert_eq!(end(&side), R::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    assert_eq!(end(&main), R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn a_graph_can_be_dropped_on_a_thread_that_has_no_context() {
    let standin = Standin::load().unwrap();
    let context = context();
    let stream = context.new_stream().unwrap();
    begin(&stream);
    let mut graph = std::ptr::null_mut();
    // SAFETY: a live stream and a live variable.
    unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) }.result().unwrap();
    let graph = graph as usize;
    let destroy = move || {
        // SAFETY: the graph was made above and is used no more.
        unsafe { sys::cuGraphDestroy(graph as sys::CUgraph) }
    };
    let code = std::thread::spawn(destroy).join().unwrap();
    assert_eq!((code, standin.leaks().graphs), (R::CUDA_SUCCESS, 0));
}
