//! Exhaustion: exact, immediate, explained, and without a trace.

use arena_scope::device::{Call, Counting};
use arena_scope::errors::Exhausted;
use arena_scope::{Alignment, Arena, Device, Error, Host, Persistent, Reset, ScopeOptions};
use rstest::rstest;

use crate::common::{KIB, MIB, Outcome, arena, at, builder, failing, host};

on_every_device!(
    a_full_arena_says_so_at_once_and_asks_no_driver,
    a_failed_request_leaves_no_trace,
    a_step_that_fails_half_way_leaves_the_arena_at_the_mark,
);

fn facts(error: &Error) -> &Exhausted {
    error.as_exhausted().unwrap_or_else(|| panic!("{error}"))
}

// B034
fn a_full_arena_says_so_at_once_and_asks_no_driver<D: Device>(device: D) -> Outcome {
    let device = Counting::new(device);
    let counts = device.counts();
    let mut arena = arena(device, 64 * KIB)?;
    arena.scope(|step| {
        let _ = (step.alloc::<u8>(48 << 10)?, step.alloc::<u8>(12 << 10)?);
        let error = step.alloc::<u8>(16 << 10).unwrap_err();
        let Exhausted { asked_bytes, used_bytes, capacity_bytes, .. } = facts(&error);
        assert_eq!((*asked_bytes, *used_bytes, *capacity_bytes), (16_384, 61_440, 65_536));
        assert!(step.alloc::<u8>(4 << 10).is_ok(), "the arena remains usable");
        arena_scope::Ok(())
    })?;
    assert_eq!((counts.calls(Call::Obtain), arena.stats().driver_allocations), (1, 1));
    Ok(())
}

// B035
#[test]
fn the_error_tells_a_runaway_request_from_a_missing_reset() -> Outcome {
    let mut arena = host(MIB)?;
    let weights = arena.persistent::<u8>(1000)?;
    arena.mark()?;
    let mib = usize::try_from(MIB).unwrap_or(0);

    arena.observe(None); // else the requests are not counted
    // One runaway request.
    let error = arena
        .scope_named("train", |step| {
            for _ in 0..4 {
                let _ = step.alloc::<u8>(4096)?;
            }
            step.scope_named("micro", |inner| inner.alloc::<u8>(mib).map(drop))
        })
        .unwrap_err();
    let found = facts(&error);
    assert_eq!((found.asked_bytes, found.alignment), (MIB, Alignment::DEFAULT));
    assert_eq!((found.capacity_bytes, found.mark_bytes, found.kept_bytes), (MIB, 1000, 0));
    assert_eq!((found.used_bytes, found.free_bytes), (1024 + 16_384, MIB - 17_408));
    assert_eq!(found.missing_bytes, 17_408);
    let scope = found.scope.as_ref().expect("a scope asked");
    assert_eq!((scope.name, scope.depth, scope.resets), ("micro", 2, 0));
    assert_eq!((scope.requests, scope.largest_bytes), (Some(4), Some(4096)));
    let text = error.to_string();
    for part in ["1048576", "micro", "17408", "1000", "256"] {
        assert!(text.contains(part), "`{part}` in {text}");
    }

    // A reset that is never called: many requests, none of them large.
    let error = arena
        .scope(|step| {
            for _ in 0..300 {
                let _ = step.alloc::<u8>(4096)?;
            }
            arena_scope::Ok(())
        })
        .unwrap_err();
    let scope = facts(&error).scope.as_ref().expect("a scope asked");
    assert_eq!((scope.requests, scope.largest_bytes, scope.resets), (Some(255), Some(4096), 1));

    // A reset in between: the counts begin again.
    for _ in 0..2 {
        arena.scope(|step| {
            for _ in 0..150 {
                let _ = step.alloc::<u8>(4096)?;
            }
            arena_scope::Ok(())
        })?;
    }
    let error = arena.scope(|step| step.alloc::<u8>(mib).map(drop)).unwrap_err();
    let scope = facts(&error).scope.as_ref().expect("a scope asked");
    assert_eq!((scope.requests, scope.largest_bytes, scope.resets), (Some(0), Some(0), 4));
    arena.stop_observing();
    let error = arena.scope(|step| step.alloc::<u8>(mib).map(drop)).unwrap_err();
    let scope = facts(&error).scope.as_ref().expect("a scope asked");
    assert_eq!((scope.requests, scope.largest_bytes, scope.resets), (None, None, 5));
    drop(weights);
    Ok(())
}

// Where nothing is kept: the padding of kept buffers moves with the capacity.
#[test]
fn what_is_said_to_be_missing_is_what_is_missing() -> Outcome {
    fn step(capacity_bytes: u64) -> Outcome {
        host(capacity_bytes)?.scope(|step| {
            let _ = step.alloc_aligned::<u8>(300, Alignment::ONE)?;
            step.alloc_aligned::<u8>(4000, Alignment::new(512)?).map(drop)
        })
    }
    for capacity_bytes in [300, 511, 1000, 4511] {
        let error = step(capacity_bytes).expect_err("it does not fit");
        let missing_bytes = facts(&error).missing_bytes;
        assert!(step(capacity_bytes + missing_bytes).is_ok(), "{capacity_bytes}");
        let one_less = step(capacity_bytes + missing_bytes - 1).unwrap_err();
        assert_eq!(facts(&one_less).missing_bytes, 1, "{capacity_bytes}");
    }
    Ok(())
}

// B036
fn a_failed_request_leaves_no_trace<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 1000)?;
    arena.observe(None);
    arena.scope(|step| {
        let _ = step.alloc_aligned::<u8>(10, Alignment::ONE)?;
        let before = step.stats();
        let refused = [
            step.alloc::<u8>(2000).map(drop),
            step.alloc_zeroed::<u8>(2000).map(drop),
            step.upload(&[0_u8; 2000]).map(drop),
            step.persistent::<u8>(2000).map(drop),
        ];
        assert!(refused.into_iter().all(|outcome| outcome.unwrap_err().is_exhausted()));
        assert_eq!(step.stats(), before);
        assert_eq!((before.used_bytes, before.peak_bytes), (10, 10));
        assert_eq!(step.alloc_aligned::<u8>(10, Alignment::ONE)?.offset_bytes(), 10);
        arena_scope::Ok(())
    })?;
    // Nor in the signature: the same requests without the failed ones.
    let with_failures = arena.last_step_signature();
    arena.scope(|step| {
        let _ = step.alloc_aligned::<u8>(10, Alignment::ONE)?;
        step.alloc_aligned::<u8>(10, Alignment::ONE).map(drop)
    })?;
    assert!(with_failures.is_some());
    assert_eq!(arena.last_step_signature(), with_failures);
    Ok(())
}

// B036: the device may refuse too, after the place was found.
#[rstest]
#[case::keep(Reset::Keep, false)]
#[case::poisoned_fresh_memory(Reset::Poison, false)]
#[case::observed(Reset::Keep, true)]
fn a_request_that_the_device_refuses_leaves_no_trace(
    #[case] reset: Reset,
    #[case] observed: bool,
) -> Outcome {
    let (device, switch) = failing();
    let mut arena = builder(device, 4096).reset(reset).build()?;
    if observed {
        arena.observe(None);
    }
    for fail in [false, true, false] {
        arena.scope(|step| {
            let _ = step.alloc::<u8>(10)?;
            let before = step.stats();
            if fail {
                // The first fill under `Poison` is the poisoning of fresh memory, in step 1.
                switch.fail_nth(Call::Fill, 1);
                let error = step.alloc_zeroed::<u8>(2000).unwrap_err();
                assert!(error.to_string().contains("fill"), "{error}");
                switch.fail_nth(Call::CopyIn, 1);
                let error = step.upload(&[1_u8; 2000]).unwrap_err();
                assert!(error.to_string().contains("copy_in"), "{error}");
                switch.fail_nth(Call::CopyWithin, 1);
                assert!(step.promote(step.alloc::<u8>(0)?.view()).is_ok(), "no call, no failure");
                switch.fail_nth(Call::CopyWithin, 0);
                assert_eq!(step.stats(), before);
            } else {
                let _ = step.alloc::<u8>(0)?;
            }
            let _ = step.alloc::<u8>(1000)?;
            arena_scope::Ok(())
        })?;
    }
    assert_eq!(arena.observed().map(|seen| seen.is_stable()), observed.then_some(true));
    Ok(())
}

#[test]
fn a_poisoning_that_the_device_refuses_leaves_no_trace() -> Outcome {
    let (device, switch) = failing();
    let mut arena = builder(device, 4096).reset(Reset::Poison).build()?;
    arena.scope(|step| {
        let before = step.stats();
        switch.fail_nth(Call::Fill, 1);
        let error = step.alloc::<u8>(100).unwrap_err();
        assert!(error.to_string().contains("fill"), "{error}");
        assert_eq!(step.stats(), before);
        assert_eq!(step.alloc::<u8>(100)?.as_slice(), [0xff; 100]);
        Ok(())
    })
}

// B037
#[rstest]
#[case::to_the_last_byte(1024, &[(512, 256, Some(0)), (512, 256, Some(512)), (1, 1, None)])]
#[case::size_is_not_rounded(556, &[(256, 256, Some(0)), (300, 256, Some(256)), (1, 1, None)])]
#[case::padding_counts_once(30, &[(10, 1, Some(0)), (14, 16, Some(16)), (1, 1, None)])]
#[case::one_byte_short(29, &[(10, 1, Some(0)), (14, 16, None), (13, 16, Some(16))])]
fn the_exact_fit_succeeds(
    #[case] capacity: u64,
    #[case] requests: &[(usize, u64, Option<u64>)],
) -> Outcome {
    let mut arena = at(1 << 20, capacity)?;
    arena.scope(|step| {
        for &(bytes, alignment, wanted) in requests {
            let outcome = step.alloc_aligned::<u8>(bytes, Alignment::new(alignment)?);
            let offset = outcome.map(|buffer| buffer.offset_bytes());
            assert_eq!(offset.as_ref().ok(), wanted.as_ref(), "{bytes} at {alignment}");
            if let Err(error) = offset {
                assert!(error.is_exhausted());
            }
        }
        Ok(())
    })
}

// B037: transient and kept meet in the middle, to the byte.
#[test]
fn kept_and_transient_share_the_last_byte() -> Outcome {
    let mut arena = host(2048)?;
    arena.scope(|step| {
        let kept = step.persistent::<u8>(1024)?;
        assert!(step.alloc::<u8>(1025).unwrap_err().is_exhausted());
        let all = step.alloc::<u8>(1024)?;
        assert_eq!((all.offset_bytes(), kept.offset_bytes()), (0, 1024));
        assert_eq!(step.stats().free_bytes, 0);
        assert!(step.persistent::<u8>(1).unwrap_err().is_exhausted());
        assert!(step.alloc_aligned::<u8>(1, Alignment::ONE).unwrap_err().is_exhausted());
        Ok(())
    })
}

// B038
fn a_step_that_fails_half_way_leaves_the_arena_at_the_mark<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 64 * KIB)?;
    let weights = arena.persistent_from(&[1.5_f32; 100])?;
    arena.mark()?;
    let moments = arena.persistent_from(&[2.5_f32; 100])?;
    let before = (weights.view().to_vec()?, moments.view().to_vec()?);
    let peak = {
        let mut step = |batch: usize| {
            arena.scope(|step| {
                let x = step.upload(&vec![1.0_f32; batch * 100])?;
                step.scope(|inner| inner.alloc::<f32>(x.len()).map(drop))
            })
        };
        assert!(step(128).unwrap_err().is_exhausted());
        step(64)?;
        arena.stats()
    };
    assert_eq!(peak.used_bytes, peak.mark_bytes);
    assert_eq!((weights.view().to_vec()?, moments.view().to_vec()?), before);
    Ok(())
}

// B038
#[test]
fn a_retry_gives_the_results_of_a_clean_run() -> Outcome {
    fn step(arena: &mut Arena<Host>, weights: &mut Persistent<f32>, batch: usize) -> Outcome {
        arena.scope_with(ScopeOptions::named("train"), |step| {
            let mut x = step.alloc::<f32>(batch * 100)?;
            x.as_mut_slice().iter_mut().zip(1_u16..).for_each(|(x, n)| *x = 1.0 / f32::from(n));
            let mut y = step.alloc::<f32>(batch * 100)?;
            y.view_mut().copy_from(x.view())?;
            let sum: f32 = y.as_slice().iter().sum();
            weights.as_mut_slice().iter_mut().for_each(|weight| *weight -= 0.01 * sum);
            Ok(())
        })
    }
    let run = |batches: &[usize]| -> Result<Vec<u32>, Error> {
        let mut arena = host(64 * KIB)?;
        let mut weights = arena.persistent_from(&[1.0_f32; 10])?;
        for &batch in batches {
            if let Err(error) = step(&mut arena, &mut weights, batch) {
                assert!(error.is_exhausted());
            }
            assert_eq!(arena.stats().used_bytes, arena.stats().mark_bytes);
        }
        Ok(weights.as_slice().iter().map(|weight| weight.to_bits()).collect())
    };
    assert_eq!(run(&[128, 64, 64])?, run(&[64, 64])?);
    Ok(())
}

// B042
#[test]
fn a_thousand_odd_sizes_waste_less_than_their_alignment_each() -> Outcome {
    let mut arena = host(8 * MIB)?;
    arena.scope(|step| {
        for _ in 0..1000 {
            let _ = step.alloc::<u8>(4097)?;
        }
        assert_eq!(step.stats().used_bytes, 4_351_745);
        Ok(())
    })
}
