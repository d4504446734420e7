//! B071, B077: there is no free, no reset beside closing, and no way from a guard to its scope but
//! `scope()`. Elements are plain data.

use arena_scope::{Arena, Error, Guard, Host, Scope, Transient};

fn freeing(buffer: Transient<'_, f32>) {
    buffer.free();
}

fn a_shared_reset(arena: &Arena<Host>) {
    arena.reset();
}

fn a_reset_of_a_scope(step: &mut Scope<'_, '_, Host>) {
    step.reset();
}

fn a_guard_as_a_scope(guard: &mut Guard<'_, Host>) -> Result<(), Error> {
    guard.alloc::<f32>(1).map(drop)
}

fn elements_that_borrow_something(step: &Scope<'_, '_, Host>) {
    let _ = step.alloc::<&u8>(1);
}

fn main() {}
