//! Reuse is ordered on the device: a stream that was declared has ended its work before the memory
//! is used again, in any order that a device may choose; one that was not declared loses it.

use std::sync::Arc;

use crate::cuda::{Seen, arena, arena_with, settle, side_stream};
use arena_scope::cudarc::driver::{CudaStream, sys};
use arena_scope::{Arena, Cuda, Error, ErrorKind, Reset, Scope, Transient};
use cuda_standin::{Mode, Standin};
use rstest::rstest;

const X: [f32; 4] = [1.0, 2.0, 3.0, 4.0];

/// How the step tells of the side stream, and lets it read `x`.
type Step = fn(&mut Scope<'_, '_, Cuda>, &Arc<CudaStream>, &mut Seen) -> Result<(), Error>;

fn upload<'s>(step: &Scope<'s, '_, Cuda>) -> Result<Transient<'s, f32, Cuda>, Error> {
    let x = step.upload(&X)?;
    settle(step);
    Ok(x)
}

fn undeclared(
    step: &mut Scope<'_, '_, Cuda>,
    side: &Arc<CudaStream>,
    seen: &mut Seen,
) -> Result<(), Error> {
    seen.copy_raw(side, upload(step)?.address());
    Ok(())
}

fn the_scope_declares(
    step: &mut Scope<'_, '_, Cuda>,
    side: &Arc<CudaStream>,
    seen: &mut Seen,
) -> Result<(), Error> {
    step.declare_stream(side)?;
    seen.copy_raw(side, upload(step)?.address());
    Ok(())
}

fn the_buffer_declares(
    step: &mut Scope<'_, '_, Cuda>,
    side: &Arc<CudaStream>,
    seen: &mut Seen,
) -> Result<(), Error> {
    let x = upload(step)?;
    x.declare_stream(side)?;
    seen.copy_raw(side, x.address());
    Ok(())
}

fn a_view_declares(
    step: &mut Scope<'_, '_, Cuda>,
    side: &Arc<CudaStream>,
    seen: &mut Seen,
) -> Result<(), Error> {
    let x = upload(step)?;
    x.view().declare_stream(side)?;
    seen.copy_raw(side, x.address());
    Ok(())
}

fn a_safe_call_declares(
    step: &mut Scope<'_, '_, Cuda>,
    side: &Arc<CudaStream>,
    seen: &mut Seen,
) -> Result<(), Error> {
    seen.copy(side, &upload(step)?);
    Ok(())
}

fn a_safe_call_on_a_view_declares(
    step: &mut Scope<'_, '_, Cuda>,
    side: &Arc<CudaStream>,
    seen: &mut Seen,
) -> Result<(), Error> {
    seen.copy(side, &upload(step)?.view());
    Ok(())
}

fn an_inner_scope_declares(
    step: &mut Scope<'_, '_, Cuda>,
    side: &Arc<CudaStream>,
    seen: &mut Seen,
) -> Result<(), Error> {
    step.scope(|inner| the_scope_declares(inner, side, seen))
}

fn a_forgotten_guard_declared(
    step: &mut Scope<'_, '_, Cuda>,
    side: &Arc<CudaStream>,
    seen: &mut Seen,
) -> Result<(), Error> {
    let mut guard = step.enter()?;
    the_scope_declares(&mut guard.scope(), side, seen)?;
    std::mem::forget(guard);
    Ok(())
}

fn another_thread_declares(
    step: &mut Scope<'_, '_, Cuda>,
    side: &Arc<CudaStream>,
    seen: &mut Seen,
) -> Result<(), Error> {
    let x = upload(step)?;
    std::thread::scope(|threads| threads.spawn(|| x.declare_stream(side)).join().unwrap())?;
    seen.copy_raw(side, x.address());
    Ok(())
}

/// A side stream still copies `x` out when the step ends; the next step puts something else there.
fn reader_is_intact(step: Step, reset: Reset) -> bool {
    let mut arena = arena_with(reset);
    let side = side_stream(&arena);
    let mut seen = Seen::new(side.context());
    arena.scope(|scope| step(scope, &side, &mut seen)).unwrap();
    reuse(&mut arena);
    seen.after(&side) == X
}

fn reuse(arena: &mut Arena<Cuda>) {
    let reused = arena.scope(|step| {
        let y = step.upload(&[9.0_f32; 4])?;
        assert_eq!(y.offset_bytes(), 0, "the address of `x`");
        arena_scope::Ok(())
    });
    reused.unwrap();
    settle(arena);
}

// B050: what goes wrong.
#[test]
fn without_a_declaration_corruption_shows_within_40_seeds() {
    let standin = Standin::load().unwrap();
    standin.needed_for("orders that go wrong");
    let mut corrupt = 0;
    for seed in standin.seeds(40) {
        standin.reset(seed);
        corrupt += u32::from(!reader_is_intact(undeclared, Reset::Keep));
    }
    assert!((5..=35).contains(&corrupt), "{corrupt} of 40 seeds");
}

// B050
#[rstest]
#[case::scope(the_scope_declares)]
#[case::buffer(the_buffer_declares)]
#[case::view(a_view_declares)]
#[case::safe_call(a_safe_call_declares)]
#[case::safe_call_on_a_view(a_safe_call_on_a_view_declares)]
#[case::inner_scope(an_inner_scope_declares)]
#[case::forgotten_guard(a_forgotten_guard_declared)]
#[case::another_thread(another_thread_declares)]
fn a_declared_stream_is_intact_for_200_seeds(
    #[case] step: Step,
    #[values(Reset::Keep, Reset::Zero)] reset: Reset,
) {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(200) {
        standin.reset(seed);
        assert!(reader_is_intact(step, reset), "seed {seed}");
    }
    standin.set_mode(Mode::Eager);
    assert!(reader_is_intact(step, reset), "eager");
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

/// With the order, `read` is right for every seed; without, it reads too early for some.
fn right_only_when_ordered(read: fn(ordered: bool) -> bool) {
    let standin = Standin::load().unwrap();
    let mut early = 0;
    for seed in standin.seeds(200) {
        standin.reset(seed);
        assert!(read(true), "seed {seed}");
        if !standin.is_real_driver() {
            standin.reset(seed);
            early += u32::from(!read(false));
        }
    }
    assert!(early > 20 || standin.is_real_driver(), "without, {early} of 200 seeds read too early");
}

/// A stream that reads what the arena's stream wrote just before.
fn writer_is_seen(declares: bool) -> bool {
    let mut arena = arena();
    let side = side_stream(&arena);
    let mut seen = Seen::new(side.context());
    arena
        .scope(|step| {
            let x = step.upload(&X)?;
            if declares {
                x.declare_stream(&side)?;
            }
            seen.copy_raw(&side, x.address());
            arena_scope::Ok(())
        })
        .unwrap();
    seen.after(&side) == X
}

#[test]
fn a_declared_stream_finds_what_was_written_before() {
    right_only_when_ordered(writer_is_seen);
}

/// A side stream writes a result that the step reads.
fn result_is_read(waits: bool) -> bool {
    let mut arena = arena();
    let side = side_stream(&arena);
    arena
        .scope(|step| {
            let x = step.upload(&[0.0_f32; 4])?;
            x.declare_stream(&side)?;
            // SAFETY: 16 live bytes, and the scope knows of the stream.
            let code = unsafe { sys::cuMemsetD8Async(x.address(), 7, 16, side.cu_stream()) };
            code.result().map_err(|error| error.0).unwrap();
            if waits {
                step.wait_for_stream(&side)?;
            }
            let read = step.read(x.view())?;
            arena_scope::Ok(read.iter().all(|value| value.to_bits() == 0x0707_0707))
        })
        .unwrap()
}

// B051
#[test]
fn a_joined_stream_s_result_is_there() {
    right_only_when_ordered(result_is_read);
}

// B052
#[test]
fn a_buffer_dropped_right_after_its_last_use_is_not_freed_under_it() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(100) {
        standin.reset(seed);
        // A driver whose free waits for nothing would show a free that comes too early.
        standin.set_free_waits(false);
        let mut arena = arena();
        let side = side_stream(&arena);
        let mut seen = Seen::new(side.context());
        arena
            .scope(|step| {
                let x = step.upload(&X)?;
                seen.copy(&side, &x);
                drop(x);
                arena_scope::Ok(())
            })
            .unwrap();
        drop(arena);
        assert_eq!(seen.after(&side), X, "seed {seed}: {}", standin.last_fault());
    }
}

#[test]
fn the_last_persistent_buffer_waits_for_the_stream_that_uses_it() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(100) {
        standin.reset(seed);
        standin.set_free_waits(false);
        let arena = arena();
        let side = side_stream(&arena);
        let mut seen = Seen::new(side.context());
        let weights = arena.persistent_from(&X).unwrap();
        drop(arena);
        weights.declare_stream(&side).unwrap();
        seen.copy_raw(&side, weights.address());
        drop(weights);
        assert_eq!(seen.after(&side), X, "seed {seed}: {}", standin.last_fault());
    }
}

#[test]
fn a_kept_buffer_s_bytes_come_back_after_the_stream_that_used_it() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(100) {
        standin.reset(seed);
        let mut arena = arena();
        arena.mark().unwrap();
        let side = side_stream(&arena);
        let mut seen = Seen::new(side.context());
        let kept = arena.persistent_from(&X).unwrap();
        let address = kept.address();
        kept.declare_stream(&side).unwrap();
        arena.scope(|_| arena_scope::Ok(())).unwrap();
        seen.copy_raw(&side, address);
        drop(kept);
        arena.scope(|_| arena_scope::Ok(())).unwrap();
        let again = arena.persistent_from(&[9.0_f32; 4]).unwrap();
        assert_eq!(again.address(), address);
        settle(&arena);
        assert_eq!(seen.after(&side), X, "seed {seed}");
    }
}

#[test]
fn an_inner_close_keeps_what_an_outer_scope_declared() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(100) {
        standin.reset(seed);
        let mut arena = arena();
        let side = side_stream(&arena);
        let mut seen = Seen::new(side.context());
        arena
            .scope(|step| {
                step.declare_stream(&side)?;
                let x = upload(step)?;
                step.scope(|inner| inner.alloc::<f32>(4).map(drop))?;
                seen.copy_raw(&side, x.address());
                arena_scope::Ok(())
            })
            .unwrap();
        reuse(&mut arena);
        assert_eq!(seen.after(&side), X, "seed {seed}");
    }
}

#[test]
fn a_scope_s_declaration_ends_with_it_and_the_arena_s_own_stream_needs_none() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let side = side_stream(&arena);
    arena
        .scope(|step| {
            step.declare_stream(&step.device().stream().clone())?;
            step.scope(|inner| inner.declare_stream(&side))?;
            standin.clear_calls();
            arena_scope::Ok(())
        })
        .unwrap();
    if !standin.is_real_driver() {
        assert_eq!(standin.all_calls(), 0, "nobody is declared, so a close calls no driver");
    }
}

#[test]
fn the_per_thread_stream_is_refused() {
    let _standin = Standin::load().unwrap();
    let mut arena = arena();
    let side = arena.device().context().per_thread_stream();
    let refused = arena.scope(|step| step.declare_stream(&side)).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::WrongDevice { .. }), "{refused}");
}
