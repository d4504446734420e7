//! What newcomers write first, each with one error. The guide shows the right way beside each.

use arena_scope::{Arena, Error, Host, Persistent, Scope, Transient, View};
use rayon::prelude::*;

fn a_scope_in_rayon(arena: &mut Arena<Host>) -> Result<(), Error> {
    arena.scope(|step| {
        let mut images = step.alloc::<f32>(1024)?;
        images.as_mut_slice().par_chunks_mut(64).for_each(|image| {
            let scratch = step.alloc::<f32>(64);
            image[0] = scratch.map_or(0.0, |scratch| scratch.as_slice()[0]);
        });
        arena_scope::Ok(())
    })
}

fn a_buffer_on_a_thread(arena: &mut Arena<Host>) -> Result<(), Error> {
    arena.scope(|step| {
        let buffer = step.alloc::<f32>(1024)?;
        std::thread::scope(|threads| {
            threads.spawn(move || drop(buffer));
        });
        arena_scope::Ok(())
    })
}

fn spawn(task: impl Future<Output = Result<(), Error>> + Send) {
    drop(task);
}

fn a_guard_across_an_await(arena: &'static mut Arena<Host>) {
    spawn(async {
        let guard = arena.enter()?;
        std::future::ready(()).await;
        guard.close()
    });
}

struct Block {
    weights: Persistent<f32>,
}

impl Block {
    fn forward<'s>(&self, step: &Scope<'s, '_>, x: View<'_, f32>) -> Result<f32, Error> {
        step.scope(|scratch| scratch.read_one(x))
    }
}

struct Trainer {
    arena: Arena<Host>,
    model: Block,
}

impl Trainer {
    fn forward<'s>(&self, step: &Scope<'s, '_>) -> Result<Transient<'s, f32>, Error> {
        step.alloc(self.model.weights.len())
    }

    fn train(&mut self) -> Result<(), Error> {
        self.arena.scope(|step| self.forward(step).map(drop))
    }
}

fn main() {}
