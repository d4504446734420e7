//! One allocation and its drop in a step of 100,000 buffers, under a plan and under the bump.

use arena_benches::planned::{LongStep, Loop};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn pairs(criterion: &mut Criterion) {
    let recorded = LongStep::recorded().expect("the step is in the repository");
    let ring = LongStep::ring(100_000).expect("a plan of that many slots");
    for (name, step) in [("recorded", recorded), ("ring", ring)] {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(step.buffers() as u64));
        let mut planned = Loop::planned(&step).expect("the host has room");
        group.bench_function("planned", |bencher| {
            bencher.iter(|| planned.step().expect("as planned"));
        });
        assert_eq!(planned.deviations(), Some(0));
        let mut bumped = Loop::bumped(&step).expect("the host has room");
        group.bench_function("bump", |bencher| bencher.iter(|| bumped.step().expect("room")));
    }
}

criterion_group!(benches, pairs);
criterion_main!(benches);
