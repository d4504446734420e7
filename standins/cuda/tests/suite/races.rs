//! Kernels with a race give different results under different orders of their threads, and those without give one.

use crate::common::{Bench, assert_close, numbers, shape};
use cuda_standin::Threads;
use std::collections::BTreeMap;

const PTX: &str = include_str!("../ptx/races.ptx");
/// Threads of a block, which the kernels know.
const THREADS: u32 = 256;
const SEEDS: u64 = 40;

/// How often each result, as bits, came out of a kernel under the orders of the seeds.
fn results(
    bench: &Bench,
    kernel: &str,
    blocks: u32,
    safely: Option<i32>,
    threads: Threads,
) -> BTreeMap<u32, u32> {
    let x = bench.stream.clone_htod(&numbers(THREADS as usize, 5)).unwrap();
    let mut counts = BTreeMap::new();
    for seed in 0..SEEDS {
        bench.finish();
        assert!(bench.standin.set_seed(seed));
        bench.standin.set_threads(threads);
        let mut out = bench.stream.alloc_zeros::<f32>(1).unwrap();
        match safely {
            Some(safely) => launch!(bench, kernel, shape(blocks, THREADS), &x, &mut out, &safely),
            None => launch!(bench, kernel, shape(blocks, THREADS), &x, &mut out),
        }
        bench.finish();
        *counts.entry(bench.stream.clone_dtoh(&out).unwrap()[0].to_bits()).or_default() += 1;
    }
    counts
}

/// A kernel with a race: another result than the commonest in at least so many of the seeds, though threads by number
/// always give the same.
#[track_caller]
fn assert_found(kernel: &str, blocks: u32, safely: Option<i32>, at_least: u32) {
    let bench = Bench::new(PTX);
    let by_number = results(&bench, kernel, blocks, safely, Threads::ByNumber);
    assert_eq!(by_number.len(), 1, "{kernel} by number: {by_number:?}");
    let right = *by_number.first_key_value().unwrap().0;
    let drawn = results(&bench, kernel, blocks, safely, Threads::Drawn);
    let found: u32 = drawn.iter().filter(|(bits, _)| **bits != right).map(|(_, n)| n).sum();
    println!("{kernel}: {found} of {SEEDS}");
    assert!(found >= at_least, "{kernel}: found by {found} of {SEEDS} seeds");
}

#[test]
fn a_missing_barrier_is_found() {
    assert_found("sum_without_barrier", 1, None, 20);
}

#[test]
fn a_barrier_that_is_missing_before_a_write_is_found() {
    assert_found("rotate", 1, Some(0), 10);
}

#[test]
fn a_sum_by_atomics_is_found() {
    assert_found("sum_by_atomics", 1, None, 20);
}

#[test]
fn a_lost_update_among_warps_is_found() {
    assert_found("count_warps", 1, None, 5);
}

#[test]
fn a_lost_update_among_blocks_is_found() {
    assert_found("count_blocks", 40, None, 5);
}

#[test]
fn kernels_without_a_race_give_one_result_under_every_order() {
    let bench = Bench::new(PTX);
    for (kernel, safely) in [("sum_after_barrier", None), ("rotate", Some(1))] {
        let found = results(&bench, kernel, 1, safely, Threads::Drawn);
        assert_eq!(found.len(), 1, "{kernel}: {found:?}");
    }
}

#[test]
fn the_clock_goes_on_while_a_kernel_waits_for_it() {
    let bench = Bench::new(PTX);
    let x = bench.stream.alloc_zeros::<f32>(1).unwrap();
    let mut out = bench.stream.alloc_zeros::<f32>(1).unwrap();
    for _ in 0..4 {
        launch!(bench, "wait_for_the_clock", shape(2, 64), &x, &mut out);
    }
    bench.finish();
    let waited = bench.stream.clone_dtoh(&out).unwrap()[0];
    assert!(waited >= 10_000.0, "{waited}");
}

#[test]
fn approximate_functions_are_near_and_another_device_gives_other_bits() {
    let bench = Bench::new(PTX);
    let values = numbers(THREADS as usize, 9);
    let x = bench.stream.clone_htod(&values).unwrap();
    let run = |rounding: u64| {
        bench.standin.set_rounding(rounding);
        let mut out = bench.stream.alloc_zeros::<f32>(THREADS as usize).unwrap();
        launch!(bench, "approximate", shape(1, THREADS), &x, &mut out);
        bench.finish();
        bench.stream.clone_dtoh(&out).unwrap()
    };
    let exact: Vec<f32> = values.iter().map(|x| x.exp() + 1.0 / (3.0 + x)).collect();
    assert_close(&run(0), &exact, 5e-7);
    assert_eq!(run(7), run(7));
    assert_ne!(run(0), run(7));
    assert_ne!(run(7), run(8));
    assert_close(&run(7), &exact, 2e-6);
}
