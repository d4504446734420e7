//! B045: a guard that is not bound to a name would close its scope at once.

#![deny(unused_must_use)]

use arena_scope::{Arena, Error, Host};

fn the_result_is_dropped(arena: &mut Arena<Host>) {
    arena.enter();
}

fn the_guard_is_dropped(arena: &mut Arena<Host>) -> Result<(), Error> {
    arena.enter()?;
    Ok(())
}

fn the_guards_scope_is_dropped(arena: &mut Arena<Host>) -> Result<(), Error> {
    let mut guard = arena.enter()?;
    guard.scope();
    guard.close()
}

fn the_outcome_of_closing_is_dropped(arena: &mut Arena<Host>) -> Result<(), Error> {
    let guard = arena.enter()?;
    guard.close();
    Ok(())
}

fn main() {}
