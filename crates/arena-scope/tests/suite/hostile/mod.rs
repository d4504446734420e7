//! Devices that panic or fail in each of their calls in turn, or call back into the arena. Whatever
//! happened, the cursor is back at the mark, no byte and no allocation is lost, no two live buffers
//! overlap, and later scopes work.

#[path = "../../../../arena-core/tests/suite/hooked.rs"]
mod hooked;

mod callbacks;
mod calls;
mod reentry;

use std::panic::{AssertUnwindSafe, catch_unwind};

use arena_scope::device::deferred::Stream;
use arena_scope::device::{Call, CallCounts, Counting, Deferred};
use arena_scope::plan::{PlannedSlot, SlotTable};
use arena_scope::{
    Alignment, Arena, ByteSize, Device, Error, Persistent, Placement, Reset, StepKey,
};
use hooked::{Hooked, no_hook};

pub(crate) type Hostile = Hooked<Counting<Deferred>>;

pub(crate) fn panics<R>(body: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(body)).is_err()
}

/// How a step's buffers come to their places.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    Bump,
    Planned,
    /// Each buffer is an allocation of its own.
    Separate,
}

pub(crate) const STEP: StepKey = StepKey::named("step");

/// A step with everything in it, on a device that can be told to break its contract.
pub(crate) struct Loop {
    pub(crate) arena: Arena<Hostile>,
    pub(crate) weights: Persistent<u8, Hostile>,
    pub(crate) side: Stream,
    counts: CallCounts,
}

impl Loop {
    pub(crate) fn new(seed: u64, way: Way, reset: Reset) -> Self {
        let inner = Counting::new(Deferred::new(seed));
        let counts = inner.counts();
        let device = Hooked::new(inner);
        let side = device.stream().another();
        let placement = match way {
            Way::Separate => Placement::Separate,
            Way::Bump | Way::Planned => Placement::Bump,
        };
        let builder = Arena::builder(device).capacity(ByteSize::kib(64));
        let mut arena = builder.placement(placement).reset(reset).build().unwrap();
        let weights = arena.persistent_from(&[0_u8; 64]).unwrap();
        arena.mark().unwrap();
        if matches!(way, Way::Planned) {
            let slots = [0, 256, 512].map(|offset_bytes| {
                let alignment = Alignment::DEFAULT;
                PlannedSlot { offset_bytes, bytes: 64, alignment }
            });
            arena.install_plan(STEP, SlotTable::new(&slots).unwrap()).unwrap();
        }
        Self { arena, weights, side, counts }
    }

    /// An upload, a clearing, a second stream, a nested scope, copies on the device and a read.
    pub(crate) fn step(&mut self, input: u8) -> Result<Vec<u8>, Error> {
        let Self { arena, weights, side, .. } = self;
        arena.scope_with(STEP, |step| {
            let x = step.upload(&[input; 64])?;
            let mut sum = step.alloc_zeroed::<u8>(64)?;
            step.declare_stream(side)?;
            step.scope_named("inner", |inner| {
                let mut scratch = inner.alloc::<u8>(64)?;
                scratch.view_mut().copy_from(x.view())?;
                sum.view_mut().copy_from(scratch.view())
            })?;
            step.wait_for_stream(side)?;
            weights.view_mut().copy_from(sum.view())?;
            step.read(sum.view())
        })
    }

    /// Memory of the device that was obtained and not released.
    pub(crate) fn held(&self) -> u64 {
        self.counts.calls(Call::Obtain) - self.counts.calls(Call::Release)
    }

    /// That nothing is left of what went wrong.
    #[track_caller]
    pub(crate) fn assert_as_before(mut self, what: &str) {
        no_hook();
        let _ = self.arena.check(); // What a close could not tell.
        let mark_bytes = self.arena.stats().mark_bytes;
        assert_eq!(self.arena.stats().used_bytes, mark_bytes, "{what}: the cursor is at the mark");
        let mut deviations = Vec::new();
        for input in [5, 6] {
            let read = self.step(input).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(read, [input; 64], "{what}");
            assert_eq!(self.weights.view().to_vec().unwrap(), [input; 64], "{what}");
            assert_eq!(self.arena.stats().used_bytes, mark_bytes, "{what}");
            deviations.push(self.arena.plan_deviations(STEP).map(|seen| seen.total()));
        }
        assert_eq!(deviations[0], deviations[1], "{what}: its plan is followed again");
        assert!(self.arena.steps().region().find_declared(|_| true).is_none(), "{what}");
        assert_eq!(self.held(), 1, "{what}: only the region is held");
        let Self { arena, weights, side, counts } = self;
        drop((arena, weights));
        assert_eq!(counts.calls(Call::Obtain), counts.calls(Call::Release), "{what}");
        assert_eq!(side.fault(), None, "{what}");
    }
}
