//! One aligned allocation, a whole step with its drops, and a reset, against `bumpalo` and
//! `bump-scope`, each presized.

use std::hint::black_box;

use arena_benches::trace::{self, Step};
use arena_benches::workload::{Allocator, Watermark};
use arena_scope::{Arena, ByteSize, Error, Host};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn allocate<A: Allocator>(criterion: &mut Criterion, step: &Step) {
    let sizes = step.sizes();
    let mut allocator = A::presized(step.sum_bytes());
    let mut group = criterion.benchmark_group("allocate");
    group.throughput(Throughput::Elements(sizes.len() as u64));
    group.bench_function(BenchmarkId::new(A::NAME, &step.name), |bencher| {
        bencher.iter(|| allocator.allocate(black_box(&sizes)));
    });
}

fn step_with_drops<A: Allocator>(criterion: &mut Criterion, step: &Step) {
    let mut allocator = A::presized(step.sum_bytes());
    let mut group = criterion.benchmark_group("step_with_drops");
    group.throughput(Throughput::Elements(step.allocations as u64));
    group.bench_function(BenchmarkId::new(A::NAME, &step.name), |bencher| {
        bencher.iter(|| allocator.step(black_box(step)));
    });
}

fn traces(criterion: &mut Criterion) {
    for step in trace::all().expect("the traces are in the repository") {
        allocate::<Watermark>(criterion, &step);
        allocate::<bumpalo::Bump>(criterion, &step);
        allocate::<bump_scope::Bump>(criterion, &step);
        step_with_drops::<Watermark>(criterion, &step);
        step_with_drops::<bumpalo::Bump>(criterion, &step);
        step_with_drops::<bump_scope::Bump>(criterion, &step);
    }
}

/// Opening and closing a scope (`Keep`) that used 1 KiB, 1 MiB and 1 GiB: the same time.
fn reset(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reset");
    for used in [ByteSize::kib(1), ByteSize::mib(1), ByteSize::gib(1)] {
        let mut arena = Arena::builder(Host::new()).capacity(used).build().expect("room");
        let len = usize::try_from(used.bytes()).expect("64 bits");
        group.bench_function(BenchmarkId::from_parameter(used), |bencher| {
            bencher.iter(|| {
                let done = arena.scope(|scope| scope.alloc::<u8>(len).map(|b| drop(black_box(b))));
                done.map_err(|error: Error| error).expect("room");
            });
        });
    }
}

criterion_group!(benches, traces, reset);
criterion_main!(benches);
