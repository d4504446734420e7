//! One suite of promises, kept by every device and by every wrapper of one.

use std::sync::{Arc, Barrier};

use arena_core::device::{Call, CallCounts, Counting, Deferred, FailSwitch, Failing, Limited};
use arena_core::{
    Alignment, ByteSize, Device, DeviceErrorKind, Error, ErrorKind, Host, MAX_BYTES, Pod, Probe,
    RawArena,
};
use rstest::rstest;

type Outcome = Result<(), Error>;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// An arena on `device` whose calls are counted.
fn counted<D: Device>(
    device: D,
    capacity_bytes: u64,
) -> Result<(RawArena<Counting<D>>, CallCounts), Error> {
    let device = Counting::new(device);
    let counts = device.counts();
    Ok((RawArena::new(device, ByteSize::bytes_exact(capacity_bytes))?, counts))
}

/// What a device must give for bytes that were written: the same, or zeros if it has no memory.
fn expected<D: Device, T: Pod>(values: &[T]) -> Vec<T> {
    if D::MEASURES_ONLY { vec![T::zeroed(); values.len()] } else { values.to_vec() }
}

/// What a trim gave back; nothing where the device never gives a part of its memory back, and says so.
fn trimmed<D: Device>(arena: &mut RawArena<D>, above_bytes: u64) -> Result<u64, Error> {
    let gives_back = D::MEASURES_ONLY || arena.device().guard_pages().is_some();
    arena.trim(above_bytes).or_else(|error| match error.kind() {
        ErrorKind::Device(refused) if refused.kind == DeviceErrorKind::Unsupported => {
            assert!(!gives_back, "{error}");
            Ok(0)
        }
        _ => Err(error),
    })
}

/// Instantiates the suite for a device.
macro_rules! conformance {
    ($name:ident, $device:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn the_region_is_exact_and_its_base_aligned() -> Outcome {
                super::the_region_is_exact_and_its_base_aligned(|| $device)
            }
            #[test]
            fn what_is_written_filled_and_copied_reads_back() -> Outcome {
                super::what_is_written_filled_and_copied_reads_back($device)
            }
            #[test]
            fn a_range_is_written_and_nothing_beside_it() -> Outcome {
                super::a_range_is_written_and_nothing_beside_it($device)
            }
            #[test]
            fn empty_buffers_cost_no_call() -> Outcome {
                super::empty_buffers_cost_no_call($device)
            }
            #[test]
            fn an_arena_without_capacity_serves_what_is_empty() -> Outcome {
                super::an_arena_without_capacity_serves_what_is_empty($device)
            }
            #[test]
            fn a_capacity_that_no_memory_has_is_an_error() {
                super::a_capacity_that_no_memory_has_is_an_error(|| $device);
            }
            #[test]
            fn the_region_is_released_once_when_the_last_owner_goes() -> Outcome {
                super::the_region_is_released_once_when_the_last_owner_goes(|| $device)
            }
            #[test]
            fn the_region_is_released_once_by_whichever_thread_is_last() -> Outcome {
                super::the_region_is_released_once_by_whichever_thread_is_last($device)
            }
            #[test]
            fn trim_gives_back_what_is_free_and_nothing_else() -> Outcome {
                super::trim_gives_back_what_is_free_and_nothing_else($device)
            }
            #[test]
            fn the_nth_call_that_fails_leaves_nothing_behind() -> Outcome {
                super::the_nth_call_that_fails_leaves_nothing_behind(|| $device)
            }
        }
    };
}

conformance!(host, Host::new());
conformance!(probe, Probe::new());
conformance!(probe_of_the_host, Probe::like(&Host::new()));
conformance!(deferred, Deferred::new(1));
conformance!(counting, Counting::new(Host::new()));
conformance!(failing, Failing::new(Host::new()));
conformance!(limited, Limited::new(Host::new(), ByteSize::mib(1)));
conformance!(wrapped_twice, Limited::new(Failing::new(Host::new()), ByteSize::mib(1)));
conformance!(deferred_and_wrapped, Limited::new(Failing::new(Deferred::new(1)), ByteSize::mib(1)));

#[test]
fn fresh_memory_of_the_host_and_of_a_probe_reads_as_zero() -> Outcome {
    fresh_memory_reads_as_zero(Host::new())?;
    fresh_memory_reads_as_zero(Probe::new())
}

fn the_region_is_exact_and_its_base_aligned<D: Device>(device: impl Fn() -> D) -> Outcome {
    for capacity_bytes in [0, 1, 255, 4097, MIB] {
        let (arena, counts) = counted(device(), capacity_bytes)?;
        let region = arena.steps().region();
        assert_eq!(region.capacity_bytes(), capacity_bytes);
        assert_ne!(region.base_address(), 0);
        assert!(region.device().base_alignment().divides(region.base_address()));
        assert!(region.device().base_alignment() >= Alignment::DEFAULT);
        assert_eq!(counts.calls(Call::Obtain), 1);
        assert_eq!(counts.bytes(Call::Obtain), capacity_bytes);
    }
    Ok(())
}

fn fresh_memory_reads_as_zero<D: Device>(device: D) -> Outcome {
    let (arena, _) = counted(device, 64 * KIB)?;
    let all = arena.transient::<u8>(64 * 1024, Alignment::ONE)?;
    assert!(all.view().to_vec()?.iter().all(|byte| *byte == 0));
    Ok(())
}

fn what_is_written_filled_and_copied_reads_back<D: Device>(device: D) -> Outcome {
    let (arena, counts) = counted(device, 64 * KIB)?;
    let values: Vec<f64> = (0..1000).map(f64::from).collect();

    let weights = arena.persistent_from(&values)?;
    let mut copy = arena.transient::<f64>(1000, Alignment::DEFAULT)?;
    copy.view_mut().copy_from(weights.view())?;
    assert_eq!(copy.view().to_vec()?, expected::<D, _>(&values));
    assert_eq!(weights.view().to_vec()?, expected::<D, _>(&values));

    copy.view_mut().fill_bytes(0x11)?;
    let filled = vec![f64::from_bits(0x1111_1111_1111_1111); 1000];
    assert_eq!(copy.view().to_vec()?, expected::<D, _>(&filled));
    copy.view_mut().zero()?;
    assert_eq!(copy.view().to_vec()?, vec![0.0; 1000]);
    assert_eq!(weights.view().to_vec()?, expected::<D, _>(&values), "the source is left alone");

    assert_eq!((counts.calls(Call::CopyIn), counts.bytes(Call::CopyIn)), (1, 8000));
    assert_eq!((counts.calls(Call::CopyWithin), counts.bytes(Call::CopyWithin)), (1, 8000));
    assert_eq!((counts.calls(Call::Fill), counts.bytes(Call::Fill)), (2, 16000));
    assert_eq!((counts.calls(Call::CopyOut), counts.bytes(Call::CopyOut)), (5, 40000));
    Ok(())
}

fn a_range_is_written_and_nothing_beside_it<D: Device>(device: D) -> Outcome {
    let (arena, counts) = counted(device, 4 * KIB)?;
    let mut buffer = arena.transient::<u16>(100, Alignment::DEFAULT)?;
    buffer.view_mut().fill_bytes(0xa5)?;
    let filled = counts.bytes(Call::Fill);

    let (_, rest) = buffer.view_mut().split_at_mut(30)?;
    rest.range(..40)?.write(&[7; 40])?;
    let mut wanted = vec![0xa5a5_u16; 100];
    wanted[30..70].fill(7);
    assert_eq!(buffer.view().to_vec()?, expected::<D, _>(&wanted));
    assert_eq!(buffer.view().range(29..31)?.to_vec()?, expected::<D, _>(&[0xa5a5, 7]));

    buffer.view_mut().range(69..=70)?.zero()?;
    wanted[69..=70].fill(0);
    assert_eq!(buffer.view().to_vec()?, expected::<D, _>(&wanted));
    assert_eq!(counts.bytes(Call::Fill) - filled, 4, "bytes, not elements");

    // Wrong lengths and ranges are told without a call.
    let calls = Call::ALL.map(|call| counts.calls(call));
    let mismatch = buffer.view_mut().write(&[1; 99]).unwrap_err();
    assert!(matches!(mismatch.kind(), ErrorKind::LengthMismatch { expected: 100, given: 99 }));
    let mismatch = buffer.view().read_into(&mut [0; 101]).unwrap_err();
    assert!(matches!(mismatch.kind(), ErrorKind::LengthMismatch { expected: 100, given: 101 }));
    let outside = buffer.view().range(90..101).unwrap_err();
    assert!(matches!(outside.kind(), ErrorKind::OutOfBounds { start: 90, end: 101, len: 100 }));
    #[expect(clippy::reversed_empty_ranges, reason = "it is what is refused")]
    let reversed = buffer.view().range(5..4);
    let outside = [
        reversed.map(drop),
        buffer.view().range(usize::MAX..).map(drop),
        buffer.view().range(..=usize::MAX).map(drop),
        buffer.view_mut().split_at_mut(101).map(drop),
    ];
    for error in outside.map(Result::unwrap_err) {
        assert!(matches!(error.kind(), ErrorKind::OutOfBounds { len: 100, .. }), "{error}");
    }
    assert_eq!(Call::ALL.map(|call| counts.calls(call)), calls);
    Ok(())
}

// B008
fn empty_buffers_cost_no_call<D: Device>(device: D) -> Outcome {
    let (mut arena, counts) = counted(device, 300)?;
    let before_mark = arena.persistent::<f32>(0, Alignment::DEFAULT)?;
    arena.set_mark()?;
    let full = arena.transient::<u8>(300, Alignment::DEFAULT)?;
    let mut first = arena.transient::<f64>(0, Alignment::DEFAULT)?;
    let mut kept = arena.persistent_from::<f64>(&[])?;
    let zero_sized = arena.transient::<[u8; 0]>(1 << 40, Alignment::DEFAULT)?;
    assert_eq!((arena.stats().used_bytes, arena.stats().kept_bytes), (300, 0));

    for empty in [first.view(), kept.view()] {
        assert_eq!((empty.len(), empty.len_bytes()), (0, 0));
        assert!(empty.is_empty() && empty.is_aligned(Alignment::DEFAULT) && empty.address() != 0);
        assert_eq!(empty.to_vec()?, []);
    }
    assert_eq!(zero_sized.view().range(7..).map(|rest| rest.len())?, (1 << 40) - 7);
    kept.view_mut().write(&[])?;
    kept.view_mut().zero()?;
    first.view_mut().copy_from(kept.view())?;
    let middle = full.view().range(150..150)?;
    assert_eq!(middle.to_vec()?, []);

    drop((full, first, zero_sized));
    arena.reset_to_mark();
    drop((before_mark, kept));
    let calls = Call::ALL.map(|call| counts.calls(call));
    assert_eq!(calls.iter().sum::<u64>(), 1, "obtaining the region was the only call");
    Ok(())
}

fn an_arena_without_capacity_serves_what_is_empty<D: Device>(device: D) -> Outcome {
    let (mut arena, _) = counted(device, 0)?;
    assert_eq!(arena.transient::<f32>(0, Alignment::DEFAULT)?.len(), 0);
    for refused in [
        arena.transient::<u8>(1, Alignment::ONE).map(drop),
        arena.persistent::<u8>(1, Alignment::ONE).map(drop),
    ] {
        let error = refused.unwrap_err();
        let facts = error.as_exhausted().expect("it does not fit");
        assert_eq!((facts.asked_bytes, facts.missing_bytes, facts.capacity_bytes), (1, 1, 0));
    }
    arena.reset_to_mark();
    assert_eq!(arena.trim(0)?, 0);
    assert_eq!(arena.stats().peak_bytes, 0);
    Ok(())
}

fn a_capacity_that_no_memory_has_is_an_error<D: Device>(device: impl Fn() -> D) {
    for capacity_bytes in [MAX_BYTES, MAX_BYTES + 1, u64::MAX - 255, u64::MAX] {
        let counting = Counting::new(device());
        let counts = counting.counts();
        let error = RawArena::new(counting, ByteSize::bytes_exact(capacity_bytes)).unwrap_err();
        let ErrorKind::Device(refused) = error.kind() else { panic!("{error:?}") };
        assert!(!refused.device.is_empty() && !refused.reason.is_empty(), "{error}");
        assert_eq!(counts.calls(Call::Release), 0, "nothing was obtained");
    }
}

fn the_region_is_released_once_when_the_last_owner_goes<D: Device>(
    device: impl Fn() -> D,
) -> Outcome {
    for arena_goes_first in [true, false] {
        let (arena, counts) = counted(device(), 8 * KIB)?;
        let weights = arena.persistent_from(&[1.5_f32; 10])?;
        arena.set_mark()?;
        let kept = arena.persistent_from(&[2.5_f32; 10])?;
        if arena_goes_first {
            drop(arena);
            assert_eq!(weights.view().to_vec()?, expected::<D, _>(&[1.5_f32; 10]));
            drop(weights);
            assert_eq!(counts.calls(Call::Release), 0, "the kept buffer still holds it");
            assert_eq!(kept.view().to_vec()?, expected::<D, _>(&[2.5_f32; 10]));
            drop(kept);
        } else {
            drop((weights, kept));
            assert_eq!(counts.calls(Call::Release), 0, "the arena still holds it");
            drop(arena);
        }
        assert_eq!((counts.calls(Call::Obtain), counts.calls(Call::Release)), (1, 1));
        assert_eq!(counts.bytes(Call::Release), 8 * KIB);
    }
    Ok(())
}

fn the_region_is_released_once_by_whichever_thread_is_last<D: Device>(device: D) -> Outcome {
    let (arena, counts) = counted(device, 8 * KIB)?;
    arena.set_mark()?;
    let buffers = (0..4).map(|_| arena.persistent_from(&[3_u8; 100]));
    let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
    let together = Arc::new(Barrier::new(5));
    let wait_and_drop = |owner: Box<dyn Send>| {
        let together = Arc::clone(&together);
        std::thread::spawn(move || {
            together.wait();
            drop(owner);
        })
    };
    let mut threads: Vec<_> =
        buffers.into_iter().map(|buffer| wait_and_drop(Box::new(buffer))).collect();
    threads.push(wait_and_drop(Box::new(arena)));
    for thread in threads {
        thread.join().expect("no thread panics");
    }
    assert_eq!((counts.calls(Call::Obtain), counts.calls(Call::Release)), (1, 1));
    Ok(())
}

fn trim_gives_back_what_is_free_and_nothing_else<D: Device>(device: D) -> Outcome {
    let (mut arena, _) = counted(device, MIB)?;
    let below = arena.persistent_from(&[1_u8; 5000])?;
    arena.set_mark()?;
    let kept = arena.persistent_from(&[2_u8; 5000])?;
    let free_bytes = arena.stats().free_bytes;
    let len = usize::try_from(free_bytes).expect("a MiB");
    let address = {
        let mut all = arena.transient::<u8>(len, Alignment::ONE)?;
        all.view_mut().fill_bytes(3)?;
        all.address()
    };
    arena.reset_to_mark();
    let stats = arena.stats();

    let given_back = trimmed(&mut arena, 0)?;
    assert_eq!(arena.stats(), stats, "no figure and no address changes");
    let all = arena.transient::<u8>(len, Alignment::ONE)?;
    assert_eq!(all.address(), address);
    let bytes = all.view().to_vec()?;
    let zeros = bytes.iter().filter(|byte| **byte == 0).count() as u64;
    // Of these devices, those whose memory lies in pages of its own give them back.
    if arena.device().guard_pages().is_none() {
        assert_eq!(given_back, 0);
    } else {
        // Whole pages only: less than one at either end stays.
        assert!(given_back > free_bytes - 2 * 4096, "{given_back} of {free_bytes}");
        assert_eq!(zeros, given_back, "exactly what was given back reads as zero");
        assert_eq!((bytes[0], bytes[len - 1]), (3, 3), "the ends share a page with live bytes");
    }
    assert_eq!(below.view().to_vec()?, expected::<D, _>(&[1_u8; 5000]));
    assert_eq!(kept.view().to_vec()?, expected::<D, _>(&[2_u8; 5000]));
    drop(all);
    arena.reset_to_mark();

    // Above a bound: what lies below it stays.
    arena.transient::<u8>(len, Alignment::ONE)?.view_mut().fill_bytes(4)?;
    arena.reset_to_mark();
    let above = trimmed(&mut arena, MIB / 2)?;
    assert!(above <= given_back / 2 + 4096);
    let all = arena.transient::<u8>(len, Alignment::ONE)?;
    let half = all.view().range(..(MIB as usize) / 2 - 5000)?;
    assert_eq!(half.to_vec()?, expected::<D, _>(&vec![4_u8; half.len()]));
    Ok(())
}

fn the_nth_call_that_fails_leaves_nothing_behind<D: Device>(device: impl Fn() -> D) -> Outcome {
    let failing = |call| {
        let device = Failing::new(device());
        let switch = device.switch();
        switch.fail_nth(call, 1);
        device
    };

    // Obtaining: there is no arena, and nothing to release.
    let counting = Counting::new(failing(Call::Obtain));
    let counts = counting.counts();
    let refused = RawArena::new(counting, ByteSize::kib(4)).unwrap_err();
    assert_device_error(&refused, "obtain");
    assert_eq!(counts.calls(Call::Release), 0);

    // Releasing: nobody can be told, and nothing panics.
    drop(RawArena::new(failing(Call::Release), ByteSize::kib(4))?);

    for call in [Call::CopyIn, Call::CopyOut, Call::CopyWithin, Call::Fill, Call::GiveBack] {
        for n in 1..=3 {
            nothing_is_left_behind_by(call, n, Failing::new(device()))?;
        }
    }
    Ok(())
}

fn nothing_is_left_behind_by<D: Device>(call: Call, n: u64, device: Failing<D>) -> Outcome {
    let switch = device.switch();
    let mut arena = RawArena::new(device, ByteSize::kib(64))?;
    let source = arena.persistent_from(&[5_u8; 1000])?;
    let mut target = arena.persistent_from(&[6_u8; 1000])?;
    arena.set_mark()?;
    let mut request = |arena: &mut RawArena<Failing<D>>| match call {
        Call::CopyIn => arena.persistent_from(&[7_u8; 500]).map(drop),
        Call::CopyOut => source.view().to_vec().map(drop),
        Call::CopyWithin => target.view_mut().copy_from(source.view()),
        Call::GiveBack => trimmed(arena, 0).map(drop),
        _ => target.view_mut().zero(),
    };

    switch.fail_nth(call, n);
    for _ in 1..n {
        request(&mut arena)?;
    }
    let before = arena.stats();
    let error = request(&mut arena).unwrap_err();
    assert_device_error(&error, call.name());
    assert_eq!(arena.stats(), before, "{} number {n} failed", call.name());
    request(&mut arena)?; // It fails once.

    assert_eq!(source.view().to_vec()?, expected::<D, _>(&[5_u8; 1000]));
    arena.reset_to_mark();
    assert_eq!((arena.stats().used_bytes, arena.stats().kept_bytes), (2024, 0));
    Ok(())
}

fn assert_device_error(error: &Error, call: &str) {
    let ErrorKind::Device(refused) = error.kind() else { panic!("{error:?}") };
    assert_eq!(refused.call, call);
    assert!(error.to_string().contains(call), "{error}");
}

// --- what a wrapper adds ----------------------------------------------------------------------

#[rstest]
#[case::exact(100, 100, true)]
#[case::below(100, 99, true)]
#[case::nothing(0, 0, true)]
#[case::one_too_many(100, 101, false)]
#[case::none_allowed(0, 1, false)]
fn a_limit_serves_what_it_says_to_the_byte(
    #[case] limit_bytes: u64,
    #[case] asked_bytes: u64,
    #[case] served: bool,
) {
    let device = Limited::new(Host::new(), ByteSize::bytes_exact(limit_bytes));
    let outcome = RawArena::new(device, ByteSize::bytes_exact(asked_bytes));
    assert_eq!(outcome.is_ok(), served);
    if let Err(error) = outcome {
        let text = error.to_string();
        let numbers = [asked_bytes, limit_bytes].map(|bytes| text.contains(&bytes.to_string()));
        assert_eq!(numbers, [true, true], "{text}");
    }
}

#[test]
fn a_limit_counts_all_regions_together_and_forgets_the_released() -> Outcome {
    let device = Limited::new(Host::new(), ByteSize::bytes_exact(100));
    let first = device.obtain(60)?;
    let refused = |bytes| device.obtain(bytes).map(drop).unwrap_err().reason;
    assert_eq!(
        refused(41),
        "asked 41 bytes, free 40 of 100; the program itself allows 100 bytes: ask for less, or raise that limit"
    );
    let second = device.obtain(40)?;
    // SAFETY: obtained with these bytes just above, and never used.
    unsafe { device.release(first, 60) }?;
    let third = device.obtain(60)?;
    assert_eq!(
        refused(1),
        "asked 1 bytes, free 0 of 100; the program itself allows 100 bytes: ask for less, or raise that limit"
    );
    // SAFETY: as above.
    unsafe { device.release(second, 40) }?;
    // SAFETY: as above.
    unsafe { device.release(third, 60) }?;
    Ok(())
}

#[test]
fn a_region_that_the_device_refused_does_not_count_against_the_limit() -> Outcome {
    let inner = Failing::new(Host::new());
    inner.switch().fail_nth(Call::Obtain, 1);
    let device = Limited::new(inner, ByteSize::bytes_exact(100));
    assert_eq!(device.obtain(100).map(drop).unwrap_err().kind, DeviceErrorKind::Refused);
    let memory = device.obtain(100)?;
    // SAFETY: obtained with these bytes just above, and never used.
    unsafe { device.release(memory, 100) }?;
    Ok(())
}

#[test]
fn a_limit_counts_what_is_committed_and_not_the_addresses() -> Outcome {
    let device = Limited::new(Deferred::new(0), ByteSize::kib(3));
    let memory = device.reserve(64 * KIB)?;
    let at = |kib: u64| memory.base_address + kib * KIB;
    // SAFETY: a range of what was reserved, which is not committed; here and below.
    unsafe { device.commit(&memory.handle, at(0), 2 * KIB) }?;
    // SAFETY: as above.
    let refused = unsafe { device.commit(&memory.handle, at(2), 2 * KIB) }.unwrap_err();
    assert_eq!(
        refused.reason,
        "asked 2048 bytes, free 1024 of 3072; the program itself allows 3072 bytes: ask for less, or raise that limit"
    );
    // SAFETY: committed by one call, and not used.
    unsafe { device.decommit(&memory.handle, at(0), 2 * KIB) }?;
    // SAFETY: as above.
    unsafe { device.commit(&memory.handle, at(2), 3 * KIB) }?;
    // SAFETY: as above.
    unsafe { device.decommit(&memory.handle, at(2), 3 * KIB) }?;
    // SAFETY: reserved with these bytes, and not used any more.
    unsafe { device.unreserve(memory, 64 * KIB) }?;
    Ok(())
}

#[test]
fn a_switch_fails_the_call_it_names_once_and_no_other() -> Outcome {
    let device = Failing::new(Host::new());
    let switch: FailSwitch = device.switch();
    let arena = RawArena::new(device, ByteSize::kib(4))?;
    let mut buffer = arena.persistent_from(&[1_u8; 10])?;
    switch.fail_nth(Call::Fill, 2);
    buffer.view_mut().write(&[2; 10])?;
    buffer.view_mut().fill_bytes(3)?;
    let error = buffer.view_mut().fill_bytes(4).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Device(device) if device.call == "fill"), "{error}");
    assert_eq!(buffer.as_slice(), [3; 10], "the failed call wrote nothing");
    buffer.view_mut().fill_bytes(5)?;
    switch.fail_nth(Call::Fill, 1);
    switch.fail_nth(Call::Fill, 0);
    buffer.view_mut().fill_bytes(6)?;
    Ok(())
}

#[test]
fn a_wrapper_answers_for_the_device_inside_it() {
    let (host, probe) = (Host::new(), Probe::like(&Host::new()));
    assert_eq!(probe.base_alignment(), host.base_alignment());
    let wrapped = Limited::new(Failing::new(Counting::new(host.clone())), ByteSize::kib(1));
    assert_eq!(wrapped.name(), host.name());
    assert_eq!(wrapped.base_alignment(), host.base_alignment());
    const { assert!(<Limited<Counting<Probe>> as Device>::MEASURES_ONLY) }
    const { assert!(!<Limited<Counting<Host>> as Device>::MEASURES_ONLY) }
}

// --- the host's physical memory ---------------------------------------------------------------

/// Resident memory of this process in bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    // The kernel counts in its base page, 4 KiB wherever these tests have run; a larger one would
    // only make the differences below larger than what is asserted.
    pages * 4096
}

#[test]
fn physical_memory_comes_with_the_first_touch_and_goes_with_trim() {
    // The other tests come and go meanwhile, on the stand-in with many MiB each.
    arena_testing::alone(|| touch_and_trim().unwrap());
}

fn touch_and_trim() -> Outcome {
    const TOUCHED: u64 = 128 * MIB;
    const MARGIN: u64 = 48 * MIB;
    let before = resident_bytes();
    let mut arena = RawArena::new(Host::new(), ByteSize::gib(64))?;
    arena.set_mark()?;
    assert!(resident_bytes() < before + MARGIN, "64 GiB of addresses cost nothing");
    let len = usize::try_from(TOUCHED).expect("128 MiB");
    arena.transient::<u8>(len, Alignment::ONE)?.view_mut().fill_bytes(1)?;
    assert!(resident_bytes() > before + TOUCHED - MARGIN);
    arena.reset_to_mark();
    assert!(resident_bytes() > before + TOUCHED - MARGIN, "a reset keeps it");
    assert_eq!(arena.trim(0)?, 64 << 30);
    assert!(resident_bytes() < before + MARGIN);
    Ok(())
}
