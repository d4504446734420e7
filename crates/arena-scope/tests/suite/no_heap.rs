//! Promises 9 and 10: from the third step on, a step allocates nothing on the host's heap, and the
//! device is asked for memory once.

use crate::heap;

use arena_scope::bumpalo::boxed::Box as BumpBox;
use arena_scope::device::{Call, Counting};
use arena_scope::steady::NotSteady;
use arena_scope::{
    Arena, ByteSize, Device, Error, Host, Probe, Reset, Scope, ScopeOptions, StepKey, Transient,
    View,
};
use rstest::rstest;

struct Node<'s, D: Device> {
    output: Transient<'s, f32, D>,
    shape: &'s [usize],
    before: Option<BumpBox<'s, Node<'s, D>>>,
}

/// A step with nested scopes in both forms, a tape and a list of views on the host bump.
fn step<D: Device>(step: &mut Scope<'_, '_, D>) -> Result<f32, Error> {
    let bump = step.host_bump();
    let mut tape: Option<BumpBox<'_, Node<'_, D>>> = None;
    for layer in 1..=8_usize {
        let mut output = step.alloc::<f32>(100 * layer)?;
        output.view_mut().zero()?;
        let shape = bump.alloc_slice_copy(&[layer, 100]);
        tape = Some(BumpBox::new_in(Node { output, shape, before: tape }, bump));
    }
    step.scope_named("backward", |inner| {
        let gradient = inner.alloc_zeroed::<f32>(800)?;
        let views: &mut [View<'_, f32, D>] =
            inner.host_bump().alloc_slice_fill_copy(8, gradient.view());
        while let Some(node) = tape.take() {
            let Node { output, shape, before } = BumpBox::into_inner(node);
            views[shape[0] - 1] = gradient.view().range(..output.len())?;
            let mut scratch = inner.enter()?;
            let mut copy = scratch.scope().alloc::<f32>(output.len())?;
            copy.view_mut().copy_from(output.view())?;
            copy.view_mut().copy_from(views[shape[0] - 1])?;
            drop(copy);
            scratch.close()?;
            tape = before;
        }
        arena_scope::Ok(())
    })?;
    let loss = step.upload(&[1.5_f32])?;
    step.read_one(loss.view())
}

fn arena<D: Device>(device: D, reset: Reset) -> Result<Arena<D>, Error> {
    Arena::builder(device).capacity(ByteSize::mib(1)).reset(reset).build()
}

#[rstest]
#[case::keep(Reset::Keep, false)]
#[case::keep_observed(Reset::Keep, true)]
#[case::zero(Reset::Zero, false)]
#[case::poison(Reset::Poison, false)]
#[case::poison_observed(Reset::Poison, true)]
fn promise_9_a_steady_step_allocates_nothing(
    #[case] reset: Reset,
    #[case] observed: bool,
) -> Result<(), Error> {
    let device = Counting::new(Host::new());
    let counts = device.counts();
    let mut arena = arena(device, reset)?;
    let _weights = arena.persistent::<f32>(1000)?;
    if observed {
        arena.observe(Some(heap::allocations));
    }
    for n in 1..=20 {
        let before = heap::allocations();
        let loss = arena.scope(step)?;
        let allocations = heap::allocations() - before;
        assert_eq!(loss.to_bits(), 1.5_f32.to_bits());
        if n >= 3 {
            assert_eq!(allocations, 0, "step {n}");
        }
    }
    if let Some(seen) = arena.stop_observing() {
        assert_eq!((seen.steps(), seen.heap_allocations_per_step()), (20, Some(0)));
        assert_eq!(seen.check(), Ok(()));
    }
    assert_eq!((counts.calls(Call::Obtain), counts.calls(Call::Release)), (1, 0));
    Ok(())
}

#[test]
fn promise_9_two_kinds_of_steps_allocate_nothing_each() -> Result<(), Error> {
    let mut arena = arena(Host::new(), Reset::Keep)?;
    arena.observe(Some(heap::allocations));
    for n in 1..=20 {
        let before = heap::allocations();
        arena.scope_named("train", step)?;
        arena.scope_with(ScopeOptions::named("train").variant(1), step)?;
        arena.scope_named("evaluate", |epoch| epoch.scope(step))?;
        if n >= 3 {
            assert_eq!(heap::allocations() - before, 0, "round {n}");
        }
    }
    assert_eq!(arena.stop_observing().map(|seen| seen.check()), Some(Ok(())));
    Ok(())
}

// Promise 10: a step that needs more host data than was presized grows in its first steps only.
#[rstest]
#[case::much_presized(ByteSize::mib(4))]
#[case::nothing_presized(ByteSize::bytes_exact(0))]
fn promise_10_a_host_bump_grows_in_the_first_steps_only(
    #[case] presized: ByteSize,
) -> Result<(), Error> {
    let mut arena =
        Arena::builder(Host::new()).capacity(ByteSize::kib(4)).host_bump(presized).build()?;
    for n in 1..=10 {
        let before = heap::allocations();
        arena.scope(|step| {
            for word in 0..10_000_u64 {
                let _ = step.host_bump().alloc(word);
            }
            step.scope(|inner| {
                let _ = inner.host_bump().alloc_slice_fill_copy(100_000, 1_u8);
                arena_scope::Ok(())
            })
        })?;
        if n >= 3 {
            assert_eq!(heap::allocations() - before, 0, "step {n}");
        }
    }
    Ok(())
}

// Promise 10: the bump is emptied, or it would grow without end.
#[test]
fn promise_10_a_host_bump_is_emptied_when_a_scope_opens() -> Result<(), Error> {
    let mut arena = arena(Probe::new(), Reset::Keep)?;
    let mut sizes = Vec::with_capacity(100);
    for _ in 0..100 {
        arena.scope(|step| {
            let _ = step.host_bump().alloc_slice_fill_copy(50_000, 1_u8);
            sizes.push(step.host_bump().allocated_bytes());
            arena_scope::Ok(())
        })?;
    }
    assert!(sizes[3..].iter().all(|size| *size == sizes[2]), "{sizes:?}");
    Ok(())
}

#[test]
fn promise_9_a_step_that_allocates_on_the_heap_is_reported() -> Result<(), Error> {
    let mut arena = arena(Host::new(), Reset::Keep)?;
    arena.observe(Some(heap::allocations));
    for n in 0..5 {
        arena.scope_named("leaky", |step| {
            let loss = step.upload(&[1.0_f32])?;
            // In the last step alone: the worst step counts.
            if n == 4 { step.read(loss.view()).map(drop) } else { Ok(()) }
        })?;
    }
    let broken = arena.stop_observing().map(|seen| seen.check());
    let expected = NotSteady::HeapAllocations { key: StepKey::named("leaky"), allocations: 1 };
    assert_eq!(broken, Some(Err(expected)));
    Ok(())
}

// A log that nobody reads any more would grow with every request.
#[test]
fn nothing_is_logged_after_watching_ends_with_a_forgotten_guard_open() -> Result<(), Error> {
    let mut arena = arena(Host::new(), Reset::Keep)?;
    arena.observe(None);
    std::mem::forget(arena.enter()?);
    assert!(arena.stop_observing().is_some());
    arena.scope(step)?;
    arena.scope(step)?;
    let before = heap::allocations();
    for _ in 0..100 {
        arena.scope(step)?;
    }
    assert_eq!(heap::allocations() - before, 0);
    Ok(())
}

// A buffer that is kept and replaced in each step, in a list with gaps.
#[test]
fn promise_9_a_replaced_kept_buffer_allocates_nothing_for_its_place() -> Result<(), Error> {
    let mut arena = arena(Host::new(), Reset::Keep)?;
    arena.mark()?;
    let mut kept: Vec<_> = (0..100)
        .map(|n| arena.persistent::<u8>(300 + 7 * n).map(Some))
        .collect::<Result<_, _>>()?;
    kept.iter_mut().step_by(2).for_each(|buffer| *buffer = None);
    for n in 1..=200 {
        let before = heap::allocations();
        arena.scope(|step| {
            kept[2 * (n * 7 % 50)] = Some(step.persistent::<u8>(100 + n * 37 % 900)?);
            kept[2 * (n * 11 % 50)] = None;
            arena_scope::Ok(())
        })?;
        if n > 100 {
            assert_eq!(heap::allocations() - before, 0, "step {n}");
        }
    }
    Ok(())
}
