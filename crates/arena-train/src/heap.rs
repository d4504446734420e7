//! A global allocator that counts, so that a step can be shown to allocate nothing on the heap.
//!
//! This module opens `unsafe` for the one trait that a global allocator is; every call goes to the
//! system's allocator unchanged.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::library_mark;

static OWN: AtomicU64 = AtomicU64::new(0);
static LIBRARY: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counting. A program installs it with `#[global_allocator]`.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator;

/// Heap allocations so far, on all threads, except those of linear-algebra libraries.
#[must_use]
pub fn own_allocations() -> u64 {
    OWN.load(Ordering::Relaxed)
}

/// Heap allocations so far inside the calls of linear-algebra libraries, on all threads.
#[must_use]
pub fn library_allocations() -> u64 {
    LIBRARY.load(Ordering::Relaxed)
}

fn count() {
    let counter = if library_mark::is_inside() { &LIBRARY } else { &OWN };
    counter.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: each call is passed on to `System`, which keeps the trait's promises; counting neither
// allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}
