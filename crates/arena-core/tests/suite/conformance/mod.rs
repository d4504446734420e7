//! The duties of a device that can be seen from outside, asked of the device itself. The numbers are those
//! of the contract: `# Safety` of `Device` and of `Captures`.

use arena_core::device::{Captures, Device, Obtained, Pattern};
use arena_core::{Alignment, ByteSize, DeviceErrorKind, RawArena};

const BYTES: u64 = 4096;

/// Runs the whole list on one device. `side` is another stream of it, where there are several.
pub(crate) fn conforms<D: Device>(device: &D, side: Option<&D::Stream>) {
    memory_is_the_caller_s_alone(device);
    what_it_says_of_itself_is_true(device);
    a_call_writes_its_range_and_no_other_byte(device);
    a_refusal_obtains_nothing_and_breaks_nothing(device);
    reserved_addresses_get_memory_piece_by_piece(device);
    host_memory_is_borrowed_for_the_call(device);
    work_takes_effect_in_call_order(device);
    streams_are_ordered_by_events(device, device.stream());
    if let Some(side) = side {
        assert!(side != device.stream(), "two streams are two values");
        streams_are_ordered_by_events(device, side);
    }
}

/// What must be read where `expected` was written: zeros if there is no memory.
fn kept<D: Device>(expected: &[u8]) -> Vec<u8> {
    if D::MEASURES_ONLY { vec![0; expected.len()] } else { expected.to_vec() }
}

fn read<D: Device>(device: &D, from: u64, bytes: u64) -> Vec<u8> {
    let mut host = vec![0xee; bytes as usize];
    // SAFETY: the range lies in memory of the caller, and nobody writes it outside the stream.
    unsafe { device.copy_out(&mut host, from) }.unwrap();
    host
}

fn fill<D: Device>(device: &D, at: u64, bytes: u64, value: impl Into<Pattern>) {
    // SAFETY: the range lies in memory of the caller, which nobody else uses; the callers' numbers are
    // multiples of the pattern's bytes.
    unsafe { device.fill(at, bytes, value.into()) }.unwrap();
}

/// Obtains memory for the test, and releases it afterwards.
fn with_memory<D: Device>(device: &D, test: impl FnOnce(u64)) {
    let memory = device.obtain(BYTES).unwrap();
    test(memory.base_address);
    release(device, memory, BYTES);
}

fn release<D: Device>(device: &D, memory: Obtained<D::Memory>, bytes: u64) {
    // SAFETY: the callers obtained it with this size, and do not use it any more.
    unsafe { device.release(memory, bytes) }.unwrap();
}

// 1
fn memory_is_the_caller_s_alone<D: Device>(device: &D) {
    let sizes = [1, 255, BYTES, 257];
    let memory: Vec<_> = (0_u8..)
        .zip(sizes)
        .flat_map(|(n, bytes)| {
            let plain = (device.obtain(bytes).unwrap(), bytes, 2 * n);
            [plain, (device.obtain_guarded(bytes).unwrap(), bytes, 2 * n + 1)]
        })
        .inspect(|(memory, bytes, value)| fill(device, memory.base_address, *bytes, *value))
        .collect();
    for (memory, bytes, value) in &memory {
        let expected = kept::<D>(&vec![*value; *bytes as usize]);
        assert_eq!(read(device, memory.base_address, *bytes), expected, "nobody else wrote there");
    }
    memory.into_iter().for_each(|(memory, bytes, _)| release(device, memory, bytes));
}

// 2
fn what_it_says_of_itself_is_true<D: Device>(device: &D) {
    let (alignment, guard) = (device.base_alignment(), device.guard_pages());
    for bytes in [0, 1, BYTES - 1, BYTES, 3 * BYTES + 7] {
        let memory = device.obtain(bytes).unwrap();
        assert_ne!(memory.base_address, 0, "no base is null");
        assert!(alignment.divides(memory.base_address));
        release(device, memory, bytes);
        if bytes > 0 {
            let memory = device.obtain_guarded(bytes).unwrap();
            match guard {
                Some(end) => assert!(end.divides(memory.base_address + bytes), "it ends at a page"),
                None => assert!(alignment.divides(memory.base_address)),
            }
            release(device, memory, bytes);
        }
    }
    assert_eq!((device.base_alignment(), device.guard_pages()), (alignment, guard));
    assert!(!device.name().is_empty());
}

/// The other half of 2. The arena reads a device's memory where it says that the host sees it, so this is asked
/// through an arena.
pub(crate) fn the_host_sees_its_memory_exactly_where_it_says_so<D: Device>(device: D) {
    assert!(!(D::HOST_VISIBLE && D::MEASURES_ONLY), "there is no memory to see");
    let arena = RawArena::new(device, ByteSize::kib(4)).unwrap();
    let mut kept = arena.persistent_from(&[1_u16, 2, 3]).unwrap();
    assert_eq!(kept.host().is_some(), D::HOST_VISIBLE);
    assert_eq!(kept.view_mut().host().map(<[_]>::len), D::HOST_VISIBLE.then_some(3));
    if let Some(values) = kept.host_mut() {
        values[1] = 7;
        assert_eq!(kept.host(), Some(&[1, 7, 3][..]));
        assert_eq!(
            kept.view().to_vec().unwrap(),
            [1, 7, 3],
            "the device reads what the host wrote"
        );
    }
    arena.set_mark().unwrap();
    let mut x = arena.transient_from(&[4_u16, 5], Alignment::DEFAULT).unwrap();
    if let Some(values) = x.host_mut() {
        values.reverse();
    }
    assert_eq!(x.host(), D::HOST_VISIBLE.then_some(&[5, 4][..]));
}

// 3
fn a_call_writes_its_range_and_no_other_byte<D: Device>(device: &D) {
    with_memory(device, |base| {
        let mut expected = [1; 64];
        fill(device, base, 64, 1);
        fill(device, base + 3, 5, 2);
        expected[3..8].fill(2);
        // SAFETY: a range of the memory, which nobody else uses.
        unsafe { device.copy_in(base + 17, &[3; 9]) }.unwrap();
        expected[17..26].fill(3);
        // SAFETY: as above; 5 bytes from 3 on and from 41 on do not overlap.
        unsafe { device.copy_within(base + 41, base + 3, 5) }.unwrap();
        expected[41..46].fill(2);
        assert_eq!(read(device, base, 64), kept::<D>(&expected));
        fill(device, base + 6, 6, Pattern::Bits16(0x0102));
        expected[6..12].copy_from_slice(&[0x0102_u16.to_ne_bytes(); 3].concat());
        fill(device, base + 52, 8, Pattern::Bits32(0x0304_0506));
        expected[52..60].copy_from_slice(&[0x0304_0506_u32.to_ne_bytes(); 2].concat());
        assert_eq!(read(device, base, 64), kept::<D>(&expected));
        // SAFETY: nothing lives in the second half.
        match unsafe { device.give_back(base + BYTES / 2, BYTES / 2) } {
            Ok(given_back) => assert!(given_back <= BYTES / 2),
            Err(refused) => assert_eq!(refused.kind, DeviceErrorKind::Unsupported, "{refused}"),
        }
        assert_eq!(read(device, base, 64), kept::<D>(&expected));
    });
}

// 5
fn a_refusal_obtains_nothing_and_breaks_nothing<D: Device>(device: &D) {
    for _ in 0..3 {
        let refused = device.obtain(1 << 62).unwrap_err();
        assert!(device.obtain_guarded(u64::MAX).is_err());
        assert!(!refused.reason.is_empty() && !refused.device.is_empty());
        assert!(device.health().is_ok());
    }
    with_memory(device, |base| {
        fill(device, base, BYTES, 7);
        assert_eq!(read(device, base, BYTES), kept::<D>(&[7; BYTES as usize]));
    });
}

// 1, 2, 3, 5
fn reserved_addresses_get_memory_piece_by_piece<D: Device>(device: &D) {
    let Some(granularity) = device.commit_granularity() else {
        let refused = device.reserve(0).unwrap_err();
        assert_eq!(refused.kind, DeviceErrorKind::Unsupported, "{refused}");
        return;
    };
    let unit = granularity.bytes();
    for bytes in [0, unit, 4 * unit] {
        let memory = device.reserve(bytes).unwrap();
        assert_ne!(memory.base_address, 0, "no base is null");
        assert!(granularity.divides(memory.base_address));
        assert!(device.base_alignment().divides(memory.base_address));
        unreserve(device, memory, bytes);
    }
    let [memory, other] = [4, 1].map(|units| device.reserve(units * unit).unwrap());
    let at = |units: u64| memory.base_address + units * unit;
    // SAFETY: here and below: a range of what was reserved, none of which is committed.
    unsafe { device.commit(&memory.handle, at(1), 2 * unit) }.unwrap();
    fill(device, at(1), 2 * unit, 7);
    // SAFETY: as above.
    unsafe { device.commit(&other.handle, other.base_address, unit) }.unwrap();
    fill(device, other.base_address, unit, 6);
    // SAFETY: as above.
    unsafe { device.commit(&memory.handle, at(0), unit) }.unwrap();
    // Across two pieces; and what was there stays.
    fill(device, at(1) - 8, 16, Pattern::Bits32(0x0304_0506));
    let expected = [&0x0304_0506_u32.to_ne_bytes().repeat(4)[..], &[7; 16]].concat();
    assert_eq!(read(device, at(1) - 8, 32), kept::<D>(&expected));
    // SAFETY: ranges of the memory, which do not overlap.
    unsafe { device.copy_within(at(2), at(1) - 8, 16) }.unwrap();
    assert_eq!(read(device, at(2), 17), kept::<D>(&[&expected[..16], &[7]].concat()));
    // SAFETY: committed by one call, and no longer used.
    unsafe { device.decommit(&memory.handle, at(1), 2 * unit) }.unwrap();
    let left = 0x0304_0506_u32.to_ne_bytes();
    assert_eq!(read(device, at(1) - 4, 4), kept::<D>(&left), "the other piece is still there");
    // SAFETY: as above: other pieces than before.
    unsafe { device.commit(&memory.handle, at(1), unit) }.unwrap();
    // SAFETY: as above.
    unsafe { device.commit(&memory.handle, at(2), 2 * unit) }.unwrap();
    fill(device, at(0), 4 * unit, 9);
    assert_eq!(read(device, at(0), 4 * unit), kept::<D>(&vec![9; 4 * unit as usize]));
    assert_eq!(read(device, other.base_address, unit), kept::<D>(&vec![6; unit as usize]));
    // What is queued is done before the memory goes, with what is still committed.
    fill(device, at(0), 4 * unit, 8);
    unreserve(device, memory, 4 * unit);
    unreserve(device, other, unit);
    device.synchronise().unwrap();
    assert!(device.health().is_ok());
    assert_eq!(device.commit_granularity(), Some(granularity), "it stays the same");
}

fn unreserve<D: Device>(device: &D, memory: Obtained<D::Memory>, bytes: u64) {
    // SAFETY: the callers reserved it with this size, and do not use it any more.
    unsafe { device.unreserve(memory, bytes) }.unwrap();
}

// 7
fn host_memory_is_borrowed_for_the_call<D: Device>(device: &D) {
    with_memory(device, |base| {
        let mut host = [3; 64];
        // SAFETY: a range of the memory, which nobody else uses.
        unsafe { device.copy_in(base, &host) }.unwrap();
        host.fill(4);
        assert_eq!(read(device, base, 64), kept::<D>(&[3; 64]), "a source may be changed at once");
        let read = read(device, base, 64);
        fill(device, base, 64, 5);
        device.synchronise().unwrap();
        assert_eq!(read, kept::<D>(&[3; 64]), "what was read stays as it is");
    });
}

// 8
fn work_takes_effect_in_call_order<D: Device>(device: &D) {
    assert!(device.stream() == device.stream(), "it is always the same");
    with_memory(device, |base| {
        fill(device, base, 100, 7);
        fill(device, base + 10, 1, 9);
        // SAFETY: ranges of the memory, which nobody else uses; they do not overlap.
        unsafe { device.copy_within(base + 1000, base, 100) }.unwrap();
        fill(device, base, 100, 1);
        let mut expected = [7; 100];
        expected[10] = 9;
        assert_eq!(read(device, base + 1000, 100), kept::<D>(&expected));
        assert_eq!(read(device, base, 100), kept::<D>(&[1; 100]));
    });
    // What is queued is done before the memory goes.
    with_memory(device, |base| fill(device, base, BYTES, 7));
    device.synchronise().unwrap();
    assert!(device.health().is_ok());
}

// 9
fn streams_are_ordered_by_events<D: Device>(device: &D, stream: &D::Stream) {
    assert!(stream.clone() == *stream && device.owns_stream(stream));
    let event = device.new_event().unwrap();
    device.wait(stream, &event).unwrap();
    for _ in 0..2 {
        device.record(&event, device.stream()).unwrap();
        device.wait(stream, &event).unwrap();
        device.record(&event, stream).unwrap();
        device.wait(device.stream(), &event).unwrap();
    }
    drop(event); // The waits stay in force.
    device.synchronise_stream(stream).unwrap();
    device.synchronise().unwrap();
    device.synchronise_all().unwrap();
}

/// Runs the list of a device that captures.
pub(crate) fn captures_conform<D: Captures>(device: &D) {
    with_memory(device, |base| {
        fill(device, base, 64, 0);
        // 5: also where there is nothing to abandon.
        device.abandon_capture();
        device.begin_capture().unwrap();
        fill(device, base, 64, 9);
        device.abandon_capture();
        assert_eq!(read(device, base, 64), [0; 64], "5: what was abandoned does not run");

        device.begin_capture().unwrap();
        // SAFETY: ranges of the memory, which nobody else uses; they do not overlap.
        unsafe { device.copy_within(base + 32, base, 32) }.unwrap();
        fill(device, base, 32, Pattern::Bits32(0x0707_0707));
        needs_the_host_and_is_refused(device, base);
        let graph = device.end_capture().unwrap();
        assert_eq!(read(device, base, 64), [0; 64], "1: nothing runs before a launch");

        for value in [1, 2] {
            fill(device, base, 32, value);
            // SAFETY: the memory is still the same, and nobody else uses it.
            unsafe { device.launch(&graph) }.unwrap();
            fill(device, base, 1, 8);
            let mut expected = [[7; 32], [value; 32]].concat();
            expected[0] = 8;
            assert_eq!(read(device, base, 64), expected, "3: a launch is a call in stream order");
        }
        fill(device, base, 64, 0);
        // SAFETY: as above.
        unsafe { device.launch(&graph) }.unwrap();
        drop(graph);
        assert_eq!(read(device, base, 32), [7; 32], "3: what was launched goes on to its end");
        assert!(device.refuse_in_capture("test").is_ok());
    });
}

// 2
fn needs_the_host_and_is_refused<D: Captures>(device: &D, base: u64) {
    if let Some(granularity) = device.commit_granularity() {
        let refused = device.reserve(granularity.bytes()).map(drop).unwrap_err();
        assert_eq!(refused.kind, DeviceErrorKind::InCapture, "{refused}");
    }
    let refusals = [
        device.obtain(16).map(drop).unwrap_err(),
        // SAFETY: a range of the caller's memory, which nobody else uses.
        unsafe { device.copy_in(base, &[1; 8]) }.unwrap_err(),
        // SAFETY: as above.
        unsafe { device.copy_out(&mut [0; 8], base) }.unwrap_err(),
        device.synchronise().unwrap_err(),
        device.synchronise_stream(device.stream()).unwrap_err(),
        device.refuse_in_capture("test").unwrap_err(),
    ];
    for refused in refusals {
        assert_eq!(refused.kind, DeviceErrorKind::InCapture, "{refused}");
    }
}
