//! Scenarios that hold on every device, on CUDA: growth, exhaustion, failing steps, poison, reads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::cuda::{Seen, arena, arena_with, settle, side_stream};
use arena_scope::cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg, sys};
use arena_scope::cudarc::nvrtc::Ptx;
use arena_scope::errors::Exhausted;
use arena_scope::{
    Alignment, Arena, ByteSize, Cuda, Device, Error, ErrorKind, Persistent, Reset, Scope,
    ScopeOptions, View, ViewMut,
};
use arena_testing::alone;
use cuda_standin::{Mode, Standin};

const PTX: &str = include_str!("../../../../standins/cuda/tests/ptx/numeric.ptx");

fn on_cuda(capacity: ByteSize) -> Arena<Cuda> {
    Arena::builder(Cuda::new(0).unwrap()).capacity(capacity).build().unwrap()
}

/// The kernel `to[i] = factor * from[i]`, on the arena's stream.
struct Scale {
    function: CudaFunction,
    stream: Arc<CudaStream>,
}

impl Scale {
    fn of(arena: &Arena<Cuda>) -> Self {
        let stream = arena.device().stream().clone();
        let module = stream.context().load_module(Ptx::from_src(PTX)).map_err(|error| error.0);
        let function = module.unwrap().load_function("scale_float4").map_err(|error| error.0);
        Self { function: function.unwrap(), stream }
    }

    fn launch(&self, from: View<'_, f32, Cuda>, mut to: ViewMut<'_, f32, Cuda>, factor: f32) {
        assert_eq!((from.len(), to.len()), (64, 64));
        let (threads, fours) = (16, 16_i32);
        let config =
            LaunchConfig { grid_dim: (1, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.stream.launch_builder(&self.function);
        launch.arg(&from).arg(&mut to).arg(&factor).arg(&fours);
        // SAFETY: both buffers have four elements for each thread.
        unsafe { launch.launch(config) }.map_err(|error| error.0).unwrap();
    }
}

/// The launch as it should be: it asks its operands for what the kernel's vector loads need.
fn launch_aligned(
    scale: &Scale,
    from: View<'_, f32, Cuda>,
    to: ViewMut<'_, f32, Cuda>,
) -> Result<(), Error> {
    let vector = Alignment::VECTOR_LOAD.bytes();
    scale.launch(from.aligned(vector)?, to.aligned(vector)?, 2.0);
    Ok(())
}

// B004
#[test]
fn a_vector_load_of_a_shifted_view_ends_the_context_and_an_aligned_operand_is_refused_before() {
    // A real device that has met this is lost to its whole process.
    alone(|| {
        let standin = Standin::load().unwrap();
        let mut arena = arena();
        let scale = Scale::of(&arena);
        let last = arena.scope(|step| {
            let x = step.upload(&[2.5_f32; 65])?;
            let mut y = step.alloc_zeroed::<f32>(65)?;
            standin.clear_calls();
            for (from, to) in [(1, 0), (0, 1), (2, 0)] {
                let from = x.view().range(from..from + 64)?;
                let to = y.view_mut().range(to..to + 64)?;
                let refused = launch_aligned(&scale, from, to).unwrap_err();
                assert!(matches!(refused.kind(), ErrorKind::Misaligned { .. }), "{refused}");
            }
            if !standin.is_real_driver() {
                assert_eq!(standin.calls("cuLaunchKernel"), 0);
            }
            launch_aligned(&scale, x.view().range(..64)?, y.view_mut().range(..64)?)?;
            assert_eq!(step.read(y.view().range(..64)?)?, [5.0; 64], "the device is whole");

            // Without asking.
            scale.launch(x.view().range(1..)?, y.view_mut().range(..64)?, 2.0);
            let lost = step.read(y.view()).unwrap_err();
            assert!(lost.is_final() && lost.to_string().contains("MISALIGNED"), "{lost}");
            arena_scope::Ok(())
        });
        last.unwrap_err();
    });
}

// B051
#[test]
fn a_read_as_the_last_act_of_a_scope_finds_what_a_kernel_wrote() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(40) {
        standin.reset(seed);
        let mut arena = arena();
        let scale = Scale::of(&arena);
        let read = arena.scope(|step| {
            let half = step.upload(&[2.5_f32; 64])?;
            let mut x = step.alloc_zeroed::<f32>(64)?;
            step.device().synchronise()?;
            scale.launch(half.view(), x.view_mut(), 2.0);
            step.read(x.view())
        });
        assert_eq!(read.unwrap(), [5.0; 64], "seed {seed}");
    }
}

// B052
#[test]
fn a_kernel_ends_before_its_memory_goes_though_nothing_waits_for_it() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(100) {
        standin.reset(seed);
        // A driver whose free waits for nothing would show a free that comes too early.
        standin.set_free_waits(false);
        let mut arena = arena_with(Reset::Poison);
        let scale = Scale::of(&arena);
        let outcome = arena.scope(|step| {
            let x = step.upload(&[1.0_f32; 64])?;
            let mut y = step.alloc::<f32>(64)?;
            scale.launch(x.view(), y.view_mut(), 2.0);
            drop((x, y));
            arena_scope::Ok(())
        });
        outcome.unwrap();
        if !standin.is_real_driver() {
            assert!(standin.queued() > 0, "nothing waits");
        }
        drop((arena, scale));
        assert_eq!(standin.last_fault(), "", "seed {seed}");
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
}

// B034
#[test]
fn a_full_arena_says_so_at_once_and_asks_no_driver() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    assert_eq!(arena.stats().capacity_bytes, 64 << 10);
    standin.clear_calls();
    arena
        .scope(|step| {
            let _ = (step.alloc::<u8>(48 << 10)?, step.alloc::<u8>(12 << 10)?);
            let full = step.alloc::<u8>(16 << 10).unwrap_err();
            let Exhausted { asked_bytes, used_bytes, capacity_bytes, .. } =
                full.as_exhausted().unwrap();
            assert_eq!((*asked_bytes, *used_bytes, *capacity_bytes), (16_384, 61_440, 65_536));
            assert!(step.alloc::<u8>(4 << 10).is_ok(), "the arena remains usable");
            arena_scope::Ok(())
        })
        .unwrap();
    assert_eq!(arena.stats().driver_allocations, 1);
    if !standin.is_real_driver() {
        assert_eq!(standin.all_calls(), 0);
    }
}

// B029
#[test]
fn a_thousand_steps_take_what_the_largest_takes() {
    let standin = Standin::load().unwrap();
    let mut arena = on_cuda(ByteSize::mib(4));
    let weights = arena.persistent::<f32>(1000).unwrap();
    arena.mark().unwrap();
    let (mut number, mut largest) = (7_u64, 0);
    for _ in 0..1000 {
        arena
            .scope(|step| {
                for _ in 0..10 {
                    // Knuth's MMIX constants.
                    number = number.wrapping_mul(6_364_136_223_846_793_005);
                    number = number.wrapping_add(1_442_695_040_888_963_407);
                    let _ = step.alloc::<u8>((number >> 33) as usize % 10_000)?;
                }
                arena_scope::Ok(())
            })
            .unwrap();
        largest = largest.max(arena.last_step_high_water_bytes());
        let stats = arena.stats();
        assert_eq!((stats.used_bytes, stats.peak_bytes), (4000, largest));
    }
    let traffic_is = |expected: [u64; 2]| {
        if !standin.is_real_driver() {
            assert_eq!(["cuMemAlloc_v2", "cuMemFree_v2"].map(|name| standin.calls(name)), expected);
        }
    };
    traffic_is([1, 0]);
    drop((arena, weights));
    traffic_is([1, 1]);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

// B030
#[test]
fn a_smaller_last_batch_does_not_ratchet() {
    let standin = Standin::load().unwrap();
    standin.set_mode(Mode::Eager);
    let mut arena = on_cuda(ByteSize::mib(1));
    let free = |arena: &Arena<Cuda>| arena.device().memory().unwrap().free_bytes;
    let batch = |arena: &mut Arena<Cuda>, images: usize| {
        let step = arena.scope(|step| {
            let x = step.alloc_zeroed::<f32>(images * 784)?;
            let _hidden = step.alloc::<f32>(images * 100)?;
            arena_scope::Ok(x.len() / 784)
        });
        assert_eq!((step.unwrap(), arena.stats().used_bytes), (images, 0));
    };
    batch(&mut arena, 64);
    let (peak, before) = (arena.stats().peak_bytes, free(&arena));
    for _epoch in 0..2 {
        for (whole, short) in [(937, 32), (156, 16)] {
            (0..whole).for_each(|_| batch(&mut arena, 64));
            batch(&mut arena, short);
        }
    }
    for _ in 0..50 {
        batch(&mut arena, 64);
        batch(&mut arena, 37);
    }
    assert_eq!(arena.stats().peak_bytes, peak);
    // Other programs may use a real device.
    if !standin.is_real_driver() {
        assert_eq!(free(&arena), before);
        assert_eq!(standin.calls("cuMemAlloc_v2"), 1);
    }
}

/// A step that halves the weights through scratch that grows with the batch: kernels are queued before
/// and after the request that a large batch fails with.
fn halve(
    arena: &mut Arena<Cuda>,
    scale: &Scale,
    weights: &mut Persistent<f32, Cuda>,
    batch: usize,
) -> Result<(), Error> {
    arena.scope(|step| {
        let x = step.upload(&[3.0_f32; 64])?;
        let mut y = step.alloc::<f32>(64)?;
        scale.launch(x.view(), y.view_mut(), 2.0);
        let _activations = step.alloc::<u8>(batch * 700)?;
        let mut half = step.alloc::<f32>(64)?;
        scale.launch(weights.view(), half.view_mut(), 0.5);
        weights.view_mut().copy_from(half.view())
    })
}

// B038
#[test]
fn a_step_that_runs_out_half_way_leaves_no_trace_though_its_kernels_are_still_queued() {
    let standin = Standin::load().unwrap();
    let mut queued = false;
    for seed in standin.seeds(40) {
        let mut run = |batches: &[usize]| -> Vec<u32> {
            standin.reset(seed);
            let mut arena = arena();
            let scale = Scale::of(&arena);
            let mut weights = arena.persistent_from(&[1.3_f32; 64]).unwrap();
            arena.mark().unwrap();
            for &batch in batches {
                let mark = arena.stats().mark_bytes;
                match halve(&mut arena, &scale, &mut weights, batch) {
                    Err(full) => {
                        assert!(batch == 128 && full.is_exhausted(), "{full}");
                        queued |= standin.is_real_driver() || standin.queued() > 0;
                    }
                    Ok(()) => assert_eq!(batch, 64),
                }
                assert_eq!(arena.stats().used_bytes, mark);
            }
            let weights = weights.view().to_vec().unwrap();
            weights.iter().map(|weight| weight.to_bits()).collect()
        };
        assert_eq!(run(&[128]), [1.3_f32.to_bits(); 64], "seed {seed}");
        assert_eq!(run(&[128, 64, 64]), run(&[64, 64]), "seed {seed}");
    }
    assert!(queued, "the kernels of the failed half had always run");
}

// B044
#[test]
fn a_clearing_that_the_driver_refuses_under_a_panic_is_told_later_and_made_up_for() {
    let standin = Standin::load().unwrap();
    for panicking in [true, false] {
        standin.reset(0);
        let mut arena = arena_with(Reset::Zero);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            arena.scope(|step| {
                let _dirty = step.upload(&[0xff_u8; 1000])?;
                standin.fail_nth("cuMemsetD8Async", 1, 999);
                assert!(!panicking, "on purpose");
                arena_scope::Ok(())
            })
        }));
        assert_eq!((arena.stats().used_bytes, arena.resets()), (0, 1));
        let told = match outcome {
            Ok(told) => told.unwrap_err(),
            Err(_panic) => arena.scope(|_| arena_scope::Ok(())).unwrap_err(),
        };
        assert!(told.to_string().contains("cuMemsetD8Async"), "{told}");
        let read = arena.scope(|step| step.read(step.alloc::<u8>(1000)?.view()));
        assert_eq!(read.unwrap(), [0; 1000], "cleared before it is handed out");
    }
}

// B078
#[test]
fn poison_covers_the_step_and_nothing_else() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let weights = arena.persistent_from(&[1.0_f32; 100]).unwrap();
    arena.mark().unwrap();
    let step = |step: &mut Scope<'_, '_, Cuda>, len: usize| {
        let x = step.upload(&vec![1.0_f32; len])?;
        arena_scope::Ok(x.address())
    };
    standin.clear_calls();
    let address = arena.scope(|scope| step(scope, 2000)).unwrap();
    if !standin.is_real_driver() {
        assert_eq!(
            standin.calls("cuMemsetD8Async"),
            0,
            "off by default, and then nothing is filled"
        );
    }
    let poison = ScopeOptions::default().reset(Reset::Poison);
    arena.scope_with(poison, |scope| step(scope, 1000)).unwrap();

    let side = side_stream(&arena);
    let raw = |address: u64| {
        settle(&arena);
        let mut seen = Seen::new(side.context());
        seen.copy_raw(&side, address);
        seen.after(&side)
    };
    // From the mark to the last byte of the step, and no further.
    for at in [arena.base_address() + 400, address, address + 4000 - 16] {
        assert!(raw(at).iter().all(|value| value.is_nan()), "at {at:#x}");
    }
    assert_eq!(raw(address + 4000), [1.0; 4]);
    assert_eq!(weights.view().to_vec().unwrap(), [1.0; 100]);
}

// B056
#[test]
fn a_hundred_steps_have_one_list_of_addresses_and_another_batch_has_another() {
    let _standin = Standin::load().unwrap();
    let mut arena = on_cuda(ByteSize::mib(1));
    let mut addresses = |batch: usize| {
        let list = arena.scope(|step| {
            let x = step.alloc::<f32>(batch * 784)?;
            let hidden = step.alloc::<f32>(batch * 100)?;
            let inner = step.scope(|inner| arena_scope::Ok(inner.alloc::<u8>(batch)?.address()))?;
            arena_scope::Ok([x.address(), hidden.address(), inner])
        });
        (list.unwrap(), arena.last_step_signature().unwrap())
    };
    let first = addresses(64);
    for n in 1..100 {
        assert_eq!(addresses(64), first, "step {n}");
    }
    let short = addresses(32);
    assert!(short.0 != first.0 && short.1 != first.1, "{short:?}");
    assert_eq!(addresses(64), first);
}

// B067: a driver that has gone before the arena.
#[test]
fn a_driver_that_is_shut_down_is_ignored_when_the_arena_goes() {
    const DEINITIALIZED: u32 = sys::CUresult::CUDA_ERROR_DEINITIALIZED as u32;
    let standin = Standin::load().unwrap();
    for n in 1.. {
        standin.reset(n);
        let mut arena = arena_with(Reset::Zero);
        let side = side_stream(&arena);
        arena.scope(|step| step.upload(&[1.0_f32; 4])?.declare_stream(&side)).unwrap();
        standin.clear_calls();
        standin.fail_nth_call(n, DEINITIALIZED);
        drop(arena);
        let all_succeeded = standin.failures_to_come() > 0;
        standin.clear_failures();
        if all_succeeded {
            assert!(n > 3, "only {n} calls");
            break;
        }
    }
}
