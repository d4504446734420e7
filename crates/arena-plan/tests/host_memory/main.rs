//! However many kinds of step a loop has, the arena's host memory stays within its budget.
//!
//! A program of its own: the bytes of all threads are counted together, and those of other tests would be among them.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use arena_plan::{AutoPlan, Options, PlannedRun};
use arena_scope::{Arena, ByteSize, Device, Error, Host, StepKey};
use rstest::rstest;

/// The system's allocator, which counts the bytes that are held.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

static HELD_BYTES: AtomicU64 = AtomicU64::new(0);

fn held_bytes() -> u64 {
    HELD_BYTES.load(Ordering::Relaxed)
}

// SAFETY: every call goes to the system's allocator unchanged; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD_BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD_BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn key(length: u64) -> StepKey {
    StepKey::named("train").variant(length)
}

/// A step whose number of requests, and their sizes, depend on the length.
fn step<D: Device>(arena: &mut Arena<D>, key: StepKey) -> Result<(), Error> {
    let length = key.variant as usize;
    arena.scope_with(key, |scope| {
        let mut states = Vec::new();
        for _ in 0..length % 50 {
            let scratch = scope.alloc::<u8>(2 * length)?;
            states.push(scope.alloc::<u8>(length)?);
            drop(scratch);
        }
        while let Some(state) = states.pop() {
            drop((state, scope.alloc::<u8>(length)?));
        }
        Ok(())
    })
}

/// What is known of the kinds of step, and who makes plans for them.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Observed,
    Recorded,
    AutoPlanned,
    OnDemand,
}

const BUDGET: u64 = 1 << 20;

/// Beside the kinds of step: the log of one step, a planner and what its thread has in work.
const BESIDE: u64 = 256 << 10;

#[rstest]
fn host_memory_is_flat_after_many_lengths_and_what_the_arena_says(
    #[values(Way::Observed, Way::Recorded, Way::AutoPlanned, Way::OnDemand)] way: Way,
) -> Result<(), Error> {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);

    let before = held_bytes();
    let builder = Arena::builder(Host::new()).capacity(ByteSize::mib(8));
    let mut arena = builder.step_memory(ByteSize::bytes_exact(BUDGET)).build()?;
    match way {
        Way::Observed => arena.observe(None),
        Way::Recorded => arena.record(None),
        Way::AutoPlanned => arena.auto_plan(Options::default())?,
        Way::OnDemand => {
            let run = PlannedRun::probe(&Host::new(), &Options::default(), |arena| {
                step(arena, key(10_000))
            })?;
            run.on_demand(&mut arena, &Options::default(), step);
        }
    }
    let mut most = 0;
    for length in 1..=10_000 {
        step(&mut arena, key(length))?;
        if way == Way::AutoPlanned && length % 10 == 0 {
            std::thread::sleep(Duration::from_millis(1)); // Its thread gets to the steps.
        }
        let (held, said) = (held_bytes() - before, arena.step_memory_bytes());
        assert!(held <= said + BESIDE, "length {length}: {held} bytes, the arena says {said}");
        most = most.max(said);
    }
    // The last step's record is counted and may be too much.
    assert!((BUDGET * 3 / 4..=BUDGET + (32 << 10)).contains(&most), "{most}");
    let seen = arena.observed().expect("it is observed");
    assert_eq!((seen.steps(), seen.kinds.len() as u64 + seen.forgotten), (10_000, 10_000));
    let planned = (1..=10_000).filter(|&length| arena.plan_span(key(length)).is_some()).count();
    match way {
        Way::Observed | Way::Recorded => assert_eq!(planned, 0),
        Way::AutoPlanned | Way::OnDemand => assert!(planned > 100, "{planned}"),
    }
    Ok(())
}
