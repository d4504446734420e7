//! What grows with the number of kept buffers, and with their alignment.

use std::hint::black_box;

use arena_core::RawArena;
use arena_scope::{Alignment, Arena, ByteSize, Host, Persistent, Probe};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

/// An arena in which every other kept buffer was dropped, and the other ones.
fn with_gaps(buffers: usize) -> (Arena, Vec<Persistent<u8>>) {
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::mib(256)).build().expect("room");
    arena.mark().expect("nothing was allocated");
    let kept = |number: usize| arena.persistent::<u8>(300 + number % 700).expect("room");
    let mut kept: Vec<_> = (0..buffers).map(kept).collect();
    let mut number = 0;
    kept.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    arena.scope(|_| arena_scope::Ok(())).expect("their bytes come back");
    (arena, kept)
}

/// A kept buffer that a step makes and drops, in a list with gaps: one that no gap serves, and one that
/// a gap serves.
fn kept_with_gaps(criterion: &mut Criterion) {
    for (name, bytes) in [("kept_below_gaps", 1001), ("kept_in_a_gap", 600)] {
        let mut group = criterion.benchmark_group(name);
        for buffers in [1000, 4000, 16_000] {
            let (mut arena, _kept) = with_gaps(buffers);
            group.bench_function(BenchmarkId::from_parameter(buffers), |bencher| {
                bencher.iter(|| {
                    drop(black_box(arena.persistent::<u8>(bytes).expect("room")));
                    arena.scope(|_| arena_scope::Ok(())).expect("its bytes come back");
                });
            });
        }
    }
}

/// The smallest capacity for a byte, and a byte at a large alignment.
fn smallest_capacity(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("smallest_capacity");
    for log in [12, 18, 24] {
        let arena = RawArena::new(Probe::new(), ByteSize::gib(1 << 20)).expect("a probe has room");
        arena.set_mark().expect("nothing was allocated");
        let alignment = Alignment::new(1 << log).expect("a power of two");
        let _one = arena.persistent::<u8>(1, Alignment::ONE).expect("a probe has room");
        let _two = arena.persistent::<u8>(1, alignment).expect("a probe has room");
        group.bench_function(BenchmarkId::from_parameter(format!("2^{log}")), |bencher| {
            bencher.iter(|| black_box(arena.smallest_capacity_bytes()));
        });
    }
}

criterion_group!(benches, kept_with_gaps, smallest_capacity);
criterion_main!(benches);
