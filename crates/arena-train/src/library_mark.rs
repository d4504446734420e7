//! A mark that says "this thread is inside a linear-algebra library".
//!
//! A step should make no host heap allocation of its own. A library that packs its operands into a
//! buffer of its own making is another matter, and a counting global allocator can only tell the
//! two apart if the call says so. [`enter`] sets the mark for the current thread until the guard
//! drops; [`is_inside`] is what the allocator asks.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    // Const-initialised and without a destructor, so that an allocator may read it at any time
    // (even while a thread starts or ends) and reading it never allocates.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The current thread is inside a library call for as long as this guard lives.
#[derive(Debug)]
#[must_use = "the mark ends when the guard drops"]
pub struct LibraryMark {
    // The mark belongs to the thread that set it, so the guard must not leave it.
    not_send: PhantomData<*const ()>,
}

/// Marks the current thread as being inside a library call. Guards nest.
#[inline]
pub fn enter() -> LibraryMark {
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    LibraryMark { not_send: PhantomData }
}

/// Whether the current thread is inside a library call. Allocates nothing and never panics, so a
/// global allocator may call it.
#[inline]
#[must_use]
pub fn is_inside() -> bool {
    DEPTH.try_with(|depth| depth.get() > 0).unwrap_or(false)
}

impl Drop for LibraryMark {
    #[inline]
    fn drop(&mut self) {
        // `enter` added one and the guard cannot be copied or sent, so the depth is at least one.
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::{enter, is_inside};

    #[test]
    fn the_mark_nests_and_belongs_to_one_thread() {
        assert!(!is_inside());
        let outer = enter();
        {
            let _inner = enter();
            assert!(is_inside());
        }
        assert!(is_inside(), "an inner guard's end must not end the outer mark");
        std::thread::scope(|threads| {
            threads.spawn(|| assert!(!is_inside(), "another thread is not inside"));
        });
        drop(outer);
        assert!(!is_inside());
    }
}
