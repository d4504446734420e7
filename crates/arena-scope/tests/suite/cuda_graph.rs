//! A step captured once and replayed: what it does, what is refused meanwhile, and when it is stale.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cuda::{CAPACITY, arena, arena_with, side_stream};
use arena_scope::cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg, result, sys};
use arena_scope::cudarc::nvrtc::Ptx;
use arena_scope::errors::DeviceErrorKind;
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::{
    Alignment, Arena, ByteSize, Cuda, Device, Error, ErrorKind, Persistent, Placement, Reset,
    Scope, ScopeOptions, StepGraph, StepKey,
};
use cuda_standin::Standin;
use rstest::rstest;

const PTX: &str = include_str!("../../../../standins/cuda/tests/ptx/numeric.ptx");
const TRAIN: StepKey = StepKey::named("train");

/// An arena and a step that doubles its weights by a kernel, through a scratch buffer.
pub(crate) struct Loop {
    pub(crate) weights: Persistent<f32, Cuda>,
    double: CudaFunction,
    pub(crate) arena: Arena<Cuda>,
}

impl Loop {
    fn new(reset: Reset) -> Self {
        Self::on(arena_with(reset))
    }

    pub(crate) fn on(arena: Arena<Cuda>) -> Self {
        let weights = arena.persistent_from(&[1.0_f32; 16]).unwrap();
        let context = arena.device().context().clone();
        let module = context.load_module(Ptx::from_src(PTX)).map_err(|error| error.0).unwrap();
        let double = module.load_function("scale_float4").map_err(|error| error.0).unwrap();
        Self { weights, double, arena }
    }

    pub(crate) fn run(&mut self) -> Result<(), Error> {
        let Self { weights, double, arena } = self;
        arena.scope_with(TRAIN, |step| doubling(step, double, weights, 16))
    }

    pub(crate) fn capture(&mut self) -> Result<StepGraph<Cuda>, Error> {
        let Self { weights, double, arena } = self;
        arena.capture(TRAIN, |step| doubling(step, double, weights, 16))
    }

    pub(crate) fn weight(&self) -> f32 {
        self.weights.view().to_vec().unwrap()[15]
    }

    fn is_capturing(&self) -> bool {
        let status = self.arena.device().stream().capture_status();
        let none = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        status.map_err(|error| error.0).unwrap() != none
    }
}

fn doubling(
    step: &Scope<'_, '_, Cuda>,
    double: &CudaFunction,
    weights: &mut Persistent<f32, Cuda>,
    scratch_len: usize,
) -> Result<(), Error> {
    let mut scratch = step.alloc_zeroed::<f32>(scratch_len)?;
    let stream = step.device().stream().clone();
    let (two, four) = (2.0_f32, 4_i32);
    let mut launch = stream.launch_builder(double);
    launch.arg(&*weights).arg(&mut scratch).arg(&two).arg(&four);
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (4, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel scales four `float4`, which both buffers have, on the arena's stream.
    unsafe { launch.launch(config) }.map_err(|error| error.0).unwrap();
    weights.view_mut().copy_from(scratch.view().range(..16)?)
}

// The shuffled places lie in memory of the arena, which is taken from the start.
#[test]
fn a_step_in_shuffled_places_is_captured_and_replayed_between_steps_elsewhere() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(10) {
        standin.reset(seed);
        let builder = Arena::builder(Cuda::new(0).unwrap()).capacity(CAPACITY);
        let mut training =
            Loop::on(builder.placement(Placement::Shuffled { seed }).build().unwrap());
        training.run().unwrap();
        let graph = training.capture().unwrap();
        for _ in 0..3 {
            graph.replay(&mut training.arena).unwrap();
            training.run().unwrap();
        }
        assert!((training.weight() - 128.0).abs() < 1e-6, "{}", training.weight());
        drop((graph, training));
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
}

fn kind(error: &Error) -> DeviceErrorKind {
    match error.kind() {
        ErrorKind::Device(error) => error.kind,
        other => panic!("{other:?}"),
    }
}

fn is_stale(outcome: Result<(), Error>, why: &str) -> bool {
    let error = outcome.unwrap_err();
    assert!(error.to_string().contains(why), "{error}");
    matches!(error.kind(), ErrorKind::StaleGraph { .. })
}

#[test]
fn a_replay_does_what_the_step_does_each_time_it_is_launched() {
    let standin = Standin::load().unwrap();
    for (seed, reset) in [Reset::Keep, Reset::Zero, Reset::Poison].into_iter().enumerate() {
        standin.reset(seed as u64);
        let mut training = Loop::new(reset);
        training.run().unwrap();
        let graph = training.capture().unwrap();
        assert!((training.weight() - 2.0).abs() < 1e-6, "a captured step is not executed");
        standin.clear_calls();
        for _ in 0..3 {
            graph.replay(&mut training.arena).unwrap();
        }
        if !standin.is_real_driver() {
            assert_eq!(standin.calls("cuGraphLaunch"), 3);
            assert_eq!(standin.calls("cuLaunchKernel") + standin.calls("cuMemsetD8Async"), 0);
        }
        assert!((training.weight() - 16.0).abs() < 1e-6, "{}", training.weight());
        training.run().unwrap();
        graph.replay(&mut training.arena).unwrap();
        assert!((training.weight() - 64.0).abs() < 1e-6, "steps and replays mix");
        assert_eq!(graph.signature(), training.arena.last_step_signature().unwrap());
        drop((graph, training));
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
}

#[test]
fn only_a_step_that_repeats_itself_is_captured() {
    let _standin = Standin::load().unwrap();
    let mut training = Loop::new(Reset::Keep);
    let refused = training.capture().unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NotCaptured { .. }), "{refused}");
    assert!(refused.to_string().contains("no step has run"), "{refused}");
    training.arena.scope(|step| step.alloc::<f32>(17).map(drop)).unwrap();
    let refused = training.capture().unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NotCaptured { .. }), "{refused}");
    assert!(refused.to_string().contains("signature"), "{refused}");
    assert!(!training.is_capturing());
    training.run().unwrap();
    assert!(training.capture().is_ok());
    assert!((training.weight() - 2.0).abs() < 1e-6);
}

// B055
#[test]
fn in_a_capture_only_what_a_replay_can_do_is_allowed_and_the_rest_never_reaches_the_driver() {
    let standin = Standin::load().unwrap();
    let mut arena = arena_with(Reset::Zero);
    let weights = arena.persistent_from(&[1.0_f32; 16]).unwrap();
    // The refused calls leave no trace in the signature.
    arena.scope(|step| step.alloc::<f32>(16).map(drop)).unwrap();
    let captured = arena.capture(ScopeOptions::default(), |step| {
        standin.clear_calls();
        let mut x = step.alloc::<f32>(16)?;
        if !standin.is_real_driver() {
            assert_eq!(standin.all_calls(), 0, "a request calls no driver");
        }
        let full = step.alloc::<u8>(CAPACITY.bytes() as usize).unwrap_err();
        assert!(full.is_exhausted(), "{full}");
        if !standin.is_real_driver() {
            assert_eq!(standin.all_calls(), 0, "and does not when it cannot be served");
        }

        let refusals = [
            x.view_mut().write(&[1.0; 16]).unwrap_err(),
            step.upload(&[1.0_f32; 4]).map(drop).unwrap_err(),
            step.read(x.view()).map(drop).unwrap_err(),
            step.promote(x.view()).map(drop).unwrap_err(),
            step.persistent::<f32>(4).map(drop).unwrap_err(),
            step.device().synchronise().unwrap_err().into(),
        ];
        for refused in &refusals {
            assert_eq!(kind(refused), DeviceErrorKind::InCapture, "{refused}");
        }
        if !standin.is_real_driver() {
            let harmless = ["cuCtxGetCurrent", "cuStreamIsCapturing"];
            for name in standin.call_names() {
                assert!(harmless.contains(&name.as_str()), "{name} was called");
            }
        }
        arena_scope::Ok(())
    });
    let graph = captured.unwrap();
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuMemsetD8Async"), 1, "the clearing is part of the graph");
    }
    graph.replay(&mut arena).unwrap();
    graph.replay(&mut arena).unwrap();
    assert_eq!(weights.view().to_vec().unwrap(), [1.0; 16]);
}

// B056
#[test]
fn a_hundred_steps_have_one_signature_and_a_smaller_batch_makes_the_graph_stale() {
    let standin = Standin::load().unwrap();
    let mut training = Loop::new(Reset::Keep);
    training.run().unwrap();
    let graph = training.capture().unwrap();
    for _ in 0..100 {
        training.run().unwrap();
        assert_eq!(training.arena.last_step_signature(), Some(graph.signature()));
    }
    // A step of another kind changes nothing that the graph depends on.
    training.arena.scope_named("test", |step| step.alloc::<f32>(99).map(drop)).unwrap();
    graph.replay(&mut training.arena).unwrap();
    let Loop { weights, double, arena } = &mut training;
    arena.scope_with(TRAIN, |step| doubling(step, double, weights, 32)).unwrap();
    standin.clear_calls();
    assert!(is_stale(graph.replay(&mut training.arena), "the signature of `train`"));
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuGraphLaunch"), 0);
    }
    training.run().unwrap();
    graph.replay(&mut training.arena).unwrap();
}

#[test]
fn a_plan_installed_for_its_step_makes_a_graph_stale_and_a_planned_step_is_captured_again() {
    let _standin = Standin::load().unwrap();
    let mut training = Loop::new(Reset::Keep);
    training.run().unwrap();
    let graph = training.capture().unwrap();
    graph.replay(&mut training.arena).unwrap();
    let scratch = PlannedSlot { offset_bytes: 256, bytes: 64, alignment: Alignment::DEFAULT };
    let plan = SlotTable::new(&[scratch]).unwrap();
    training.arena.install_plan(TRAIN, plan).unwrap();
    assert!(is_stale(graph.replay(&mut training.arena), "the signature of `train`"));

    training.run().unwrap();
    let planned = training.capture().unwrap();
    assert_ne!(planned.signature(), graph.signature());
    let before = training.weight();
    planned.replay(&mut training.arena).unwrap();
    // A step of another kind works in the same bytes, by a plan of its own.
    let other = StepKey::named("test");
    let whole = PlannedSlot { offset_bytes: 0, bytes: 320, alignment: Alignment::DEFAULT };
    training.arena.install_plan(other, SlotTable::new(&[whole]).unwrap()).unwrap();
    let outcome = training.arena.scope_with(other, |step| {
        let mut x = step.alloc::<u8>(320)?;
        x.view_mut().fill_bytes(0xff)
    });
    outcome.unwrap();
    planned.replay(&mut training.arena).unwrap();
    assert_eq!(training.weight(), 4.0 * before);
}

// B056
#[test]
fn a_graph_of_another_arena_is_stale() {
    let _standin = Standin::load().unwrap();
    let mut training = Loop::new(Reset::Keep);
    training.run().unwrap();
    let graph = training.capture().unwrap();
    let mut other = Loop::new(Reset::Keep);
    other.run().unwrap();
    assert!(is_stale(graph.replay(&mut other.arena), "another arena"));
}

#[test]
fn buffers_kept_where_the_step_has_its_own_make_it_stale() {
    let _standin = Standin::load().unwrap();
    let mut training = Loop::new(Reset::Keep);
    training.run().unwrap();
    let graph = training.capture().unwrap();
    let free = training.arena.stats().free_bytes;
    let kept = training.arena.persistent::<u8>(free as usize - 600).unwrap();
    graph.replay(&mut training.arena).unwrap();
    let more = training.arena.persistent::<u8>(256).unwrap();
    assert!(is_stale(graph.replay(&mut training.arena), "are kept from"));
    drop((kept, more));
}

#[test]
fn the_bytes_of_a_dropped_kept_buffer_wait_for_the_graph() {
    let _standin = Standin::load().unwrap();
    let mut training = Loop::new(Reset::Keep);
    training.run().unwrap();
    let kept = training.arena.persistent_from(&[5.0_f32; 64]).unwrap();
    let address = kept.address();
    training.run().unwrap();
    let graph = training.capture().unwrap();
    drop(kept);
    training.run().unwrap();
    let held = training.arena.persistent::<f32>(64).unwrap();
    assert_ne!(held.address(), address, "the graph may still write there");
    drop(graph);
    training.run().unwrap();
    let free_again = training.arena.persistent::<f32>(64).unwrap();
    assert_eq!(free_again.address(), address);
}

#[test]
fn the_graph_holds_the_region() {
    let standin = Standin::load().unwrap();
    let mut training = Loop::new(Reset::Keep);
    training.run().unwrap();
    let graph = training.capture().unwrap();
    graph.replay(&mut training.arena).unwrap();
    drop(training);
    if !standin.is_real_driver() {
        assert_eq!(standin.leaks().device_blocks, 1);
    }
    assert_eq!(graph.high_water_bytes(), 320);
    drop(graph);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    assert_eq!(standin.last_fault(), "");
}

#[test]
fn a_stream_declared_in_the_step_is_captured_with_it() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(100) {
        standin.reset(seed);
        let mut arena = arena();
        let side = side_stream(&arena);
        let mut out = arena.persistent_from(&[0_u8; 64]).unwrap();
        let source = arena.persistent_from(&[3_u8; 64]).unwrap();
        let step = |step: &Scope<'_, '_, Cuda>, out: &mut Persistent<u8, Cuda>| {
            let mut x = step.alloc::<u8>(64)?;
            x.view_mut().copy_from(source.view())?;
            step.declare_stream(&side)?;
            side.memcpy_dtod(&x, out).map_err(|error| error.0).unwrap();
            arena_scope::Ok(())
        };
        arena.scope(|scope| step(scope, &mut out)).unwrap();
        let graph = arena.capture(ScopeOptions::default(), |scope| step(scope, &mut out)).unwrap();
        for _ in 0..2 {
            out.view_mut().zero().unwrap();
            graph.replay(&mut arena).unwrap();
            assert_eq!(out.view().to_vec().unwrap(), [3; 64], "seed {seed}");
        }
    }
}

#[test]
fn a_stream_declared_for_good_is_not_captured() {
    let _standin = Standin::load().unwrap();
    let mut training = Loop::new(Reset::Keep);
    training.run().unwrap();
    let side = side_stream(&training.arena);
    training.weights.declare_stream(&side).unwrap();
    let refused = training.capture().unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NotCaptured { .. }), "{refused}");
    assert!(!training.is_capturing());
    training.run().unwrap();
}

#[test]
fn an_error_or_a_panic_in_the_body_ends_the_capture() {
    let standin = Standin::load().unwrap();
    let mut training = Loop::new(Reset::Zero);
    training.run().unwrap();
    let error = training.arena.capture(TRAIN, |step| {
        let x = step.alloc::<f32>(16)?;
        step.read(x.view()).map(drop)
    });
    assert_eq!(kind(&error.unwrap_err()), DeviceErrorKind::InCapture);
    assert!(!training.is_capturing());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _ = training.arena.capture(TRAIN, |step| -> Result<(), Error> {
            let _x = step.alloc::<f32>(16)?;
            panic!("on purpose");
        });
    }));
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"on purpose"));
    assert!(!training.is_capturing());
    assert_eq!(training.arena.stats().used_bytes, training.arena.stats().mark_bytes);
    training.run().unwrap();
    assert!((training.weight() - 4.0).abs() < 1e-6);
    drop(training);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

#[test]
fn whichever_call_of_a_capture_or_a_replay_fails_the_arena_is_usable_afterwards() {
    let standin = Standin::load().unwrap();
    for n in 1.. {
        standin.reset(n);
        let mut arena = arena_with(Reset::Zero);
        let source = arena.persistent_from(&[3_u8; 64]).unwrap();
        let mut out = arena.persistent_from(&[0_u8; 64]).unwrap();
        let side = side_stream(&arena);
        let step = |step: &Scope<'_, '_, Cuda>, out: &mut Persistent<u8, Cuda>| {
            let mut x = step.alloc_zeroed::<u8>(64)?;
            step.declare_stream(&side)?;
            x.view_mut().copy_from(source.view())?;
            out.view_mut().copy_from(x.view())
        };
        arena.scope(|scope| step(scope, &mut out)).unwrap();
        standin.clear_calls();
        standin.fail_nth_call(n, 999);
        let captured = arena.capture(ScopeOptions::default(), |scope| step(scope, &mut out));
        let outcome = captured.and_then(|graph| graph.replay(&mut arena).map(|()| graph));
        let call = standin.call_names().get(n as usize - 1).cloned();
        if standin.failures_to_come() > 0 {
            assert!(outcome.is_ok() && n > 15, "only {n} calls");
            break;
        }
        let call = call.unwrap();
        let ends_a_graph = ["cuGraphDestroy", "cuGraphExecDestroy"].contains(&call.as_str());
        if let Some(error) = outcome.err().or_else(|| arena.check().err()) {
            assert!(error.to_string().contains(call.trim_end_matches("_v2")), "{call}: {error}");
            assert!(!error.is_final(), "{call}: {error}");
        } else {
            assert!(ends_a_graph, "the failure of {call} was swallowed");
        }
        standin.clear_failures();
        let _ = arena.check();
        out.view_mut().zero().unwrap();
        arena.scope(|scope| step(scope, &mut out)).unwrap_or_else(|e| panic!("{call}: {e}"));
        assert_eq!(out.view().to_vec().unwrap(), [3; 64], "{call}");
        let graph = arena.capture(ScopeOptions::default(), |scope| step(scope, &mut out));
        let graph = graph.unwrap_or_else(|error| panic!("after {call}: {error}"));
        graph.replay(&mut arena).unwrap();
        drop((graph, arena, source, out, side));
        assert!(standin.leaks().is_clean(), "{call}: {:?}", standin.leaks());
    }
}

/// What the driver refuses while a stream is captured: in the mode "thread-local", to the thread that captures and to
/// no other. No replay would repeat it.
#[rstest]
#[case::on_the_capturing_thread(false)]
#[case::on_another_thread(true)]
fn memory_of_the_driver_is_refused_in_a_capture_to_the_capturing_thread_alone(
    #[case] elsewhere: bool,
) {
    let _standin = Standin::load().unwrap();
    let mut arena = arena();
    let context = arena.device().context().clone();
    let allocate = || {
        context.bind_to_thread()?;
        // SAFETY: nobody uses the memory.
        let memory = unsafe { result::malloc_sync(16) }?;
        // SAFETY: it is freed once.
        unsafe { result::free_sync(memory) }
    };
    arena.scope(|step| step.alloc::<u8>(64).map(drop)).unwrap();
    let captured = arena.capture(ScopeOptions::default(), |step| {
        step.alloc::<u8>(64)?;
        if elsewhere {
            std::thread::scope(|threads| threads.spawn(allocate).join().unwrap())?;
        } else {
            allocate()?;
        }
        arena_scope::Ok(())
    });
    if elsewhere {
        captured.unwrap().replay(&mut arena).unwrap();
    } else {
        let refused = captured.map(drop).unwrap_err().to_string();
        assert!(refused.contains("STREAM_CAPTURE_UNSUPPORTED"), "{refused}");
    }
    arena.scope(|step| step.alloc::<u8>(64).map(drop)).unwrap();
}

#[test]
fn the_null_stream_cannot_be_captured() {
    let _standin = Standin::load().unwrap();
    let null = Cuda::new(0).unwrap().context().default_stream();
    let mut arena =
        Arena::builder(Cuda::on(null).unwrap()).capacity(ByteSize::kib(4)).build().unwrap();
    arena.scope(|_| arena_scope::Ok(())).unwrap();
    let refused = arena.capture(ScopeOptions::default(), |_| arena_scope::Ok(())).unwrap_err();
    assert!(refused.to_string().contains("cuStreamBeginCapture"), "{refused}");
    arena.scope(|step| step.upload(&[1_u8]).map(drop)).unwrap();
}
