//! Copies between borrowed host memory and the CUDA device: when the call returns, however it does, no
//! queued copy uses that memory.

use std::sync::atomic::{AtomicBool, Ordering};

use arena_core::cudarc::driver::PinnedHostSlice;
use arena_core::{ByteSize, Captures, Cuda, Device, DeviceErrorKind, Error, ErrorKind, RawArena};
use cuda_standin::Standin;
use rstest::rstest;

const WAIT: &str = "cuStreamSynchronize";
const PASSING: u32 = 801;
const FINAL: u32 = 700;

fn arena() -> RawArena<Cuda> {
    RawArena::new(Cuda::new(0).unwrap(), ByteSize::kib(4)).unwrap()
}

/// 64 bytes of page-locked memory.
fn pinned(arena: &RawArena<Cuda>, value: u8) -> PinnedHostSlice<u8> {
    // SAFETY: it is written right below, before anything reads it.
    let pinned = unsafe { arena.device().context().alloc_pinned::<u8>(64) };
    let mut pinned = pinned.map_err(|error| error.0).unwrap();
    slice(&mut pinned).fill(value);
    pinned
}

fn slice(pinned: &mut PinnedHostSlice<u8>) -> &mut [u8] {
    pinned.as_mut_slice().map_err(|error| error.0).unwrap()
}

/// Fails the next `times` waits, the last of them with `last_code`.
fn fail_next(standin: &Standin, times: u64, last_code: u32) {
    for n in 1..times {
        standin.fail_nth(WAIT, n, PASSING);
    }
    standin.fail_nth(WAIT, times, last_code);
}

fn kind(error: &Error) -> DeviceErrorKind {
    let ErrorKind::Device(error) = error.kind() else { panic!("{error:?}") };
    error.kind
}

#[rstest]
fn a_read_that_fails_leaves_no_copy_that_lands_later(#[values(1, 3)] times: u64) {
    let standin = Standin::load().unwrap();
    let arena = arena();
    let x = arena.persistent_from(&[7_u8; 64]).unwrap();
    let mut host = pinned(&arena, 1);
    fail_next(&standin, times, PASSING);
    let error = x.view().read_into(slice(&mut host)).unwrap_err();
    assert!(error.to_string().contains(WAIT), "{error}");
    assert_eq!(kind(&error), DeviceErrorKind::Refused);
    standin.clear_failures();
    slice(&mut host).fill(2);
    arena.device().synchronise().unwrap();
    assert_eq!(slice(&mut host), [2; 64], "it is the caller's alone since the call returned");
}

#[rstest]
fn a_write_that_fails_leaves_no_copy_that_reads_its_source_later(#[values(1, 3)] times: u64) {
    let standin = Standin::load().unwrap();
    let arena = arena();
    let mut x = arena.persistent_from(&[0_u8; 64]).unwrap();
    let mut host = pinned(&arena, 3);
    fail_next(&standin, times, PASSING);
    let error = x.view_mut().write(slice(&mut host)).unwrap_err();
    assert!(error.to_string().contains(WAIT), "{error}");
    standin.clear_failures();
    slice(&mut host).fill(4);
    let device = x.view().to_vec().unwrap();
    assert_eq!(
        device, [3; 64],
        "the copy ended before the call, and 4 was never given to be written"
    );
}

#[test]
fn a_device_that_is_lost_meanwhile_is_not_waited_for() {
    let standin = Standin::load().unwrap();
    let arena = arena();
    let x = arena.persistent_from(&[7_u8; 64]).unwrap();
    let mut pinned = pinned(&arena, 1);
    let host = slice(&mut pinned);
    fail_next(&standin, 3, FINAL);
    let error = x.view().read_into(host).unwrap_err();
    assert_eq!(kind(&error), DeviceErrorKind::Final, "{error}");
    assert!(x.view().read_into(host).unwrap_err().is_final());
}

// A captured copy would return `Ok`, do nothing, and leave its source's address in the graph.
#[test]
fn a_copy_of_another_thread_is_never_captured_half_way() {
    let _standin = Standin::load().unwrap();
    let arena = arena();
    let mut x = arena.persistent_from(&[0_u8; 64]).unwrap();
    let device = arena.device();
    let ended = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for n in (0..=u8::MAX).cycle().take(3000) {
                if x.view_mut().write(&[n; 64]).is_err() {
                    continue; // A graph is captured just now.
                }
                let read = std::iter::repeat_with(|| x.view().to_vec()).find_map(Result::ok);
                assert_eq!(read.unwrap(), [n; 64], "what was written has arrived");
            }
            ended.store(true, Ordering::Relaxed);
        });
        while !ended.load(Ordering::Relaxed) {
            device.begin_capture().unwrap();
            drop(device.end_capture().unwrap());
        }
    });
}

// --- pageable memory, which the driver need not have read when its call returns ----------------------

/// Uploads of these sizes into one buffer, each from a vector that is written anew as soon as the call returns.
#[rstest]
fn what_is_uploaded_is_the_caller_s_again_when_the_call_returns(
    #[values(1, (1 << 20) + 1, 3 << 20)] len: usize,
    #[values(1, 7)] times: usize,
    #[values(false, true)] is_staged: bool,
) {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(3) {
        standin.reset(seed);
        standin.set_stages_pageable(false);
        let arena = RawArena::new(Cuda::new(0).unwrap(), ByteSize::mib(24)).unwrap();
        if !is_staged {
            standin.fail_nth("cuMemHostAlloc", 1, PASSING); // Then each copy is waited for.
        }
        let mut host = vec![0; len];
        let mut arrived = Vec::new();
        for n in 1..=u8::try_from(times).unwrap() {
            host.fill(n);
            arrived.push(arena.persistent_from(&host).unwrap());
            host.fill(99);
        }
        for (n, buffer) in (1..).zip(&arrived) {
            assert!(buffer.view().to_vec().unwrap().iter().all(|byte| *byte == n), "seed {seed}");
        }
        drop((arrived, arena));
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
}

#[test]
fn small_uploads_wait_for_nothing() {
    let standin = Standin::load().unwrap();
    let arena = arena();
    let mut x = arena.persistent_from(&[0_u8; 64]).unwrap();
    standin.clear_calls();
    for n in 0..100 {
        x.view_mut().write(&[n; 64]).unwrap();
    }
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuStreamSynchronize") + standin.calls("cuEventSynchronize"), 0);
        assert_eq!(
            standin.calls("cuMemHostAlloc"),
            0,
            "the memory is there since the first upload"
        );
    }
    assert_eq!(x.view().to_vec().unwrap(), [99; 64]);
}

/// Whichever call of an upload of several pieces fails, it is told, and the next upload arrives whole.
#[test]
fn an_upload_that_fails_leaves_the_next_one_whole() {
    let standin = Standin::load().unwrap();
    standin.set_stages_pageable(false);
    let bytes = 5 << 20;
    let arena = RawArena::new(Cuda::new(0).unwrap(), ByteSize::mib(6)).unwrap();
    let mut x = arena.persistent_from(&vec![0_u8; bytes]).unwrap();
    for call in ["cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuEventSynchronize"] {
        for nth in 1..=3 {
            standin.fail_nth(call, nth, PASSING);
            let refused = x.view_mut().write(&vec![1; bytes]).unwrap_err();
            assert_eq!(kind(&refused), DeviceErrorKind::Refused, "{call} {nth}: {refused}");
            standin.clear_failures();
            x.view_mut().write(&vec![2; bytes]).unwrap();
            assert!(x.view().to_vec().unwrap().iter().all(|byte| *byte == 2), "{call} {nth}");
        }
    }
}
