//! Frames, debts, plans and streams of an arena, as `arena-scope` drives them, on devices of host memory.

mod closes;
mod filled;
mod frames;
mod pause;
mod plans;
mod poison;
mod regions;
mod requests;
mod streams;
mod uses;

use arena_core::device::{Call, CallCounts, Counting, Deferred, Device};
use arena_core::for_scopes::{FrameId, Steps, Watch};
use arena_core::{
    Alignment, ByteSize, Error, ErrorKind, Host, Placement, PlannedSlot, Reset, SlotTable,
};

use crate::hooked::Hooked;

/// Bytes that can be looked at.
pub(crate) type OnHost = Steps<Hooked<Host>>;
/// Streams whose work runs late.
pub(crate) type Late = Steps<Hooked<Counting<Deferred>>>;

pub(crate) const A256: Alignment = Alignment::DEFAULT;
pub(crate) const CAPACITY: u64 = 4096;
pub(crate) const SEEDS: u64 = 50;

pub(crate) fn on_host(reset: Reset) -> OnHost {
    bumped(Hooked::new(Host::new()), reset)
}

/// Without ranges on a timeline, for whose end a close turns to the device.
pub(crate) fn plain(reset: Reset) -> Steps<Host> {
    bumped(Host::new(), reset)
}

fn bumped<D: Device>(device: D, reset: Reset) -> Steps<D> {
    Steps::new(device, ByteSize::bytes_exact(CAPACITY), Placement::Bump, reset).unwrap()
}

pub(crate) fn late(seed: u64, placement: Placement, reset: Reset) -> (Late, CallCounts) {
    let inner = Counting::new(Deferred::new(seed));
    let counts = inner.counts();
    let capacity = ByteSize::bytes_exact(CAPACITY);
    (Steps::new(Hooked::new(inner), capacity, placement, reset).unwrap(), counts)
}

/// Memory of the device that was obtained and not released.
pub(crate) fn held(counts: &CallCounts) -> u64 {
    counts.calls(Call::Obtain) - counts.calls(Call::Release)
}

pub(crate) fn try_open<D: Device>(
    steps: &Steps<D>,
    reset: Option<Reset>,
) -> Result<FrameId, Error> {
    // SAFETY: no test here uses a transient buffer after it has opened a root scope.
    unsafe { steps.open_root("root", reset) }
}

pub(crate) fn open<D: Device>(steps: &Steps<D>, reset: Option<Reset>) -> FrameId {
    try_open(steps, reset).unwrap()
}

pub(crate) fn open_watched<D: Device>(steps: &Steps<D>, watch: Watch) -> FrameId {
    // SAFETY: as above.
    unsafe { steps.open_root_watched("root", None, watch) }.unwrap()
}

/// In the root.
pub(crate) fn open_inner<D: Device>(steps: &Steps<D>, reset: Option<Reset>) -> FrameId {
    open_in(steps, 1, reset)
}

pub(crate) fn open_in<D: Device>(steps: &Steps<D>, depth: u32, reset: Option<Reset>) -> FrameId {
    // SAFETY: nor one of a deeper scope than this, after it has opened another there.
    unsafe { steps.open_inner(depth, "inner", reset) }.unwrap()
}

pub(crate) fn close<D: Device>(steps: &Steps<D>, frame: FrameId) -> Result<(), Error> {
    // SAFETY: nor one of a scope that has closed.
    unsafe { steps.close(frame) }
}

/// Opens and closes a root scope.
pub(crate) fn pass<D: Device>(steps: &Steps<D>) {
    close(steps, open(steps, None)).unwrap();
}

/// The bytes of the next request.
pub(crate) fn next_bytes(steps: &OnHost, len: usize) -> Vec<u8> {
    let depth = steps.depth();
    steps.transient::<u8>(len, Alignment::ONE, depth).unwrap().as_slice().to_vec()
}

/// Leaves the bytes from the cursor on as sevens, in a root scope of their own or inside the open one.
pub(crate) fn leave_sevens(steps: &OnHost, len: usize) {
    let inside = steps.depth() > 0;
    let keep = Some(Reset::Keep);
    let frame = if inside { open_inner(steps, keep) } else { open(steps, keep) };
    let mut sevens = steps.transient::<u8>(len, Alignment::ONE, steps.depth()).unwrap();
    sevens.as_mut_slice().fill(7);
    drop(sevens);
    close(steps, frame).unwrap();
}

/// A plan whose slots of 256 bytes lie at these multiples of 256.
pub(crate) fn table(places: &[u64]) -> SlotTable {
    let slot =
        |&place: &u64| PlannedSlot { offset_bytes: place * 256, bytes: 256, alignment: A256 };
    SlotTable::new(&places.iter().map(slot).collect::<Vec<_>>()).unwrap()
}

/// Asks for the bytes of such a slot; gives the offset.
pub(crate) fn ask<D: Device>(steps: &Steps<D>) -> u64 {
    steps.transient::<u8>(256, A256, steps.depth()).unwrap().offset_bytes()
}

#[track_caller]
pub(crate) fn assert_call(error: &Error, call: &str) {
    assert!(matches!(error.kind(), ErrorKind::Device(refused) if refused.call == call), "{error}");
}
