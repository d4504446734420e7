//! Regions on CUDA whose memory comes piece by piece: growth, giving back, pause and resume, and what the driver is
//! asked for.

use std::sync::Mutex;

use crate::cuda_graph::Loop;
use arena_scope::cudarc::driver::CudaContext;
use arena_scope::errors::{DeviceErrorKind, LimitedBy};
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::{
    Alignment, Arena, ByteSize, Cuda, Device, Error, ErrorKind, Keep, Pressure, RegionKind, Reset,
    StepKey,
};
use cuda_standin::Standin;
use rstest::rstest;

const MIB: u64 = 1 << 20;

/// A region of which just what is needed is committed, in units of 2 MiB.
fn exact(capacity: ByteSize) -> Result<Arena<Cuda>, Error> {
    let builder = Arena::builder(Cuda::new(0)?).capacity(capacity).region(RegionKind::Virtual);
    builder.commit_ahead(ByteSize::kib(0)).build()
}

fn committed(arena: &Arena<Cuda>) -> u64 {
    arena.stats().committed_bytes
}

/// Calls of the driver's functions for memory so far.
fn memory_calls(standin: &Standin) -> u64 {
    standin
        .call_names()
        .iter()
        .filter(|name| name.starts_with("cuMem"))
        .map(|name| standin.calls(name))
        .sum()
}

#[track_caller]
fn device_kind(error: &Error) -> DeviceErrorKind {
    match error.kind() {
        ErrorKind::Device(refused) => refused.kind,
        _ => panic!("{error}"),
    }
}

#[test]
fn memory_is_mapped_where_it_is_needed_and_no_address_moves() {
    let standin = Standin::load().unwrap();
    standin.set_memory(100 << 30, 100 << 30);
    let builder = Arena::builder(Cuda::new(0).unwrap()).capacity(ByteSize::gib(64));
    let builder = builder.region(RegionKind::Virtual).commit_ahead(ByteSize::gib(64));
    let mut arena = builder.build().unwrap();
    assert_eq!(committed(&arena), 0, "64 GiB of addresses cost no memory");
    let weights = arena.persistent_from(&[1.5_f32; 100]).unwrap();
    let address = weights.view().address();
    arena.mark().unwrap();
    for size in [1, 4, 40, 400, 4000, 40_000].map(|mib| mib * MIB as usize) {
        arena
            .scope(|step| {
                let mut x = step.alloc::<u8>(size)?;
                x.view_mut().range(size - 4..size)?.write(&[7; 4])
            })
            .unwrap();
    }
    assert_eq!(
        (weights.view().to_vec().unwrap(), weights.view().address()),
        (vec![1.5; 100], address)
    );
    assert!(committed(&arena) >= 40_000 * MIB);
    assert!(standin.calls("cuMemCreate") < 20, "{}", standin.calls("cuMemCreate"));
    assert!(arena.trim_to(0).unwrap() >= 39_000 * MIB);
    let free = arena.device().memory().unwrap().free_bytes;
    assert_eq!(free, (100 << 30) - committed(&arena), "the driver has it back");
    assert_eq!(weights.view().to_vec().unwrap(), [1.5; 100]);
    drop((weights, arena));
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

fn training() -> Loop {
    Loop::on(exact(ByteSize::mib(64)).unwrap())
}

#[test]
fn a_step_that_ran_before_asks_the_driver_for_no_memory() {
    let standin = Standin::load().unwrap();
    let mut arena = exact(ByteSize::mib(64)).unwrap();
    arena.mark().unwrap();
    let mut step = || {
        let slot = |step: &arena_scope::Scope<'_, '_, Cuda>| step.alloc::<u8>(3 << 20).map(drop);
        arena.scope(|step| (0..5).try_for_each(|_| slot(step))).unwrap();
    };
    step();
    let before = memory_calls(&standin);
    for _ in 0..20 {
        step();
    }
    assert_eq!(memory_calls(&standin), before);
}

#[test]
fn a_graph_and_a_plan_go_on_while_the_region_grows_and_shrinks() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(5) {
        standin.reset(seed);
        let mut training = training();
        training.run().unwrap();
        let graph = training.capture().unwrap();
        let slot = |place: u64| PlannedSlot {
            offset_bytes: place * MIB,
            bytes: MIB,
            alignment: Alignment::DEFAULT,
        };
        let table = SlotTable::new(&[slot(9), slot(5)]).unwrap();
        training.arena.install_plan(StepKey::named("planned"), table).unwrap();
        let mut addresses = Vec::new();
        for mib in [1, 8, 30] {
            training.arena.scope(|step| step.alloc::<u8>(mib << 20).map(drop)).unwrap();
            graph.replay(&mut training.arena).unwrap();
            let address = training.arena.scope_with(StepKey::named("planned"), |step| {
                Ok::<_, Error>([
                    step.alloc::<u8>(1 << 20)?.address(),
                    step.alloc::<u8>(1 << 20)?.address(),
                ])
            });
            addresses.push(address.unwrap());
        }
        assert!(addresses.iter().all(|address| *address == addresses[0]), "{addresses:?}");
        assert!((training.weight() - 16.0).abs() < 1e-6, "{}", training.weight());
        let held = training.arena.trim().unwrap_err();
        assert!(matches!(held.kind(), ErrorKind::InUse { .. }), "a graph holds the region: {held}");
        drop(graph);
        assert!(training.arena.trim_to(0).unwrap() >= 28 * MIB);
    }
}

#[test]
fn a_pause_gives_the_memory_back_and_graphs_go_on_after_it() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(5) {
        standin.reset(seed);
        let mut training = training();
        training.run().unwrap();
        let graph = training.capture().unwrap();
        let free = |arena: &Arena<Cuda>| arena.device().memory().unwrap().free_bytes;
        let (held, before) = (committed(&training.arena), free(&training.arena));
        assert_eq!(training.arena.pause(Keep::Persistent).unwrap(), held);
        assert_eq!((free(&training.arena), committed(&training.arena)), (before + held, 0));
        let paused = |error: Error| assert!(matches!(error.kind(), ErrorKind::Paused), "{error}");
        paused(graph.replay(&mut training.arena).unwrap_err());
        paused(training.run().unwrap_err());
        paused(training.weights.view().to_vec().unwrap_err());
        training.arena.resume().unwrap();
        graph.replay(&mut training.arena).unwrap();
        training.run().unwrap();
        assert!((training.weight() - 8.0).abs() < 1e-6, "{}", training.weight());
        drop((graph, training));
        assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
    }
}

#[test]
fn after_a_pause_that_kept_nothing_graphs_are_stale() {
    let _standin = Standin::load().unwrap();
    let mut arena = exact(ByteSize::mib(64)).unwrap();
    let weights = arena.persistent::<f32>(4).unwrap();
    arena.mark().unwrap();
    let key = StepKey::named("empty");
    for _ in 0..2 {
        arena.scope_with(key, |step| step.alloc_zeroed::<f32>(4).map(drop)).unwrap();
    }
    let graph = arena.capture(key, |step| step.alloc_zeroed::<f32>(4).map(drop)).unwrap();
    let lost = arena.pause(Keep::Nothing).unwrap_err();
    assert!(matches!(lost.kind(), ErrorKind::WouldBeLost { .. }), "{lost}");
    drop(weights);
    arena.pause(Keep::Nothing).unwrap();
    arena.resume().unwrap();
    let stale = graph.replay(&mut arena).unwrap_err();
    assert!(matches!(stale.kind(), ErrorKind::StaleGraph { .. }), "{stale}");
}

/// Everything that maps, unmaps and copies.
fn program(arena: &mut Arena<Cuda>) -> Result<Vec<f32>, Error> {
    let weights = arena.persistent_from(&[2.5_f32; 100])?;
    arena.mark()?;
    arena.scope(|step| step.alloc_zeroed::<u8>(5 << 20).map(drop))?;
    arena.trim_to(0)?;
    arena.scope(|step| step.alloc_zeroed::<u8>(7 << 20).map(drop))?;
    arena.fit()?;
    arena.pause(Keep::Persistent)?;
    let resumed = arena.resume();
    if arena.is_paused() {
        arena.resume()?; // no memory then, but now
    }
    resumed?;
    weights.view().to_vec()
}

#[test]
fn whichever_call_of_the_driver_fails_the_arena_can_be_used_and_nothing_is_lost() {
    let standin = Standin::load().unwrap();
    let mut n = 1;
    loop {
        standin.reset(n);
        let mut arena = exact(ByteSize::mib(64)).unwrap();
        standin.fail_nth_call(n, 2); // out of memory
        let outcome = program(&mut arena);
        let failed = standin.failures_to_come() == 0;
        standin.clear_failures();
        if let Ok(values) = &outcome {
            assert_eq!(*values, [2.5; 100]);
        }
        arena.resume().unwrap();
        let again = |arena: &mut Arena<Cuda>| {
            arena.scope(|step| step.upload(&[1_u8; 6 << 20])?.view().to_vec())
        };
        // The first call may tell that a close failed.
        let bytes = again(&mut arena).or_else(|_| again(&mut arena));
        let bytes = bytes.unwrap_or_else(|error| {
            panic!("call {n}: {outcome:?}, then {error}: {}", standin.last_fault())
        });
        assert!(bytes == [1; 6 << 20], "call {n}");
        drop(arena);
        assert!(standin.leaks().is_clean(), "call {n}: {:?}", standin.leaks());
        if !failed {
            assert!(n > 20, "{n} calls");
            break;
        }
        n += 1;
    }
}

#[test]
fn too_little_memory_is_one_error_with_its_figures_and_the_arena_goes_on() {
    let standin = Standin::load().unwrap();
    standin.set_memory(10 * MIB, 10 * MIB);
    let mut arena = exact(ByteSize::gib(1)).unwrap();
    arena.mark().unwrap();
    let refused = arena.scope(|step| step.alloc::<u8>(11 << 20).map(drop)).unwrap_err();
    let DeviceErrorKind::OutOfMemory(Some(shortage)) = device_kind(&refused) else {
        panic!("{refused}")
    };
    assert_eq!((shortage.asked_bytes, shortage.free_bytes), (12 * MIB, 10 * MIB));
    assert_eq!((shortage.total_bytes, shortage.limited_by), (10 * MIB, LimitedBy::Device));
    arena.scope(|step| step.alloc::<u8>(9 << 20).map(drop)).unwrap();
    arena.pause(Keep::Persistent).unwrap();
    standin.set_memory(10 * MIB, 0);
    let refused = arena.resume().unwrap_err();
    assert!(matches!(device_kind(&refused), DeviceErrorKind::OutOfMemory(_)), "{refused}");
    assert!(arena.is_paused());
    standin.set_memory(10 * MIB, 10 * MIB);
    arena.resume().unwrap();
    arena.scope(|step| step.alloc::<u8>(9 << 20).map(drop)).unwrap();
}

#[rstest]
#[case::none(0)]
#[case::no_power_of_two(3 << 20)]
fn a_device_that_maps_no_memory_is_told_at_once(#[case] granularity: u64) {
    let standin = Standin::load().unwrap();
    standin.set_granularity(granularity);
    let refused = exact(ByteSize::mib(64)).unwrap_err();
    assert_eq!(device_kind(&refused), DeviceErrorKind::Unsupported, "{refused}");
    assert!(standin.leaks().is_clean());
}

#[test]
fn a_region_of_one_allocation_says_that_it_gives_nothing_back() {
    let _standin = Standin::load().unwrap();
    let builder = Arena::builder(Cuda::new(0).unwrap()).capacity(ByteSize::mib(1));
    let mut arena = builder.reset(Reset::Zero).build().unwrap();
    arena.mark().unwrap();
    assert_eq!(device_kind(&arena.trim().unwrap_err()), DeviceErrorKind::Unsupported);
    let refused = arena.pause(Keep::Persistent).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NotVirtual { .. }), "{refused}");
    arena.scope(|step| step.alloc::<u8>(100).map(drop)).unwrap();
}

#[test]
fn growth_is_refused_in_a_capture_and_the_arena_goes_on() {
    let _standin = Standin::load().unwrap();
    let mut training = training();
    training.run().unwrap();
    training.run().unwrap();
    training.arena.trim_to(0).unwrap();
    training.weights.view().to_vec().unwrap();
    let key = StepKey::named("large");
    let large = |arena: &mut Arena<Cuda>, mib: usize| {
        arena.capture(key, |step| step.alloc::<u8>(mib << 20).map(drop)).map(drop)
    };
    for _ in 0..2 {
        training.arena.scope_with(key, |step| step.alloc::<u8>(20 << 20).map(drop)).unwrap();
    }
    training.arena.trim_to(0).unwrap();
    let refused = large(&mut training.arena, 20).unwrap_err();
    assert_eq!(device_kind(&refused), DeviceErrorKind::InCapture, "{refused}");
    training.run().unwrap();
    assert!((training.weight() - 8.0).abs() < 1e-6);
}

#[test]
fn a_program_that_frees_its_own_cache_when_memory_is_short_is_served() {
    let standin = Standin::load().unwrap();
    standin.set_memory(20 * MIB, 20 * MIB);
    let device = Cuda::new(0).unwrap();
    let cache = device.stream().alloc_zeros::<u8>(15 << 20).map_err(|error| error.0).unwrap();
    let cache = Mutex::new(Some(cache));
    let builder = Arena::builder(device).capacity(ByteSize::gib(1)).region(RegionKind::Virtual);
    let builder = builder.commit_ahead(ByteSize::kib(0)).on_pressure(move |pressure| {
        assert!(matches!(pressure, Pressure::OutOfMemory { shortage: Some(_), .. }));
        let cached = cache.lock().unwrap().take();
        cached.is_some_and(|cached| {
            let stream = cached.stream().clone();
            drop(cached);
            stream.synchronize().is_ok() // a stream-ordered free has happened then
        })
    });
    let mut arena = builder.build().unwrap();
    arena.mark().unwrap();
    arena.scope(|step| step.alloc::<u8>(10 << 20).map(drop)).unwrap();
    let refused = arena.scope(|step| step.alloc::<u8>(30 << 20).map(drop)).unwrap_err();
    assert!(matches!(device_kind(&refused), DeviceErrorKind::OutOfMemory(Some(_))), "{refused}");
}

// The copies of input slots run on a stream that nobody declares.
#[test]
fn a_pause_waits_for_a_batch_that_is_on_its_way_beside_the_arena_s_stream() {
    let standin = Standin::load().unwrap();
    for seed in standin.seeds(20) {
        standin.reset(seed);
        let mut arena = exact(ByteSize::mib(64)).unwrap();
        let mut slots = arena.input_slots::<u8>(2, 1 << 20).unwrap();
        arena.mark().unwrap();
        slots.fill(|batch| batch.fill(7)).unwrap();
        arena.pause(Keep::Persistent).unwrap();
        arena.resume().unwrap();
        let seen = arena.scope(|step| step.read(slots.next()?));
        assert!(seen.unwrap() == vec![7; 1 << 20], "seed {seed}: {}", standin.last_fault());
        drop((slots, arena));
        assert!(standin.leaks().is_clean(), "seed {seed}: {:?}", standin.leaks());
    }
}

#[test]
fn a_region_over_memory_of_the_program_does_not_grow() {
    let _standin = Standin::load().unwrap();
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let memory = stream.alloc_zeros::<u8>(1 << 20).map_err(|error| error.0).unwrap();
    let device = Cuda::on(stream).unwrap().over(memory).unwrap();
    let builder = Arena::builder(device).capacity(ByteSize::mib(1)).region(RegionKind::Virtual);
    assert_eq!(device_kind(&builder.build().unwrap_err()), DeviceErrorKind::Unsupported);
}
