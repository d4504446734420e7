//! B072, B089: a buffer is written by one at a time.

use arena_scope::{Error, Host, Scope};

fn overlapping_mutable_views(step: &Scope<'_, '_, Host>) -> Result<(), Error> {
    let mut buffer = step.alloc::<f32>(300)?;
    let mut first = buffer.view_mut().range(100..200)?;
    let mut second = buffer.view_mut().range(150..300)?;
    first.zero()?;
    second.zero()
}

fn two_ranges_of_one_mutable_view(step: &Scope<'_, '_, Host>) -> Result<(), Error> {
    let mut buffer = step.alloc::<f32>(300)?;
    let view = buffer.view_mut();
    let mut first = view.range(100..200)?;
    let mut second = view.range(150..300)?;
    first.zero()?;
    second.zero()
}

fn reading_what_is_being_written(step: &Scope<'_, '_, Host>) -> Result<(), Error> {
    let mut buffer = step.alloc::<f32>(4)?;
    let seen = buffer.view();
    buffer.view_mut().zero()?;
    seen.to_vec().map(drop)
}

fn a_copy_onto_itself(step: &Scope<'_, '_, Host>) -> Result<(), Error> {
    let mut buffer = step.alloc::<f32>(4)?;
    buffer.view_mut().copy_from(buffer.view())
}

fn a_view_mut_behind_a_reborrow(step: &Scope<'_, '_, Host>) -> Result<(), Error> {
    let mut buffer = step.alloc::<f32>(4)?;
    let mut view = buffer.view_mut();
    let mut shorter = view.reborrow();
    view.zero()?;
    shorter.zero()
}

fn two_mutable_slices(step: &Scope<'_, '_, Host>) -> Result<(), Error> {
    let mut buffer = step.alloc::<f32>(4)?;
    let (a, b) = (buffer.as_mut_slice(), buffer.as_mut_slice());
    a[0] = b[0];
    Ok(())
}

fn the_input_is_dropped_before_its_alias(step: &Scope<'_, '_, Host>) -> Result<(), Error> {
    let x = step.upload(&[5.0_f32, 6.0, 7.0])?;
    let y = x.view();
    drop(x);
    step.read(y).map(drop)
}

fn main() {}
