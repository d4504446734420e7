//! B012, B046, B070: nothing of a guard's scope is used after the guard, and no arena meanwhile.

use arena_scope::{Alignment, Arena, Error, Host};

fn a_buffer_after_the_guard_is_dropped(arena: &mut Arena<Host>) -> Result<(), Error> {
    let mut guard = arena.enter()?;
    let buffer = guard.scope().alloc::<f32>(4)?;
    drop(guard);
    let _ = buffer.len();
    Ok(())
}

fn a_buffer_after_the_guard_is_closed(arena: &mut Arena<Host>) -> Result<(), Error> {
    let mut guard = arena.enter()?;
    let buffer = guard.scope().alloc::<f32>(4)?;
    guard.close()?;
    let _ = buffer.len();
    Ok(())
}

fn a_buffer_after_the_guard_is_forgotten(arena: &mut Arena<Host>) -> Result<(), Error> {
    let mut guard = arena.enter()?;
    let buffer = guard.scope().alloc::<f32>(4)?;
    std::mem::forget(guard);
    let _ = buffer.len();
    Ok(())
}

fn a_view_over_the_guards_end(arena: &mut Arena<Host>) -> Result<(), Error> {
    let mut guard = arena.enter()?;
    let view = Box::leak(Box::new(guard.scope().alloc::<f32>(4)?)).view();
    drop(guard);
    let _ = view.as_slice();
    Ok(())
}

fn pieces_over_the_guards_end(arena: &mut Arena<Host>) -> Result<(), Error> {
    let mut guard = arena.enter()?;
    let buffer = Box::leak(Box::new(guard.scope().alloc::<f32>(4)?));
    let mut pieces = buffer.view_mut().parts_mut(2, Alignment::ONE)?;
    guard.close()?;
    let _ = pieces.next();
    Ok(())
}

fn a_slice_after_the_block_of_the_guard(arena: &mut Arena<Host>) -> Result<(), Error> {
    let slice;
    {
        let mut guard = arena.enter()?;
        let buffer = guard.scope().alloc::<f32>(4)?;
        slice = buffer.as_slice();
    }
    let _ = slice[0];
    Ok(())
}

fn host_data_over_the_guards_end(arena: &mut Arena<Host>) -> Result<(), Error> {
    let mut guard = arena.enter()?;
    let word = guard.scope().host_bump().alloc(1_u64);
    drop(guard);
    *word += 1;
    Ok(())
}

fn the_scope_after_its_guard(arena: &mut Arena<Host>) -> Result<(), Error> {
    let mut guard = arena.enter()?;
    let step = guard.scope();
    drop(guard);
    let _ = step.alloc::<f32>(4)?;
    Ok(())
}

fn two_scopes_of_one_guard(arena: &mut Arena<Host>) -> Result<(), Error> {
    let mut guard = arena.enter()?;
    let (first, second) = (guard.scope(), guard.scope());
    let _ = (first.alloc::<f32>(4)?, second.alloc::<f32>(4)?);
    Ok(())
}

fn a_scope_while_the_guard_is_open(arena: &mut Arena<Host>) -> Result<(), Error> {
    let guard = arena.enter()?;
    arena.scope(|step| step.alloc::<f32>(4).map(drop))?;
    drop(guard);
    Ok(())
}

fn a_second_guard(arena: &mut Arena<Host>) -> Result<(), Error> {
    let (first, second) = (arena.enter()?, arena.enter()?);
    drop((first, second));
    Ok(())
}

fn the_mark(arena: &mut Arena<Host>) -> Result<(), Error> {
    let guard = arena.enter()?;
    arena.mark()?;
    guard.close()
}

fn trim(arena: &mut Arena<Host>) -> Result<(), Error> {
    let guard = arena.enter()?;
    arena.trim()?;
    guard.close()
}

fn figures(arena: &mut Arena<Host>) -> Result<(), Error> {
    let guard = arena.enter()?;
    let _ = arena.stats();
    guard.close()
}

fn persistent_from_the_arena(arena: &mut Arena<Host>) -> Result<(), Error> {
    let guard = arena.enter()?;
    let _ = arena.persistent::<f32>(1)?;
    guard.close()
}

/// B049
fn the_arena_is_dropped(mut arena: Arena<Host>) -> Result<(), Error> {
    let mut guard = arena.enter()?;
    let buffer = guard.scope().alloc::<f32>(4)?;
    drop(arena);
    let _ = buffer.as_slice();
    Ok(())
}

/// B071
fn arenas_are_swapped(a: &mut Arena<Host>, b: &mut Arena<Host>) -> Result<(), Error> {
    let mut guard = a.enter()?;
    let buffer = guard.scope().alloc::<f32>(4)?;
    std::mem::swap(a, b);
    let _ = buffer.as_slice();
    Ok(())
}

fn main() {}
