//! From the third step on a training step allocates nothing on the heap.
//!
//! A program of its own: the allocations of all threads are counted together, those of other tests would be
//! among them, and the loops of those tests would report them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use arena_train::heap::CountingAllocator;

#[path = "../suite/common.rs"]
#[expect(dead_code, reason = "a part of it is used")]
mod common;
#[cfg(feature = "_cuda")]
#[path = "../suite/cuda_common.rs"]
#[expect(dead_code, reason = "a part of it is used")]
mod cuda_common;
#[cfg(feature = "_cuda")]
mod cuda_steady_step;
mod steady_step;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Held by a test while it counts, for another one would count into the same numbers.
fn alone() -> MutexGuard<'static, ()> {
    static COUNTING: Mutex<()> = Mutex::new(());
    COUNTING.lock().unwrap_or_else(PoisonError::into_inner)
}
