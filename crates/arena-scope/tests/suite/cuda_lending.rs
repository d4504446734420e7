//! Buffers lent to code that takes `&CudaSlice<T>`: any stream may use them, nobody declares one, and nothing is used
//! again before it has ended.

use std::sync::Arc;

use crate::cuda::{CAPACITY, Seen, arena, settle};
use crate::heap;
use arena_scope::cuda::Session;
use arena_scope::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError};
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::{
    Alignment, Arena, Cuda, Error, ErrorKind, Persistent, Scope, ScopeOptions, Transient,
};
use cuda_standin::{Mode, Standin};
use rstest::rstest;

const X: [f32; 4] = [1.0, 2.0, 3.0, 4.0];

/// A stream of the program's own, of which the arena's device knows nothing.
fn own_stream(arena: &Arena<Cuda>) -> Arc<CudaStream> {
    arena.device().context().new_stream().unwrap()
}

/// Somebody's functions.
fn copied(stream: &Arc<CudaStream>, x: &CudaSlice<f32>, seen: &mut Seen) {
    seen.copy(stream, x);
}

fn sum(x: &CudaSlice<f32>) -> Result<f32, DriverError> {
    Ok(x.stream().clone_dtoh(x)?.iter().sum())
}

struct Streams {
    own: Arc<CudaStream>,
    second: Arc<CudaStream>,
    seen: [Seen; 2],
}

/// How a step lends `x` to the streams, which read it late.
type Lending = fn(&mut Scope<'_, '_, Cuda>, &mut Streams) -> Result<(), Error>;

fn upload<'s>(step: &Scope<'s, '_, Cuda>) -> Result<Transient<'s, f32, Cuda>, Error> {
    step.upload(&X)
}

fn one_reader(step: &mut Scope<'_, '_, Cuda>, streams: &mut Streams) -> Result<(), Error> {
    let x = upload(step)?;
    copied(&streams.own, &*x.lend()?, &mut streams.seen[0]);
    copied(&streams.own, &*x.lend()?, &mut streams.seen[1]);
    Ok(())
}

/// cudarc keeps one read event for each slice: the second reader's record takes the place of the first one's.
fn two_readers(step: &mut Scope<'_, '_, Cuda>, streams: &mut Streams) -> Result<(), Error> {
    let x = upload(step)?;
    let lent = x.lend()?;
    copied(&streams.own, &lent, &mut streams.seen[0]);
    copied(&streams.second, &lent, &mut streams.seen[1]);
    Ok(())
}

fn a_view_of_the_slice(step: &mut Scope<'_, '_, Cuda>, streams: &mut Streams) -> Result<(), Error> {
    let x = step.upload(&[[0.0; 4], X].concat())?;
    let lent = x.lend()?;
    streams.seen[0].copy(&streams.own, &lent.slice(4..));
    streams.seen[1].copy(&streams.second, &lent.split_at(4).1);
    Ok(())
}

fn a_part_of_the_buffer(
    step: &mut Scope<'_, '_, Cuda>,
    streams: &mut Streams,
) -> Result<(), Error> {
    let x = step.upload(&[[0.0; 4], X].concat())?;
    let lent = x.view().range(4..)?.lend()?;
    copied(&streams.own, &lent, &mut streams.seen[0]);
    copied(&streams.second, &lent, &mut streams.seen[1]);
    Ok(())
}

fn a_forgotten_handle(step: &mut Scope<'_, '_, Cuda>, streams: &mut Streams) -> Result<(), Error> {
    let x = upload(step)?;
    let lent = x.lend()?;
    copied(&streams.own, &lent, &mut streams.seen[0]);
    std::mem::forget(lent);
    copied(&streams.second, &*x.lend()?, &mut streams.seen[1]);
    Ok(())
}

fn from_another_thread(step: &mut Scope<'_, '_, Cuda>, streams: &mut Streams) -> Result<(), Error> {
    let x = upload(step)?;
    let lent = x.lend()?;
    let (own, [seen, other]) = (&streams.own, &mut streams.seen);
    std::thread::scope(|threads| {
        threads.spawn(|| copied(own, &lent, seen));
    });
    std::thread::scope(|threads| {
        let x = x.view();
        threads.spawn(move || copied(own, &x.lend().unwrap(), other));
    });
    Ok(())
}

fn in_an_inner_scope(step: &mut Scope<'_, '_, Cuda>, streams: &mut Streams) -> Result<(), Error> {
    step.scope(|inner| two_readers(inner, streams))
}

/// The inner close waits, but the outer buffer is lent on.
fn over_an_inner_scope(step: &mut Scope<'_, '_, Cuda>, streams: &mut Streams) -> Result<(), Error> {
    let x = upload(step)?;
    let lent = x.lend()?;
    step.scope(|inner| inner.alloc::<f32>(4).map(drop))?;
    copied(&streams.own, &lent, &mut streams.seen[0]);
    copied(&streams.second, &lent, &mut streams.seen[1]);
    Ok(())
}

/// Written on another stream, then read on a third.
fn a_writer(step: &mut Scope<'_, '_, Cuda>, streams: &mut Streams) -> Result<(), Error> {
    let x = upload(step)?;
    let mut y = step.alloc::<f32>(4)?;
    let mut lent = y.lend_mut()?;
    streams.own.memcpy_dtod(&*x.lend()?, &mut lent.view_mut())?;
    copied(&streams.second, &lent, &mut streams.seen[0]);
    drop(lent);
    assert_eq!(step.read(y.view())?, X, "the arena's stream waits for the writer");
    copied(&streams.second, &*y.lend()?, &mut streams.seen[1]);
    Ok(())
}

/// A second context object of the same device, with a count of streams and a record of its own.
fn another_context_object(
    step: &mut Scope<'_, '_, Cuda>,
    streams: &mut Streams,
) -> Result<(), Error> {
    let context = CudaContext::new(0)?;
    let (own, second) = (context.new_stream()?, context.new_stream()?);
    let x = upload(step)?;
    let lent = x.lend()?;
    copied(&own, &lent, &mut streams.seen[0]);
    copied(&second, &lent, &mut streams.seen[1]);
    // They live on, for `after` waits on the others.
    streams.own.join(&own)?;
    streams.second.join(&second)?;
    Ok(())
}

/// What the streams saw, when the next step has put something else there.
fn seen_late(lending: Lending) -> [[f32; 4]; 2] {
    // In a context of its own, for what is forgotten keeps it in use.
    let device = Cuda::in_context(&CudaContext::new(0).unwrap()).unwrap();
    let mut arena = Arena::builder(device).capacity(CAPACITY).build().unwrap();
    let (own, second) = (own_stream(&arena), own_stream(&arena));
    let seen = [(); 2].map(|()| Seen::new(own.context()));
    let mut streams = Streams { own, second, seen };
    arena.scope(|step| lending(step, &mut streams)).unwrap();
    let reused = arena.scope(|step| {
        assert_eq!(step.upload(&[9.0_f32; 128])?.offset_bytes(), 0, "the bytes of the step before");
        arena_scope::Ok(())
    });
    reused.unwrap();
    settle(&arena);
    let Streams { own, second, seen } = streams;
    // Everything has a stream of its own and one more.
    own.synchronize().unwrap();
    [seen[0].after(&second), seen[1].after(&second)]
}

#[rstest]
#[case::one_reader(one_reader)]
#[case::two_readers(two_readers)]
#[case::view(a_view_of_the_slice)]
#[case::part(a_part_of_the_buffer)]
#[case::thread(from_another_thread)]
#[case::inner_scope(in_an_inner_scope)]
#[case::outer_scope(over_an_inner_scope)]
#[case::writer(a_writer)]
#[case::second_context_object(another_context_object)]
fn what_was_lent_is_read_right_for_200_seeds(
    #[case] lending: Lending,
    #[values("cuCtxRecordEvent", "cuCtxSynchronize")] waits_by: &'static str,
) {
    let standin = Standin::load().unwrap();
    for seed in 0..200 {
        standin.reset(seed);
        if waits_by == "cuCtxSynchronize" {
            (1..=8).for_each(|nth| standin.fail_nth("cuCtxRecordEvent", nth, 801));
        }
        assert_eq!(seen_late(lending), [X; 2], "seed {seed}: {}", standin.last_fault());
        assert!(standin.calls(waits_by) > 0);
    }
    standin.set_mode(Mode::Eager);
    assert_eq!(seen_late(lending), [X; 2], "eager");
}

#[test]
fn a_handle_that_is_forgotten_is_waited_for_all_the_same() {
    arena_testing::alone(|| {
        let standin = Standin::load().unwrap();
        for seed in 0..200 {
            standin.reset(seed);
            assert_eq!(seen_late(a_forgotten_handle), [X; 2], "seed {seed}");
        }
    });
}

/// A copy to another device: cudarc asks the source for its own stream, and nobody tells that of the destination.
fn a_peer_copy() -> bool {
    let mut arena = arena();
    let other = CudaContext::new(1).unwrap().new_stream().unwrap();
    let mut there = other.alloc_zeros::<f32>(4).unwrap();
    arena
        .scope(|step| {
            let x = upload(step)?;
            other.memcpy_dtod(&*x.lend()?, &mut there)?;
            arena_scope::Ok(())
        })
        .unwrap();
    arena.scope(|step| step.upload(&[9.0_f32; 4]).map(drop)).unwrap();
    settle(&arena);
    other.clone_dtoh(&there).unwrap() == X
}

#[test]
fn a_copy_to_another_device_is_waited_for_for_200_seeds() {
    let standin = Standin::load().unwrap();
    for seed in 0..200 {
        standin.reset(seed);
        standin.set_devices(2);
        assert!(a_peer_copy(), "seed {seed}");
    }
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

#[test]
fn a_kept_buffer_that_was_lent_gives_its_bytes_back_after_its_readers() {
    let standin = Standin::load().unwrap();
    for seed in 0..200 {
        standin.reset(seed);
        let mut arena = arena();
        arena.mark().unwrap();
        let (own, second) = (own_stream(&arena), own_stream(&arena));
        let mut seen = [(); 2].map(|()| Seen::new(own.context()));
        let kept = arena.persistent_from(&X).unwrap();
        let lent = kept.lend().unwrap();
        arena.scope(|_| arena_scope::Ok(())).unwrap(); // which waits for nothing yet
        copied(&own, &lent, &mut seen[0]);
        copied(&second, &lent, &mut seen[1]);
        drop(lent);
        let address = kept.address();
        drop(kept);
        arena.scope(|_| arena_scope::Ok(())).unwrap();
        let again = arena.persistent_from(&[9.0_f32; 4]).unwrap();
        assert_eq!(again.address(), address);
        settle(&arena);
        assert_eq!([seen[0].after(&own), seen[1].after(&second)], [X; 2], "seed {seed}");
    }
}

#[test]
fn the_region_ends_after_the_readers_of_what_was_lent() {
    let standin = Standin::load().unwrap();
    for seed in 0..200 {
        standin.reset(seed);
        // A driver whose free waits for nothing would show a free that comes too early.
        standin.set_free_waits(false);
        let arena = arena();
        let (own, second) = (own_stream(&arena), own_stream(&arena));
        let mut seen = [(); 2].map(|()| Seen::new(own.context()));
        let weights: Persistent<f32, Cuda> = arena.persistent_from(&X).unwrap();
        drop(arena);
        {
            let lent = weights.lend().unwrap();
            copied(&own, &lent, &mut seen[0]);
            copied(&second, &lent, &mut seen[1]);
        }
        drop(weights);
        let fault = standin.last_fault();
        assert_eq!([seen[0].after(&own), seen[1].after(&second)], [X; 2], "seed {seed}: {fault}");
    }
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

/// A plan gives the bytes of a dropped buffer to the next one in the same step; not if it was lent.
#[test]
fn a_plan_uses_nothing_again_that_was_lent_in_the_step() {
    let standin = Standin::load().unwrap();
    for seed in 0..200 {
        standin.reset(seed);
        let mut arena = arena();
        let (own, second) = (own_stream(&arena), own_stream(&arena));
        let mut seen = [(); 2].map(|()| Seen::new(own.context()));
        let slot = PlannedSlot { offset_bytes: 0, bytes: 16, alignment: Alignment::DEFAULT };
        let table = SlotTable::new(&[slot; 2]).unwrap();
        arena.install_plan("train", table).unwrap();
        for lends in [false, true] {
            let step = arena.scope_named("train", |step| {
                let x = upload(step)?;
                if lends {
                    let lent = x.lend()?;
                    copied(&own, &lent, &mut seen[0]);
                    copied(&second, &lent, &mut seen[1]);
                }
                let address = x.address();
                drop(x);
                let y = step.upload(&[9.0_f32; 4])?;
                assert_eq!(y.address() == address, !lends);
                arena_scope::Ok(())
            });
            step.unwrap();
        }
        settle(&arena);
        assert_eq!([seen[0].after(&own), seen[1].after(&second)], [X; 2], "seed {seed}");
    }
}

#[test]
fn lending_in_a_steady_step_allocates_and_creates_nothing() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let weights = arena.persistent_from(&X).unwrap();
    let stream = arena.device().stream().clone();
    let mut host = [0.0; 4];
    let mut before = 0;
    for n in 0..10 {
        if n == 3 {
            before = heap::allocations();
            standin.clear_calls();
        }
        arena
            .scope(|step| {
                let mut y = step.alloc::<f32>(4)?;
                let (a, b) = (weights.lend()?, weights.lend()?); // two at once
                stream.memcpy_dtod(&*a, &mut y.lend_mut()?.view_mut())?;
                stream.memcpy_dtod(&*b, &mut y.lend_mut()?.view_mut())?;
                stream.memcpy_dtoh(&*y.lend()?, &mut host)?;
                arena_scope::Ok(())
            })
            .unwrap();
    }
    assert_eq!(heap::allocations() - before, 0);
    let calls = ["cuEventCreate", "cuEventDestroy_v2", "cuMemAllocAsync", "cuMemFreeAsync"];
    assert_eq!(calls.map(|name| standin.calls(name)), [0; 4]);
    assert_eq!(standin.calls("cuCtxRecordEvent"), 7, "one for each close");
    assert_eq!(standin.calls("cuCtxSynchronize") + standin.calls("cuStreamSynchronize"), 0);
    arena.scope(|_| arena_scope::Ok(())).unwrap();
    assert_eq!(standin.calls("cuCtxRecordEvent"), 7, "none for a step that lends nothing");
    drop((weights, arena, stream));
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

#[test]
fn the_kept_slices_are_at_most_4096() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let made_and_destroyed =
        || (standin.calls("cuEventCreate"), standin.calls("cuEventDestroy_v2"));
    arena
        .scope(|step| {
            let x = step.alloc::<u8>(5000)?;
            standin.clear_calls();
            for len in 1..=5000 {
                x.view().range(..len)?.lend()?;
            }
            // Two events for each, and one that is made before to know that they can be.
            assert_eq!(made_and_destroyed(), (3 * 5000, 5000 + 2 * (5000 - 4096)));
            standin.clear_calls();
            for len in 905..=5000 {
                x.view().range(..len)?.lend()?; // the last ones are kept
            }
            assert_eq!(made_and_destroyed(), (0, 0));
            x.view().range(..904)?.lend()?;
            assert_eq!(made_and_destroyed(), (3, 3));
            arena_scope::Ok(())
        })
        .unwrap();
    drop(arena);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

#[test]
fn without_event_tracking_lending_calls_no_driver_and_may_be_captured() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let context = arena.device().context().clone();
    // SAFETY: the test uses no slice on another stream than the arena's.
    unsafe { context.disable_event_tracking() };
    let stream = arena.device().stream().clone();
    let weights = arena.persistent_from(&X).unwrap();
    let mut total = arena.persistent_zeroed::<f32>(4).unwrap();
    let mut step = |step: &mut Scope<'_, '_, Cuda>| -> Result<(), Error> {
        let mut y = step.alloc::<f32>(4)?;
        stream.memcpy_dtod(&*weights.lend()?, &mut y.lend_mut()?.view_mut())?;
        stream.memcpy_dtod(&*y.lend()?, &mut total.lend_mut()?.view_mut())?;
        Ok(())
    };
    arena.scope(|scope| step(scope)).unwrap();
    standin.clear_calls();
    arena.scope(|scope| step(scope)).unwrap();
    let events = ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuCtxRecordEvent"];
    assert_eq!(events.map(|name| standin.calls(name)), [0; 4]);
    let graph = arena.capture(ScopeOptions::default(), |scope| step(scope)).unwrap();
    graph.replay(&mut arena).unwrap();
    drop(graph);
    assert_eq!(total.view().to_vec().unwrap(), X);
}

#[test]
fn while_events_are_tracked_nothing_is_lent_in_a_capture_and_none_begins_while_something_is() {
    let _standin = Standin::load().unwrap();
    let mut arena = arena();
    let weights = arena.persistent_from(&X).unwrap();
    let step = |step: &mut Scope<'_, '_, Cuda>| step.alloc_zeroed::<f32>(4).map(drop);
    arena.scope(step).unwrap();
    let refused = arena.capture(ScopeOptions::default(), |scope| {
        step(scope)?;
        let refused = weights.lend().unwrap_err();
        assert!(refused.to_string().contains("captured"), "{refused}");
        Ok::<(), Error>(())
    });
    drop(refused.unwrap());
    let lent = weights.lend().unwrap();
    let refused = arena.capture(ScopeOptions::default(), step).unwrap_err();
    assert!(refused.to_string().contains("lent"), "{refused}");
    drop(lent);
    arena.scope(|_| arena_scope::Ok(())).unwrap();
    // Lent since the last close, and no longer: it is waited for before the capture.
    arena.scope(step).unwrap();
    weights.lend().unwrap();
    arena.capture(ScopeOptions::default(), step).unwrap();
}

#[test]
fn a_driver_that_refuses_leaves_nothing_lent_and_no_panic() {
    let standin = Standin::load().unwrap();
    for (name, calls) in [("cuEventCreate", 3), ("cuEventRecord", 2), ("cuStreamWaitEvent", 2)] {
        for nth in 1..=calls {
            standin.reset(nth);
            let mut arena = arena();
            arena
                .scope(|step| {
                    let x = upload(step)?;
                    if name != "cuEventCreate" {
                        drop(x.lend()?); // one is kept
                    }
                    standin.fail_nth(name, nth, 2);
                    let told = x.lend().and_then(|lent| {
                        drop(lent);
                        x.lend() // finds what the end of the first lending met
                    });
                    assert!(told.is_err(), "{name} {nth}");
                    drop(told);
                    assert_eq!(sum(&*x.lend()?).unwrap(), 10.0, "{name} {nth}");
                    arena_scope::Ok(())
                })
                .unwrap();
            drop(arena);
        }
    }
}

#[test]
fn an_arena_whose_lent_buffers_cannot_be_waited_for_is_closed() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let refused = arena.scope(|step| {
        drop(upload(step)?.lend()?);
        standin.fail_nth("cuCtxRecordEvent", 1, 999);
        standin.fail_nth("cuCtxSynchronize", 1, 999);
        arena_scope::Ok(())
    });
    assert!(refused.unwrap_err().to_string().contains("cuCtxSynchronize"));
    let refused = arena.scope(|_| arena_scope::Ok(())).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::OrderLost(_)), "{refused}");
}

#[test]
fn an_owned_slice_of_a_lent_buffer_is_a_copy_by_the_driver() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let copy = arena.scope(|step| {
        let x = upload(step)?;
        standin.clear_calls();
        Ok::<_, Error>((*x.lend()?).clone())
    });
    assert_eq!(standin.calls("cuMemAllocAsync"), 1);
    assert_eq!(sum(&copy.unwrap()).unwrap(), 10.0);
}

#[test]
fn a_function_that_takes_a_mutable_slice_gets_one_from_unsafe_code() {
    fn cleared(x: &mut CudaSlice<f32>) -> Result<(), DriverError> {
        x.stream().clone().memset_zeros(x)
    }
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    arena
        .scope(|step| {
            let mut x = upload(step)?;
            let mut lent = x.lend_mut()?;
            // SAFETY: the function leaves the slice where it is.
            cleared(unsafe { lent.as_mut_slice() })?;
            drop(lent);
            assert_eq!(step.read(x.view())?, [0.0; 4]);
            arena_scope::Ok(())
        })
        .unwrap();
    let stream = Session::new(arena);
    let _step = stream.enter().unwrap();
    let mut x = stream.clone_htod(&X).unwrap();
    let mut lent = x.lend_mut().unwrap();
    // SAFETY: as above.
    cleared(unsafe { lent.as_mut_slice() }).unwrap();
    drop(lent);
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [0.0; 4]);
    assert_eq!(standin.calls("cuMemFree_v2"), 0);
}

#[test]
fn no_step_of_a_session_closes_while_its_buffer_is_lent() {
    let standin = Standin::load().unwrap();
    for seed in 0..200 {
        standin.reset(seed);
        let stream = Session::new(crate::cuda::arena_of(CAPACITY));
        let (own, second) =
            (stream.context().new_stream().unwrap(), stream.context().new_stream().unwrap());
        let mut seen = [(); 2].map(|()| Seen::new(own.context()));
        let used = || stream.stats().unwrap().used_bytes;
        let root = stream.enter().unwrap();
        let step = stream.enter().unwrap();
        let x = stream.clone_htod(&X).unwrap();
        let lent = x.lend().unwrap();
        let refused = step.close().unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::InUse { .. }), "{refused}");
        let other = stream.enter().unwrap();
        stream.clone_htod(&[9.0_f32; 4]).unwrap();
        drop(root);
        assert_eq!(used(), 256 + 16);
        copied(&own, &lent, &mut seen[0]);
        copied(&second, &lent, &mut seen[1]);
        drop(lent);
        assert_eq!(used(), 256 + 16, "an inner step goes on");
        other.close().unwrap();
        assert_eq!(used(), 0, "and those around it end with it");
        assert!(x.lend().is_err());
        let _step = stream.enter().unwrap();
        stream.clone_htod(&[9.0_f32; 4]).unwrap();
        stream.synchronize().unwrap();
        assert_eq!([seen[0].after(&own), seen[1].after(&second)], [X; 2], "seed {seed}");
    }
}
