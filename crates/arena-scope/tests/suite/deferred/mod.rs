//! Other streams and graphs on a device whose work runs late, in an order drawn from a seed: what the CUDA
//! tests of the same names show on the stand-in driver, without the feature `cuda`.

mod fences;
mod graph;
mod pause;

use arena_scope::device::Deferred;
use arena_scope::device::deferred::Stream;
use arena_scope::{Arena, ByteSize, Reset};

pub(crate) const SEEDS: u64 = 100;

pub(crate) fn arena(seed: u64, reset: Reset) -> Arena<Deferred> {
    Arena::builder(Deferred::new(seed)).capacity(ByteSize::kib(64)).reset(reset).build().unwrap()
}

/// A stream of the arena's device that nobody has declared.
pub(crate) fn side_stream(arena: &Arena<Deferred>) -> Stream {
    arena.device().new_stream()
}
