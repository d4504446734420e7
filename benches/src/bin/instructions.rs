//! One operation of the arena, repeated, for counting its instructions.
//!
//! `instructions OPERATION TIMES`; `scripts/instructions.sh` runs it twice under callgrind and takes the
//! difference, so that what comes before and after does not count.

use std::hint::black_box;
use std::mem::forget;

use anyhow::{Result, bail};
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::{Alignment, Arena, ByteSize, Error, Host, RegionKind, Scope, StepKey};

const STEP: StepKey = StepKey::named("step");

/// Requests and drops of a step: enough that its opening and closing hardly count.
const PAIRS: usize = 1000;

/// Buffers that are made and then dropped, in part.
const MOST: usize = 10_000;

const BYTES: usize = 1000;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [operation, times] = arguments.as_slice() else {
        bail!("usage: instructions OPERATION TIMES");
    };
    let times = times.parse()?;
    let builder = Arena::builder(Host::new()).capacity(ByteSize::mib(64));
    let is_virtual = operation.starts_with("virtual_");
    let kind = if is_virtual { RegionKind::Virtual } else { RegionKind::Fixed };
    let mut arena = builder.region(kind).build()?;
    match operation.as_str() {
        "allocate" => arena.scope_with(STEP, |step| allocate(step, times)),
        "drop" => arena.scope_with(STEP, |step| drop_some(step, times)),
        "pair" | "virtual_pair" => steps(&mut arena, times),
        "planned_pair" => planned(&mut arena).and_then(|()| steps(&mut arena, times)),
        "observed_pair" => {
            observe(&mut arena);
            steps(&mut arena, times)
        }
        "observed_planned_pair" => {
            planned(&mut arena)?;
            observe(&mut arena);
            steps(&mut arena, times)
        }
        "recorded_pair" => {
            arena.record(None);
            steps(&mut arena, times)
        }
        "root_scope" => (0..times).try_for_each(|_| arena.scope_with(STEP, |_| Ok(()))),
        "inner_scope" => arena.scope_with(STEP, |step| inner_scopes(step, times)),
        _ => bail!("no operation is called {operation}"),
    }?;
    Ok(())
}

/// Watches the steps, as a program does that leaves this on.
fn observe(arena: &mut Arena) {
    arena.observe(None);
}

/// Installs a plan of one place for each buffer of a step.
fn planned(arena: &mut Arena) -> Result<(), Error> {
    let slot = |number: usize| PlannedSlot {
        offset_bytes: (number % 2 * BYTES.next_multiple_of(256)) as u64,
        bytes: BYTES as u64,
        alignment: Alignment::DEFAULT,
    };
    let slots: Vec<PlannedSlot> = (0..PAIRS).map(slot).collect();
    let table = SlotTable::new(&slots).expect("the places are few and low");
    arena.install_plan(STEP, table)
}

fn steps(arena: &mut Arena, times: usize) -> Result<(), Error> {
    (0..times).try_for_each(|_| {
        arena.scope_with(STEP, |step| {
            for _ in 0..PAIRS {
                black_box(step.alloc::<u8>(black_box(BYTES))?);
            }
            Ok(())
        })
    })
}

fn allocate(step: &Scope<'_, '_>, times: usize) -> Result<(), Error> {
    for _ in 0..times {
        let buffer = step.alloc::<u8>(black_box(BYTES))?;
        black_box(buffer.bare_address());
        forget(buffer);
    }
    Ok(())
}

/// Makes the same number of buffers each time, and drops `times` of them.
fn drop_some(step: &Scope<'_, '_>, times: usize) -> Result<(), Error> {
    let mut buffers = Vec::with_capacity(MOST);
    for _ in 0..MOST {
        buffers.push(Some(step.alloc::<u8>(black_box(BYTES))?));
    }
    for buffer in &mut buffers[..times.min(MOST)] {
        drop(black_box(buffer.take()));
    }
    forget(buffers);
    Ok(())
}

fn inner_scopes(step: &mut Scope<'_, '_>, times: usize) -> Result<(), Error> {
    (0..times).try_for_each(|_| step.scope(|_| Ok(())))
}
