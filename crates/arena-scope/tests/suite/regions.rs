//! A region that grows and gives back under a program, on the host: what moves (nothing), and what memory it takes.

use std::hint::black_box;

use arena_scope::device::{Call, Counting, Failing};
use arena_scope::errors::DeviceErrorKind;
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::{
    Alignment, Arena, ByteSize, Device, Error, ErrorKind, Host, Persistent, Probe, RegionKind,
    Scope, StepKey,
};
use rstest::rstest;

use crate::common::{KIB, MIB, Outcome, builder};

const GIB: u64 = 1 << 30;
const PAGE: u64 = 4096;

fn virtual_region<D: Device>(device: D, capacity_bytes: u64) -> Result<Arena<D>, Error> {
    builder(device, capacity_bytes).region(RegionKind::Virtual).build()
}

/// Resident memory of this process in bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * PAGE
}

/// A step of so many bytes, of which the first and the last are written.
fn touch(step: &Scope<'_, '_, Host>, bytes: u64) -> Result<u64, Error> {
    let mut buffer = step.alloc::<u8>(usize::try_from(bytes).unwrap())?;
    let address = buffer.address();
    let all = buffer.as_mut_slice();
    (all[0], all[all.len() - 1]) = (1, 2);
    black_box(all);
    Ok(address)
}

// From 1 MiB to 4 GiB in one run.
#[test]
fn a_region_grows_four_thousandfold_and_nothing_moves() -> Outcome {
    let mut arena = virtual_region(Host::new(), 8 * GIB)?;
    let weights = arena.persistent_from(&[1.5_f32; 1000])?;
    let slot = PlannedSlot { offset_bytes: 0, bytes: 256 * KIB, alignment: Alignment::DEFAULT };
    let planned = StepKey::named("planned");
    arena.install_plan(planned, SlotTable::new(&[slot; 3])?)?;
    let kept = arena.persistent_from(&[2.5_f32; 1000])?;
    let addresses = (arena.base_address(), weights.address(), kept.address());
    let mut first = None;
    for bytes in (20..=32).map(|log| 1_u64 << log) {
        let at = arena.scope(|step| touch(step, bytes))?;
        assert_eq!(*first.get_or_insert(at), at);
        assert_eq!(arena.last_step_high_water_bytes(), at - arena.base_address() + bytes);
        arena.scope_with(planned, |step| {
            (0..3).try_for_each(|_| step.alloc_zeroed::<u8>(256 << 10).map(drop))
        })?;
    }
    assert!(arena.stats().committed_bytes >= 4 * GIB);
    assert!(arena.stats().driver_allocations < 16, "{:?}", arena.stats());
    assert_eq!((arena.base_address(), weights.address(), kept.address()), addresses);
    assert_eq!((weights.as_slice(), kept.as_slice()), (&[1.5; 1000][..], &[2.5; 1000][..]));
    assert!(arena.plan_deviations(planned).is_some_and(|seen| seen.steps == 0));
    Ok(())
}

#[test]
fn after_a_trim_the_process_holds_what_is_in_use() {
    arena_testing::alone(|| grow_and_trim().unwrap());
}

fn grow_and_trim() -> Outcome {
    const TOUCHED: usize = 256 << 20;
    let mut arena = virtual_region(Host::new(), 64 * GIB)?;
    let weights = arena.persistent_from(&vec![1_u8; 3 << 20])?;
    let before = resident_bytes();
    arena.scope(|step| step.alloc::<u8>(TOUCHED)?.view_mut().fill_bytes(3))?;
    let grown = resident_bytes() - before;
    assert!(grown > 250 * MIB, "{grown}");
    assert!(arena.trim_to(0)? >= 256 * MIB);
    let left = resident_bytes().saturating_sub(before);
    assert!(left < 2 * MIB, "{left}: the least that is committed ahead");
    assert_eq!(weights.as_slice(), vec![1; 3 << 20]);
    arena.scope(|step| step.alloc::<u8>(TOUCHED)?.view_mut().fill_bytes(4))?;
    assert!(resident_bytes() - before > 250 * MIB, "it comes again");
    Ok(())
}

#[test]
fn a_steady_loop_commits_nothing_and_is_steady() -> Outcome {
    let device = Counting::new(Host::new());
    let counts = device.counts();
    let mut arena = virtual_region(device, GIB)?;
    arena.observe(None);
    let mut last = arena.persistent_from(&[0_u8; 10])?;
    for n in 0..20 {
        last = arena.scope_named("train", |step| {
            let x = step.upload(&vec![7_u8; 5 << 20])?;
            step.promote(x.view().range(..10)?)
        })?;
        // The first steps grow, at both ends.
        if n == 2 {
            arena.observe(None);
        }
    }
    assert_eq!(last.as_slice(), [7; 10]);
    let seen = arena.observed().expect("it is observed");
    assert!(seen.is_stable(), "{seen:?}");
    assert_eq!(seen.kinds[0].late_driver_allocations, 0, "{seen:?}");
    assert_eq!(counts.calls(Call::Commit), 3, "two at the bottom, one at the top");
    Ok(())
}

// --- fit --------------------------------------------------------------------------------------

#[test]
fn fit_keeps_what_the_plans_need_to_the_unit() -> Outcome {
    let mut arena = virtual_region(Host::new(), 64 * GIB)?;
    let _weights = arena.persistent::<u8>(10_000)?;
    let train = StepKey::named("train");
    // As it would be bumped: 60 MiB.
    arena
        .scope_with(train, |step| (0..6).try_for_each(|_| step.alloc::<u8>(10 << 20).map(drop)))?;
    assert!(arena.stats().committed_bytes > 60 * MIB);
    let slot = PlannedSlot { offset_bytes: 0, bytes: 10 * MIB, alignment: Alignment::DEFAULT };
    arena.install_plan(train, SlotTable::new(&[slot; 6])?)?;
    arena.fit()?;
    let planned = arena.plan_span(train).expect("there is a plan").end_bytes;
    assert_eq!(arena.stats().committed_bytes, planned.next_multiple_of(PAGE));
    for _ in 0..3 {
        arena.scope_with(train, |step| {
            (0..6).try_for_each(|_| step.alloc::<u8>(10 << 20).map(drop))
        })?;
    }
    assert_eq!(arena.stats().committed_bytes, planned.next_multiple_of(PAGE));
    Ok(())
}

#[rstest]
#[case::observed(true, 9)]
#[case::by_the_highest_cursor(false, 12)]
fn fit_without_plans_keeps_what_the_steps_took(
    #[case] observes: bool,
    #[case] kept_mib: u64,
) -> Outcome {
    let mut arena = virtual_region(Host::new(), GIB)?;
    arena.scope(|step| step.alloc::<u8>(12 << 20).map(drop))?;
    if observes {
        arena.observe(None);
    }
    for (name, mib) in [("train", 9), ("evaluate", 4)] {
        arena.scope_named(name, |step| step.alloc::<u8>(mib << 20).map(drop))?;
    }
    arena.fit()?;
    assert_eq!(arena.stats().committed_bytes, kept_mib * MIB);
    Ok(())
}

// --- figures and refusals ---------------------------------------------------------------------

#[test]
fn the_status_tells_what_is_used_and_what_of_it_is_memory() -> Outcome {
    let mut arena = virtual_region(Host::new(), 64 * GIB)?;
    let _weights = arena.persistent::<u8>(MIB as usize)?;
    arena.scope(|step| step.alloc::<u8>(7 << 20).map(drop))?;
    let _kept = arena.persistent::<u8>(MIB as usize)?;
    let status = arena.status();
    let memory = status.memory.clone().expect("the host tells");
    let text = status.to_string();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert_eq!(lines[0], "used 1.00 MiB, persistent 1.00 MiB, kept 1.00 MiB, high-water 8.00 MiB");
    let total = ByteSize::bytes_exact(memory.total_bytes);
    assert!(lines[1].starts_with("committed 10.00 MiB of 64.00 GiB, host: free "), "{text}");
    assert!(lines[1].ends_with(&format!(" of {total}")), "{text}");
    Ok(())
}

#[test]
fn a_commit_that_is_refused_is_an_error_and_the_arena_goes_on() -> Outcome {
    let device = Failing::new(Host::new());
    let switch = device.switch();
    let mut arena = virtual_region(device, GIB)?;
    for call in 1..=2 {
        // What is wished, and then what is needed.
        switch.fail_nth(Call::Commit, call);
        let large = arena.scope(|step| step.alloc::<u8>(1000).map(|x| x.len()));
        assert_eq!(large?, 1000, "one of the two is enough");
        switch.fail_nth(Call::Commit, 0);
        arena.trim_to(0)?;
    }
    switch.fail_nth(Call::Commit, 1);
    let refused = arena.scope(|step| step.alloc::<u8>(5 << 20).map(drop)).unwrap_err();
    let ErrorKind::Device(error) = refused.kind() else { panic!("{refused}") };
    assert_eq!((error.call, error.kind), ("commit", DeviceErrorKind::Refused));
    arena.scope(|step| step.alloc::<u8>(5 << 20).map(drop))
}

// The capacity is the limit: the addresses that were reserved.
#[test]
fn what_does_not_fit_under_the_capacity_is_exhausted_as_ever() -> Outcome {
    let mut arena = virtual_region(Host::new(), 3 * MIB + 5)?;
    let error = arena.scope(|step| step.alloc::<u8>((3 << 20) + 6).map(drop)).unwrap_err();
    let facts = error.as_exhausted().expect("it does not fit");
    assert_eq!((facts.capacity_bytes, facts.missing_bytes), (3 * MIB + 5, 1));
    arena.scope(|step| step.alloc_zeroed::<u8>((3 << 20) + 5).map(drop))
}

#[test]
fn a_probe_finds_the_same_capacity_in_either_kind_of_region() -> Outcome {
    let run = |kind| {
        let mut probe = builder(Probe::new(), GIB).region(kind).build()?;
        let _kept = probe.scope(|step| {
            step.alloc::<u8>(1000)?;
            step.promote(step.alloc::<u8>(300)?.view())
        })?;
        arena_scope::Ok(probe.smallest_capacity_bytes())
    };
    assert_eq!(run(RegionKind::Virtual)?, run(RegionKind::Fixed)?);
    Ok(())
}

// --- the long run -----------------------------------------------------------------------------

/// Steps of changing sizes, results that are kept and dropped, trims, and a refused call in a thousand. The resident
/// memory at each of the last 4000th parts of the run's second and last quarters.
fn soak(steps: u64) -> Result<(Vec<u64>, Vec<u64>), Error> {
    let device = Failing::new(Host::new());
    let switch = device.switch();
    let mut arena = virtual_region(device, GIB)?;
    let weights = arena.persistent_from(&vec![1_u8; 100_000])?;
    let mut state = 1_u64;
    let mut draw = move |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut kept: Vec<Persistent<u8, _>> = Vec::new();
    let (mut second, mut last, mut failures) =
        (Vec::with_capacity(1000), Vec::with_capacity(1000), 0);
    for n in 0..steps {
        if draw(1000) < 10 {
            switch.fail_nth_of_any(1 + draw(4));
        }
        let bytes =
            1 + usize::try_from(draw(if n % 64 == 0 { 4 * MIB } else { 64 * KIB })).unwrap();
        let result = arena.scope(|step| {
            let mut x = step.alloc::<u8>(bytes)?;
            x.view_mut().fill_bytes(7)?;
            drop(step.upload(&[3_u8; 100])?);
            step.promote(x.view().range(..bytes.min(1 + bytes / 16))?)
        });
        match result {
            Ok(result) => kept.push(result),
            Err(_) => failures += 1,
        }
        while kept.len() > 8 {
            let gone = usize::try_from(draw(kept.len() as u64)).unwrap();
            drop(kept.swap_remove(gone));
        }
        if draw(200) == 0 {
            kept.clear();
            failures += u64::from(arena.trim_to(draw(2 * MIB)).is_err());
        }
        let quarter = n * 4 / steps;
        if (quarter == 1 || quarter == 3) && n % (steps / 4000) == 0 {
            switch.fail_nth_of_any(0);
            kept.clear();
            arena.check()?;
            arena.scope(|_| arena_scope::Ok(()))?; // It gives back what was dropped.
            arena.trim_to(0)?;
            if quarter == 1 { second.push(resident_bytes()) } else { last.push(resident_bytes()) }
        }
    }
    assert!(failures > steps / 1000, "{failures}");
    assert!(weights.view().to_vec()?.iter().all(|byte| *byte == 1));
    Ok((second, last))
}

fn is_level(steps: u64) {
    let (second, last) = soak(steps).unwrap();
    let median = |mut seen: Vec<u64>| {
        seen.sort_unstable();
        seen[seen.len() / 2]
    };
    let (second, last) = (median(second), median(last));
    assert!(second.abs_diff(last) * 100 <= second, "{second} and {last}");
}

#[test]
fn a_long_run_with_failures_holds_no_more_at_its_end() {
    arena_testing::alone(|| is_level(20_000));
}

#[test]
#[ignore = "minutes: a million steps"]
fn a_million_steps_with_failures_hold_no_more_at_their_end() {
    arena_testing::alone(|| is_level(1_000_000));
}
