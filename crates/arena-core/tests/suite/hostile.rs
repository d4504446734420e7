//! Devices that break a duty of their contract, or panic: a typed error, no byte outside, nothing lost.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arena_core::device::{Call, CallCounts, Counting, Deferred};
use arena_core::{
    Alignment, ByteSize, Device, DeviceErrorKind, Error, ErrorKind, Placement, RawArena,
};
use rstest::rstest;

use crate::hooked::{Hooked, panic_in};

type Hostile = Hooked<Counting<Deferred>>;

const CAPACITY: ByteSize = ByteSize::kib(64);
const CLAIM: u64 = 1 << 13;

fn hostile() -> (Hostile, CallCounts) {
    let inner = Counting::new(Deferred::new(0));
    let counts = inner.counts();
    (Hooked::new(inner), counts)
}

/// A device whose first memory has an alignment of `CLAIM` bytes by chance, and later memory has not.
fn claims_a_base_alignment() -> (Hostile, CallCounts) {
    let (mut device, counts) = hostile();
    device.base_alignment = Alignment::new(CLAIM).ok();
    (device, counts)
}

fn held(counts: &CallCounts) -> u64 {
    counts.calls(Call::Obtain) - counts.calls(Call::Release)
}

#[track_caller]
fn assert_untrue(error: &Error, call: &str, what: &str) {
    let ErrorKind::Device(error) = error.kind() else { panic!("{error:?}") };
    assert_eq!((error.call, error.kind), (call, DeviceErrorKind::Refused));
    assert!(error.reason.contains(what) && error.reason.contains(&CLAIM.to_string()), "{error}");
}

fn panics(body: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(body)).is_err()
}

// --- alignments that are not true -----------------------------------------------------------------

#[test]
fn a_region_whose_base_is_not_as_aligned_as_claimed_is_an_error_and_is_released() {
    let (mut device, counts) = claims_a_base_alignment();
    device.shift_bytes = 256;
    let refused = RawArena::new(device, CAPACITY).unwrap_err();
    assert_untrue(&refused, "obtain", "base");
    assert_eq!((counts.calls(Call::Obtain), held(&counts)), (1, 0));
}

#[test]
fn shuffled_places_on_a_base_that_is_not_as_claimed_are_an_error_and_are_released() {
    let (device, counts) = claims_a_base_alignment();
    let placement = Placement::Shuffled { seed: 1 };
    let refused = RawArena::with_placement(device, CAPACITY, placement).unwrap_err();
    assert_untrue(&refused, "obtain", "base");
    assert_eq!((counts.calls(Call::Obtain), held(&counts)), (2, 0));
}

#[rstest]
#[case::of_the_base(None, "obtain", "base")]
#[case::of_the_end(Alignment::new(CLAIM).ok(), "obtain_guarded", "end")]
fn a_separate_buffer_with_an_untrue_alignment_is_an_error_and_nothing_is_written(
    #[case] guard_pages: Option<Alignment>,
    #[case] call: &str,
    #[case] what: &str,
) {
    let (mut device, counts) = claims_a_base_alignment();
    device.guard_pages = Some(guard_pages);
    let stream = device.stream().clone();
    let arena = RawArena::with_placement(device, CAPACITY, Placement::Separate).unwrap();
    for n in 1..=3 {
        let refused = arena.transient::<u8>(100 + n, Alignment::DEFAULT).unwrap_err();
        assert_untrue(&refused, call, what);
    }
    assert_eq!((counts.calls(Call::Fill), held(&counts)), (0, 1));
    assert_eq!(arena.stats().used_bytes, 0);
    arena.device().synchronise().unwrap();
    assert_eq!(stream.fault(), None);
    assert!(arena.persistent_from(&[1_u8; 16]).is_ok(), "the region is as it was claimed to be");
}

// --- panics -----------------------------------------------------------------------------------------

#[rstest]
fn a_buffer_can_be_used_after_a_panic_in_one_of_its_calls(
    #[values("copy_in", "copy_out", "copy_within", "fill")] call: &'static str,
) {
    let (device, _) = hostile();
    let arena = RawArena::new(device, CAPACITY).unwrap();
    let source = arena.persistent_from(&[5_u8; 64]).unwrap();
    let mut x = arena.persistent_from(&[6_u8; 64]).unwrap();
    panic_in(call, 1);
    let panicked = panics(|| {
        let _ = x.view_mut().write(&[7; 64]);
        let _ = x.view_mut().copy_from(source.view());
        let _ = x.view_mut().zero();
        let _ = x.view().to_vec();
    });
    assert!(panicked);
    x.view_mut().copy_from(source.view()).unwrap();
    assert_eq!(x.view().to_vec().unwrap(), [5; 64]);
}

#[test]
fn a_panic_in_trim_changes_no_figure() {
    let (device, _) = hostile();
    let mut arena = RawArena::new(device, CAPACITY).unwrap();
    let x = arena.persistent_from(&[5_u8; 64]).unwrap();
    arena.set_mark().unwrap();
    let before = arena.stats();
    panic_in("give_back", 1);
    assert!(panics(|| drop(arena.trim(0))));
    assert_eq!(arena.stats(), before);
    assert_eq!(x.view().to_vec().unwrap(), [5; 64]);
}

#[test]
fn a_stream_whose_declaration_panics_is_declared_all_the_same() {
    for call in ["new_event", "record", "wait"] {
        let (device, _) = hostile();
        let side = device.stream().another();
        let arena = RawArena::new(device, CAPACITY).unwrap();
        let x = arena.persistent_from(&[5_u8; 64]).unwrap();
        panic_in(call, 1);
        assert!(panics(|| drop(x.declare_stream(&side))), "{call}");
        assert!(arena.steps().region().find_declared(|stream| *stream == side).is_some(), "{call}");
        x.declare_stream(&side).unwrap();
        assert_eq!(side.read(x.address(), 64).wait(), Some(vec![5; 64]), "{call}");
    }
}

#[test]
fn persistent_buffers_whose_filling_panics_cost_no_byte() {
    let (device, _) = hostile();
    let arena = RawArena::new(device, CAPACITY).unwrap();
    for _ in 0..10 {
        panic_in("copy_in", 1);
        assert!(panics(|| drop(arena.persistent_from(&[5_u8; 1000]))));
        assert_eq!(arena.stats().used_bytes, 0);
    }
    let x = arena.persistent_from(&[6_u8; 64]).unwrap();
    assert_eq!(x.view().to_vec().unwrap(), [6; 64]);
}
