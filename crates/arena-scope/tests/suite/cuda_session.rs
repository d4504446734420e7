//! A session: a program of cudarc's whose buffers come from an arena. They have no lifetime, and are used only while
//! their step is open.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cuda::{CAPACITY, arena, arena_of};
use crate::heap;
use arena_scope::cuda::{Session, SessionSlice};
use arena_scope::cudarc::driver::sys::CUresult;
use arena_scope::cudarc::driver::{
    DevicePtr, DevicePtrMut, DeviceSlice, DriverError, LaunchConfig, PushKernelArg,
};
use arena_scope::cudarc::nvrtc::Ptx;
use arena_scope::{Error, ErrorKind, ScopeOptions};
use cuda_standin::Standin;
use rstest::rstest;

const PTX: &str = include_str!("../../../../standins/cuda/tests/ptx/numeric.ptx");
const X: [f32; 4] = [1.0, 2.0, 3.0, 4.0];

fn session() -> Session {
    Session::new(arena())
}

/// A field without a lifetime, as programs have it.
struct Layer {
    weights: SessionSlice<f32>,
    input: Option<SessionSlice<f32>>,
}

impl Layer {
    fn forward(&mut self, stream: &Session, x: SessionSlice<f32>) -> Result<(), Error> {
        let mut y = stream.alloc_zeros::<f32>(x.len())?;
        stream.memcpy_dtod(&x, &mut y)?;
        self.input = Some(y);
        Ok(())
    }
}

#[test]
fn a_step_of_cudarc_s_calls_allocates_nothing_after_the_first_ones() {
    let standin = Standin::load().unwrap();
    let stream = session();
    let module = stream.context().load_module(Ptx::from_src(PTX)).unwrap();
    let scale = module.load_function("scale_float4").unwrap();
    let mut layer = Layer { weights: stream.clone_htod(&[2.0_f32; 16]).unwrap(), input: None };
    let mut result = [0.0_f32; 16];
    let mut before = 0;
    for n in 0..10 {
        if n == 3 {
            before = heap::allocations();
            standin.clear_calls();
        }
        let _step = stream.enter_with(ScopeOptions::named("train")).unwrap();
        let x = stream.clone_htod(&[3.0_f32; 16]).unwrap();
        layer.forward(&stream, x).unwrap();
        let input = layer.input.as_ref().unwrap();
        // SAFETY: it is written before it is read.
        let mut y = unsafe { stream.alloc::<f32>(16) }.unwrap();
        let (two, four) = (2.0_f32, 4_i32);
        if n < 3 {
            let mut launch = stream.launch_builder(&scale);
            launch.arg(input).arg(&mut y).arg(&two).arg(&four);
            let config =
                LaunchConfig { grid_dim: (1, 1, 1), block_dim: (4, 1, 1), shared_mem_bytes: 0 };
            // SAFETY: the kernel scales four `float4`, which both buffers have.
            unsafe { launch.launch(config) }.unwrap();
        } else {
            // A launch's own lists are cudarc's; what is counted here is the arena's.
            stream.memcpy_dtod(input, &mut y).unwrap();
        }
        stream.memcpy_dtod(&y.slice(..4), &mut layer.weights.slice_mut(12..)).unwrap();
        stream.memcpy_dtoh(&layer.weights, &mut result).unwrap();
        let factor = if n < 3 { 6.0 } else { 3.0 };
        assert_eq!((&result[..12], &result[12..]), (&[2.0; 12][..], &[factor; 4][..]));
    }
    assert_eq!(heap::allocations() - before, 0);
    let calls = ["cuMemAllocAsync", "cuMemAlloc_v2", "cuMemFreeAsync", "cuMemFree_v2"];
    assert_eq!(calls.map(|name| standin.calls(name)), [0; 4]);
    let calls = ["cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuStreamWaitEvent"];
    assert_eq!(calls.map(|name| standin.calls(name)), [0; 4]);
    assert_eq!(stream.with_arena(|arena| arena.resets()).unwrap(), 10);
    // Of the last step: the layer's field is left, and keeps nothing in use.
    assert_eq!(stream.stats().unwrap().used_bytes, 64);
    drop((layer, stream, scale, module));
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

/// A use of a buffer, each of which asks whether its step is open.
type Use = fn(&Session, &mut SessionSlice<f32>);

fn copied_from(stream: &Session, x: &mut SessionSlice<f32>) {
    stream.clone_dtoh(x).unwrap();
}

fn copied_to(stream: &Session, x: &mut SessionSlice<f32>) {
    stream.memcpy_htod(&X, x).unwrap();
}

fn cloned(_: &Session, x: &mut SessionSlice<f32>) {
    x.try_clone().unwrap();
}

fn read_in_part(stream: &Session, x: &mut SessionSlice<f32>) {
    stream.clone_dtoh(&x.slice(1..)).unwrap();
}

fn written_in_part(stream: &Session, x: &mut SessionSlice<f32>) {
    let (mut left, right) = x.split_at_mut(1);
    assert_eq!((DeviceSlice::len(&left), DeviceSlice::len(&right)), (1, 3));
    stream.memset_zeros(&mut left).unwrap();
}

fn an_argument(stream: &Session, x: &mut SessionSlice<f32>) {
    let module = stream.context().load_module(Ptx::from_src(PTX)).unwrap();
    let scale = module.load_function("scale_float4").unwrap();
    stream.launch_builder(&scale).arg(&*x);
}

fn a_mutable_argument(stream: &Session, x: &mut SessionSlice<f32>) {
    let module = stream.context().load_module(Ptx::from_src(PTX)).unwrap();
    let scale = module.load_function("scale_float4").unwrap();
    stream.launch_builder(&scale).arg(x);
}

fn a_view_as_an_argument(stream: &Session, x: &mut SessionSlice<f32>) {
    let module = stream.context().load_module(Ptx::from_src(PTX)).unwrap();
    let scale = module.load_function("scale_float4").unwrap();
    stream.launch_builder(&scale).arg(&x.as_view());
    stream.launch_builder(&scale).arg(&mut x.as_view_mut());
}

fn an_address(stream: &Session, x: &mut SessionSlice<f32>) {
    let _ = x.device_ptr(stream);
    let _ = x.as_view_mut().device_ptr_mut(stream);
}

#[rstest]
#[case::copied_from(copied_from)]
#[case::copied_to(copied_to)]
#[case::cloned(cloned)]
#[case::read_in_part(read_in_part)]
#[case::written_in_part(written_in_part)]
#[case::argument(an_argument)]
#[case::mutable_argument(a_mutable_argument)]
#[case::view(a_view_as_an_argument)]
#[case::address(an_address)]
fn a_buffer_is_used_while_its_step_is_open_and_panics_after_it(#[case] used: Use) {
    let _standin = Standin::load().unwrap();
    let stream = session();
    let mut persistent = stream.clone_htod(&X).unwrap();
    let late = {
        let _step = stream.enter_with(ScopeOptions::named("first")).unwrap();
        let mut x = stream.clone_htod(&X).unwrap();
        used(&stream, &mut x);
        let _inner = stream.enter_with(ScopeOptions::named("inner")).unwrap();
        used(&stream, &mut x);
        used(&stream, &mut persistent);
        x
    };
    used(&stream, &mut persistent);
    let panics = |mut x: SessionSlice<f32>| {
        let panic = catch_unwind(AssertUnwindSafe(|| used(&stream, &mut x))).unwrap_err();
        let said = panic.downcast_ref::<String>().unwrap();
        assert!(said.contains("`first`") && said.contains("has ended"), "{said}");
        x
    };
    let late = panics(late);
    let _step = stream.enter_with(ScopeOptions::named("second")).unwrap();
    panics(late);
    used(&stream, &mut persistent);
}

#[test]
fn what_is_made_before_the_first_step_or_kept_in_one_is_persistent() {
    let _standin = Standin::load().unwrap();
    let stream = session();
    let weights = stream.clone_htod(&X).unwrap();
    let (momentum, copy) = {
        let _step = stream.enter().unwrap();
        let x = stream.clone_htod(&[9.0_f32; 4]).unwrap();
        assert!(!x.is_persistent());
        let momentum = stream.keep(|| stream.alloc_zeros::<f32>(4)).unwrap();
        (momentum, stream.keep(|| x.try_clone()).unwrap())
    };
    let _step = stream.enter().unwrap();
    stream.clone_htod(&[7.0_f32; 1000]).unwrap();
    assert!(weights.is_persistent() && momentum.is_persistent() && copy.is_persistent());
    assert_eq!(stream.clone_dtoh(&weights).unwrap(), X);
    assert_eq!(stream.clone_dtoh(&momentum).unwrap(), [0.0; 4]);
    assert_eq!(stream.clone_dtoh(&copy).unwrap(), [9.0; 4]);
    // After a panic what is made is the step's again.
    let kept = || stream.keep(|| panic!("in `keep`"));
    catch_unwind(AssertUnwindSafe(kept)).unwrap_err();
    assert!(!stream.null::<f32>().unwrap().is_persistent());
}

#[test]
fn steps_nest_and_may_end_in_any_order() {
    let _standin = Standin::load().unwrap();
    let stream = session();
    let root = stream.enter_with(ScopeOptions::named("root")).unwrap();
    let outer = stream.clone_htod(&X).unwrap();
    let inner = stream.enter_with(ScopeOptions::named("inner")).unwrap();
    let x = stream.clone_htod(&X).unwrap();
    assert_eq!(stream.stats().unwrap().used_bytes, 256 + 16);
    drop(root); // ends the inner one too
    assert_eq!(stream.stats().unwrap().used_bytes, 0);
    let next = stream.enter_with(ScopeOptions::named("next")).unwrap();
    inner.close().unwrap(); // ends nothing
    let y = stream.clone_htod(&X).unwrap();
    for late in [&outer, &x] {
        catch_unwind(AssertUnwindSafe(|| stream.clone_dtoh(late))).unwrap_err();
    }
    assert_eq!(stream.clone_dtoh(&y).unwrap(), X);
    next.close().unwrap();
}

#[test]
fn a_forgotten_step_ends_with_the_one_around_it() {
    arena_testing::alone(|| {
        let _standin = Standin::load().unwrap();
        let stream = session();
        let root = stream.enter().unwrap();
        std::mem::forget(stream.enter().unwrap());
        stream.clone_htod(&X).unwrap();
        root.close().unwrap();
        assert_eq!(stream.stats().unwrap().used_bytes, 0);
    });
}

/// The last read of a buffer is on a stream that nobody declared; then its bytes are another's.
#[test]
fn a_copy_on_a_stream_that_nobody_declared_is_right_for_200_seeds() {
    let standin = Standin::load().unwrap();
    for seed in 0..200 {
        standin.reset(seed);
        let stream = session();
        let side = stream.context().new_stream().unwrap();
        let mut seen = crate::cuda::Seen::new(side.context());
        {
            let _step = stream.enter().unwrap();
            let x = stream.clone_htod(&X).unwrap();
            seen.copy(&side, &x);
        }
        {
            let _step = stream.enter().unwrap();
            stream.clone_htod(&[9.0_f32; 4]).unwrap();
        }
        stream.synchronize().unwrap();
        assert_eq!(seen.after(&side), X, "seed {seed}");
    }
}

/// A stream reads what the session's wrote, writes what the session's reads, and reads until after the step's end.
fn two_streams(declares: bool) -> bool {
    let stream = session();
    let side = stream.device().new_stream().unwrap();
    let mut seen = crate::cuda::Seen::new(side.context());
    let mut right = true;
    {
        let _step = stream.enter().unwrap();
        let x = stream.clone_htod(&X).unwrap();
        let y = stream.alloc_zeros::<f32>(4).unwrap();
        if declares {
            stream.declare_stream(&side).unwrap();
        }
        let (from, to) = (x.device_ptr(&stream).0, y.device_ptr(&stream).0);
        // What a kernel does: nobody tells the arena of its stream.
        // SAFETY: two live buffers of 16 bytes.
        let code = unsafe {
            arena_scope::cudarc::driver::sys::cuMemcpyDtoDAsync_v2(to, from, 16, side.cu_stream())
        };
        code.result().unwrap();
        if declares {
            stream.wait_for_stream(&side).unwrap();
        }
        right &= stream.clone_dtoh(&y).unwrap() == X;
        seen.copy_raw(&side, from);
    }
    {
        let _step = stream.enter().unwrap();
        stream.clone_htod(&[9.0_f32; 4]).unwrap();
    }
    stream.synchronize().unwrap();
    right & (seen.after(&side) == X)
}

#[test]
fn a_declared_stream_is_right_for_200_seeds_and_an_undeclared_one_is_not() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(200) {
        standin.reset(seed);
        assert!(two_streams(true), "seed {seed}");
    }
    standin.needed_for("orders that go wrong");
    let wrong = (0..200).filter(|&seed| {
        standin.reset(seed);
        !two_streams(false)
    });
    let wrong = wrong.count();
    assert!(wrong > 20, "{wrong} of 200 seeds without a declaration");
}

#[test]
fn errors_reach_programs_that_return_cudarc_s_error() {
    fn too_large(stream: &Session) -> Result<SessionSlice<u8>, DriverError> {
        Ok(stream.alloc_zeros::<u8>(1 << 20)?)
    }
    let standin = Standin::load().unwrap();
    let stream = session();
    let step = stream.enter().unwrap();
    assert_eq!(too_large(&stream).unwrap_err().0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let refused = stream.alloc_zeros::<u8>(1 << 20).unwrap_err();
    let here = refused.as_exhausted().unwrap().call_site.unwrap();
    assert_eq!(here.file(), file!());
    standin.fail_nth("cuMemsetD8Async", 1, 2);
    let refused = DriverError::from(stream.alloc_zeros::<u8>(16).unwrap_err());
    assert_eq!(refused.0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    standin.fail_nth("cuMemcpyHtoDAsync_v2", 1, 999);
    let refused = DriverError::from(stream.clone_htod(&X).unwrap_err());
    assert_eq!(refused.0, CUresult::CUDA_ERROR_UNKNOWN);
    step.close().unwrap();
    let needs = ScopeOptions::named("large").needs(CAPACITY.bytes() + 1);
    assert!(stream.enter_with(needs).unwrap_err().is_exhausted());
}

#[test]
fn the_arena_comes_back_when_nothing_of_the_session_is_left() {
    let _standin = Standin::load().unwrap();
    let stream = Session::new(arena_of(CAPACITY));
    let other = stream.share();
    let x = other.clone_htod(&X).unwrap();
    let stream = stream.into_arena().unwrap_err();
    drop(other);
    let stream = stream.into_arena().unwrap_err();
    let refused = stream.with_arena(|_| stream.enter().map(drop)).unwrap().unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::InUse { .. }), "{refused}");
    drop(x);
    assert_eq!(stream.into_arena().unwrap().resets(), 0);
}

#[test]
fn a_recording_sees_a_session_s_launches_copies_and_lendings_as_uses() {
    let _standin = Standin::load().unwrap();
    let mut arena = arena();
    arena.record(None);
    let stream = Session::new(arena);
    let module = stream.context().load_module(Ptx::from_src(PTX)).unwrap();
    let scale = module.load_function("scale_float4").unwrap();
    let (launched, lent);
    {
        let _step = stream.enter_with(ScopeOptions::named("train")).unwrap();
        let x = stream.alloc_zeros::<f32>(16).unwrap(); // event 1
        let y = stream.alloc_zeros::<f32>(16).unwrap();
        let z = stream.alloc_zeros::<f32>(16).unwrap();
        let _unused = stream.alloc_zeros::<f32>(16).unwrap();
        launched = line!() + 1;
        stream.launch_builder(&scale).arg(&x);
        drop(stream.alloc_zeros::<f32>(1).unwrap());
        stream.clone_dtoh(&y.slice(1..)).unwrap();
        lent = line!() + 1;
        let borrowed = z.lend().unwrap();
        drop(stream.alloc_zeros::<f32>(1).unwrap());
        drop(borrowed);
    }
    let log = stream.with_arena(|arena| arena.recorded("train")).unwrap().unwrap();
    let uses: Vec<_> = log.requests().iter().map(|request| request.last_use).collect();
    let before = |n: usize| uses[n].map(|last| last.before_event);
    // The drop of a buffer without a lifetime is logged with the next request.
    assert_eq!([before(0), before(1), before(2), before(3)], [Some(5), Some(6), Some(8), None]);
    let lines = [0, 2].map(|n: usize| uses[n].map(|last| last.call_site.line()));
    assert_eq!(lines, [Some(launched), Some(lent)]);
}
