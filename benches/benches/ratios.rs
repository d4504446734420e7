//! The ratios of `docs/measurements.md`: this arena's time over a peer's, pair by pair, so that a
//! drift of the machine's speed falls out. Prints the median and the spread for each trace.

use std::hint::black_box;
use std::time::Instant;

use arena_benches::planned::{LongStep, Loop};
use arena_benches::trace::{self, Step};
use arena_benches::workload::{Allocator, Watermark};
use arena_scope::{Arena, Error, Host};

const PAIRS: usize = 41;
/// Each half of a pair runs for about this many allocations.
const ALLOCATIONS: usize = 400_000;

fn seconds(rounds: usize, mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..rounds {
        run();
    }
    start.elapsed().as_secs_f64()
}

/// Nanoseconds per allocation of this arena, and its ratio to the peer: (median, min, max).
fn pairs(step: &Step, mut ours: impl FnMut(), mut peer: impl FnMut()) -> (f64, [f64; 3]) {
    let rounds = ALLOCATIONS.div_ceil(step.slots);
    seconds(rounds, &mut ours);
    seconds(rounds, &mut peer);
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        let (our_seconds, peer_seconds) = (seconds(rounds, &mut ours), seconds(rounds, &mut peer));
        times.push(our_seconds * 1e9 / (rounds * step.slots) as f64);
        ratios.push(our_seconds / peer_seconds);
    }
    times.sort_by(f64::total_cmp);
    ratios.sort_by(f64::total_cmp);
    (times[PAIRS / 2], [ratios[PAIRS / 2], ratios[0], ratios[PAIRS - 1]])
}

fn against<P: Allocator>(step: &Step) {
    let sizes = step.sizes();
    let (mut ours, mut peer) =
        (Watermark::presized(step.sum_bytes()), P::presized(step.sum_bytes()));
    let report = |what: &str, (nanoseconds, [median, min, max]): (f64, [f64; 3])| {
        println!(
            "{:<15} {:<15} {:>6} allocations  {nanoseconds:>6.2} ns  {median:>5.2}x of {:<10} ({min:.2} to {max:.2})",
            step.name,
            what,
            step.slots,
            P::NAME
        );
    };
    report("allocate", pairs(step, || ours.allocate(&sizes), || peer.allocate(&sizes)));
    report("step_with_drops", pairs(step, || ours.step(step), || peer.step(step)));
}

/// Nanoseconds for an allocation and its drop in a long step, under its plan and under the bump.
fn replayed(name: &str, step: &LongStep) {
    let mut planned = Loop::planned(step).expect("the host has room");
    let mut bumped = Loop::bumped(step).expect("the host has room");
    let rounds = (ALLOCATIONS / 4).div_ceil(step.buffers());
    let nanoseconds = |steps: &mut Loop| {
        let step_seconds = seconds(rounds, || steps.step().expect("the arena was sized for it"));
        step_seconds * 1e9 / (rounds * step.buffers()) as f64
    };
    let mut times: Vec<[f64; 2]> =
        (0..PAIRS).map(|_| [nanoseconds(&mut planned), nanoseconds(&mut bumped)]).collect();
    assert_eq!(planned.deviations(), Some(0));
    for (which, placement) in ["planned", "bump"].into_iter().enumerate() {
        times.sort_by(|one, other| one[which].total_cmp(&other[which]));
        let [median, min, max] = [PAIRS / 2, 0, PAIRS - 1].map(|at| times[at][which]);
        println!(
            "{name:<15} {placement:<15} {:>6} pairs  {median:>5.2} ns a pair ({min:.2} to {max:.2})",
            step.buffers()
        );
    }
}

/// Nanoseconds for a root scope that asks for nothing.
fn empty_scope() {
    const ROUNDS: usize = 100_000;
    let mut arena = Arena::builder(Host::new()).build().expect("an empty region");
    let mut open_and_close = || {
        let done = arena.scope(|scope| Ok::<_, Error>(black_box(scope.depth())));
        done.expect("nothing is asked for");
    };
    let mut times: Vec<f64> =
        (0..PAIRS).map(|_| seconds(ROUNDS, &mut open_and_close) * 1e9 / ROUNDS as f64).collect();
    times.sort_by(f64::total_cmp);
    let [median, min, max] = [PAIRS / 2, 0, PAIRS - 1].map(|at| times[at]);
    println!(
        "an empty root scope                           {median:>6.2} ns ({min:.2} to {max:.2})"
    );
}

/// With the argument `planned` only the planned steps.
fn main() {
    if !std::env::args().any(|argument| argument == "planned") {
        for step in trace::all().expect("the traces are in the repository") {
            against::<bumpalo::Bump>(&step);
            against::<bump_scope::Bump>(&step);
        }
        empty_scope();
    }
    replayed("recorded", &LongStep::recorded().expect("the step is in the repository"));
    for buffers in [100, 10_000, 100_000] {
        replayed("ring", &LongStep::ring(buffers).expect("a plan of that many slots"));
    }
}
