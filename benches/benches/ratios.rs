//! The ratios of `docs/measurements.md`: this arena against its peers, one run after the other in each
//! round, so that a drift of the machine's speed falls on all. A figure is the fastest of all rounds.
//!
//! Run it on one core: `taskset -c 0 cargo bench -p arena-benches --bench ratios`.

use std::hint::black_box;
use std::time::Instant;

use arena_benches::planned::{BareBump, LongStep, Loop};
use arena_benches::trace::{self, Step};
use arena_benches::workload::{Allocator, FreeingBumpScope, Watermark};
use arena_scope::{Arena, ByteSize, Error, Host};

/// Rounds, each with every contestant.
const ROUNDS: usize = 15;

/// Each contestant runs for about this many allocations a round.
const ALLOCATIONS: usize = 200_000;

type Contestant<'a> = &'a mut dyn FnMut();

/// The least nanoseconds for one of the `count` operations of each contestant's run.
fn fastest<const N: usize>(count: usize, mut contestants: [Contestant<'_>; N]) -> [f64; N] {
    let repeats = ALLOCATIONS.div_ceil(count);
    let mut least = [f64::INFINITY; N];
    for round in 0..=ROUNDS {
        for (contestant, least) in contestants.iter_mut().zip(&mut least) {
            let start = Instant::now();
            for _ in 0..repeats {
                contestant();
            }
            let nanoseconds = start.elapsed().as_secs_f64() * 1e9 / (repeats * count) as f64;
            // The first round warms up.
            *least = if round == 0 { *least } else { least.min(nanoseconds) };
        }
    }
    least
}

fn trace(step: &Step) {
    let (sizes, bytes) = (step.sizes(), step.sum_bytes());
    let (mut ours, mut observed) = (Watermark::presized(bytes), Watermark::observed(bytes));
    let mut bumpalo = bumpalo::Bump::presized(bytes);
    let mut bump_scope = bump_scope::Bump::presized(bytes);
    let mut freeing = FreeingBumpScope::presized(bytes);
    let [plain, watched, one, other] = fastest(
        step.allocations,
        [
            &mut || ours.allocate(&sizes),
            &mut || observed.allocate(&sizes),
            &mut || bumpalo.allocate(&sizes),
            &mut || bump_scope.allocate(&sizes),
        ],
    );
    println!(
        "{:<15} {:>5} | allocate {plain:>5.2} ns: {:>4.2}x of the faster of bumpalo {one:.2} and \
         bump-scope {other:.2}; observed +{:.2} ns",
        step.name,
        step.allocations,
        plain / one.min(other),
        watched - plain,
    );
    let [ours, one, other, freeing] = fastest(
        step.allocations,
        [
            &mut || ours.step(step),
            &mut || bumpalo.step(step),
            &mut || bump_scope.step(step),
            &mut || freeing.step(step),
        ],
    );
    println!(
        "{:<15} {:>5} | with drops {ours:>5.2} ns: {:>4.2}x of the faster that frees nothing, {:>4.2}x of \
         bump-scope freeing {freeing:.2}",
        "",
        "",
        ours / one.min(other),
        ours / freeing,
    );
}

/// Nanoseconds for an allocation and its drop in a long step.
fn pairs(name: &str, step: &LongStep) -> Result<(), Error> {
    let planned = || Loop::planned(step).expect("the host has room");
    let bumped = || Loop::bumped(step).expect("the host has room");
    let mut loops = [
        planned(),
        planned().observed(),
        planned().recorded(),
        bumped(),
        bumped().observed(),
        bumped().recorded(),
    ];
    for steps in &mut loops {
        (0..3).try_for_each(|_| steps.step())?;
    }
    let run = |steps: &mut Loop| steps.step().expect("the arena was sized for it");
    let [a, b, c, d, e, f] = &mut loops;
    let mut bare = step.is_ring().then(|| BareBump::of(step));
    let [planned, planned_observed, planned_recorded, bump, bump_observed, bump_recorded, raw] =
        fastest(
            step.buffers(),
            [
                &mut || run(a),
                &mut || run(b),
                &mut || run(c),
                &mut || run(d),
                &mut || run(e),
                &mut || run(f),
                &mut || bare.iter_mut().for_each(BareBump::step),
            ],
        );
    assert_eq!(loops[0].deviations(), Some(0));
    println!(
        "{name:<10} {:>6} pairs | bump {bump:.2} ns, observed +{:.2}, recorded +{:.2} | planned \
         {planned:.2}, observed +{:.2}, recorded +{:.2}",
        step.buffers(),
        bump_observed - bump,
        bump_recorded - bump,
        planned_observed - planned,
        planned_recorded - planned,
    );
    if step.is_ring() {
        println!("{:>17} | a bare bump's pair {raw:.2} ns: planned {:.2}x", "", planned / raw);
    }
    Ok(())
}

/// Nanoseconds for a scope that asks for nothing.
fn empty_scopes() {
    const SCOPES: usize = 1000;
    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(1)).build().expect("room");
    let mut inside = Arena::builder(Host::new()).capacity(ByteSize::kib(1)).build().expect("room");
    let [root, inner] = fastest(
        SCOPES,
        [
            &mut || {
                for _ in 0..SCOPES {
                    let done = arena.scope(|scope| arena_scope::Ok(black_box(scope.depth())));
                    done.expect("nothing is asked for");
                }
            },
            &mut || {
                let done = inside.scope(|scope| {
                    for _ in 0..SCOPES {
                        scope.scope(|inner| arena_scope::Ok(black_box(inner.depth())))?;
                    }
                    arena_scope::Ok(())
                });
                done.expect("nothing is asked for");
            },
        ],
    );
    println!("an empty root scope {root:.2} ns, an empty inner scope {inner:.2} ns");
}

fn main() -> Result<(), Error> {
    for step in trace::all().expect("the traces are in the repository") {
        trace(&step);
    }
    empty_scopes();
    pairs("recorded", &LongStep::recorded().expect("the step is in the repository"))?;
    for buffers in [100, 10_000, 100_000] {
        pairs("ring", &LongStep::ring(buffers).expect("a plan of that many slots"))?;
    }
    Ok(())
}
