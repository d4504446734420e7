//! How large an arena is: bytes, or a part of what its device has.

use arena_scope::device::{Counting, Deferred, Failing, Limited};
use arena_scope::{Arena, ByteSize, Capacity, Device, Error, ErrorKind, Host, Probe, StepKey};
use rstest::rstest;

use crate::common::{KIB, Outcome, arena, counting};

#[test]
fn an_arena_without_a_capacity_is_refused_and_the_text_names_the_probe() {
    let (device, counts) = counting();
    let refused = Arena::builder(device).build().unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NoCapacity), "{refused:?}");
    for part in ["Probe", "smallest_capacity_bytes"] {
        assert!(refused.to_string().contains(part), "{part} is not in: {refused}");
    }
    assert_eq!(counts.calls(arena_scope::device::Call::Obtain), 0);
}

#[rstest]
#[case::host(Host::new())]
#[case::probe(Probe::new())]
#[case::deferred(Deferred::new(0))]
fn bytes_are_taken_as_they_are_on_a_device_of_any_memory<D: Device>(
    #[case] device: D,
    #[values(0, 1, 1 << 20)] bytes: u64,
) -> Outcome {
    let arena = Arena::builder(device).capacity(ByteSize::bytes_exact(bytes)).build()?;
    assert_eq!(arena.stats().capacity_bytes, bytes);
    Ok(())
}

/// The host lets a program reserve more than it has free, and so does an arena of so many bytes.
#[test]
fn more_bytes_than_the_host_has_are_not_compared_with_its_memory() -> Outcome {
    let size = ByteSize::bytes_exact(2 * Host::new().memory()?.total_bytes);
    let arena = Arena::builder(Host::new()).capacity(size).build()?;
    assert_eq!(arena.stats().capacity_bytes, size.bytes());
    let headroom = Capacity::exactly(size).headroom(ByteSize::mib(1));
    let refused = Arena::builder(Host::new()).capacity(headroom).build().unwrap_err();
    assert!(refused.to_string().contains("headroom"), "{refused}");
    Ok(())
}

#[rstest]
#[case::of_free(Capacity::fraction_of_free(0.5), 512 << 10)]
#[case::of_total(Capacity::fraction_of_total(0.25), 256 << 10)]
#[case::beside_headroom(Capacity::fraction_of_free(1.0).headroom(ByteSize::kib(24)), 1000 << 10)]
fn a_part_is_of_what_the_wrapped_device_may_hold(
    #[case] capacity: Capacity,
    #[case] expected_bytes: u64,
) -> Outcome {
    let device = Limited::new(Failing::new(Counting::new(Host::new())), ByteSize::mib(1));
    let arena = Arena::builder(Counting::new(device)).capacity(capacity).build()?;
    assert_eq!(arena.stats().capacity_bytes, expected_bytes);
    let left = arena.device().memory()?;
    assert_eq!((left.free_bytes, left.limit_bytes), ((1 << 20) - expected_bytes, 1 << 20));
    Ok(())
}

#[test]
fn the_host_knows_its_memory() -> Outcome {
    let memory = Host::new().memory()?;
    assert!((1..=memory.total_bytes).contains(&memory.free_bytes), "{memory:?}");
    let arena = Arena::builder(Host::new()).capacity(Capacity::fraction_of_total(0.01)).build()?;
    let (hundred, all) =
        (100 * arena.stats().capacity_bytes, memory.total_bytes.min(memory.limit_bytes));
    assert!((all - 100..=all).contains(&hundred), "{hundred}");
    Ok(())
}

#[rstest]
#[case::probe(Probe::new())]
#[case::deferred(Deferred::new(0))]
fn a_part_of_unknown_memory_is_refused<D: Device>(#[case] device: D) {
    let refused = Arena::builder(device).capacity(Capacity::fraction_of_free(0.5)).build();
    let refused = refused.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Device(_)), "{refused:?}");
    assert!(refused.to_string().contains("name a capacity in bytes"), "{refused}");
}

/// Two kinds of step, and a buffer that is kept in one of them and one that is kept between two.
fn keeps<D: Device>(arena: &mut Arena<D>) -> Outcome {
    let _weights = arena.persistent::<u8>(100)?;
    let first = arena.scope_named("a", |step| {
        let _x = step.alloc::<u8>(3000)?;
        step.persistent::<u8>(256)
    })?;
    arena.scope_named("b", |step| step.alloc::<u8>(500).map(drop))?;
    let _second = arena.persistent::<u8>(512)?;
    drop(first);
    arena.scope_named("b", |step| step.alloc::<u8>(500).map(drop))
}

#[rstest]
#[case::as_it_was([None, None], 256 + 3000 + 256, 0)]
#[case::shorter([Some(1000), None], 1000 + 256, 256 + 500 + 256 + 512)]
#[case::the_other_longer([Some(1000), Some(5000)], 0, 5000 + 256 + 512)]
#[case::nothing([Some(0), Some(0)], 100 + 256 + 512, 0)]
fn a_record_on_any_device_tells_the_capacity_if_steps_ended_elsewhere(
    #[case] ends: [Option<u64>; 2],
    #[case] in_the_first_step: u64,
    #[case] later: u64,
) -> Outcome {
    fn capacity<D: Device>(device: D, ends: [Option<u64>; 2]) -> Result<u64, Error> {
        let mut arena = arena(device, 64 * KIB)?;
        arena.record(None);
        keeps(&mut arena)?;
        let demand = arena.recorded_demand();
        arena.stop_observing();
        let end_of = |key: StepKey| ends[usize::from(key.name == "b")];
        Ok(demand.smallest_capacity_bytes(end_of))
    }
    let expected = u64::max(in_the_first_step, later);
    let found = capacity(Host::new(), ends)?;
    assert_eq!(found, capacity(Probe::like(&Host::new()), ends)?);
    assert_eq!(found, capacity(Counting::new(Host::new()), ends)?);
    assert!((expected..expected + 256).contains(&found), "{found}, not {expected} and padding");
    Ok(())
}

// A run that is not recorded demands what lies in the region.
#[test]
fn without_a_record_only_what_is_there_counts() -> Outcome {
    let mut arena = arena(Host::new(), 64 * KIB)?;
    arena.mark()?;
    let _kept = arena.persistent::<u8>(256)?;
    arena.scope(|step| step.alloc::<u8>(3000).map(drop))?;
    assert_eq!(arena.recorded_demand().smallest_capacity_bytes(|_| None), 256);
    Ok(())
}
