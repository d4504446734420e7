//! Scope order, guards, panics and forgotten guards.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use arena_scope::device::{Call, Counting};
use arena_scope::{Arena, Device, Error, Host, Reset, ScopeOptions};
use rstest::rstest;

use crate::common::{KIB, Outcome, arena, builder, counting, failing, host};

on_every_device!(
    a_panic_leaves_the_arena_where_the_scope_began,
    an_early_return_leaves_the_arena_where_the_scope_began,
    a_forgotten_inner_guard_wastes_bytes_until_the_outer_scope_closes,
    a_forgotten_root_guard_is_settled_by_the_next_scope,
    guards_nest_and_close_in_order,
);

/// Unwinds without the panic message that `panic!` would print.
fn unwind() -> ! {
    resume_unwind(Box::new("expected"))
}

// B043
fn guards_nest_and_close_in_order<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 8 * KIB)?;
    let mut a = arena.enter()?;
    let mut outer = a.scope();
    let x = outer.alloc::<u8>(100)?;
    {
        let mut b = outer.enter()?;
        let inner = b.scope();
        assert_eq!((inner.depth(), inner.alloc::<u8>(100)?.offset_bytes()), (2, 256));
        b.close()?;
    }
    assert_eq!(outer.stats().used_bytes, 100);
    assert_eq!(outer.alloc::<u8>(100)?.offset_bytes(), 256);
    drop(x);
    drop(a);
    assert_eq!((arena.stats().used_bytes, arena.generation(), arena.resets()), (0, 2, 1));
    Ok(())
}

// B044, promise 6
fn a_panic_leaves_the_arena_where_the_scope_began<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 8 * KIB)?;
    let below = arena.persistent::<u8>(100)?;
    for depth in 1..=3 {
        let generation = arena.generation();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            arena.scope(|step| {
                let _three = (step.alloc::<u8>(1)?, step.alloc::<u8>(1)?, step.alloc::<u8>(1)?);
                if depth == 1 {
                    unwind();
                }
                step.scope(|inner| {
                    let _one = inner.alloc::<u8>(1000)?;
                    let mut guard = inner.enter()?;
                    let _two = guard.scope().alloc::<u8>(1000)?;
                    unwind();
                    #[expect(unreachable_code, reason = "it names the error type")]
                    arena_scope::Ok(())
                })
            })
        }));
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"expected"));
        assert_eq!(arena.stats().used_bytes, 100);
        assert_eq!(arena.generation() - generation, if depth == 1 { 1 } else { 3 });
        arena.scope(|step| {
            assert_eq!((step.depth(), step.alloc::<u8>(1)?.offset_bytes()), (1, 256));
            arena_scope::Ok(())
        })?;
    }
    // Caught inside a scope: the outer one goes on.
    arena.scope(|step| {
        let x = step.alloc::<u8>(1)?;
        let caught = catch_unwind(AssertUnwindSafe(|| {
            step.scope(|inner| {
                let _scratch = inner.alloc::<u8>(1000)?;
                unwind();
                #[expect(unreachable_code, reason = "it names the error type")]
                arena_scope::Ok(())
            })
        }));
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"expected"));
        assert_eq!((step.depth(), step.stats().used_bytes), (1, 257));
        assert!(step.alloc::<u8>(1)?.address() > x.address());
        arena_scope::Ok(())
    })?;
    drop(below);
    Ok(())
}

// Promise 6
fn an_early_return_leaves_the_arena_where_the_scope_began<D: Device>(device: D) -> Outcome {
    #[derive(Debug)]
    enum Mine {
        Arena(Error),
        Stop,
    }
    impl From<Error> for Mine {
        fn from(error: Error) -> Self {
            Self::Arena(error)
        }
    }
    let mut arena = arena(device, 8 * KIB)?;
    let stopped = arena.scope(|step| {
        let _a = step.alloc::<u8>(1000)?;
        step.scope(|inner| {
            let _b = inner.alloc::<u8>(1000)?;
            Err::<(), _>(Mine::Stop)
        })
    });
    assert!(matches!(stopped, Err(Mine::Stop)));
    assert_eq!((arena.stats().used_bytes, arena.generation()), (0, 2));
    let full = arena.scope(|step| {
        let _a = step.alloc::<u8>(1000)?;
        step.scope(|inner| Ok::<_, Mine>(inner.alloc::<u8>(8000).map(drop)?))
    });
    assert!(matches!(full, Err(Mine::Arena(error)) if error.is_exhausted()));
    assert_eq!((arena.stats().used_bytes, arena.generation()), (0, 4));
    Ok(())
}

// B044: a cleanup that fails, under a panic too.
#[rstest]
#[case::panicking(true)]
#[case::returning(false)]
fn a_clearing_that_fails_is_told_once_and_made_up_for(#[case] panicking: bool) -> Outcome {
    let (device, switch) = failing();
    let mut arena = builder(device, 8 * KIB).reset(Reset::Zero).build()?;
    switch.fail_nth(Call::Fill, 1);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        arena.scope(|step| {
            let _dirty = step.upload(&[0xff_u8; 1000])?;
            if panicking {
                unwind();
            }
            arena_scope::Ok(())
        })
    }));
    assert_eq!((arena.stats().used_bytes, arena.resets()), (0, 1));
    if panicking {
        // The body's panic, and no abort.
        assert_eq!(outcome.unwrap_err().downcast_ref(), Some(&"expected"));
        let told = arena.scope(|_| arena_scope::Ok(())).unwrap_err();
        assert!(told.to_string().contains("fill"), "{told}");
    } else {
        let told = outcome.expect("no panic").unwrap_err();
        assert!(told.to_string().contains("fill"), "{told}");
    }
    arena.scope(|step| {
        let bytes = step.alloc::<u8>(1000)?;
        assert_eq!(bytes.as_slice(), [0; 1000], "cleared before it is handed out");
        arena_scope::Ok(())
    })?;
    Ok(())
}

// B044: as long as the clearing fails, no scope opens on memory that should be zero.
#[test]
fn a_clearing_that_keeps_failing_refuses_the_next_scope() -> Outcome {
    let (device, switch) = failing();
    let mut arena = builder(device, 8 * KIB).reset(Reset::Zero).build()?;
    switch.fail_nth(Call::Fill, 1);
    let told = arena.scope(|step| step.upload(&[0xff_u8; 1000]).map(drop)).unwrap_err();
    assert!(told.to_string().contains("fill"), "{told}");
    for _ in 0..3 {
        switch.fail_nth(Call::Fill, 1);
        let told = arena.scope(|_| arena_scope::Ok(())).unwrap_err();
        assert!(told.to_string().contains("fill"), "{told}");
        assert_eq!(arena.stats().used_bytes, 0);
    }
    arena.scope(|step| {
        assert_eq!(step.alloc::<u8>(1000)?.as_slice(), [0; 1000]);
        Ok(())
    })
}

#[test]
fn the_bodys_error_is_the_cause_and_the_failed_clearing_waits() -> Outcome {
    let (device, switch) = failing();
    let mut arena = builder(device, 8 * KIB).reset(Reset::Zero).build()?;
    switch.fail_nth(Call::Fill, 1);
    let error = arena
        .scope(|step| {
            let _dirty = step.upload(&[0xff_u8; 1000])?;
            step.alloc::<u8>(100_000).map(drop)
        })
        .unwrap_err();
    assert!(error.is_exhausted());
    let told = arena.persistent::<u8>(1).unwrap_err();
    assert!(told.to_string().contains("fill"), "{told}");
    arena.check()?;
    assert_eq!(arena.stats().kept_bytes, 0, "the call that told it did nothing else");
    Ok(())
}

#[rstest]
#[case::alloc(|arena: &mut Arena<_>| arena.enter().map(drop))]
#[case::persistent(|arena: &mut Arena<_>| arena.persistent::<u8>(1).map(drop))]
#[case::persistent_from(|arena: &mut Arena<_>| arena.persistent_from(&[1_u8]).map(drop))]
#[case::scope(|arena: &mut Arena<_>| arena.scope(|_| arena_scope::Ok(())))]
#[case::check(|arena: &mut Arena<_>| arena.check())]
fn a_dropped_guards_failure_is_told_by_the_next_fallible_call(
    #[case] next: fn(&mut Arena<arena_scope::device::Failing<Host>>) -> Outcome,
) -> Outcome {
    let (device, switch) = failing();
    let mut arena = builder(device, 8 * KIB).reset(Reset::Zero).build()?;
    let mut guard = arena.enter()?;
    drop(guard.scope().upload(&[1_u8; 10])?);
    switch.fail_nth(Call::Fill, 1);
    drop(guard);
    let told = next(&mut arena).unwrap_err();
    assert!(told.to_string().contains("fill"), "{told}");
    next(&mut arena)
}

// The inner guard's failure is told by the outer scope's next request, fast path or not.
#[test]
fn an_inner_guards_failure_is_told_to_the_outer_scope() -> Outcome {
    let (device, switch) = failing();
    let mut arena = arena(device, 8 * KIB)?;
    arena.scope(|step| {
        let inner = step.enter_with(ScopeOptions::default().reset(Reset::Zero))?;
        let mut inner = inner;
        drop(inner.scope().upload(&[1_u8; 10])?);
        switch.fail_nth(Call::Fill, 1);
        drop(inner);
        let told = step.alloc::<u8>(1).unwrap_err();
        assert!(told.to_string().contains("fill"), "{told}");
        step.alloc::<u8>(1).map(drop)
    })
}

// B046
fn a_forgotten_inner_guard_wastes_bytes_until_the_outer_scope_closes<D: Device>(
    device: D,
) -> Outcome {
    let mut arena = arena(device, 64 * KIB)?;
    arena.scope(|step| {
        let outer = step.upload(&[1_u8; 100])?;
        let mut guard = step.enter()?;
        let inner = guard.scope();
        let leaked = [inner.upload(&[2_u8; 100])?, inner.upload(&[3_u8; 100])?];
        let end = leaked[1].offset_bytes() + 100;
        std::mem::forget(leaked);
        std::mem::forget(guard);

        let next = step.alloc::<u8>(100)?;
        assert!(next.offset_bytes() >= end, "nothing overlaps what was leaked");
        // Opening at the same depth settles the forgotten one; its bytes stay.
        step.scope(|again| {
            assert_eq!(again.depth(), 2);
            assert!(again.alloc::<u8>(1)?.offset_bytes() >= end);
            arena_scope::Ok(())
        })?;
        // The same by a leak, more than one level deep.
        let leaked = Box::leak(Box::new(step.enter()?));
        let mut deeper = leaked.scope();
        let deepest = Box::leak(Box::new(deeper.enter()?));
        drop(deepest.scope().alloc::<u8>(100)?);
        assert!(step.alloc::<u8>(1)?.offset_bytes() > end);
        assert_eq!(step.read(outer.view())?, crate::common::written::<D, _>(&[1_u8; 100]));
        arena_scope::Ok(())
    })?;
    assert_eq!((arena.stats().used_bytes, arena.resets()), (0, 1));
    assert_eq!(arena.generation(), 5, "every scope was closed or settled");
    Ok(())
}

// B046
fn a_forgotten_root_guard_is_settled_by_the_next_scope<D: Device>(device: D) -> Outcome {
    let device = Counting::new(device);
    let counts = device.counts();
    let mut arena = builder(device, 8 * KIB).reset(Reset::Zero).build()?;
    for leak in [false, true] {
        let mut guard = arena.enter()?;
        let mut step = guard.scope();
        drop(step.upload(&[1_u8; 100])?);
        let mut inner = step.enter()?;
        drop(inner.scope().upload(&[1_u8; 1000])?);
        std::mem::forget(inner);
        if leak {
            Box::leak(Box::new(guard));
        } else {
            std::mem::forget(guard);
        }
        assert_eq!(arena.stats().used_bytes, 1256, "its bytes are wasted so far");
        let kept = arena.persistent::<u8>(1)?;
        assert!(kept.offset_bytes() >= 1256);
        let cleared = counts.bytes(Call::Fill);
        arena.scope(|step| {
            assert_eq!((step.depth(), step.alloc::<u8>(1)?.offset_bytes()), (1, 0));
            arena_scope::Ok(())
        })?;
        // The second time with the kept byte of the first.
        let expected = 1256 + 1 + u64::from(leak);
        assert_eq!(counts.bytes(Call::Fill) - cleared, expected, "cleared as its policy says");
    }
    assert_eq!((arena.stats().used_bytes, arena.resets()), (0, 4));
    Ok(())
}

// The policy of a forgotten inner guard is not lost with it.
#[test]
fn a_forgotten_inner_guard_is_cleared_as_it_asked_when_its_bytes_come_back() -> Outcome {
    let mut arena = host(8 * KIB)?;
    arena.scope(|step| {
        let mut guard = step.enter_with(ScopeOptions::default().reset(Reset::Zero))?;
        drop(guard.scope().upload(&[0xff_u8; 1000])?);
        std::mem::forget(guard);
        arena_scope::Ok(())
    })?;
    arena.scope(|step| {
        assert_eq!(step.alloc::<u8>(1000)?.as_slice(), [0; 1000]);
        Ok(())
    })
}

#[test]
fn watching_goes_on_after_a_forgotten_guard_and_ends_when_it_is_told() -> Outcome {
    let mut arena = host(8 * KIB)?;
    arena.observe(None);
    for _ in 0..3 {
        let mut guard = arena.enter()?;
        drop(guard.scope().alloc::<u8>(100)?);
        std::mem::forget(guard);
    }
    let seen = arena.stop_observing().expect("it was watched");
    assert_eq!((seen.steps(), seen.is_stable()), (3, true), "the third ends with the watch");
    assert!(arena.observed().is_none());
    arena.scope(|step| step.alloc::<u8>(1).map(drop))?;
    Ok(())
}

// B049
#[test]
fn the_region_is_released_once_after_the_last_owner() -> Outcome {
    let (device, counts) = counting();
    let mut arena = arena(device, 8 * KIB)?;
    let below = arena.persistent::<u8>(10)?;
    let kept = arena.scope(|step| step.persistent::<u8>(10))?;
    std::mem::forget(arena.enter()?);
    drop(arena);
    drop(below);
    assert_eq!(counts.calls(Call::Release), 0);
    std::thread::spawn(move || drop(kept)).join().expect("no panic");
    assert_eq!((counts.calls(Call::Obtain), counts.calls(Call::Release)), (1, 1));
    Ok(())
}

#[test]
fn trim_keeps_what_the_last_step_used_and_reads_as_zero_above() -> Outcome {
    let mut arena = host(1 << 20)?;
    arena.scope(|step| step.upload(&[1_u8; 500_000]).map(drop))?;
    arena.scope(|step| step.upload(&[2_u8; 1000]).map(drop))?;
    assert!(arena.trim()? > 400_000);
    arena.scope(|step| {
        let all = step.alloc::<u8>(500_000)?;
        assert_eq!(all.as_slice()[..1000], [2; 1000]);
        assert!(all.as_slice()[4096..].iter().all(|byte| *byte == 0));
        Ok(())
    })
}
