//! B012, B013, B024, B070: nothing that was made from a scope's buffer leaves its closure.

use arena_scope::bumpalo::boxed::Box as BumpBox;
use arena_scope::layout::RowLayout;
use arena_scope::{Alignment, Arena, Host, Transient, View};

fn returned(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| step.alloc::<f32>(4));
}

fn pushed_to_an_outer_list(arena: &mut Arena<Host>) {
    let mut losses = Vec::new();
    let _ = arena.scope(|step| {
        losses.push(step.alloc::<f32>(1)?);
        arena_scope::Ok(())
    });
}

fn stored_in_an_outer_option(arena: &mut Arena<Host>) {
    let mut mask: Option<Transient<'_, u8>> = None;
    let _ = arena.scope(|step| {
        mask = Some(step.alloc_zeroed(4)?);
        arena_scope::Ok(())
    });
    let _ = mask;
}

fn a_tape_kept_outside(arena: &mut Arena<Host>) {
    struct Tape<'s> {
        nodes: Vec<Transient<'s, f32>>,
    }
    let mut tape = Tape { nodes: Vec::new() };
    let _ = arena.scope(|step| {
        tape.nodes.push(step.upload(&[1.0])?);
        arena_scope::Ok(())
    });
    let _ = tape.nodes.len();
}

fn a_tape_on_the_host_bump_kept_outside(arena: &mut Arena<Host>) {
    let mut tape = None;
    let _ = arena.scope(|step| {
        tape = Some(BumpBox::new_in(step.alloc::<f32>(4)?, step.host_bump()));
        arena_scope::Ok(())
    });
    drop(tape);
}

fn host_data_kept_outside(arena: &mut Arena<Host>) {
    let mut shape: &[usize] = &[];
    let _ = arena.scope(|step| {
        shape = step.host_bump().alloc_slice_copy(&[1, 28, 28]);
        arena_scope::Ok(())
    });
    let _ = shape.len();
}

fn the_bump_kept_outside(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| arena_scope::Ok(step.host_bump()));
}

fn a_view_kept(arena: &mut Arena<Host>) {
    let mut kept: Option<View<'_, f32>> = None;
    let _ = arena.scope(|step| {
        let buffer = step.alloc::<f32>(4)?;
        kept = Some(buffer.view());
        arena_scope::Ok(())
    });
    let _ = kept;
}

/// Each derived type, returned from the scope in which its buffer stays behind.
fn range(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let buffer = step.alloc::<f32>(4)?;
        buffer.view().range(1..)
    });
}

fn split_at(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let buffer = step.alloc::<f32>(4)?;
        buffer.view().split_at(1)
    });
}

fn row(arena: &mut Arena<Host>, layout: RowLayout) {
    let _ = arena.scope(|step| {
        let buffer = step.alloc_rows::<f32>(&layout)?;
        buffer.view().row(&layout, 0)
    });
}

fn parts(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let buffer = step.alloc::<f32>(4)?;
        buffer.view().parts(2, Alignment::ONE)
    });
}

fn as_slice(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let buffer = step.alloc::<f32>(4)?;
        arena_scope::Ok(buffer.as_slice())
    });
}

fn as_slice_of_a_view(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let buffer = step.alloc::<f32>(4)?;
        arena_scope::Ok(buffer.view().as_slice())
    });
}

fn as_mut_slice(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let mut buffer = step.alloc::<f32>(4)?;
        arena_scope::Ok(buffer.as_mut_slice())
    });
}

fn view_mut(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let mut buffer = step.alloc::<f32>(4)?;
        arena_scope::Ok(buffer.view_mut())
    });
}

fn range_mut(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let mut buffer = step.alloc::<f32>(4)?;
        buffer.view_mut().range(1..)
    });
}

fn split_at_mut(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let mut buffer = step.alloc::<f32>(4)?;
        buffer.view_mut().split_at_mut(1)
    });
}

fn row_mut(arena: &mut Arena<Host>, layout: RowLayout) {
    let _ = arena.scope(|step| {
        let mut buffer = step.alloc_rows::<f32>(&layout)?;
        buffer.view_mut().row_mut(&layout, 0)
    });
}

fn parts_mut(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let mut buffer = step.alloc::<f32>(4)?;
        buffer.view_mut().parts_mut(2, Alignment::ONE)
    });
}

fn into_mut_slice(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let mut buffer = step.alloc::<f32>(4)?;
        arena_scope::Ok(buffer.view_mut().into_mut_slice())
    });
}

fn view_from_view_mut(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let mut buffer = step.alloc::<f32>(4)?;
        arena_scope::Ok(View::from(buffer.view_mut()))
    });
}

fn a_leaked_buffer(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| arena_scope::Ok(Box::leak(Box::new(step.alloc::<f32>(4)?))));
}

fn a_view_of_a_leaked_buffer_kept(arena: &mut Arena<Host>) {
    let mut kept = None;
    let _ = arena.scope(|step| {
        kept = Some(Box::leak(Box::new(step.alloc::<f32>(4)?)).view());
        arena_scope::Ok(())
    });
    let _ = kept;
}

fn main() {}
