//! Arenas on several devices, for all cases.

use arena_scope::device::{CallCounts, Counting, FailSwitch, Failing};
use arena_scope::{Arena, ArenaBuilder, ByteSize, Device, Error, Host, Pod, Probe};

pub(crate) type Outcome = Result<(), Error>;

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// Instantiates a case for every device and every wrapper of one.
macro_rules! on_every_device {
    ($($case:ident),+ $(,)?) => {
        on_every_device!(@ host, arena_scope::Host::new(), $($case),+);
        on_every_device!(@ probe, arena_scope::Probe::new(), $($case),+);
        on_every_device!(@ counting,
            arena_scope::device::Counting::new(arena_scope::Host::new()), $($case),+);
        on_every_device!(@ failing,
            arena_scope::device::Failing::new(arena_scope::Host::new()), $($case),+);
        on_every_device!(@ limited,
            arena_scope::device::Limited::new(
                arena_scope::Host::new(), arena_scope::ByteSize::mib(64)), $($case),+);
    };
    (@ $device:ident, $new:expr, $($case:ident),+) => {
        mod $device {
            $(
                #[test]
                fn $case() -> crate::common::Outcome {
                    super::$case($new)
                }
            )+
        }
    };
}

pub(crate) fn arena<D: Device>(device: D, capacity_bytes: u64) -> Result<Arena<D>, Error> {
    builder(device, capacity_bytes).build()
}

pub(crate) fn builder<D: Device>(device: D, capacity_bytes: u64) -> ArenaBuilder<D> {
    Arena::builder(device).capacity(ByteSize::bytes_exact(capacity_bytes))
}

pub(crate) fn host(capacity_bytes: u64) -> Result<Arena<Host>, Error> {
    arena(Host::new(), capacity_bytes)
}

/// An arena without memory whose base is at a given address.
pub(crate) fn at(base_address: u64, capacity_bytes: u64) -> Result<Arena<Probe>, Error> {
    arena(Probe::at(base_address)?, capacity_bytes)
}

/// A host device whose calls are counted.
pub(crate) fn counting() -> (Counting<Host>, CallCounts) {
    let device = Counting::new(Host::new());
    let counts = device.counts();
    (device, counts)
}

/// A host device whose calls fail on request.
pub(crate) fn failing() -> (Failing<Host>, FailSwitch) {
    let device = Failing::new(Host::new());
    let switch = device.switch();
    (device, switch)
}

/// What a device gives for bytes that were written: the same, or zeros if it has no memory.
pub(crate) fn written<D: Device, T: Pod>(values: &[T]) -> Vec<T> {
    if D::MEASURES_ONLY { vec![T::zeroed(); values.len()] } else { values.to_vec() }
}
