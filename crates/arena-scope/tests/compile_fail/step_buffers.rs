//! A buffer without a lifetime: what is seen of it has one.

use arena_scope::{Arena, Error, Host, StepBuffer};

fn a_view_after_the_scope(arena: &mut Arena<Host>, buffer: &StepBuffer<f32>) {
    let _ = arena.scope(|step| buffer.view(step));
}

fn a_mutable_view_after_the_scope(arena: &mut Arena<Host>, buffer: &mut StepBuffer<f32>) {
    let _ = arena.scope(|step| buffer.view_mut(step));
}

fn a_transient_after_the_scope(arena: &mut Arena<Host>, buffer: StepBuffer<f32>) {
    let _ = arena.scope(|step| buffer.take(step));
}

fn a_view_after_its_buffer(arena: &mut Arena<Host>) -> Result<(), Error> {
    arena.scope(|step| {
        let buffer = step.alloc_owned::<f32>(4)?;
        let view = buffer.view(step)?;
        drop(buffer);
        assert_eq!(view.len(), 4);
        arena_scope::Ok(())
    })
}

fn two_at_once(arena: &mut Arena<Host>) -> Result<(), Error> {
    arena.scope(|step| {
        let mut buffer = step.alloc_owned::<f32>(4)?;
        let (mut first, second) = (buffer.view_mut(step)?, buffer.view(step)?);
        first.write(&second.to_vec()?)
    })
}

fn an_inner_view_outside(arena: &mut Arena<Host>) -> Result<(), Error> {
    arena.scope(|step| {
        let buffer = step.alloc_owned::<f32>(4)?;
        let view = step.scope(|inner| buffer.view(inner))?;
        assert_eq!(view.len(), 4);
        arena_scope::Ok(())
    })
}

fn main() {}
