//! A region that is paused: its memory is gone, its addresses and what was kept are not.

use arena_core::device::{Call, Captures, Deferred, Device, Failing, Limited};
use arena_core::for_scopes::Steps;
use arena_core::{
    ByteSize, DeviceErrorKind, Error, ErrorKind, Host, Keep, Persistent, Placement, Probe, Reset,
};
use rstest::rstest;

use super::regions::exact;
use super::{A256, close, open, try_open};
use crate::hooked::Hooked;

const KIB: u64 = 1 << 10;
const KEEPS: Keep = Keep::Persistent;

fn is_paused(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Paused)
}

type Filled<D> = (Steps<D>, [Persistent<u8, D>; 2]);

/// A region with persistent buffers at both ends and a step between them.
fn filled<D: Device>(device: D, reset: Reset) -> Result<Filled<D>, Error> {
    let steps = exact(device, 64 * KIB, reset);
    let weights = steps.persistent_from(&[1_u8; 3000], A256)?;
    let root = open(&steps, None);
    let kept = steps.persistent_from(&[2_u8; 3000], A256)?;
    drop(steps.transient_from(&[3_u8; 10_000], A256, 1)?);
    close(&steps, root)?;
    Ok((steps, [weights, kept]))
}

fn assert_kept<D: Device>(buffers: &[Persistent<u8, D>; 2]) -> Result<(), Error> {
    assert_eq!(buffers[0].view().to_vec()?, [1; 3000]);
    assert_eq!(buffers[1].view().to_vec()?, [2; 3000]);
    Ok(())
}

#[test]
fn what_was_kept_is_back_at_its_addresses_and_meanwhile_there_is_no_memory() -> Result<(), Error> {
    for seed in 0..super::SEEDS {
        let device = Deferred::new(seed);
        let stream = device.stream().clone();
        let (mut steps, buffers) = filled(device, Reset::Keep)?;
        let before = steps.stats();
        assert_eq!(steps.pause(KEEPS)?, before.committed_bytes);
        assert_eq!((steps.stats().committed_bytes, stream.physical_bytes()), (0, 0));
        assert_eq!(steps.pause(KEEPS)?, 0, "it is paused already");
        steps.resume()?;
        steps.resume()?;
        assert_eq!(steps.stats().committed_bytes, before.committed_bytes);
        assert_kept(&buffers)?;
        let root = open(&steps, None);
        let x = steps.transient_from(&[4_u8; 12_000], A256, 1)?;
        assert_eq!(x.view().to_vec()?, [4; 12_000]);
        drop(x);
        close(&steps, root)?;
        assert_eq!(stream.fault(), None);
    }
    Ok(())
}

#[test]
fn while_it_is_paused_every_use_is_refused() -> Result<(), Error> {
    let (mut steps, mut buffers) = filled(Deferred::new(0), Reset::Zero)?;
    let other = exact(Deferred::new(1), 64 * KIB, Reset::Keep);
    let mut elsewhere = other.persistent_from(&[9_u8; 3000], A256)?;
    steps.pause(KEEPS)?;
    let refusals = [
        steps.ready(),
        try_open(&steps, None).map(drop),
        steps.check_needs(1, "step", 10),
        steps.transient::<u8>(10, A256, 0).map(drop),
        steps.transient_from(&[1_u8], A256, 0).map(drop),
        steps.persistent::<u8>(10, A256, 0).map(drop),
        steps.persistent_copy(buffers[0].view(), A256, 0).map(drop),
        steps.trim(0).map(drop),
        buffers[0].view().to_vec().map(drop),
        buffers[0].view_mut().write(&[0; 3000]),
        buffers[0].view_mut().zero(),
        buffers[0].view_mut().fill(7),
        buffers[0].view_mut().copy_from(elsewhere.view()),
        elsewhere.view_mut().copy_from(buffers[0].view()),
    ];
    for (n, refused) in refusals.into_iter().enumerate() {
        assert!(is_paused(&refused.unwrap_err()), "number {n}");
    }
    steps.resume()?;
    assert_kept(&buffers)?;
    assert_eq!(elsewhere.view().to_vec()?, [9; 3000]);
    assert_eq!(steps.region().device().stream().fault(), None);
    close(&steps, open(&steps, None))
}

#[test]
fn a_buffer_that_is_dropped_meanwhile_gives_its_bytes_back_after_the_resume() -> Result<(), Error> {
    let (mut steps, [weights, kept]) = filled(Deferred::new(0), Reset::Zero)?;
    steps.pause(KEEPS)?;
    drop(kept);
    steps.resume()?;
    close(&steps, open(&steps, None))?;
    assert_eq!(steps.stats().kept_bytes, 0);
    assert_eq!(weights.view().to_vec()?, [1; 3000]);
    assert_eq!(steps.region().device().stream().fault(), None);
    Ok(())
}

// Without the wait some seeds read or write after the memory has gone.
#[test]
fn a_pause_waits_for_every_declared_stream() -> Result<(), Error> {
    for seed in 0..super::SEEDS {
        let mut device = Hooked::new(Deferred::new(seed));
        device.knows_its_stream_alone = true;
        let (side, main) = (device.inner.new_stream(), device.stream().clone());
        let (mut steps, buffers) = filled(device, Reset::Keep)?;
        buffers[0].declare_stream(&side)?;
        side.fill(buffers[0].address(), 3000, 5);
        let copied = side.read(buffers[0].address(), 3000);
        steps.pause(KEEPS)?;
        steps.resume()?;
        // Read first: a read by the arena would wait for its copies.
        let after = side.read(buffers[1].address(), 3000);
        assert_eq!(after.wait(), Some(vec![2; 3000]), "the copies are there when it returns");
        assert_eq!(buffers[0].view().to_vec()?, [5; 3000], "what was queued before is kept");
        assert_eq!(copied.wait(), Some(vec![5; 3000]));
        assert_eq!(main.fault(), None);
    }
    Ok(())
}

// As the stream of input slots, whose copies a step waits for when it takes a batch.
#[test]
fn a_pause_waits_for_streams_that_nobody_declared() -> Result<(), Error> {
    for seed in 0..super::SEEDS {
        let device = Deferred::new(seed);
        let (side, main) = (device.new_stream(), device.stream().clone());
        let (mut steps, buffers) = filled(device, Reset::Keep)?;
        buffers[0].view().to_vec()?; // What was queued on the arena's stream is done.
        side.fill(buffers[0].address(), 3000, 5);
        steps.pause(KEEPS)?;
        steps.resume()?;
        assert_eq!((buffers[0].view().to_vec()?, main.fault()), (vec![5; 3000], None));
    }
    Ok(())
}

// Persistent buffers go to other threads, and a write there may come in the middle of a pause.
#[test]
fn a_pause_waits_for_calls_of_other_threads() -> Result<(), Error> {
    let device = Deferred::new(0);
    let stream = device.stream().clone();
    let (mut steps, [mut weights, mut kept]) = filled(device, Reset::Keep)?;
    std::thread::scope(|threads| {
        let writer = threads.spawn(move || {
            let mut written = 0;
            while written < 300 {
                let outcome = weights
                    .view_mut()
                    .write(&[1; 3000])
                    .and_then(|()| kept.view_mut().copy_from(weights.view()))
                    .and_then(|()| kept.view().to_vec());
                match outcome {
                    Ok(read) => {
                        assert_eq!(read, [1; 3000]);
                        written += 1;
                    }
                    Err(error) => assert!(is_paused(&error), "{error}"),
                }
            }
        });
        while !writer.is_finished() {
            steps.pause(KEEPS)?;
            steps.resume()?;
        }
        writer.join().expect("every read was right");
        Ok::<(), Error>(())
    })?;
    assert_eq!(stream.fault(), None);
    Ok(())
}

#[rstest]
#[case::fixed(|| {
    let capacity = ByteSize::kib(4);
    Steps::new(Deferred::new(0), capacity, Placement::Bump, Reset::Keep).unwrap()
})]
fn a_region_of_another_kind_cannot_pause(#[case] steps: fn() -> Steps<Deferred>) {
    let refused = steps().pause(KEEPS).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NotVirtual { call: "pause" }), "{refused}");
}

#[test]
fn nothing_is_kept_only_where_nothing_persists() -> Result<(), Error> {
    let (mut steps, buffers) = filled(Deferred::new(0), Reset::Keep)?;
    let refused = steps.pause(Keep::Nothing).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::WouldBeLost { persistent: 2 }), "{refused}");
    assert!(!steps.is_paused());
    assert_kept(&buffers)?;
    drop(buffers);
    assert_eq!(steps.region().lives(), 0);
    steps.pause(Keep::Nothing)?;
    steps.resume()?;
    assert_eq!(steps.region().lives(), 1);
    close(&steps, open(&steps, None))
}

#[test]
fn a_pause_in_a_capture_is_a_typed_error() -> Result<(), Error> {
    let (mut steps, buffers) = filled(Deferred::new(0), Reset::Keep)?;
    let in_capture = |outcome: Result<(), Error>| {
        let refused = outcome.unwrap_err();
        let ErrorKind::Device(error) = refused.kind() else { panic!("{refused}") };
        assert_eq!(error.kind, DeviceErrorKind::InCapture);
    };
    steps.region().device().begin_capture()?;
    in_capture(steps.pause(KEEPS).map(drop));
    steps.region().device().abandon_capture();
    assert!(!steps.is_paused());
    steps.pause(KEEPS)?;
    steps.region().device().begin_capture()?;
    in_capture(steps.resume());
    steps.region().device().abandon_capture();
    steps.resume()?;
    assert_kept(&buffers)
}

#[test]
fn without_memory_it_stays_paused_and_can_be_resumed_later() -> Result<(), Error> {
    let device = Failing::new(Deferred::new(0));
    let switch = device.switch();
    let (mut steps, buffers) = filled(device, Reset::Keep)?;
    let before = steps.stats().committed_bytes;
    let chunks = steps.stats().driver_allocations - 1;
    steps.pause(KEEPS)?;
    for n in 1..=chunks {
        switch.fail_nth(Call::Commit, n);
        steps.resume().unwrap_err();
        assert!(steps.is_paused() && is_paused(&steps.ready().unwrap_err()));
        assert_eq!(steps.stats().committed_bytes, 0, "others may need it");
    }
    steps.resume()?;
    assert_eq!(steps.stats().committed_bytes, before);
    assert_kept(&buffers)
}

/// Pauses and resumes until nothing fails.
fn pause_and_resume<D: Device>(steps: &mut Steps<D>) -> Result<(), Error> {
    steps.pause(KEEPS)?;
    steps.resume()
}

#[rstest]
fn whichever_call_fails_nothing_is_lost(
    #[values(Reset::Keep, Reset::Zero, Reset::Poison)] reset: Reset,
) -> Result<(), Error> {
    for n in 1.. {
        let device = Failing::new(Limited::new(Deferred::new(n), ByteSize::kib(64)));
        let (switch, side) = (device.switch(), device.stream().another());
        let (mut steps, buffers) = filled(device, reset)?;
        buffers[1].declare_stream(&side)?;
        switch.fail_nth_of_any(n);
        let outcome = pause_and_resume(&mut steps);
        let failed = switch.fail_nth_of_any(0) == 0;
        assert_eq!(outcome.is_err(), failed, "number {n}: {outcome:?}");
        // It is paused or not, and either call brings it on.
        if steps.is_paused() {
            assert!(is_paused(&buffers[0].view().to_vec().unwrap_err()));
            if n % 2 == 0 {
                steps.pause(KEEPS)?;
                assert_eq!(side.physical_bytes(), 0);
            }
        }
        steps.resume()?;
        assert_kept(&buffers)?;
        pause_and_resume(&mut steps)?;
        assert_kept(&buffers)?;
        let root = open(&steps, None);
        assert_eq!(steps.transient_from(&[4_u8; 12_000], A256, 1)?.view().to_vec()?, [4; 12_000]);
        close(&steps, root)?;
        drop((steps, buffers));
        assert_eq!((side.fault(), side.physical_bytes()), (None, 0));
        if !failed {
            assert!(n > 10, "{n}");
            break;
        }
    }
    Ok(())
}

#[test]
fn what_is_not_kept_is_poisoned_again() -> Result<(), Error> {
    let (mut steps, buffers) = filled(Deferred::new(0), Reset::Poison)?;
    pause_and_resume(&mut steps)?;
    let root = open(&steps, None);
    let x = steps.transient::<u8>(20_000, A256, 1)?;
    assert_eq!(x.view().to_vec()?, [0xff; 20_000]);
    drop(x);
    close(&steps, root)?;
    assert_kept(&buffers)
}

// The host may hold a slice of a persistent buffer, which no error could take from it.
#[test]
fn what_the_host_sees_is_trimmed_instead() -> Result<(), Error> {
    let (mut steps, buffers) = filled(Host::new(), Reset::Keep)?;
    let before = steps.stats().committed_bytes;
    assert!(steps.pause(KEEPS)? > 0);
    assert!(!steps.is_paused() && steps.stats().committed_bytes < before);
    assert_kept(&buffers)?;
    steps.resume()?;
    let (mut probe, _) = filled(Probe::new(), Reset::Keep)?;
    assert_eq!(probe.pause(KEEPS)?, 0);
    assert!(!probe.is_paused());
    Ok(())
}

#[test]
fn a_paused_region_ends_like_any_other() -> Result<(), Error> {
    let device = Deferred::new(0);
    let stream = device.stream().clone();
    let (mut steps, buffers) = filled(device, Reset::Zero)?;
    steps.pause(KEEPS)?;
    drop((steps, buffers));
    assert_eq!((stream.physical_bytes(), stream.fault()), (0, None));
    Ok(())
}
