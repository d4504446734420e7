//! An owned transient buffer stays on its thread, even if the thread cannot outlive the scope. That
//! scopes, guards and shared arenas stay there too is asserted where it needs no compiler's words.

use arena_scope::{Arena, Error, Host};

fn a_buffer_moved_into_a_scoped_thread(arena: &mut Arena<Host>) {
    let _ = arena.scope(|step| {
        let buffer = step.alloc::<f32>(4)?;
        std::thread::scope(|threads| {
            threads.spawn(move || drop(buffer));
        });
        Ok::<_, Error>(())
    });
}

fn main() {}
