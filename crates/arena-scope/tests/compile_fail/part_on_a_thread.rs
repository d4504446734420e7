//! B064: a part of a buffer does not go to a thread that its scope may not outlive.

use arena_scope::{Alignment, Arena, Host};

fn a_part_on_a_thread_of_its_own(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let mut block = step.alloc::<u8>(1024)?;
        for mut part in block.view_mut().parts_mut(4, Alignment::DEFAULT)? {
            std::thread::spawn(move || part.as_mut_slice().fill(1));
        }
        arena_scope::Ok(())
    });
}

fn main() {}
