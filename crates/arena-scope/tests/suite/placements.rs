//! Placements: the same program, the same results, wherever its buffers lie; and an overrun that
//! separate allocations find.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arena_scope::device::{Call, CallCounts};
use arena_scope::errors::GuardZone;
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::record::{StepLog, StepSignature};
use arena_scope::steady::NotSteady;
use arena_scope::{
    Alignment, Arena, ByteSize, Device, Error, ErrorKind, Host, Placement, Probe, RegionKind,
    Reset, Scope, ScopeOptions, Stats, StepKey, Transient,
};
use rstest::rstest;

use crate::common::{KIB, Outcome, builder, counting, failing};

const NAMED: StepKey = StepKey::named("train");

/// Everything that a program can tell of a few steps without looking at an address.
#[derive(Debug, PartialEq)]
struct Told {
    values: Vec<Vec<u32>>,
    offsets_bytes: Vec<u64>,
    inside: Vec<Stats>,
    after: Stats,
    signature: Option<StepSignature>,
    high_water_bytes: u64,
    record: Option<StepLog>,
}

/// How much memory was obtained, and how often, differs, and nothing else.
fn without_allocations(stats: Stats) -> Stats {
    let mut stats = stats;
    (stats.driver_allocations, stats.committed_bytes) = (0, 0);
    stats
}

/// Three steps: persistent, kept, nested, empty, dropped early, promoted, an error, a forgotten guard.
fn steps<D: Device>(mut arena: Arena<D>) -> Result<Told, Error> {
    let mut weights = arena.persistent_from(&[1_u32; 25])?;
    arena.record(None);
    let mut told = Told {
        values: Vec::new(),
        offsets_bytes: Vec::new(),
        inside: Vec::new(),
        after: arena.stats(),
        signature: None,
        high_water_bytes: 0,
        record: None,
    };
    for n in 0..3_u32 {
        arena.scope_with(NAMED, |step| {
            let x = step.upload(&[n; 100])?;
            let zeros = step.alloc_zeroed::<u32>(7)?;
            let mut sum = step.alloc_aligned::<u32>(1, Alignment::new(1024)?)?;
            assert!(step.alloc::<u32>(0)?.is_empty());
            let refused: Result<(), Error> = step.scope(|inner| {
                let mut y = inner.alloc::<u32>(100)?;
                y.view_mut().copy_from(x.view())?;
                let whole = inner.read(y.view())?.iter().sum::<u32>();
                drop(y);
                sum.view_mut().write(&[whole])?;
                inner.alloc::<u8>(1 << 40).map(drop)
            });
            assert!(refused.unwrap_err().is_exhausted());
            std::mem::forget(step.enter()?.scope().upload(&[5_u32; 3])?);
            let mut guard = step.enter()?;
            let forgotten = guard.scope().upload(&[6_u32; 9])?.offset_bytes();
            std::mem::forget(guard);
            let last = step.upload(&[n + 7; 3])?;
            weights = step.promote(step.upload(&[n; 25])?.view())?;
            told.values.push(step.read(x.view())?);
            told.values.push(step.read(zeros.view())?);
            told.values.push(step.read(sum.view())?);
            told.values.push(step.read(last.view())?);
            told.values.push(step.read(weights.view())?);
            told.offsets_bytes.extend([x.offset_bytes(), sum.offset_bytes(), forgotten]);
            told.offsets_bytes.extend([last.offset_bytes(), weights.offset_bytes()]);
            told.inside.push(without_allocations(step.stats()));
            arena_scope::Ok(())
        })?;
    }
    told.after = without_allocations(arena.stats());
    told.signature = arena.last_step_signature();
    told.high_water_bytes = arena.last_step_high_water_bytes();
    told.record = arena.recorded(NAMED);
    assert!(arena.observed().is_some_and(|seen| seen.is_stable()));
    Ok(told)
}

// B076
#[rstest]
fn results_figures_and_signatures_are_the_same_under_every_placement_in_every_kind_of_region(
    #[values(
        Placement::Bump,
        Placement::Separate,
        Placement::Unguarded,
        Placement::Shuffled { seed: 1 },
        Placement::Shuffled { seed: 2 },
        Placement::Shuffled { seed: u64::MAX }
    )]
    placement: Placement,
    #[values(Reset::Keep, Reset::Zero, Reset::Poison)] reset: Reset,
    #[values(RegionKind::Fixed, RegionKind::Virtual)] kind: RegionKind,
) -> Outcome {
    let with = |placement, kind| {
        let builder = builder(Host::new(), 16 * KIB).reset(reset).commit_ahead(ByteSize::kib(0));
        steps(builder.placement(placement).region(kind).build()?)
    };
    let bumped = with(Placement::Bump, RegionKind::Fixed)?;
    assert_eq!(with(placement, kind)?, bumped);
    assert_eq!(bumped.values[2], [0], "the values are the program's");
    assert_eq!(bumped.values[7], [100]);
    Ok(())
}

#[rstest]
fn a_device_that_only_measures_bumps_under_every_placement(
    #[values(Placement::Separate, Placement::Unguarded, Placement::Shuffled { seed: 1 })]
    placement: Placement,
) -> Outcome {
    let with = |placement| steps(builder(Probe::new(), 16 * KIB).placement(placement).build()?);
    assert_eq!(with(placement)?, with(Placement::Bump)?);
    Ok(())
}

fn address_range<D: Device>(buffer: &Transient<'_, u8, D>) -> (u64, u64) {
    (buffer.address(), buffer.address() + buffer.len() as u64)
}

#[rstest]
fn buffers_are_aligned_disjoint_and_outside_the_persistent_part(
    #[values(
        Placement::Bump,
        Placement::Separate,
        Placement::Unguarded,
        Placement::Shuffled { seed: 1 },
        Placement::Shuffled { seed: 2 }
    )]
    placement: Placement,
    #[values(RegionKind::Fixed, RegionKind::Virtual)] kind: RegionKind,
) -> Outcome {
    let mut arena = builder(Host::new(), 64 << 20).placement(placement).region(kind).build()?;
    let weights = arena.persistent::<u8>(777)?;
    arena.scope(|step| {
        let mut buffers = Vec::new();
        // Above the 2 MiB that a region's base is aligned to as well.
        for log in (0..=23).chain([3, 8]) {
            let alignment = Alignment::new(1 << log)?;
            let mut buffer = step.alloc_aligned::<u8>(100 + log as usize, alignment)?;
            assert!(alignment.divides(buffer.address()));
            buffer.as_mut_slice().fill(u8::try_from(buffers.len()).unwrap_or(0));
            buffers.push(buffer);
        }
        for (n, buffer) in buffers.iter().enumerate() {
            assert!(buffer.as_slice().iter().all(|byte| usize::from(*byte) == n));
        }
        let mut ranges: Vec<_> = buffers.iter().map(address_range).collect();
        ranges.push((weights.address(), weights.address() + 777));
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
        arena_scope::Ok(())
    })
}

type Counted = (Arena<arena_scope::device::Counting<Host>>, CallCounts);

fn counted(placement: Placement) -> Result<Counted, Error> {
    let (device, counts) = counting();
    Ok((builder(device, 64 * KIB).placement(placement).build()?, counts))
}

fn separate() -> Result<Counted, Error> {
    counted(Placement::Separate)
}

/// Allocations of the device less the region's, and releases.
fn traffic(counts: &CallCounts) -> (u64, u64) {
    (counts.calls(Call::Obtain) - 1, counts.calls(Call::Release))
}

// B076
#[test]
fn each_buffer_is_obtained_once_and_released_when_its_scope_closes() -> Outcome {
    let (mut arena, counts) = separate()?;
    arena.scope(|step| {
        let x = step.upload(&[1_u8; 100])?;
        drop(step.alloc::<u8>(10)?);
        assert_eq!(traffic(&counts), (2, 0), "a drop releases nothing");
        step.scope(|inner| inner.alloc::<u8>(20).map(drop))?;
        assert_eq!(traffic(&counts), (3, 1));
        assert!(step.alloc::<u8>(0)?.is_empty());
        assert_eq!(traffic(&counts), (3, 1), "an empty buffer costs no call");
        assert_eq!(x.as_slice(), [1; 100]);
        assert_eq!(step.stats().driver_allocations, 1 + 3);
        arena_scope::Ok(())
    })?;
    assert_eq!(traffic(&counts), (3, 3));
    drop(arena);
    assert_eq!(
        (traffic(&counts), counts.bytes(Call::Obtain)),
        ((3, 4), counts.bytes(Call::Release))
    );
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum End {
    Error,
    Panic,
    Forgotten,
    ForgottenInside,
    ForgottenAndDropped,
}

#[rstest]
fn whatever_happens_in_a_step_its_memory_is_released(
    #[values(
        End::Error,
        End::Panic,
        End::Forgotten,
        End::ForgottenInside,
        End::ForgottenAndDropped
    )]
    end: End,
) -> Outcome {
    let (mut arena, counts) = separate()?;
    match end {
        End::Error => {
            let outcome = arena.scope(|step| {
                let _x = step.alloc::<u8>(100)?;
                step.alloc::<u8>(1 << 30).map(drop)
            });
            assert!(outcome.unwrap_err().is_exhausted());
        }
        End::Panic => {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                arena.scope(|step| {
                    let _x = step.alloc::<u8>(100)?;
                    step.scope(|inner| {
                        let _y = inner.alloc::<u8>(100)?;
                        if inner.depth() == 2 {
                            panic!("told to");
                        }
                        arena_scope::Ok(())
                    })
                })
            }));
            assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"told to"));
        }
        End::Forgotten | End::ForgottenAndDropped => {
            let mut guard = arena.enter()?;
            guard.scope().alloc::<u8>(100)?;
            std::mem::forget(guard);
        }
        End::ForgottenInside => arena.scope(|step| {
            let mut guard = step.enter()?;
            guard.scope().alloc::<u8>(100)?;
            std::mem::forget(guard);
            let after = step.upload(&[4_u8; 5])?;
            assert_eq!(traffic(&counts), (2, 0), "it comes back with the scope around it");
            assert_eq!(after.as_slice(), [4; 5]);
            arena_scope::Ok(())
        })?,
    }
    if !matches!(end, End::ForgottenAndDropped) {
        // Opening the next scope settles what was forgotten.
        arena.scope(|step| step.upload(&[1_u8; 100]).map(drop))?;
        let (obtained, released) = traffic(&counts);
        assert_eq!(obtained, released);
        assert_eq!(arena.stats().used_bytes, arena.stats().mark_bytes);
    }
    drop(arena);
    assert_eq!(counts.calls(Call::Obtain), counts.calls(Call::Release));
    Ok(())
}

/// What a kernel with a wrong bound does: one byte outside a buffer.
fn write_at<D: Device>(step: &Scope<'_, '_, D>, buffer: &Transient<'_, u8, D>, offset: i64) {
    let address = buffer.address().wrapping_add_signed(offset);
    // SAFETY: the byte lies in the buffer's allocation, in the guard zone around it.
    let written = unsafe { step.device().copy_in(address, &[7]) };
    written.unwrap_or_else(|error| panic!("{error}"));
}

fn found(error: &Error) -> &GuardZone {
    match error.kind() {
        ErrorKind::GuardZone(found) => found,
        ErrorKind::ClosingFailed { scope: "train" | "scope", depth: 1, cause } => found(cause),
        _ => panic!("{error}"),
    }
}

// B076
#[rstest]
#[case::right_behind(100)]
#[case::at_the_end_of_the_zone(100 + 255)]
#[case::right_before(-1)]
#[case::at_the_start_of_the_zone(-256)]
fn a_write_one_byte_outside_a_buffer_is_found_at_the_close_and_names_the_buffer(
    #[case] offset: i64,
    #[values(Reset::Keep, Reset::Zero, Reset::Poison)] reset: Reset,
) -> Outcome {
    let (mut arena, counts) = separate()?;
    let error = arena
        .scope_with(ScopeOptions::from(NAMED).reset(reset), |step| {
            let _first = step.alloc::<u8>(10)?;
            let x = step.alloc_aligned::<u8>(100, Alignment::ONE)?;
            let _last = step.alloc::<u8>(30)?;
            write_at(step, &x, offset);
            arena_scope::Ok(())
        })
        .unwrap_err();
    let GuardZone { scope, request, bytes, offset_bytes, .. } = *found(&error);
    assert_eq!((scope, request, bytes, offset_bytes), ("train", 1, 100, offset));
    assert!(error.to_string().contains("request 1 of the step, size in bytes 100"), "{error}");
    assert_eq!(traffic(&counts), (3, 3), "all the same everything is released");
    // It is told once, and the arena goes on.
    arena.scope(|step| step.upload(&[1_u8; 100]).map(drop))
}

#[test]
fn an_overrun_in_an_inner_scope_is_found_when_that_closes() -> Outcome {
    let (mut arena, _) = separate()?;
    arena.scope(|step| {
        let _outer = step.alloc::<u8>(1)?;
        let error = step
            .scope_named("backward", |inner| {
                let x = inner.alloc::<u8>(3)?;
                write_at(inner, &x, 3);
                arena_scope::Ok(())
            })
            .unwrap_err();
        let GuardZone { scope, request, .. } = *found(&error);
        assert_eq!((scope, request), ("backward", 1));
        step.alloc::<u8>(1).map(drop)
    })
}

#[test]
fn an_overrun_that_a_guard_or_a_failed_step_cannot_tell_waits_for_the_next_call() -> Outcome {
    let (mut arena, _) = separate()?;
    let mut guard = arena.enter_with(NAMED)?;
    let step = guard.scope();
    write_at(&step, &step.alloc::<u8>(3)?, 3);
    drop(guard);
    assert_eq!(found(&arena.enter().unwrap_err()).scope, "train");
    arena.check()?;
    let failed = arena.scope(|step| {
        write_at(step, &step.alloc::<u8>(3)?, -7);
        step.alloc::<u8>(1 << 30).map(drop)
    });
    assert!(failed.unwrap_err().is_exhausted(), "the body's error is the cause");
    assert_eq!(found(&arena.check().unwrap_err()).offset_bytes, -7);
    arena.check()
}

#[rstest]
#[case::separate(Placement::Separate, Reset::Keep, 0)]
#[case::zero(Placement::Separate, Reset::Zero, 0)]
#[case::poison(Placement::Separate, Reset::Poison, 0xff)]
#[case::unguarded(Placement::Unguarded, Reset::Poison, 0xff)]
#[case::shuffled(Placement::Shuffled { seed: 1 }, Reset::Keep, 0)]
#[case::shuffled_and_poisoned(Placement::Shuffled { seed: 1 }, Reset::Poison, 0xff)]
fn fresh_buffers_hold_zeros_or_poison(
    #[case] placement: Placement,
    #[case] reset: Reset,
    #[case] byte: u8,
) -> Outcome {
    let mut arena = builder(Host::new(), 64 * KIB).reset(reset).placement(placement).build()?;
    for _ in 0..30 {
        arena.scope(|step| {
            let mut x = step.alloc::<u8>(5000)?;
            assert!(x.as_slice().iter().all(|found| *found == byte));
            x.as_mut_slice().fill(1);
            arena_scope::Ok(())
        })?;
    }
    Ok(())
}

#[rstest]
#[case::keep(Reset::Keep, 0)]
#[case::zero(Reset::Zero, 130)]
#[case::poison(Reset::Poison, 130)]
fn a_close_clears_each_buffer_before_it_releases_it(
    #[case] reset: Reset,
    #[case] cleared_bytes: u64,
    #[values(Placement::Separate, Placement::Shuffled { seed: 1 })] placement: Placement,
) -> Outcome {
    let (mut arena, counts) = counted(placement)?;
    let mut before = 0;
    arena.scope_with(ScopeOptions::from(NAMED).reset(reset), |step| {
        let _x = step.alloc::<u8>(100)?;
        let _y = step.alloc::<u8>(30)?;
        before = counts.bytes(Call::Fill);
        arena_scope::Ok(())
    })?;
    assert_eq!(counts.bytes(Call::Fill) - before, cleared_bytes);
    Ok(())
}

#[rstest]
#[case::allocation(Call::Obtain, 1)]
#[case::guard_zones(Call::Fill, 1)]
#[case::contents(Call::Fill, 2)]
#[case::upload(Call::CopyIn, 1)]
fn a_request_that_the_device_refuses_changes_nothing(
    #[case] call: Call,
    #[case] n: u64,
) -> Outcome {
    let (device, switch) = failing();
    let device = arena_scope::device::Counting::new(device);
    let counts = device.counts();
    let mut arena = builder(device, 64 * KIB).placement(Placement::Separate).build()?;
    arena.scope(|step| {
        let x = step.upload(&[1_u8; 100])?;
        let before = without_allocations(step.stats());
        switch.fail_nth(call, n);
        assert!(matches!(step.upload(&[2_u8; 50]).unwrap_err().kind(), ErrorKind::Device(_)));
        assert_eq!(without_allocations(step.stats()), before);
        let obtained = u64::from(call != Call::Obtain);
        assert_eq!(counts.calls(Call::Release), obtained, "nothing is held for it");
        assert_eq!(step.upload(&[3_u8; 50])?.as_slice(), [3; 50]);
        assert_eq!(x.as_slice(), [1; 100]);
        arena_scope::Ok(())
    })?;
    let request = arena.scope(|step| {
        drop(step.alloc::<u8>(1)?);
        switch.fail_nth(call, n);
        assert!(matches!(step.upload(&[2_u8; 50]).unwrap_err().kind(), ErrorKind::Device(_)));
        let error = step.scope(|inner| {
            write_at(inner, &inner.alloc::<u8>(1)?, 1);
            arena_scope::Ok(())
        });
        arena_scope::Ok(found(&error.unwrap_err()).request)
    })?;
    assert_eq!(request, 1, "it counts for nothing, and each step counts anew");
    drop(arena);
    let refused = 2 * u64::from(call == Call::Obtain);
    assert_eq!(counts.calls(Call::Obtain) - refused, counts.calls(Call::Release));
    Ok(())
}

#[rstest]
#[case::release(Call::Release)]
#[case::reading_a_guard_zone(Call::CopyOut)]
fn a_close_that_the_device_refuses_says_so_and_releases_the_rest(#[case] call: Call) -> Outcome {
    let (device, switch) = failing();
    let device = arena_scope::device::Counting::new(device);
    let counts = device.counts();
    let mut arena = builder(device, 64 * KIB).placement(Placement::Separate).build()?;
    let outcome = arena.scope(|step| {
        let _x = step.upload(&[1_u8; 100])?;
        let _y = step.upload(&[2_u8; 100])?;
        switch.fail_nth(call, 1);
        arena_scope::Ok(())
    });
    assert!(matches!(outcome.unwrap_err().kind(), ErrorKind::Device(_)));
    assert_eq!(traffic(&counts), (2, 2));
    arena.scope(|step| step.upload(&[1_u8; 100]).map(drop))
}

#[test]
fn in_separate_allocations_a_plan_is_not_followed_and_its_step_bumps() -> Outcome {
    let (mut arena, counts) = separate()?;
    let slots = [(0, 100), (0, 100)].map(|(offset_bytes, bytes)| PlannedSlot {
        offset_bytes,
        bytes,
        alignment: Alignment::DEFAULT,
    });
    arena.install_plan(NAMED, SlotTable::new(&slots)?)?;
    arena.scope_with(NAMED, |step| {
        drop(step.alloc::<u8>(100)?);
        assert_eq!(step.alloc::<u8>(100)?.offset_bytes(), 256);
        arena_scope::Ok(())
    })?;
    assert_eq!(traffic(&counts), (2, 2));
    assert_eq!(arena.plan_deviations(NAMED).map(|seen| seen.steps), Some(0));
    Ok(())
}

#[test]
fn a_loop_that_obtains_each_buffer_from_the_driver_is_not_steady() -> Outcome {
    let mut arena = builder(Host::new(), 64 * KIB).placement(Placement::Separate).build()?;
    let seen = arena.steady_state(4, |arena, _| {
        arena.scope_with(NAMED, |step| step.alloc::<f32>(100).map(drop))
    })?;
    let late = NotSteady::DriverAllocations { key: StepKey::named("train"), allocations: 3 };
    assert_eq!(seen.check(), Err(late));
    Ok(())
}
