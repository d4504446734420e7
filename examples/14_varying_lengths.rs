//! Sequences of different lengths: each length follows its own plan, and all plans lie in the same bytes. A length that
//! was not seen in advance is planned before its first step.

use std::error::Error as AnyError;

use arena_plan::{Options, PlannedRun};
use arena_scope::{Arena, Device, Error, Host, Scope, StepKey};

const HIDDEN: usize = 256;
const LONGEST: usize = 96;

fn key(length: usize) -> StepKey {
    StepKey::named("train").variant(length as u64)
}

/// How many buffers an LSTM asks for depends on the length.
fn step<D: Device>(scope: &mut Scope<'_, '_, D>, length: usize) -> Result<(), Error> {
    let mut cells = Vec::with_capacity(length);
    for _ in 0..length {
        let scratch = scope.alloc::<f32>(4 * HIDDEN)?;
        cells.push((scope.alloc::<f32>(4 * HIDDEN)?, scope.alloc::<f32>(2 * HIDDEN)?));
        drop(scratch);
    }
    while let Some(cell) = cells.pop() {
        let gradient = scope.alloc::<f32>(4 * HIDDEN)?;
        drop((cell, gradient));
    }
    Ok(())
}

fn run<D: Device>(
    arena: &mut Arena<D>,
    lengths: impl IntoIterator<Item = usize>,
) -> Result<(), Error> {
    for length in lengths {
        arena.scope_with(key(length), |scope| step(scope, length))?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn AnyError>> {
    let planned = |lengths: std::ops::RangeInclusive<usize>| {
        PlannedRun::probe(&Host::new(), &Options::default(), |arena| run(arena, lengths.clone()))
    };
    let (all, longest) = (planned(1..=LONGEST)?, planned(LONGEST..=LONGEST)?);
    println!(
        "the longest alone: {} planned, {} bumped",
        longest.capacity(),
        longest.bumped_capacity()
    );
    println!("all {LONGEST} lengths: {} planned", all.capacity());
    // The longest has the most bytes live at once: its cells, and the scratch of the last of them.
    let live_bytes = (LONGEST * 6 + 4) * HIDDEN * 4;
    assert_eq!(longest.capacity().bytes(), live_bytes as u64);
    assert_eq!(all.capacity(), longest.capacity(), "the others lie in the same bytes");
    assert!(all.capacity().bytes() * 2 < longest.bumped_capacity().bytes());

    let mut arena = all.build(Host::new())?;
    for epoch in 0..3 {
        // In another order each time.
        run(&mut arena, (0..LONGEST).map(|n| 1 + (n * (31 + 4 * epoch)) % LONGEST))?;
    }
    let seen = arena.observed().ok_or("planned steps are observed")?;
    seen.check()?;
    assert!(
        seen.kinds.len() > LONGEST / 2 && seen.is_stable(),
        "each length repeats its addresses"
    );

    // Only the longest is known in advance. The others are planned when they come.
    let mut arena = longest.build(Host::new())?;
    longest.on_demand(&mut arena, &Options::default(), |arena, key| {
        run(arena, [key.variant as usize])
    });
    for length in [LONGEST, 7, 40, 7] {
        run(&mut arena, [length])?;
        let deviations = arena.plan_deviations(key(length)).ok_or("it is planned")?;
        assert_eq!(deviations.unplanned(), 0, "from its first step on");
    }
    println!("plans and figures take {} bytes of host memory", arena.step_memory_bytes());
    Ok(())
}
