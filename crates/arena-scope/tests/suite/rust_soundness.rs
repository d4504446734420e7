//! What compiles, and must be harmless when it runs. What must not compile is in `compile_fail`.

use arena_scope::device::Counting;
use arena_scope::{
    Alignment, Arena, Error, Guard, Host, Persistent, Pod, Scope, Transient, View, ViewMut,
};
use static_assertions::{assert_impl_all, assert_not_impl_any, const_assert};

use crate::common::{KIB, Outcome, host};

assert_impl_all!(Arena<Host>: Send);
assert_not_impl_any!(Arena<Host>: Sync, Clone);
assert_not_impl_any!(Scope<'static, 'static, Host>: Send, Sync, Clone);
assert_not_impl_any!(Guard<'static, Host>: Send, Sync, Clone, std::ops::DerefMut);
assert_impl_all!(Transient<'static, f32>: Sync);
// Elements are plain data. (The compiler's words for these depend on what else is plain data in a build.)
assert_not_impl_any!(String: Pod);
assert_not_impl_any!(bool: Pod);
assert_not_impl_any!(Transient<'static, f32>: Send, Clone);
assert_impl_all!(View<'static, f32>: Send, Sync, Copy);
assert_impl_all!(ViewMut<'static, f32>: Send, Sync);
assert_not_impl_any!(ViewMut<'static, f32>: Clone);
assert_impl_all!(Persistent<f32>: Send, Sync);
assert_not_impl_any!(Persistent<f32>: Clone);
assert_impl_all!(Persistent<f32, Counting<Host>>: Send, Sync);

// A scope is two words, a guard three at most, a buffer three; an error does not widen a result.
const_assert!(size_of::<Scope<'static, 'static, Host>>() == 16);
const_assert!(size_of::<Guard<'static, Host>>() <= 32);
const_assert!(size_of::<Transient<'static, f32>>() == 24);
const_assert!(size_of::<View<'static, f32>>() == 24);
const_assert!(size_of::<Result<Transient<'static, f32>, Error>>() == 24);

/// Covariant: a longer-lived buffer or view serves where a shorter-lived one is asked for.
fn shorter<'short, 'long: 'short>(
    buffer: Transient<'long, f32>,
    view: View<'long, f32>,
) -> (Transient<'short, f32>, View<'short, f32>) {
    (buffer, view)
}

fn add<'s>(
    step: &Scope<'s, '_>,
    a: View<'_, f32>,
    b: View<'_, f32>,
) -> Result<Transient<'s, f32>, Error> {
    let mut sum = step.alloc::<f32>(a.len())?;
    let pairs = a.as_slice().iter().zip(b.as_slice());
    sum.as_mut_slice().iter_mut().zip(pairs).for_each(|(sum, (a, b))| *sum = a + b);
    Ok(sum)
}

#[test]
fn an_outer_and_an_inner_buffer_are_operands_of_one_call() -> Outcome {
    let mut arena = host(64 * KIB)?;
    let weights = arena.persistent_from(&[100.0_f32, 200.0])?;
    arena.scope(|outer| {
        let a = outer.upload(&[1.0_f32, 2.0])?;
        let sum = outer.scope(|inner| {
            let b = inner.upload(&[10.0_f32, 20.0])?;
            let first = add(inner, a.view(), b.view())?;
            let second = add(inner, first.view(), weights.view())?;
            inner.read(second.view())
        })?;
        assert_eq!(sum, [111.0, 222.0]);
        Ok(())
    })
}

#[test]
fn views_of_two_scopes_are_mixed_in_one_list() -> Outcome {
    let mut arena = host(64 * KIB)?;
    arena.scope(|outer| {
        let a = outer.upload(&[1.0_f32, 2.0])?;
        outer.scope(|inner| {
            let b = inner.upload(&[3.0_f32])?;
            let mut views: Vec<View<'_, f32>> = vec![a.view(), b.view()];
            views.push(a.view().range(1..)?);
            let all: Vec<f32> = views.iter().flat_map(|view| view.as_slice()).copied().collect();
            assert_eq!(all, [1.0, 2.0, 3.0, 2.0]);
            arena_scope::Ok(())
        })?;
        let view = a.view();
        let (same, _) = shorter(outer.upload(&[1.0])?, view);
        assert_eq!(same.as_slice(), [1.0]);
        Ok(())
    })
}

#[test]
fn buffers_are_collected_in_lists_and_structs_inside_their_scope() -> Outcome {
    struct Layer<'s> {
        input: Transient<'s, f32>,
        output: Option<Transient<'s, f32>>,
    }
    let mut arena = host(64 * KIB)?;
    arena.scope(|step| {
        let mut tape = Vec::new();
        for n in 0..4_u8 {
            let input = step.upload(&[f32::from(n)])?;
            let output = Some(add(step, input.view(), input.view())?);
            tape.push(Layer { input, output });
        }
        // Backwards, while an inner scope is open, and dropping as it goes.
        let sum = step.scope(|inner| {
            let mut sum = 0.0;
            while let Some(Layer { input, output }) = tape.pop() {
                let output = output.as_ref().unwrap_or(&input);
                sum += inner.read_one(output.view())? + inner.read_one(input.view())?;
            }
            arena_scope::Ok(sum)
        })?;
        assert_eq!(sum, 18.0);
        Ok(())
    })
}

#[test]
fn nodes_on_the_host_bump_hold_buffers() -> Outcome {
    use arena_scope::bumpalo::boxed::Box as BumpBox;
    struct Node<'s> {
        value: Transient<'s, f32>,
        before: Option<BumpBox<'s, Node<'s>>>,
    }
    let mut arena = host(64 * KIB)?;
    for _ in 0..3 {
        arena.scope(|step| {
            let bump = step.host_bump();
            let mut tape: Option<BumpBox<'_, Node<'_>>> = None;
            for n in 0..100_u8 {
                let value = step.upload(&[f32::from(n)])?;
                tape = Some(BumpBox::new_in(Node { value, before: tape }, bump));
            }
            let mut sum = 0.0;
            // An inner scope has a bump of its own.
            step.scope(|inner| {
                let here: &mut f32 = inner.host_bump().alloc(0.0);
                while let Some(node) = tape.take() {
                    let Node { value, before } = BumpBox::into_inner(node);
                    *here += inner.read_one(value.view())?;
                    tape = before;
                }
                sum = *here;
                arena_scope::Ok(())
            })?;
            assert_eq!(sum, 4950.0);
            arena_scope::Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn what_an_inner_scope_puts_on_its_bump_leaves_the_outer_bump_alone() -> Outcome {
    let mut arena = host(KIB)?;
    arena.scope(|outer| {
        let words: &[u64] = outer.host_bump().alloc_slice_copy(&[7; 1000]);
        for _ in 0..3 {
            outer.scope(|inner| {
                let _ = inner.host_bump().alloc_slice_copy(&[9_u64; 1000]);
                assert_eq!(words, [7; 1000]);
                arena_scope::Ok(())
            })?;
            std::mem::forget(outer.enter()?);
        }
        assert_eq!(words, [7; 1000]);
        Ok(())
    })
}

/// Two buffers of each arena, from scopes that were swapped: the bytes of each stay its own.
fn all_keep_their_bytes(buffers: &mut [Transient<'_, u8>]) {
    for (value, buffer) in (1..).zip(buffers.iter_mut()) {
        buffer.as_mut_slice().fill(value);
    }
    for (value, buffer) in (1..).zip(buffers.iter()) {
        assert!(buffer.as_slice().iter().all(|byte| *byte == value));
    }
}

#[test]
fn scopes_of_two_arenas_are_swapped_without_harm() -> Outcome {
    let (mut a, mut b) = (host(4 * KIB)?, host(4 * KIB)?);
    let (base_a, base_b) = (a.base_address(), b.base_address());
    {
        let (mut guard_a, mut guard_b) = (a.enter()?, b.enter()?);
        let (mut scope_a, mut scope_b) = (guard_a.scope(), guard_b.scope());
        let first = scope_a.alloc::<u8>(100)?;
        std::mem::swap(&mut scope_a, &mut scope_b);
        let second = scope_a.alloc::<u8>(100)?;
        let third = scope_b.alloc::<u8>(100)?;
        let addresses = [first.address(), second.address(), third.address()];
        assert_eq!(addresses, [base_a, base_b, base_a + 256]);
        all_keep_their_bytes(&mut [first, second, third]);
        // An inner scope opened through the swapped handle belongs to the arena it came from.
        scope_a.scope(|inner| {
            assert_eq!((inner.depth(), inner.alloc::<u8>(1)?.address()), (2, base_b + 256));
            arena_scope::Ok(())
        })?;
    }
    assert_eq!((a.stats().used_bytes, b.stats().used_bytes), (0, 0));
    assert_eq!((a.generation(), b.generation()), (1, 2));
    Ok(())
}

#[test]
fn scopes_of_different_depths_are_swapped_without_harm() -> Outcome {
    let (mut a, mut b) = (host(4 * KIB)?, host(4 * KIB)?);
    {
        let mut outer_a = a.enter()?;
        let mut step_a = outer_a.scope();
        let below = step_a.alloc::<u8>(100)?;
        let mut inner_a = step_a.enter()?;
        let mut outer_b = b.enter()?;
        let (mut deep, mut flat) = (inner_a.scope(), outer_b.scope());
        let first = deep.alloc::<u8>(100)?;
        std::mem::swap(&mut deep, &mut flat);
        assert_eq!((deep.depth(), flat.depth()), (1, 2));
        let second = deep.alloc::<u8>(100)?;
        let third = flat.alloc::<u8>(100)?;
        // Deeper still, through the handle that is one deeper than its variable says.
        flat.scope(|inner| {
            assert_eq!(inner.depth(), 3);
            all_keep_their_bytes(&mut [inner.alloc::<u8>(100)?]);
            arena_scope::Ok(())
        })?;
        let fourth = flat.alloc::<u8>(100)?;
        all_keep_their_bytes(&mut [below, first, second, third, fourth]);
    }
    assert_eq!((a.stats().used_bytes, b.stats().used_bytes), (0, 0));
    Ok(())
}

#[test]
fn guards_of_two_arenas_are_swapped_without_harm() -> Outcome {
    let (mut a, mut b) = (host(4 * KIB)?, host(4 * KIB)?);
    let base_b = b.base_address();
    {
        let (mut guard_a, mut guard_b) = (a.enter()?, b.enter()?);
        std::mem::swap(&mut guard_a, &mut guard_b);
        let step = guard_a.scope();
        let buffer = step.alloc::<u8>(100)?;
        assert_eq!(buffer.address(), base_b);
        drop(guard_b);
        all_keep_their_bytes(&mut [buffer]);
    }
    assert_eq!((a.stats().used_bytes, b.stats().used_bytes), (0, 0));
    assert_eq!((a.resets(), b.resets()), (1, 1));
    Ok(())
}

#[test]
fn an_inner_guard_is_swapped_with_a_guard_of_another_arena_without_harm() -> Outcome {
    let (mut a, mut b) = (host(4 * KIB)?, host(4 * KIB)?);
    {
        let mut outer = a.enter()?;
        let mut step = outer.scope();
        let below = step.alloc::<u8>(100)?;
        {
            let (mut inner, mut other) = (step.enter()?, b.enter()?);
            std::mem::swap(&mut inner, &mut other);
            let scope = inner.scope();
            all_keep_their_bytes(&mut [scope.alloc::<u8>(100)?]);
            drop(inner);
            drop(other.scope().alloc::<u8>(100)?);
        }
        assert_eq!(step.stats().used_bytes, 100);
        all_keep_their_bytes(&mut [below, step.alloc::<u8>(100)?]);
    }
    assert_eq!((a.stats().used_bytes, b.stats().used_bytes), (0, 0));
    Ok(())
}

// B071
#[test]
fn arenas_are_swapped_while_only_persistent_buffers_live() -> Outcome {
    let (mut a, mut b) = (host(4 * KIB)?, host(4 * KIB)?);
    let of_a = a.persistent_from(&[1_u8; 100])?;
    let of_b = b.persistent_from(&[2_u8; 100])?;
    std::mem::swap(&mut a, &mut b);
    for arena in [&mut a, &mut b] {
        arena.scope(|step| step.upload(&[9_u8; 3000]).map(drop))?;
    }
    drop(a);
    assert_eq!((of_a.as_slice(), of_b.as_slice()), (&[1; 100][..], &[2; 100][..]));
    Ok(())
}

// B071
#[test]
fn a_struct_owns_the_arena_and_runs_steps_through_itself() -> Outcome {
    struct Trainer {
        arena: Arena<Host>,
        weights: Persistent<f32>,
        steps: u64,
    }
    impl Trainer {
        fn step(&mut self, input: f32) -> Result<f32, Error> {
            let Self { arena, weights, steps } = self;
            arena.scope(|step| {
                let x = step.upload(&[input])?;
                weights.as_mut_slice()[0] += x.as_slice()[0];
                *steps += 1;
                step.read_one(weights.view())
            })
        }
    }
    let arena = host(4 * KIB)?;
    let weights = arena.persistent_zeroed(1)?;
    let mut trainer = Trainer { arena, weights, steps: 0 };
    let mut trainer =
        std::thread::spawn(move || trainer.step(1.0).map(|_| trainer)).join().expect("no panic")?;
    assert_eq!((trainer.step(2.0)?, trainer.steps), (3.0, 2));
    Ok(())
}

// B072
#[test]
fn halves_of_a_buffer_are_written_by_two_threads() -> Outcome {
    let mut arena = host(64 * KIB)?;
    arena.scope(|step| {
        let source = step.upload(&[5_u8; 150])?;
        let mut buffer = step.alloc::<u8>(300)?;
        let (left, right) = buffer.view_mut().split_at_mut(150)?;
        let first_of_right = right.address();
        assert_eq!(left.address() + 150, first_of_right);
        std::thread::scope(|threads| {
            let (mut left, mut right) = (left, right);
            let source = &source; // A buffer is read from any thread.
            threads.spawn(move || left.copy_from(source.view()));
            threads.spawn(move || right.as_mut_slice().fill(6));
        });
        assert_eq!(buffer.as_slice()[..150], [5; 150]);
        assert_eq!(buffer.as_slice()[150..], [6; 150]);

        let parts = buffer.view_mut().parts_mut(4, Alignment::ONE)?;
        std::thread::scope(|threads| {
            for (n, mut part) in parts.enumerate() {
                let n = u8::try_from(n).unwrap_or(0);
                threads.spawn(move || part.as_mut_slice().fill(n));
            }
        });
        let sums: Vec<u8> = buffer.as_slice().chunks(75).map(|part| part[74]).collect();
        assert_eq!(sums, [0, 1, 2, 3]);
        Ok(())
    })
}

// A leaked arena makes everything `'static`; the guard that is leaked with it never closes.
#[test]
fn leaking_the_arena_and_its_guard_wastes_memory_only() -> Outcome {
    let arena: &'static mut Arena<Host> = Box::leak(Box::new(host(4 * KIB)?));
    let guard: &'static mut Guard<'static> = Box::leak(Box::new(arena.enter()?));
    let step = guard.scope();
    let buffer: &'static mut Transient<'static, u8> =
        Box::leak(Box::new(step.upload(&[1_u8; 100])?));
    let _later = step.upload(&[2_u8; 100])?;
    let seen = std::thread::spawn({
        let buffer: &'static Transient<'static, u8> = buffer;
        move || buffer.as_slice().iter().all(|byte| *byte == 1)
    });
    assert!(seen.join().expect("no panic"));
    Ok(())
}

#[test]
fn views_outlive_the_drop_of_other_views_and_a_forgotten_buffer_is_harmless() -> Outcome {
    let mut arena = host(4 * KIB)?;
    arena.scope(|step| {
        let buffer = step.upload(&[1_u8, 2, 3])?;
        let rest = {
            let whole = buffer.view();
            whole.range(1..)?
        };
        assert_eq!(rest.as_slice(), [2, 3]);
        std::mem::forget(step.alloc::<u8>(10)?);
        arena_scope::Ok(())
    })?;
    assert_eq!(arena.stats().used_bytes, 0);
    Ok(())
}
