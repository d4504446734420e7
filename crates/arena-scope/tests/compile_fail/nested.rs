//! B013, B043: the order of nested scopes is the order of their lifetimes.

use arena_scope::{Arena, Error, Host, Transient};

fn allocating_from_the_outer_scope_inside(arena: &mut Arena<Host>) {
    let _ = arena.scope(|outer| {
        outer.scope(|inner| {
            let _ = inner.alloc::<f32>(1)?;
            outer.alloc::<f32>(1).map(drop)
        })
    });
}

fn an_inner_result_used_outside(arena: &mut Arena<Host>) {
    let _ = arena.scope(|outer| {
        let t = outer.scope(|inner| inner.upload(&[1.0_f32, 2.0]))?;
        outer.read(t.view())
    });
}

fn an_inner_buffer_in_an_outer_list(arena: &mut Arena<Host>) {
    let _ = arena.scope(|outer| {
        let mut list = vec![outer.alloc::<f32>(1)?];
        outer.scope(|inner| {
            list.push(inner.alloc::<f32>(1)?);
            arena_scope::Ok(())
        })
    });
}

fn an_inner_buffer_swapped_with_an_outer_one(arena: &mut Arena<Host>) {
    let _ = arena.scope(|outer| {
        let mut x: Transient<'_, f32> = outer.alloc(1)?;
        outer.scope(|inner| {
            let mut y = inner.alloc::<f32>(1)?;
            std::mem::swap(&mut x, &mut y);
            arena_scope::Ok(())
        })
    });
}

fn scopes_of_two_closures_swapped(a: &mut Arena<Host>, b: &mut Arena<Host>) {
    let _ = a.scope(|of_a| {
        b.scope(|of_b| {
            std::mem::swap(of_a, of_b);
            arena_scope::Ok(())
        })
    });
}

fn a_guards_scope_swapped_with_a_closures(a: &mut Arena<Host>, b: &mut Arena<Host>) {
    let mut guard = a.enter().unwrap();
    let mut of_a = guard.scope();
    let _ = b.scope(|of_b| {
        std::mem::swap(&mut of_a, of_b);
        arena_scope::Ok(())
    });
}

fn the_arena_inside_its_own_scope(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let _ = step.alloc::<f32>(1)?;
        arena.scope(|again| again.alloc::<f32>(1).map(drop))
    });
}

fn the_guard_form_allocating_outside(arena: &mut Arena<Host>) -> Result<(), Error> {
    let mut guard = arena.enter()?;
    let mut outer = guard.scope();
    let mut inner = outer.enter()?;
    let _ = outer.alloc::<f32>(1)?;
    let _ = inner.scope().alloc::<f32>(1)?;
    Ok(())
}

/// B043
fn the_outer_guard_closed_first(arena: &mut Arena<Host>) -> Result<(), Error> {
    let mut a = arena.enter()?;
    let mut outer = a.scope();
    let b = outer.enter()?;
    a.close()?;
    b.close()
}

/// B043
fn closed_twice(arena: &mut Arena<Host>) -> Result<(), Error> {
    let guard = arena.enter()?;
    guard.close()?;
    guard.close()
}

fn guards_of_two_depths_swapped(arena: &mut Arena<Host>) -> Result<(), Error> {
    let mut a = arena.enter()?;
    let mut outer = a.scope();
    let mut b = outer.enter()?;
    std::mem::swap(&mut a, &mut b);
    b.close()
}

fn an_inner_guard_kept_after_the_outer_closure(arena: &mut Arena<Host>) {
    let mut kept = None;
    let _ = arena.scope(|step| {
        kept = Some(step.enter()?);
        arena_scope::Ok(())
    });
    drop(kept);
}

fn main() {}
