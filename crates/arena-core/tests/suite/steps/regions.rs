//! A region whose memory comes piece by piece: what is committed when, and what is given back.

use std::sync::{Arc, Mutex};

use arena_core::device::{
    Call, Captures, Counting, Deferred, Device, FailSwitch, Failing, Limited,
};
use arena_core::for_scopes::{RegionOptions, Steps};
use arena_core::{
    Alignment, ByteSize, DeviceErrorKind, Error, ErrorKind, Host, OnPressure, Placement,
    PlannedSlot, Pressure, Probe, RegionKind, Reset, SlotTable,
};
use rstest::rstest;

use super::{A256, close, open};
use crate::hooked::{Hooked, panic_in};

const KIB: u64 = 1 << 10;

/// A virtual region of which just what is needed is committed.
pub(super) fn exact<D: Device>(device: D, capacity_bytes: u64, reset: Reset) -> Steps<D> {
    try_virtual(device, capacity_bytes, 0, reset).unwrap()
}

fn try_virtual<D: Device>(
    device: D,
    capacity_bytes: u64,
    ahead_bytes: u64,
    reset: Reset,
) -> Result<Steps<D>, Error> {
    let options = RegionOptions {
        capacity: ByteSize::bytes_exact(capacity_bytes),
        kind: RegionKind::Virtual,
        ahead: ByteSize::bytes_exact(ahead_bytes),
        ..RegionOptions::fixed(ByteSize::bytes_exact(capacity_bytes))
    };
    Steps::with_region(device, options, Placement::Bump, reset)
}

fn committed<D: Device>(steps: &Steps<D>) -> u64 {
    let stats = steps.stats();
    assert!(stats.committed_bytes >= stats.used_bytes + stats.kept_bytes, "{stats:?}");
    stats.committed_bytes
}

#[track_caller]
fn ask<D: Device>(steps: &Steps<D>, bytes: u64) -> Result<u64, Error> {
    steps.transient::<u8>(bytes as usize, A256, steps.depth()).map(|x| x.offset_bytes())
}

/// Out of memory: asked for so many bytes, with so many free.
#[track_caller]
fn assert_short(error: &Error, expected: (u64, u64)) {
    let ErrorKind::Device(refused) = error.kind() else { panic!("{error}") };
    let DeviceErrorKind::OutOfMemory(Some(shortage)) = refused.kind else { panic!("{error}") };
    assert_eq!((shortage.asked_bytes, shortage.free_bytes), expected);
}

#[track_caller]
fn assert_kind(error: &Error, kind: DeviceErrorKind) {
    assert!(matches!(error.kind(), ErrorKind::Device(refused) if refused.kind == kind), "{error}");
}

// On `Deferred` a unit is 1 KiB, and work on an address without memory is a fault.
#[test]
fn memory_comes_where_a_request_needs_it_from_both_ends() -> Result<(), Error> {
    let steps = exact(Deferred::new(3), 16 * KIB, Reset::Keep);
    let base_address = steps.region().base_address();
    assert_eq!(committed(&steps), 0);
    let weights = steps.persistent_from(&[1_u8; 100], A256)?;
    assert_eq!(committed(&steps), KIB);
    let root = open(&steps, None);
    let x = steps.transient_from(&[2_u8; 3000], A256, 1)?;
    assert_eq!((x.address() - base_address, committed(&steps)), (256, 4 * KIB));
    let kept = steps.persistent_from(&[3_u8; 1500], A256)?;
    assert_eq!((kept.offset_bytes(), committed(&steps)), (16 * KIB - 1536, 6 * KIB));
    let rest = steps.transient_zeroed::<u8>((16 * KIB - 1536 - 3328) as usize, A256, 1)?;
    assert_eq!(committed(&steps), 16 * KIB, "both ends have met");
    assert!(ask(&steps, 1).unwrap_err().is_exhausted());
    assert_eq!(x.view().to_vec()?, [2; 3000]);
    drop((x, rest));
    close(&steps, root)?;
    assert_eq!((weights.view().to_vec()?, kept.view().to_vec()?), (vec![1; 100], vec![3; 1500]));
    assert_eq!(steps.region().base_address(), base_address);
    assert_eq!(steps.region().device().stream().fault(), None);
    Ok(())
}

#[test]
fn the_capacity_is_a_limit_to_the_byte_though_memory_comes_in_units() {
    for capacity_bytes in [0, 1, KIB - 1, KIB, KIB + 1] {
        let steps = exact(Deferred::new(0), capacity_bytes, Reset::Keep);
        assert_eq!(steps.stats().capacity_bytes, capacity_bytes);
        let refused = ask(&steps, capacity_bytes + 1).unwrap_err();
        let facts = refused.as_exhausted().expect("it does not fit").clone();
        assert_eq!((facts.capacity_bytes, facts.missing_bytes), (capacity_bytes, 1));
        assert_eq!(ask(&steps, capacity_bytes).unwrap(), 0);
        assert_eq!(committed(&steps), capacity_bytes.next_multiple_of(KIB));
        steps.set_mark().unwrap();
    }
}

#[test]
fn a_step_that_ran_before_commits_nothing() -> Result<(), Error> {
    let device = Counting::new(Deferred::new(0));
    let counts = device.counts();
    let mut steps = try_virtual(device, 1 << 20, 4 * KIB, Reset::Zero)?;
    let step = |steps: &Steps<_>| {
        let root = open(steps, None);
        (0..30).try_for_each(|_| ask(steps, 700).map(drop))?;
        drop(steps.persistent_zeroed::<u8>(900, A256)?);
        close(steps, root)
    };
    step(&steps)?;
    let first = (counts.calls(Call::Commit), steps.stats().driver_allocations);
    assert_eq!(first.0 + 1, first.1, "each is a driver allocation, and so is the reservation");
    for _ in 0..10 {
        step(&steps)?;
    }
    assert_eq!((counts.calls(Call::Commit), steps.stats().driver_allocations), first);
    assert_eq!((counts.calls(Call::Obtain), counts.calls(Call::Reserve)), (0, 1));
    steps.trim(0)?;
    step(&steps)?;
    assert!(counts.calls(Call::Commit) > first.0, "what was given back comes again");
    let counted = |call| (counts.calls(call), counts.bytes(call));
    drop(steps);
    assert_eq!(counted(Call::Commit), counted(Call::Decommit), "nothing is left");
    assert_eq!(counted(Call::Reserve), counted(Call::Unreserve));
    Ok(())
}

fn failing(capacity_bytes: u64, ahead_bytes: u64) -> (Steps<Failing<Deferred>>, FailSwitch) {
    let device = Failing::new(Deferred::new(0));
    let switch = device.switch();
    (try_virtual(device, capacity_bytes, ahead_bytes, Reset::Keep).unwrap(), switch)
}

#[test]
fn memory_that_the_device_refuses_is_an_error_that_changes_nothing() -> Result<(), Error> {
    let (steps, switch) = failing(64 * KIB, 0);
    let _weights = steps.persistent::<u8>(100, A256, 0)?;
    for _ in 0..2 {
        let before = steps.stats();
        switch.fail_nth(Call::Commit, 1);
        let refused = steps.persistent::<u8>(5000, A256, 0).map(drop).unwrap_err();
        assert_kind(&refused, DeviceErrorKind::Refused);
        assert_eq!(steps.stats(), before);
        if !steps.mark_is_set() {
            steps.set_mark()?;
        }
    }
    let root = open(&steps, None);
    switch.fail_nth(Call::Commit, 1);
    assert_kind(&ask(&steps, 2000).unwrap_err(), DeviceErrorKind::Refused);
    assert_eq!(steps.stats().used_bytes, 100);
    assert_eq!(ask(&steps, 2000)?, 256);
    close(&steps, root)
}

#[test]
fn what_would_come_ahead_is_left_out_where_the_device_has_only_the_need() -> Result<(), Error> {
    let steps = try_virtual(
        Limited::new(Deferred::new(0), ByteSize::kib(5)),
        64 * KIB,
        32 * KIB,
        Reset::Keep,
    )?;
    assert_eq!(ask(&steps, 4 * KIB)?, 0);
    assert_eq!(committed(&steps), 4 * KIB, "not 32");
    steps.set_mark()?;
    let _kept = steps.persistent::<u8>(900, A256, 0)?;
    assert_eq!(committed(&steps), 5 * KIB);
    assert_short(&ask(&steps, 1).unwrap_err(), (KIB, 0));
    Ok(())
}

// Without the plan the step needs less: it asks for one of the slots.
#[test]
fn a_plan_for_which_there_is_no_memory_is_not_followed() -> Result<(), Error> {
    let slot = |place| PlannedSlot { offset_bytes: place * KIB, bytes: KIB, alignment: A256 };
    let device = Limited::new(Deferred::new(0), ByteSize::kib(4));
    let mut steps = exact(device, 64 * KIB, Reset::Keep);
    let plan = steps.add_plan(SlotTable::new(&[slot(0), slot(7)]).unwrap())?;
    for _ in 0..2 {
        steps.select_plan(Some(plan));
        let root = open(&steps, None);
        assert_eq!(ask(&steps, KIB)?, 0);
        assert_eq!(steps.stats().used_bytes, KIB, "bumped: the plan would take all of its bytes");
        close(&steps, root)?;
        assert_eq!(committed(&steps), KIB);
    }
    Ok(())
}

#[test]
fn the_bytes_of_a_plan_are_committed_when_its_step_opens() -> Result<(), Error> {
    let slot = |place| PlannedSlot { offset_bytes: place * KIB, bytes: KIB, alignment: A256 };
    let device = Counting::new(Deferred::new(0));
    let counts = device.counts();
    let mut steps = exact(device, 64 * KIB, Reset::Keep);
    let plan = steps.add_plan(SlotTable::new(&[slot(7), slot(3)]).unwrap())?;
    for _ in 0..4 {
        steps.select_plan(Some(plan));
        let root = open(&steps, None);
        assert_eq!(committed(&steps), 8 * KIB);
        assert_eq!((ask(&steps, KIB)?, ask(&steps, KIB)?), (7 * KIB, 3 * KIB));
        close(&steps, root)?;
    }
    assert_eq!(counts.calls(Call::Commit), 1);
    steps.trim(0)?;
    assert_eq!(committed(&steps), 0);
    steps.select_plan(Some(plan));
    let root = open(&steps, None);
    let x = steps.transient_from(&[1_u8; 1024], A256, 1)?; // It repeats the steps before.
    assert_eq!((x.offset_bytes(), x.view().to_vec()?), (7 * KIB, vec![1; 1024]));
    drop(x);
    close(&steps, root)
}

#[test]
fn growth_in_a_capture_is_a_typed_error_and_the_capture_goes_on() -> Result<(), Error> {
    let device = Counting::new(Deferred::new(0));
    let counts = device.counts();
    let steps = exact(device, 64 * KIB, Reset::Keep);
    let root = open(&steps, None);
    ask(&steps, KIB)?;
    let commits = counts.calls(Call::Commit);
    steps.region().device().begin_capture()?;
    assert_kind(&ask(&steps, KIB).unwrap_err(), DeviceErrorKind::InCapture);
    assert_kind(&steps.check_needs(2, "inner", 5000).unwrap_err(), DeviceErrorKind::InCapture);
    assert_eq!(counts.calls(Call::Commit), commits, "the device is not asked");
    drop(steps.region().device().end_capture()?);
    assert_eq!(ask(&steps, KIB)?, KIB);
    close(&steps, root)
}

#[test]
fn what_a_scope_needs_is_committed_before_it_begins() -> Result<(), Error> {
    let steps = exact(Limited::new(Deferred::new(0), ByteSize::kib(4)), 64 * KIB, Reset::Keep);
    assert_short(&steps.check_needs(1, "step", 5 * KIB).unwrap_err(), (5 * KIB, 4 * KIB));
    steps.check_needs(1, "step", 3000)?;
    assert_eq!(committed(&steps), 3 * KIB);
    Ok(())
}

// --- giving back ------------------------------------------------------------------------------

#[rstest]
#[case::more_than_there_is(9, 8)]
#[case::a_part_of_the_last_chunk(6, 6)]
#[case::a_part_of_one_before(2, 2)]
#[case::whole_chunks(4, 4)]
#[case::all_that_is_free(0, 1)]
fn trim_keeps_what_it_is_told_to_and_what_lives(
    #[case] above_kib: u64,
    #[case] bottom_kib: u64,
) -> Result<(), Error> {
    let device = Deferred::new(0);
    let stream = device.stream().clone();
    let mut steps = exact(device, 64 * KIB, Reset::Keep);
    let weights = steps.persistent_from(&[1_u8; 500], A256)?;
    let root = open(&steps, None);
    let kept = steps.persistent_from(&[2_u8; 3000], A256)?;
    let gone = steps.persistent_from(&[3_u8; 3000], A256)?;
    // Chunks of 1, 3 and 4 KiB at the bottom, and of 3 and 3 at the top.
    for bytes in [3 * KIB, 4 * KIB] {
        drop(steps.transient_from(&vec![4_u8; bytes as usize], A256, 1)?);
    }
    drop(gone);
    close(&steps, root)?;
    assert_eq!(committed(&steps), 14 * KIB);
    let given = steps.trim(above_kib * KIB)?;
    assert_eq!((committed(&steps), given), ((bottom_kib + 3) * KIB, (8 - bottom_kib + 3) * KIB));
    assert_eq!(stream.physical_bytes(), committed(&steps));
    assert_eq!((weights.view().to_vec()?, kept.view().to_vec()?), (vec![1; 500], vec![2; 3000]));
    assert_eq!(steps.trim(above_kib * KIB)?, 0, "there is no more");
    let root = open(&steps, None);
    let again = steps.transient_from(&[5_u8; 20_000], A256, 1)?;
    assert_eq!(again.view().to_vec()?, [5; 20_000]);
    drop(again);
    close(&steps, root)?;
    assert_eq!(stream.fault(), None);
    Ok(())
}

// A chunk of which nothing lives becomes as short as it need be.
#[test]
fn a_chunk_that_came_ahead_is_replaced_by_a_shorter_one() -> Result<(), Error> {
    let mut steps = try_virtual(Deferred::new(0), 1 << 20, 64 * KIB, Reset::Keep)?;
    let root = open(&steps, None);
    ask(&steps, 9000)?;
    close(&steps, root)?;
    assert_eq!(committed(&steps), 64 * KIB);
    assert_eq!(steps.trim(9000)?, 55 * KIB);
    assert_eq!(committed(&steps), 9 * KIB);
    Ok(())
}

#[test]
fn a_trim_that_fails_half_way_gave_back_what_it_gave_back() -> Result<(), Error> {
    for n in 1..=3 {
        let (mut steps, switch) = failing(64 * KIB, 0);
        let root = open(&steps, None);
        let mut x = [1, 2, 3].map(|kib| ask(&steps, kib * KIB).unwrap());
        x.sort_unstable();
        close(&steps, root)?;
        switch.fail_nth(Call::Decommit, n);
        assert_kind(&steps.trim(0).unwrap_err(), DeviceErrorKind::Refused);
        assert_eq!(committed(&steps), [6, 3, 1][n as usize - 1] * KIB);
        let root = open(&steps, None);
        drop(steps.transient_from(&[1_u8; 6000], A256, 1)?);
        close(&steps, root)?;
        steps.trim(0)?;
        assert_eq!(committed(&steps), 0);
        assert_eq!(steps.region().device().stream().fault(), None);
    }
    Ok(())
}

// Otherwise the bump would go on into what was given back before.
#[test]
fn after_a_panic_in_a_trim_no_byte_without_memory_is_given_out() -> Result<(), Error> {
    let mut steps = exact(Hooked::new(Deferred::new(0)), 64 * KIB, Reset::Keep);
    let root = open(&steps, None);
    for kib in 1..=3 {
        ask(&steps, kib * KIB)?;
    }
    close(&steps, root)?;
    panic_in("decommit", 2);
    let trim = std::panic::AssertUnwindSafe(|| steps.trim(0));
    assert!(std::panic::catch_unwind(trim).is_err());
    assert_eq!(committed(&steps), 3 * KIB);
    let root = open(&steps, None);
    let x = steps.transient_from(&[1_u8; 6000], A256, 1)?;
    assert_eq!(x.view().to_vec()?, [1; 6000]);
    drop(x);
    close(&steps, root)
}

#[rstest]
fn what_comes_again_is_poisoned_again_and_no_live_byte(
    #[values(0, 64 * KIB)] ahead_bytes: u64,
) -> Result<(), Error> {
    let device = Deferred::new(0);
    let mut steps = try_virtual(device, 64 * KIB, ahead_bytes, Reset::Poison)?;
    let weights = steps.persistent_from(&[1_u8; 300], A256)?;
    for above_bytes in [0, 3000, 1500, 9000] {
        let root = open(&steps, None);
        let mut x = steps.transient::<u8>(5000, A256, 1)?;
        assert_eq!(x.view().to_vec()?, [0xff; 5000]);
        x.view_mut().fill_bytes(2)?;
        drop(x);
        close(&steps, root)?;
        steps.trim(above_bytes)?;
        assert_eq!(weights.view().to_vec()?, [1; 300]);
    }
    Ok(())
}

// The pages themselves go, not only the access to them.
#[test]
fn what_the_host_gave_back_reads_as_zero_when_it_comes_again() -> Result<(), Error> {
    let mut steps = exact(Host::new(), 1 << 20, Reset::Keep);
    for _ in 0..2 {
        let root = open(&steps, None);
        let mut x = steps.transient::<u8>(10_000, A256, 1)?;
        assert_eq!(x.as_slice(), [0; 10_000]);
        x.as_mut_slice().fill(7);
        drop(x);
        close(&steps, root)?;
        assert_eq!(steps.trim(0)?, 12_288);
    }
    Ok(())
}

#[test]
fn a_region_that_a_graph_holds_is_not_trimmed() -> Result<(), Error> {
    let mut steps = exact(Deferred::new(0), 64 * KIB, Reset::Keep);
    let root = open(&steps, None);
    ask(&steps, 3000)?;
    close(&steps, root)?;
    let pin = steps.pin();
    let refused = steps.trim(0).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::InUse { .. }), "{refused}");
    assert_eq!(committed(&steps), 3 * KIB);
    drop(pin);
    assert_eq!(steps.trim(0)?, 3 * KIB);
    steps.region().device().begin_capture()?;
    assert_kind(&steps.trim(0).unwrap_err(), DeviceErrorKind::InCapture);
    steps.region().device().abandon_capture();
    Ok(())
}

#[test]
fn a_fixed_region_on_a_device_that_never_gives_back_says_so() {
    let capacity = ByteSize::kib(4);
    let mut steps = Steps::new(Deferred::new(0), capacity, Placement::Bump, Reset::Keep).unwrap();
    assert_kind(&steps.trim(0).unwrap_err(), DeviceErrorKind::Unsupported);
}

// --- what a device claims ---------------------------------------------------------------------

#[test]
fn a_device_without_addresses_of_their_own_has_no_virtual_region() {
    let mut device = Hooked::new(Host::new());
    device.commit_granularity = Some(None);
    let refused = try_virtual(device, KIB, 0, Reset::Keep).unwrap_err();
    assert_kind(&refused, DeviceErrorKind::Unsupported);
    assert!(refused.to_string().contains("RegionKind::Fixed"), "{refused}");
}

#[test]
fn a_base_that_is_no_multiple_of_the_unit_is_refused() {
    let mut device = Hooked::new(Deferred::new(0));
    device.shift_bytes = 512; // A multiple of the base's alignment.
    let refused = try_virtual(device, KIB, 0, Reset::Keep).unwrap_err();
    assert!(refused.to_string().contains("multiple of 1024"), "{refused}");
}

#[test]
fn a_capacity_that_rounds_up_to_more_than_any_memory_is_refused() {
    for capacity_bytes in [u64::MAX, u64::MAX - 5, (1 << 62) + 1] {
        try_virtual(Host::new(), capacity_bytes, 0, Reset::Keep).unwrap_err();
    }
}

#[test]
fn a_probe_measures_the_same_in_a_virtual_region() -> Result<(), Error> {
    let steps = exact(Probe::new(), 1 << 60, Reset::Keep);
    let root = open(&steps, None);
    ask(&steps, 1 << 30)?;
    let _kept = steps.persistent::<u8>(100, Alignment::ONE, 1)?;
    close(&steps, root)?;
    assert_eq!(
        (steps.smallest_capacity_bytes(), steps.region().kind()),
        ((1 << 30) + 100, RegionKind::Virtual)
    );
    assert_eq!(steps.stats().driver_allocations, 1);
    Ok(())
}

/// A region with a soft limit of 8 KiB, and what its program was told.
fn softly_limited<D: Device>(
    device: D,
    answer: impl Fn(&Pressure) -> bool + Send + Sync + 'static,
) -> (Steps<D>, Arc<Mutex<Vec<Pressure>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&told);
    let on_pressure = OnPressure::new(move |pressure| {
        seen.lock().unwrap().push(*pressure);
        answer(pressure)
    });
    let options = RegionOptions {
        kind: RegionKind::Virtual,
        soft_limit: Some(ByteSize::kib(8)),
        on_pressure: Some(on_pressure),
        ..RegionOptions::fixed(ByteSize::kib(64))
    };
    (Steps::with_region(device, options, Placement::Bump, Reset::Keep).unwrap(), told)
}

/// A step of this many KiB in requests of one.
fn step_of<D: Device>(steps: &Steps<D>, kib: u64) -> Result<(), Error> {
    let root = open(steps, None);
    let asked = (0..kib).try_for_each(|_| ask(steps, KIB).map(drop));
    close(steps, root)?;
    asked
}

#[test]
fn beyond_the_soft_limit_nothing_comes_ahead_and_what_a_step_did_not_need_goes_back()
-> Result<(), Error> {
    let device = Counting::new(Deferred::new(0));
    let counts = device.counts();
    let (mut steps, told) = softly_limited(device, |_| false);
    steps.set_mark()?;
    step_of(&steps, 5)?;
    assert!(told.lock().unwrap().is_empty());
    step_of(&steps, 20)?;
    assert_eq!(committed(&steps), 20 * KIB, "what it needs, and not more");
    let told_once = [Pressure::SoftLimit { limit_bytes: 8 * KIB, committed_bytes: 9 * KIB }];
    assert_eq!(*told.lock().unwrap(), told_once);
    let calls = counts.calls(Call::Commit);
    for _ in 0..5 {
        step_of(&steps, 20)?;
    }
    assert_eq!(counts.calls(Call::Commit), calls, "a step that needs more keeps it");
    step_of(&steps, 12)?;
    assert_eq!(committed(&steps), 12 * KIB);
    step_of(&steps, 3)?;
    assert!(committed(&steps) <= 8 * KIB, "{}", committed(&steps));
    step_of(&steps, 10)?;
    assert_eq!(told.lock().unwrap().len(), 2, "it was below in between");
    steps.trim(0)?;
    Ok(())
}

#[test]
fn what_a_graph_holds_stays_beyond_the_soft_limit_until_the_graph_goes() -> Result<(), Error> {
    let (steps, _told) = softly_limited(Deferred::new(0), |_| false);
    steps.set_mark()?;
    step_of(&steps, 20)?;
    let pin = steps.pin();
    step_of(&steps, 1)?;
    assert_eq!(committed(&steps), 20 * KIB);
    drop(pin);
    step_of(&steps, 1)?;
    assert!(committed(&steps) <= 8 * KIB);
    Ok(())
}

#[rstest]
#[case::asks_again(true, 2)]
#[case::gives_up(false, 1)]
fn a_program_is_asked_whether_to_try_once_more(
    #[case] again: bool,
    #[case] calls: u64,
) -> Result<(), Error> {
    let device = Counting::new(Limited::new(Deferred::new(0), ByteSize::kib(4)));
    let counts = device.counts();
    let (steps, told) = softly_limited(device, move |_| again);
    steps.set_mark()?;
    let root = open(&steps, None);
    assert_short(&ask(&steps, 5 * KIB).unwrap_err(), (5 * KIB, 4 * KIB));
    assert_eq!((told.lock().unwrap().len(), counts.calls(Call::Commit)), (1, calls));
    ask(&steps, 4 * KIB)?;
    close(&steps, root)
}

#[test]
fn a_region_that_is_built_asks_once_more_too() {
    let limited = || Limited::new(Host::new(), ByteSize::kib(4));
    let asked = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&asked);
    let on_pressure = Some(OnPressure::new(move |pressure| {
        assert!(matches!(
            pressure,
            Pressure::OutOfMemory { shortage: Some(_), committed_bytes: 0 }
        ));
        *seen.lock().unwrap() += 1;
        true
    }));
    let options = RegionOptions { on_pressure, ..RegionOptions::fixed(ByteSize::kib(5)) };
    let refused = Steps::with_region(limited(), options, Placement::Bump, Reset::Keep).unwrap_err();
    assert_short(&refused, (5 * KIB, 4 * KIB));
    assert_eq!(*asked.lock().unwrap(), 1, "once");
}
