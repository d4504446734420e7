//! Input that is copied while the step before runs, and results that arrive later.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cuda::{Seen, arena, arena_with, settle, side_stream};
use arena_scope::cuda::InputSlots;
use arena_scope::cudarc::driver::{CudaStream, sys};
use arena_scope::errors::DeviceErrorKind;
use arena_scope::{Error, ErrorKind, Reset, ScopeOptions};
use cuda_standin::{Mode, Standin};
use rstest::rstest;

fn is_in_use<T: std::fmt::Debug>(outcome: Result<T, Error>) -> bool {
    matches!(outcome.unwrap_err().kind(), ErrorKind::InUse { .. })
}

/// A loop that fills ahead and sums each batch into a persistent buffer's own element.
fn batches_arrive(steps: u8, fill_first: bool, count: usize) {
    let mut arena = arena_with(Reset::Poison);
    let mut slots: InputSlots<u8> = arena.input_slots(count, 64).unwrap();
    let mut out = arena.persistent::<u8>(64 * usize::from(steps)).unwrap();
    slots.fill(|host| host.fill(0)).unwrap();
    for n in 0..steps {
        if fill_first && n + 1 < steps {
            slots.fill(|host| host.fill(n + 1)).unwrap();
        }
        let batch = slots.next().unwrap();
        arena
            .scope(|step| {
                let mut x = step.alloc::<u8>(64)?;
                x.view_mut().copy_from(batch)?;
                let at = usize::from(n) * 64;
                out.view_mut().range(at..at + 64)?.copy_from(x.view())
            })
            .unwrap();
        if !fill_first && n + 1 < steps {
            slots.fill(|host| host.fill(n + 1)).unwrap();
        }
    }
    let read = out.view().to_vec().unwrap();
    for n in 0..steps {
        let at = usize::from(n) * 64;
        assert_eq!(read[at..at + 64], [n; 64], "batch {n}");
    }
}

// B053
#[test]
fn every_batch_arrives_whole_in_any_order_that_the_device_may_choose() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(200) {
        standin.reset(seed);
        batches_arrive(6, true, 2);
        standin.reset(seed);
        batches_arrive(6, false, 2);
        standin.reset(seed);
        batches_arrive(6, false, 1);
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
    standin.set_mode(Mode::Eager);
    batches_arrive(6, true, 3);
}

// B053
/// What the slots save one from: one pinned buffer that serves two uploads.
#[test]
fn a_pinned_buffer_refilled_too_early_shows_within_40_seeds() {
    let standin = Standin::load().unwrap();
    standin.needed_for("orders that go wrong");
    let mut corrupt = 0;
    for seed in standin.seeds(40) {
        standin.reset(seed);
        let arena = arena();
        let (busy, side) = (side_stream(&arena), side_stream(&arena));
        let first = arena.persistent::<f32>(4).unwrap();
        // SAFETY: it is written before it is read.
        let pinned = unsafe { side.context().alloc_pinned::<f32>(4) };
        let mut pinned = pinned.map_err(|error| error.0).unwrap();
        let host = pinned.as_mut_ptr().map_err(|error| error.0).unwrap();
        let set = |value: f32| {
            for n in 0..4 {
                // SAFETY: four live floats; the stand-in copies only inside its own calls.
                let element = unsafe { host.add(n) };
                // SAFETY: as above.
                unsafe { element.write(value) };
            }
        };
        set(1.0);
        // SAFETY: 16 live bytes on both sides.
        let code = unsafe {
            sys::cuMemcpyHtoDAsync_v2(first.address(), host.cast(), 16, side.cu_stream())
        };
        code.result().map_err(|error| error.0).unwrap();
        // Something else is waited for, and the copy may or may not have run by then.
        busy_work(&busy, first.address() + 1024);
        set(2.0);
        let mut seen = Seen::new(side.context());
        seen.copy_raw(&side, first.address());
        corrupt += u32::from(seen.after(&side) != [1.0; 4]);
    }
    assert!((5..=35).contains(&corrupt), "{corrupt} of 40 seeds");
}

fn busy_work(stream: &CudaStream, address: u64) {
    // SAFETY: 16 bytes of the region that no buffer has.
    let code = unsafe { sys::cuMemsetD8Async(address, 0, 16, stream.cu_stream()) };
    code.result().map_err(|error| error.0).unwrap();
    stream.synchronize().map_err(|error| error.0).unwrap();
}

// B053
#[test]
fn a_slot_whose_copy_is_in_flight_is_in_use_or_waited_for_and_counted() {
    let standin = Standin::load().unwrap();
    let mut refused = 0;
    for seed in standin.seeds(40) {
        standin.reset(seed);
        let mut arena = arena();
        let mut slots: InputSlots<u8> = arena.input_slots(1, 64).unwrap();
        slots.fill(|host| host.fill(1)).unwrap();
        assert!(is_in_use(slots.fill(|_| ())), "no step has taken the batch");
        let mut guard = arena.enter().unwrap();
        let first = guard.scope().promote(slots.next().unwrap()).unwrap();
        // That a guard is forgotten changes nothing.
        std::mem::forget(guard);
        match slots.try_fill(|host| host.fill(2)) {
            Ok(()) => assert_eq!(slots.waits(), 0),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::InUse { .. }), "{error}");
                refused += 1;
                slots.fill(|host| host.fill(2)).unwrap();
            }
        }
        assert!(slots.waits() <= 1);
        let second = arena.scope(|step| step.promote(slots.next()?)).unwrap();
        assert_eq!(first.view().to_vec().unwrap(), [1; 64], "seed {seed}");
        assert_eq!(second.view().to_vec().unwrap(), [2; 64], "seed {seed}");
    }
    assert!(refused > 0 || standin.is_real_driver(), "the copy was never in flight");
}

#[test]
fn a_copy_does_not_wait_for_the_step_that_runs_beside_it() {
    let standin = Standin::load().unwrap();
    standin.needed_for("what is queued");
    let mut overlapped = 0;
    for seed in standin.seeds(40) {
        standin.reset(seed);
        let mut arena = arena();
        let mut slots: InputSlots<u8> = arena.input_slots(2, 64).unwrap();
        for n in 0..3 {
            slots.fill(|host| host.fill(n)).unwrap();
            let batch = slots.next().unwrap();
            arena.scope(|step| step.alloc::<u8>(64)?.view_mut().copy_from(batch)).unwrap();
        }
        // The slot was read by the step before the last: the last one may still be on its way when the
        // copy has ended.
        slots.fill(|host| host.fill(3)).unwrap();
        slots.stream().synchronize().map_err(|error| error.0).unwrap();
        overlapped += u32::from(standin.queued() > 0);
    }
    assert!(overlapped > 5, "{overlapped} of 40");
}

#[test]
fn in_the_steady_state_slots_and_results_allocate_nothing() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let mut slots: InputSlots<f32> = arena.input_slots(2, 16).unwrap();
    let mut losses = arena.result_queue::<f32>(4, 1).unwrap();
    let mut told = Vec::new();
    slots.fill(|host| host.fill(0.0)).unwrap();
    for n in 0..20_u16 {
        if n == 2 {
            standin.clear_calls();
        }
        slots.fill(|host| host.fill(f32::from(n) + 1.0)).unwrap();
        let batch = slots.next().unwrap();
        arena
            .scope(|step| {
                let mut loss = step.alloc::<f32>(1)?;
                loss.view_mut().copy_from(batch.range(..1)?)?;
                losses.push(loss.view())
            })
            .unwrap();
        if n >= 3 {
            told.push(losses.pop_with(|loss| loss[0]).unwrap().unwrap());
        }
    }
    while let Some(loss) = losses.pop_with(|loss| loss[0]).unwrap() {
        told.push(loss);
    }
    let expected: Vec<f32> = (0..20_u16).map(f32::from).collect();
    assert_eq!(told, expected);
    if !standin.is_real_driver() {
        for name in ["cuMemAlloc_v2", "cuMemHostAlloc", "cuMemFreeHost", "cuEventCreate"] {
            assert_eq!(standin.calls(name), 0, "{name}");
        }
        if !standin.is_real_driver() {
            assert_eq!(standin.calls("cuStreamSynchronize") + standin.calls("cuCtxSynchronize"), 0);
        }
    }
    drop((slots, losses, arena));
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

#[test]
fn a_result_is_there_when_it_is_told_and_not_before() {
    let standin = Standin::load().unwrap();
    let mut early = 0;
    for seed in standin.seeds(100) {
        standin.reset(seed);
        let mut arena = arena();
        let mut results = arena.result_queue::<u8>(2, 64).unwrap();
        for value in [1, 2] {
            arena
                .scope(|step| {
                    let mut x = step.alloc::<u8>(64)?;
                    x.view_mut().fill_bytes(value)?;
                    results.push(x.view())
                })
                .unwrap();
        }
        assert!(is_in_use(arena.scope(|step| {
            let x = step.alloc::<u8>(64)?;
            results.push(x.view())
        })));
        match results.try_pop().unwrap() {
            Some(result) => assert_eq!(result, [1; 64]),
            None => {
                early += 1;
                assert_eq!(results.pop().unwrap().unwrap(), [1; 64]);
            }
        }
        assert_eq!(results.pop().unwrap().unwrap(), [2; 64]);
        assert_eq!(results.pop().unwrap(), None);
    }
    assert!(early > 0 || standin.is_real_driver(), "a result was always there at once");
}

#[test]
fn a_result_whose_reader_panics_is_there_still() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let mut results = arena.result_queue::<u8>(1, 4).unwrap();
    arena
        .scope(|step| {
            let mut x = step.alloc::<u8>(4)?;
            x.view_mut().fill_bytes(7)?;
            results.push(x.view())
        })
        .unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| results.pop_with(|_| panic!("on purpose"))));
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"on purpose"));
    assert_eq!(results.try_pop_with(<[u8]>::len).unwrap(), Some(4));
    assert_eq!(results.pop_with(<[u8]>::len).unwrap(), None);
    assert_eq!(results.try_pop_with(<[u8]>::len).unwrap(), None);
    // Its place is free, also after a result that could not be waited for.
    arena.scope(|step| results.push(step.alloc_zeroed::<u8>(4)?.view())).unwrap();
    if !standin.is_real_driver() {
        standin.fail_nth("cuEventQuery", 1, UNKNOWN);
        let told = results.pop_with(<[u8]>::len).unwrap_err().to_string();
        assert!(told.contains("cuEventQuery"), "{told}");
    }
    assert_eq!(results.pop().unwrap().unwrap(), [0; 4]);
}

/// A second stream reads the batch, and the arena's own has long ended when the slot is filled again.
#[rstest]
fn a_copy_into_a_slot_waits_for_the_declared_streams_that_read_it(#[values(1, 2)] count: usize) {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(40) {
        standin.reset(seed);
        let arena = arena();
        let side = side_stream(&arena);
        let mut seen = Seen::new(side.context());
        let mut slots: InputSlots<f32> = arena.input_slots(count, 4).unwrap();
        slots.fill(|host| host.fill(1.0)).unwrap();
        let batch = slots.next().unwrap();
        batch.declare_stream(&side).unwrap();
        seen.copy_raw(&side, batch.address());
        settle(&arena);
        for n in 0..count {
            slots.fill(|host| host.fill(2.0)).unwrap();
            if n + 1 < count {
                slots.next().unwrap();
            }
        }
        slots.stream().synchronize().map_err(|error| error.0).unwrap();
        assert_eq!(seen.after(&side), [1.0; 4], "seed {seed}");
    }
}

// B053
#[test]
fn slots_dropped_with_a_copy_in_flight_wait_for_it() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(40) {
        standin.reset(seed);
        standin.set_free_waits(false);
        let mut arena = arena();
        arena.mark().unwrap();
        let mut slots: InputSlots<u8> = arena.input_slots(1, 64).unwrap();
        slots.fill(|host| host.fill(1)).unwrap();
        standin.clear_calls();
        drop(slots);
        if !standin.is_real_driver() {
            let names = standin.call_names();
            let at = |wanted| names.iter().position(|name| name == wanted);
            assert!(at("cuEventSynchronize").unwrap() < at("cuMemFreeHost").unwrap(), "{names:?}");
        }
        arena.scope(|_| arena_scope::Ok(())).unwrap();
        let again = arena.persistent_from(&[9_u8; 64]).unwrap();
        assert_eq!(again.view().to_vec().unwrap(), [9; 64], "seed {seed}");
        drop((again, arena));
        assert_eq!(standin.last_fault(), "", "seed {seed}");
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
}

#[test]
fn host_memory_of_a_copy_that_cannot_be_waited_for_is_given_up_and_the_device_s_bytes_are_ordered()
{
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(100) {
        standin.reset(seed);
        let mut arena = arena();
        arena.mark().unwrap();
        let mut slots: InputSlots<u8> = arena.input_slots(1, 64).unwrap();
        slots.fill(|host| host.fill(1)).unwrap();
        standin.fail_nth("cuEventSynchronize", 1, 999);
        drop(slots);
        assert_eq!((standin.calls("cuMemFreeHost"), standin.leaks().host_blocks), (0, 1));
        arena.scope(|_| arena_scope::Ok(())).unwrap();
        let again = arena.persistent_from(&[9_u8; 64]).unwrap();
        assert_eq!(again.view().to_vec().unwrap(), [9; 64], "seed {seed}");
    }
}

#[test]
fn slots_and_results_are_refused_in_a_capture_and_it_goes_on() {
    let _standin = Standin::load().unwrap();
    let mut arena = arena();
    let mut slots: InputSlots<u8> = arena.input_slots(2, 64).unwrap();
    let mut results = arena.result_queue::<u8>(2, 64).unwrap();
    slots.fill(|host| host.fill(1)).unwrap();
    arena.scope(|step| step.alloc::<u8>(64).map(drop)).unwrap();
    let graph = arena.capture(ScopeOptions::default(), |step| {
        let x = step.alloc::<u8>(64)?;
        let refusals = [
            slots.fill(|_| ()).unwrap_err(),
            slots.next().map(drop).unwrap_err(),
            results.push(x.view()).unwrap_err(),
        ];
        for refused in &refusals {
            let ErrorKind::Device(error) = refused.kind() else { panic!("{refused:?}") };
            assert_eq!(error.kind, DeviceErrorKind::InCapture, "{refused}");
        }
        arena_scope::Ok(())
    });
    graph.unwrap().replay(&mut arena).unwrap();
    slots.fill(|host| host.fill(2)).unwrap();
    assert_eq!(slots.next().unwrap().to_vec().unwrap(), [1; 64]);
    assert_eq!(slots.next().unwrap().to_vec().unwrap(), [2; 64]);
    assert!(matches!(slots.next().unwrap_err().kind(), ErrorKind::NotFilled));
}

#[test]
fn a_loader_s_thread_fills_and_pops_while_another_thread_captures() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(20) {
        standin.reset(seed);
        let mut arena = arena();
        let mut slots: InputSlots<u8> = arena.input_slots(2, 64).unwrap();
        let mut results = arena.result_queue::<u8>(2, 64).unwrap();
        slots.fill(|host| host.fill(1)).unwrap();
        slots.fill(|host| host.fill(2)).unwrap();
        results.push(slots.next().unwrap()).unwrap();
        slots.next().unwrap();
        arena.scope(|step| step.alloc::<u8>(64).map(drop)).unwrap();
        let graph = arena.capture(ScopeOptions::default(), |step| {
            let x = step.alloc::<u8>(64)?;
            std::thread::scope(|threads| {
                let loader = threads.spawn(|| {
                    slots.fill(|host| host.fill(3))?;
                    // The slot of the batch that was taken last: a step may still come to read it.
                    let unknown = slots.fill(|_| ()).unwrap_err();
                    let ErrorKind::Device(error) = unknown.kind() else { panic!("{unknown}") };
                    assert_eq!(error.kind, DeviceErrorKind::InCapture);
                    let first = loop {
                        if let Some(first) = results.try_pop()? {
                            break first;
                        }
                    };
                    results.push(x.view()).unwrap_err(); // On the arena's stream, which is captured.
                    Ok::<_, Error>(first)
                });
                assert_eq!(loader.join().unwrap()?, [1; 64], "seed {seed}");
                arena_scope::Ok(())
            })
        });
        graph.unwrap().replay(&mut arena).unwrap();
        assert_eq!(slots.next().unwrap().to_vec().unwrap(), [3; 64], "seed {seed}");
        slots.fill(|host| host.fill(4)).unwrap();
    }
}

/// CUDA's code for an unknown error, which is not sticky.
const UNKNOWN: u32 = 999;

#[test]
fn host_memory_of_a_copy_whose_end_cannot_be_told_is_never_touched_again() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let mut slots: InputSlots<u8> = arena.input_slots(1, 64).unwrap();
    slots.fill(|host| host.fill(1)).unwrap();
    arena.scope(|_| slots.next().map(drop)).unwrap();
    // Neither the event behind the next copy can be recorded, nor its stream waited for.
    standin.fail_nth("cuEventRecord", 2, UNKNOWN);
    standin.fail_nth("cuStreamSynchronize", 1, UNKNOWN);
    let told = slots.fill(|host| host.fill(2)).unwrap_err().to_string();
    assert!(told.contains("cuEventRecord"), "{told}");
    for _ in 0..3 {
        assert!(is_in_use(slots.fill(|host| host.fill(3))), "it may still be read");
        assert!(is_in_use(slots.try_fill(|host| host.fill(3))));
    }
}

#[test]
fn a_result_of_another_arena_is_refused() {
    let _standin = Standin::load().unwrap();
    let (mine, mut other) = (arena(), arena());
    let mut results = mine.result_queue::<f32>(1, 1).unwrap();
    let outcome: Result<(), Error> = other.scope(|step| {
        let result = step.alloc_zeroed::<f32>(1)?;
        results.push(result.view())
    });
    assert!(matches!(outcome.unwrap_err().kind(), ErrorKind::OtherArena));
}

#[test]
fn slots_and_queues_of_none_are_refused_and_an_empty_slot_gives_no_batch() {
    let _standin = Standin::load().unwrap();
    let arena = arena();
    let refused = arena.input_slots::<u8>(0, 64).map(drop).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NoSlots), "{refused}");
    let refused = arena.result_queue::<u8>(0, 64).map(drop).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NoSlots), "{refused}");
    let mut slots = arena.input_slots::<u8>(1, 64).unwrap();
    let refused = slots.next().map(drop).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NotFilled), "{refused}");
}

#[test]
fn slots_that_do_not_fit_name_the_call_that_asked_for_them() {
    let _standin = Standin::load().unwrap();
    let device = arena_scope::Cuda::new(0).unwrap();
    let arena = crate::common::arena(device, 1024).unwrap();
    let (line, refused) = (line!(), arena.input_slots::<u8>(2, 1000).unwrap_err());
    let site = refused.as_exhausted().and_then(|full| full.call_site).expect("it is named");
    assert_eq!((site.file(), site.line()), (file!(), line));
}
