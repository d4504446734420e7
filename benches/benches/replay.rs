//! One allocation and its drop in a step of 100,000 buffers, under a plan and under the bump.

use arena_benches::planned::Window;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const BUFFERS: usize = 100_000;

fn pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pairs");
    group.throughput(Throughput::Elements(BUFFERS as u64));
    let mut planned = Window::planned(BUFFERS).expect("the host has room");
    group.bench_function("planned", |bencher| bencher.iter(|| planned.step().expect("as planned")));
    assert_eq!(planned.deviations(), Some(0));
    let mut bumped = Window::bumped(BUFFERS).expect("the host has room");
    group.bench_function("bump", |bencher| bencher.iter(|| bumped.step().expect("room")));
}

criterion_group!(benches, pairs);
criterion_main!(benches);
