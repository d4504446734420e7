//! A long step under a plan: buffers of varied sizes in a ring, each dropped when [`LIVE`] younger
//! ones are alive.

use std::hint::black_box;

use anyhow::Result;
use arena_scope::{Alignment, Arena, ByteSize, Error, Host, PlannedSlot, ScopeOptions, SlotTable};

/// Buffers that are alive at once.
pub const LIVE: usize = 64;

const STEP: ScopeOptions = ScopeOptions::named("step");
const LARGEST_BYTES: u64 = 64 << 10;

/// Buffers of a layer.
const LAYER: u64 = 24;

/// An arena, and the sizes of a step that it runs.
#[derive(Debug)]
pub struct Window {
    arena: Arena,
    sizes: Vec<usize>,
}

impl Window {
    /// A step of so many buffers on an arena that follows a plan for it.
    ///
    /// # Errors
    ///
    /// When the host has no room, or the plan is refused.
    pub fn planned(buffers: usize) -> Result<Self> {
        let sizes = sizes(buffers);
        let table = SlotTable::new(&ring(&sizes))?;
        let mut window = Self::on(ByteSize::bytes_exact(table.peak_bytes()), sizes)?;
        window.arena.install_plan(STEP, table)?;
        Ok(window)
    }

    /// The same step on an arena that bumps.
    ///
    /// # Errors
    ///
    /// When the host has no room.
    pub fn bumped(buffers: usize) -> Result<Self> {
        let sizes = sizes(buffers);
        let sum_bytes = sizes.iter().map(|&bytes| bytes.next_multiple_of(256) as u64).sum();
        Self::on(ByteSize::bytes_exact(sum_bytes), sizes)
    }

    fn on(capacity: ByteSize, sizes: Vec<usize>) -> Result<Self> {
        Ok(Self { arena: Arena::builder(Host::new()).capacity(capacity).build()?, sizes })
    }

    /// Runs the step: one allocation and one drop for each buffer.
    ///
    /// # Errors
    ///
    /// The arena's; there is none if it works.
    pub fn step(&mut self) -> Result<(), Error> {
        self.arena.scope_with(STEP, |scope| {
            let mut live = [const { None }; LIVE];
            for (at, &bytes) in self.sizes.iter().enumerate() {
                let place = &mut live[at % LIVE];
                *place = None; // The oldest goes before the new one comes.
                *place = Some(scope.alloc::<u8>(black_box(bytes))?);
            }
            Ok(())
        })
    }

    /// Requests that were not as planned so far; `None` on an arena that bumps.
    #[must_use]
    pub fn deviations(&self) -> Option<u64> {
        self.arena.plan_deviations(STEP).map(|deviations| deviations.total())
    }
}

/// Sizes from 1 byte to [`LARGEST_BYTES`] of no pattern, but the same for each [`LAYER`], as in a
/// network of equal layers.
fn sizes(buffers: usize) -> Vec<usize> {
    let scattered = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let size = |at: u64| (scattered(at) % LARGEST_BYTES + 1) as usize;
    (1..=LAYER).map(size).cycle().take(buffers).collect()
}

/// Each buffer above the one before, round and round in a ring that [`LIVE`] of them never fill. As
/// sizes vary, most take over bytes of two former ones.
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
    use super::*;

    #[test]
    fn the_step_is_as_planned() -> Result<()> {
        let mut planned = Window::planned(1000)?;
        planned.step()?;
        planned.step()?;
        assert_eq!(planned.deviations(), Some(0));
        Ok(())
    }
}
