//! Long steps under a plan and under the bump: a recorded training step, and a ring of buffers.

use std::hint::black_box;
use std::path::Path;

use anyhow::Result;
use arena_plan::{Buffer, Instance, Options, Plan, formats, slot_table, solve};
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::{Alignment, Arena, ByteSize, Error, Host, StepKey};

const STEP: StepKey = StepKey::named("step");

/// Buffers of a [`ring`](LongStep::ring) that are alive at once.
const LIVE: usize = 64;

/// Its largest buffer.
const LARGEST_BYTES: u64 = 64 << 10;

/// Buffers of a layer of it.
const LAYER: u64 = 24;

/// A step's requests and drops, and where a plan puts the requests.
#[derive(Debug, Clone)]
pub struct LongStep {
    work: Work,
    table: SlotTable,
    sum_bytes: u64,
}

#[derive(Debug, Clone)]
enum Work {
    /// What was recorded, with as many places for handles as it needs.
    Recorded { ops: Vec<Op>, places: usize },
    /// A buffer of each size, dropped when [`LIVE`] younger ones are alive.
    Ring { sizes: Vec<usize> },
}

/// What a step does next.
#[derive(Debug, Clone, Copy)]
enum Op {
    /// Asks for so many bytes, and keeps the handle at a place.
    Alloc { bytes: usize, place: u32 },
    /// Drops the handle at a place.
    Drop { place: u32 },
}

impl LongStep {
    /// The largest recorded step, planned: 99,160 buffers of a GPT-2 XL with checkpoints and 16
    /// micro-batches.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or planned.
    pub fn recorded() -> Result<Self> {
        let file = "../crates/arena-plan/data/steps/gpt2xl_b2_ckpt_amp_accum16.csv";
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file))?;
        let aligned = |buffer: &Buffer| buffer.aligned(Alignment::DEFAULT.bytes());
        let buffers = formats::read(&text, None)?.instance.buffers().iter().map(aligned).collect();
        let plan = solve(&Instance::new(buffers)?, &Options::default()).plan;
        Ok(Self {
            work: work_of(&plan)?,
            table: slot_table(&plan)?,
            sum_bytes: plan.instance().sum_bytes(),
        })
    }

    /// Buffers of varied sizes, each dropped when 64 younger ones are alive, and each planned
    /// above the one before, round and round in a ring. As sizes vary, most take over bytes of two or
    /// three former ones: more than in a recorded step.
    ///
    /// # Errors
    ///
    /// When there are more buffers than a plan may have.
    pub fn ring(buffers: usize) -> Result<Self> {
        let sizes = sizes(buffers);
        let sum_bytes = sizes.iter().map(|&bytes| bytes.next_multiple_of(256) as u64).sum();
        let table = SlotTable::new(&ring(&sizes))?;
        Ok(Self { work: Work::Ring { sizes }, table, sum_bytes })
    }

    /// Whether it is a [`ring`](Self::ring).
    #[must_use]
    pub fn is_ring(&self) -> bool {
        matches!(self.work, Work::Ring { .. })
    }

    /// Requests of the step.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.table.len()
    }
}

/// The requests and drops of a planned step in order. A handle takes the place of one that was dropped
/// if it can: a program holds as many as are alive.
fn work_of(plan: &Plan) -> Result<Work> {
    let buffers = plan.instance().buffers();
    // At one time deaths come first: lifetimes are half-open.
    let births = buffers.iter().enumerate().map(|(number, buffer)| (buffer.birth, true, number));
    let deaths = buffers.iter().enumerate().map(|(number, buffer)| (buffer.death, false, number));
    let mut events: Vec<(u64, bool, usize)> = births.chain(deaths).collect();
    events.sort_unstable();
    let (mut place_of, mut free, mut places) = (vec![0; buffers.len()], Vec::new(), 0_u32);
    let mut ops = Vec::with_capacity(events.len());
    for (_, born, number) in events {
        if born {
            let place = free.pop().unwrap_or_else(|| {
                places += 1;
                places - 1
            });
            place_of[number] = place;
            ops.push(Op::Alloc { bytes: usize::try_from(buffers[number].size_bytes)?, place });
        } else {
            free.push(place_of[number]);
            ops.push(Op::Drop { place: place_of[number] });
        }
    }
    Ok(Work::Recorded { ops, places: places as usize })
}

/// An arena that runs a long step again and again.
#[derive(Debug)]
pub struct Loop {
    arena: Arena,
    work: Work,
}

impl Loop {
    /// On an arena that follows the step's plan, with just its capacity.
    ///
    /// # Errors
    ///
    /// When the host has no room.
    pub fn planned(step: &LongStep) -> Result<Self> {
        let mut planned = Self::on(step.table.peak_bytes(), step)?;
        planned.arena.install_plan(STEP, step.table.clone())?;
        Ok(planned)
    }

    /// On an arena that bumps. Its pages are never touched, so the host needs no memory for them.
    ///
    /// # Errors
    ///
    /// When the host has no room.
    pub fn bumped(step: &LongStep) -> Result<Self> {
        Self::on(step.sum_bytes, step)
    }

    fn on(capacity_bytes: u64, step: &LongStep) -> Result<Self> {
        let capacity = ByteSize::bytes_exact(capacity_bytes);
        let arena = Arena::builder(Host::new()).capacity(capacity).build()?;
        Ok(Self { arena, work: step.work.clone() })
    }

    /// Lets the arena observe its steps from now on.
    #[must_use]
    pub fn observed(mut self) -> Self {
        self.arena.observe(None);
        self
    }

    /// Lets the arena record its steps from now on.
    #[must_use]
    pub fn recorded(mut self) -> Self {
        self.arena.record(None);
        self
    }

    /// Runs the step: one allocation and one drop for each buffer.
    ///
    /// # Errors
    ///
    /// The arena's; there is none if it works.
    pub fn step(&mut self) -> Result<(), Error> {
        self.arena.scope_with(STEP, |scope| match &self.work {
            Work::Recorded { ops, places } => {
                let mut live: Vec<_> = (0..*places).map(|_| None).collect();
                for op in ops {
                    match *op {
                        Op::Alloc { bytes, place } => {
                            live[place as usize] = Some(scope.alloc::<u8>(black_box(bytes))?);
                        }
                        Op::Drop { place } => live[place as usize] = None,
                    }
                }
                Ok(())
            }
            Work::Ring { sizes } => {
                let mut live = [const { None }; LIVE];
                for (at, &bytes) in sizes.iter().enumerate() {
                    let place = &mut live[at % LIVE];
                    *place = None; // The oldest goes before the new one comes.
                    *place = Some(scope.alloc::<u8>(black_box(bytes))?);
                }
                Ok(())
            }
        })
    }

    /// Requests that were not as planned so far; `None` on an arena that bumps.
    #[must_use]
    pub fn deviations(&self) -> Option<u64> {
        self.arena.plan_deviations(STEP).map(|deviations| deviations.total())
    }
}

/// The least that a bump does for a ring: it rounds the cursor up, compares the end with a limit, and goes
/// back to the start when the step ends. A drop is nothing to it.
#[derive(Debug)]
pub struct BareBump {
    sizes: Vec<usize>,
    cursor: u64,
    limit: u64,
}

impl BareBump {
    /// For the requests of a ring.
    ///
    /// # Panics
    ///
    /// For a recorded step.
    #[must_use]
    pub fn of(step: &LongStep) -> Self {
        let Work::Ring { sizes } = &step.work else { panic!("a ring") };
        Self { sizes: sizes.clone(), cursor: 0, limit: step.sum_bytes }
    }

    /// Runs the step.
    ///
    /// # Panics
    ///
    /// When it does not fit, which it does.
    pub fn step(&mut self) {
        let mut live = [None; LIVE];
        for (at, &bytes) in self.sizes.iter().enumerate() {
            let start = (black_box(self.cursor) + 255) & !255;
            let end = start + black_box(bytes) as u64;
            assert!(end <= self.limit, "it is sized for the step");
            self.cursor = end;
            live[at % LIVE] = Some(black_box(start));
        }
        black_box(live);
        self.cursor = 0;
    }
}

/// Sizes from 1 byte to [`LARGEST_BYTES`] of no pattern, but the same for each [`LAYER`], as in a
/// network of equal layers.
fn sizes(buffers: usize) -> Vec<usize> {
    let scattered = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let size = |at: u64| (scattered(at) % LARGEST_BYTES + 1) as usize;
    (1..=LAYER).map(size).cycle().take(buffers).collect()
}

/// Each buffer above the one before, in a ring that [`LIVE`] of them never fill.
fn ring(sizes: &[usize]) -> Vec<PlannedSlot> {
    let ring_bytes = (LIVE as u64 + 1) * LARGEST_BYTES;
    let mut next_bytes = 0;
    let slot = |&bytes: &usize| {
        let bytes = bytes as u64;
        let offset_bytes = if next_bytes + bytes > ring_bytes { 0 } else { next_bytes };
        next_bytes = (offset_bytes + bytes).next_multiple_of(256);
        PlannedSlot { offset_bytes, bytes, alignment: Alignment::DEFAULT }
    };
    sizes.iter().map(slot).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::ring(LongStep::ring(1000))]
    #[case::recorded(LongStep::recorded())]
    fn the_step_is_as_planned(#[case] step: Result<LongStep>) -> Result<()> {
        let mut planned = Loop::planned(&step?)?;
        planned.step()?;
        planned.step()?;
        assert_eq!(planned.deviations(), Some(0));
        Ok(())
    }
}
