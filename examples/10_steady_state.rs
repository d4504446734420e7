//! The steady state: a loop that repeats, measured and asserted, and a loop that does not.
//!
//! A steady step gets the addresses of the first step of its kind, obtains no memory from the driver, keeps no new
//! buffer, and allocates nothing on the host's heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use arena_scope::steady::NotSteady;
use arena_scope::{Arena, ByteSize, Host};

/// The system's allocator, counted. Only a program can know its global allocator.
struct Counted;
static HEAP_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: both calls are the system allocator's, with the caller's own promises.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(64)).build()?;
    arena.mark()?;

    // 1. Watch a loop while it runs.
    arena.observe(Some(|| HEAP_ALLOCATIONS.load(Ordering::Relaxed)));
    for _ in 0..20 {
        step(&mut arena, 10)?;
    }
    let seen = arena.stop_observing().expect("it was observed");
    seen.check()?;
    assert!(seen.is_stable());
    assert_eq!((seen.steps(), seen.late_driver_allocations()), (20, 0));
    assert_eq!(seen.heap_allocations_per_step(), Some(0));
    println!("20 steps: the same addresses, no driver call, no heap allocation from step 3 on");

    // 2. Or run a few steps and assert, as a test would. Here step 3 has one row more.
    let outcome =
        arena.assert_steady_state(5, |arena, n| step(arena, if n == 2 { 11 } else { 10 }));
    let error = outcome.expect_err("step 3 differs");
    println!("{error}");
    let Some(NotSteady::Addresses(divergence)) = error.downcast_ref() else { return Err(error) };
    let request = divergence.at.as_ref().map(|at| at.request);
    assert_eq!((divergence.step, request), (3, Some(1)));

    // 3. A buffer that is kept anew in every step is another way not to be steady.
    let mut history = Vec::new();
    let outcome = arena.assert_steady_state(5, |arena, _| {
        arena.scope_named("train", |scope| {
            history.push(scope.promote(scope.upload(&[1.0_f32; 64])?.view())?);
            Ok::<_, Box<dyn Error>>(())
        })
    });
    let error = outcome.expect_err("each step keeps 256 bytes");
    assert!(matches!(error.downcast_ref(), Some(NotSteady::KeptGrows { grown_bytes: 512, .. })));
    println!("{error}");
    Ok(())
}

fn step(arena: &mut Arena, rows: usize) -> Result<(), Box<dyn Error>> {
    arena.scope_named("train", |scope| {
        let mut inputs = scope.alloc::<f32>(64)?;
        inputs.as_mut_slice().fill(1.0);
        let mut outputs = scope.alloc::<f32>(rows)?;
        outputs.as_mut_slice().fill(inputs.as_slice().iter().sum());
        assert_eq!(scope.read_one(outputs.view().range(..1)?)?, 64.0);
        Ok(())
    })
}
