//! A device that makes requests of its arena while that fills a buffer, and then fails. Its contract forbids
//! it; no two buffers overlap all the same.

use std::cell::RefCell;
use std::rc::Rc;

use arena_scope::device::Deferred;
use arena_scope::{Arena, ByteSize, Device, Persistent, Pod, Transient};

use super::hooked::{Hooked, before_each_call, refusal};

type Reentrant = Hooked<Deferred>;

fn arena() -> Arena<Reentrant> {
    let device = Hooked::new(Deferred::new(0));
    Arena::builder(device).capacity(ByteSize::kib(64)).build().unwrap()
}

/// Makes `request` in the next copy from the host, which then fails.
fn request_in_a_failing_copy<B: 'static>(request: impl Fn() -> B + 'static) -> Rc<RefCell<Vec<B>>> {
    let made = Rc::new(RefCell::new(Vec::new()));
    let stash = Rc::clone(&made);
    before_each_call(move |call| {
        if call != "copy_in" {
            return Ok(());
        }
        stash.borrow_mut().push(request());
        Err(refusal(call))
    });
    made
}

fn are_apart(a: (u64, usize), b: (u64, usize)) -> bool {
    a.0 + a.1 as u64 <= b.0 || b.0 + b.1 as u64 <= a.0
}

fn transient_bytes<T: Pod, D: Device>(x: &Transient<'_, T, D>) -> (u64, usize) {
    (x.address(), x.len() * size_of::<T>())
}

fn persistent_bytes<T: Pod, D: Device>(x: &Persistent<T, D>) -> (u64, usize) {
    (x.address(), x.len() * size_of::<T>())
}

#[test]
fn a_transient_buffer_made_in_a_copy_that_fails_keeps_its_bytes() {
    let arena: &'static mut Arena<Reentrant> = Box::leak(Box::new(arena()));
    let guard = Box::leak(Box::new(arena.enter().unwrap()));
    let scope: &'static _ = Box::leak(Box::new(guard.scope()));
    let made = request_in_a_failing_copy(|| scope.alloc::<u8>(1000).unwrap());
    assert!(scope.upload(&[1_u8; 50]).is_err());
    let other = scope.alloc::<u8>(4000).unwrap();
    let made = made.borrow_mut().pop().unwrap();
    assert!(are_apart(transient_bytes(&made), transient_bytes(&other)), "{made:?}, {other:?}");
}

fn a_persistent_buffer_keeps_its_bytes(arena: Arena<Reentrant>) {
    let arena: &'static Arena<Reentrant> = Box::leak(Box::new(arena));
    let made = request_in_a_failing_copy(|| arena.persistent::<u8>(1000).unwrap());
    assert!(arena.persistent_from(&[1_u8; 50]).is_err());
    let other = arena.persistent::<u8>(4000).unwrap();
    let made = made.borrow_mut().pop().unwrap();
    assert!(are_apart(persistent_bytes(&made), persistent_bytes(&other)), "{made:?}, {other:?}");
}

#[test]
fn a_persistent_buffer_made_in_a_copy_that_fails_keeps_its_bytes() {
    a_persistent_buffer_keeps_its_bytes(arena());
}

#[test]
fn a_kept_buffer_made_in_a_copy_that_fails_keeps_its_bytes() {
    let mut arena = arena();
    arena.mark().unwrap();
    a_persistent_buffer_keeps_its_bytes(arena);
}
