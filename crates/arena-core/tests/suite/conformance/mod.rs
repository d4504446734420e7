//! What every device promises, asked of the device itself.

use arena_core::DeviceErrorKind::{OutOfMemory, Refused};
use arena_core::device::{Device, Obtained};

const BYTES: u64 = 4096;

/// Runs the whole list on one device. `keeps_contents` is false for one that only measures.
pub(crate) fn conforms<D: Device>(device: &D, keeps_contents: bool) {
    let memory = device.obtain(BYTES).unwrap();
    let base = memory.base_address;
    assert_ne!(base, 0, "no base is null");
    assert!(device.base_alignment().divides(base), "the base is as aligned as promised");

    fills_and_copies_in_stream_order(device, base, keeps_contents);
    a_source_may_be_changed_at_once(device, base, keeps_contents);
    streams_and_events_can_be_used(device);
    // SAFETY: no buffer lies in the region.
    let given_back = unsafe { device.give_back(base, BYTES) }.unwrap();
    assert!(given_back <= BYTES);
    // SAFETY: it was obtained above with this size, and is not used below.
    unsafe { device.release(memory, BYTES) }.unwrap();

    for bytes in [1, BYTES - 1, BYTES, 3 * BYTES + 7] {
        lies_between_guard_pages_if_there_are_any(device, bytes, keeps_contents);
    }

    let empty: Obtained<D::Memory> = device.obtain(0).unwrap();
    assert_ne!(empty.base_address, 0, "an empty region has an address as well");
    assert!(device.base_alignment().divides(empty.base_address));
    // SAFETY: as above.
    unsafe { device.release(empty, 0) }.unwrap();
    for outcome in [device.obtain(1 << 62), device.obtain_guarded(u64::MAX)] {
        let refused = outcome.map(drop).unwrap_err();
        assert!(matches!(refused.kind, Refused | OutOfMemory { .. }), "{refused}");
        assert!(!refused.reason.is_empty() && !refused.device.is_empty());
    }
    assert!(device.health().is_ok(), "a refusal breaks nothing");
}

fn read<D: Device>(device: &D, from: u64, bytes: usize) -> Vec<u8> {
    let mut host = vec![0xee; bytes];
    // SAFETY: the range lies in the region of the caller, and nobody writes it outside the stream.
    unsafe { device.copy_out(&mut host, from) }.unwrap();
    host
}

fn fills_and_copies_in_stream_order<D: Device>(device: &D, base: u64, keeps_contents: bool) {
    // SAFETY: ranges of the region, which nobody else uses.
    unsafe { device.fill(base, 100, 7) }.unwrap();
    // SAFETY: as above.
    unsafe { device.fill(base + 10, 1, 9) }.unwrap();
    // SAFETY: as above; 100 bytes from 0 and from 1000 do not overlap.
    unsafe { device.copy_within(base + 1000, base, 100) }.unwrap();
    // SAFETY: as above.
    unsafe { device.fill(base, 100, 1) }.unwrap();
    let mut expected = [7; 100];
    expected[10] = 9;
    let expected = if keeps_contents { expected } else { [0; 100] };
    assert_eq!(read(device, base + 1000, 100), expected, "the copy saw what was queued before it");
    let expected = if keeps_contents { [1; 100] } else { [0; 100] };
    assert_eq!(read(device, base, 100), expected);
}

fn lies_between_guard_pages_if_there_are_any<D: Device>(device: &D, bytes: u64, keeps: bool) {
    let memory = device.obtain_guarded(bytes).unwrap();
    let base = memory.base_address;
    match device.guard_pages() {
        Some(end) => assert!(end.divides(base + bytes), "it ends at a page"),
        None => assert!(device.base_alignment().divides(base)),
    }
    let zeros = vec![0; bytes as usize];
    assert!(!keeps || device.guard_pages().is_none() || read(device, base, zeros.len()) == zeros);
    // SAFETY: the memory obtained just now, which nobody else uses.
    unsafe { device.fill(base, bytes, 7) }.unwrap();
    let expected = vec![if keeps { 7 } else { 0 }; zeros.len()];
    assert_eq!(read(device, base, zeros.len()), expected);
    // SAFETY: it was obtained above with this size, and is not used below.
    unsafe { device.release(memory, bytes) }.unwrap();
}

fn a_source_may_be_changed_at_once<D: Device>(device: &D, base: u64, keeps_contents: bool) {
    let mut host = [3; 64];
    // SAFETY: a range of the region, which nobody else uses.
    unsafe { device.copy_in(base + 2000, &host) }.unwrap();
    host.fill(4);
    let expected = if keeps_contents { [3; 64] } else { [0; 64] };
    assert_eq!(read(device, base + 2000, 64), expected);
}

fn streams_and_events_can_be_used<D: Device>(device: &D) {
    let stream = device.stream().clone();
    assert!(stream == *device.stream(), "a stream is equal to itself");
    assert!(device.owns_stream(&stream));
    let event = device.new_event().unwrap();
    for _ in 0..2 {
        device.record(&event, &stream).unwrap();
        device.wait(&stream, &event).unwrap();
    }
    device.synchronise_stream(&stream).unwrap();
    device.synchronise().unwrap();
}
