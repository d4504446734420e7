//! The region: one contiguous range of device addresses, obtained once.

mod physical;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLockReadGuard};

use crate::bytes::{Alignment, ByteSize};
use crate::committed::Committed;
use crate::device::{Device, Obtained};
use crate::error::{DeviceError, DeviceErrorKind, Error};
use crate::fence::Fences;
#[cfg(feature = "_cuda")]
use crate::fence::WaitForEvery;
use crate::layout::{Span, region_fits};
use crate::pressure::{OnPressure, with_retry};
use crate::region_kind::{RegionKind, RegionOptions};
use crate::uses::Uses;

/// One contiguous range of device addresses, and the device that it came from.
///
/// The arena and each persistent buffer hold it through an `Arc`; it goes back to the device when
/// the last of them is gone.
///
/// # Invariants
///
/// 1. `memory` is what `device` obtained for `capacity_bytes`, or where `grows` reserved for `reserved_bytes`, until
///    `drop`. Where `grows`, the chunks of `committed` are the ranges that are committed.
/// 2. [`region_fits`] holds for its base address and capacity, and the address is not zero.
pub struct Region<D: Device> {
    /// First, so that its event goes before the device that it is of.
    fences: Fences<D>,
    device: D,
    memory: Option<Obtained<D::Memory>>,
    base_address: u64,
    capacity_bytes: u64,
    /// The capacity, rounded up to what is committed at a time.
    reserved_bytes: u64,
    kind: RegionKind,
    /// What is committed beyond it is told, and goes back when a step did not need it.
    soft_limit_bytes: u64,
    on_pressure: Option<OnPressure>,
    /// Whether the memory comes piece by piece. A device that only measures has none.
    grows: bool,
    committed: Mutex<Committed>,
    /// The sum of its chunks, for figures.
    committed_bytes: AtomicU64,
    /// The process that built it.
    process: u32,
    /// Persistent buffers that exist.
    persistent: AtomicU64,
    /// How often all contents were given up.
    lives: AtomicU64,
    driver_allocations: AtomicU64,
    /// While one is set no byte changes its meaning.
    pins: AtomicU64,
    /// Kept spans whose buffers were dropped, on any thread; used again after the next close.
    returned: Mutex<Vec<Span>>,
    /// Whether there may be any: a close looks here first, and usually takes no lock.
    any_returned: AtomicBool,
    /// Which of its buffers a recorded step uses. It lies here because a view knows its region alone.
    uses: Uses,
}

impl<D: Device> Region<D> {
    pub(crate) fn obtain(device: D, options: RegionOptions) -> Result<Self, Error> {
        let capacity_bytes = options.capacity.bytes();
        let grows = options.kind == RegionKind::Virtual && !D::MEASURES_ONLY;
        let granularity = if grows { Some(physical::granularity(&device)?) } else { None };
        let reserved_bytes = granularity.map_or(Some(capacity_bytes), |granularity| {
            capacity_bytes.checked_next_multiple_of(granularity.bytes())
        });
        let Some(reserved_bytes) = reserved_bytes.filter(|bytes| region_fits(0, *bytes)) else {
            return Err(DeviceError {
                device: device.name(),
                call: "obtain",
                reason: format!("a capacity of {capacity_bytes} bytes is larger than any memory"),
                kind: DeviceErrorKind::Refused,
            }
            .into());
        };
        let claimed = device.base_alignment().max(granularity.unwrap_or(Alignment::ONE));
        let memory = with_retry(options.on_pressure.as_ref(), 0, || match granularity {
            Some(_) => device.reserve(reserved_bytes),
            None => device.obtain(capacity_bytes),
        })?;
        let base_address = memory.base_address;
        let committed = granularity.map_or_else(
            || Committed::whole(capacity_bytes),
            |granularity| Committed::nothing(granularity, reserved_bytes, options.ahead.bytes()),
        );
        let region = Self {
            fences: Fences::new(),
            memory: Some(memory),
            base_address,
            capacity_bytes,
            reserved_bytes,
            kind: options.kind,
            soft_limit_bytes: options.soft_limit.map_or(u64::MAX, ByteSize::bytes),
            on_pressure: options.on_pressure,
            grows,
            committed_bytes: AtomicU64::new(committed.bytes()),
            committed: Mutex::new(committed),
            process: std::process::id(),
            persistent: AtomicU64::new(0),
            lives: AtomicU64::new(0),
            driver_allocations: AtomicU64::new(1),
            pins: AtomicU64::new(0),
            returned: Mutex::new(Vec::new()),
            any_returned: AtomicBool::new(false),
            uses: Uses::default(),
            device,
        };
        // From here on the region's drop gives the memory back.
        Claimed::Base(claimed).check(&region.device, base_address, reserved_bytes)?;
        Ok(region)
    }

    /// The device that the memory came from.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Address of the first byte.
    #[must_use]
    #[inline]
    pub fn base_address(&self) -> u64 {
        self.base_address
    }

    /// Bytes in it, exactly as asked for.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// What its memory is made of.
    #[must_use]
    pub fn kind(&self) -> RegionKind {
        self.kind
    }

    /// Declares that `stream` uses this region until a scope of `depth` closes (0: permanently), and makes
    /// it wait for the arena's stream. Scopes and buffers call this; their methods say more.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) for a stream of another device,
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) when the device refuses the wait.
    pub fn declare(&self, stream: &D::Stream, depth: u32) -> Result<(), Error> {
        self.fences.declare(&self.device, stream, depth)
    }

    /// Makes the arena's stream wait, on the device, for what is queued on `stream` now.
    ///
    /// # Errors
    ///
    /// As for [`declare`](Self::declare).
    pub fn wait_for(&self, stream: &D::Stream) -> Result<(), Error> {
        self.fences.wait_for(&self.device, stream)
    }

    /// The declared stream that `is_it` recognises.
    #[must_use]
    pub fn find_declared(&self, is_it: impl Fn(&D::Stream) -> bool) -> Option<D::Stream> {
        self.fences.find(is_it)
    }

    /// A buffer is lent from now on: any stream may use it, and `wait` waits for all of them.
    #[cfg(feature = "_cuda")]
    pub(crate) fn begin_lend(&self, wait: WaitForEvery<D>) {
        self.fences.begin_lend(wait);
    }

    /// A handle of a lent buffer is gone.
    #[cfg(feature = "_cuda")]
    pub(crate) fn end_lend(&self) {
        self.fences.end_lend();
    }

    /// Whether a buffer is lent, or was since the last close.
    #[must_use]
    pub fn any_lent(&self) -> bool {
        self.fences.any_lent()
    }

    /// Keeps an error of a call that could not return it, on any thread. The next fallible call of the
    /// arena that leaves the hot path returns it: opening or closing a scope, a read, a persistent
    /// buffer. A second error is dropped: the first is the cause.
    pub fn keep_failure(&self, error: Error) {
        self.fences.keep_failure(error);
    }

    #[inline]
    pub(crate) fn wait_for_declared(&self, depth: u32) -> Result<(), Error> {
        self.fences.wait_for_all(&self.device, depth)
    }

    pub(crate) fn fences(&self) -> &Fences<D> {
        &self.fences
    }

    #[inline]
    pub(crate) fn uses(&self) -> &Uses {
        &self.uses
    }

    pub(crate) fn count_driver_allocation(&self) {
        self.driver_allocations.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn driver_allocations(&self) -> u64 {
        self.driver_allocations.load(Ordering::Relaxed)
    }

    /// Queues the span of a dropped kept buffer. Never blocks for long and never fails: a poisoned
    /// lock only means that another thread panicked between two pushes.
    pub(crate) fn queue_returned(&self, span: Span) {
        self.returned.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(span);
        self.any_returned.store(true, Ordering::Release);
    }

    pub(crate) fn pin(&self) {
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Relaxed) > 0
    }

    /// Whether spans may be queued.
    #[inline]
    pub(crate) fn any_returned(&self) -> bool {
        self.any_returned.load(Ordering::Acquire)
    }

    /// A persistent buffer was made.
    pub(crate) fn count_persistent(&self) {
        self.persistent.fetch_add(1, Ordering::Relaxed);
    }

    /// One was dropped.
    pub(crate) fn count_dropped(&self) {
        self.persistent.fetch_sub(1, Ordering::Relaxed);
    }

    /// Persistent buffers that exist.
    pub(crate) fn persistent(&self) -> u64 {
        self.persistent.load(Ordering::Relaxed)
    }

    /// How often all contents were given up: a graph of an earlier life is stale.
    #[must_use]
    pub fn lives(&self) -> u64 {
        self.lives.load(Ordering::Relaxed)
    }

    /// Before a call that gives the device work on the region's bytes, on any thread: no pause takes their memory as
    /// long as the result lives. Memory that the host uses as slices is never paused.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Paused`](crate::ErrorKind::Paused) while the memory is gone.
    #[inline]
    pub(crate) fn begin_work(&self) -> Result<Option<RwLockReadGuard<'_, ()>>, Error> {
        if D::HOST_VISIBLE { Ok(None) } else { self.fences.begin_work().map(Some) }
    }

    /// Asks whether the device works, and returns a kept error, once.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.device.health()?;
        self.fences.check()
    }

    /// Takes the queued spans, each passed to `take`.
    pub(crate) fn drain_returned(&self, take: impl FnMut(Span)) {
        // A span that is queued just now is found by the next close.
        if !self.any_returned() {
            return;
        }
        self.any_returned.store(false, Ordering::Release);
        let mut returned = self.returned.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        returned.drain(..).for_each(take);
    }
}

/// What a device said of memory before it obtained it. A device that is wrong about it must not make the
/// arena write outside, so it is asked once, and the answer that was used is the one that is checked.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Claimed {
    /// The base is a multiple of this.
    Base(Alignment),
    /// The end is a multiple of this, and a guard page follows.
    End(Alignment),
}

impl Claimed {
    /// That memory lies as it was claimed to, and where every sum of the layout stays in range.
    pub(crate) fn check<D: Device>(
        self,
        device: &D,
        base_address: u64,
        bytes: u64,
    ) -> Result<(), Error> {
        let end = u128::from(base_address) + u128::from(bytes);
        let (call, claim, holds) = match self {
            Self::Base(alignment) => ("obtain", alignment, alignment.divides(base_address)),
            Self::End(alignment) => {
                ("obtain_guarded", alignment, end.is_multiple_of(alignment.bytes().into()))
            }
        };
        let reason = if base_address == 0 || !region_fits(base_address, bytes) {
            format!("a region from {base_address:#x} to {end:#x} is out of range")
        } else if !holds {
            let what = if matches!(self, Self::Base(_)) { "base" } else { "end" };
            format!(
                "a region from {base_address:#x} to {end:#x} came, and its {what} is claimed to be a \
                 multiple of {claim}"
            )
        } else {
            return Ok(());
        };
        let kind = DeviceErrorKind::Refused;
        Err(DeviceError { device: device.name(), call, reason, kind }.into())
    }
}

impl<D: Device> Drop for Region<D> {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        // In a fork nothing is taken from the process that built it.
        if self.refuse_in_fork().is_err() {
            std::mem::forget(memory);
            return;
        }
        // A failure cannot be told to anybody here, and holding the memory would not mend it. After a panic
        // nobody knows what was waited for, so the memory is given up.
        if unless_it_panics(|| self.wait_for_declared(0)).is_none() {
            return;
        }
        if self.grows {
            self.take_all(&memory.handle);
        }
        unless_it_panics(|| {
            if self.grows {
                // SAFETY: by invariant 1 the addresses are the device's, so many; the rest is as below.
                unsafe { self.device.unreserve(memory, self.reserved_bytes) }
            } else {
                // SAFETY: by invariant 1 the memory is the device's for this capacity; buffers hold the
                // region or borrow its arena, so none is left, and the arena's stream waits for every other
                // stream that used them.
                unsafe { self.device.release(memory, self.capacity_bytes) }
            }
        });
    }
}

/// What a call of a device returned; `None` if the device panicked. For a `Drop`, which must not.
pub(crate) fn unless_it_panics<R>(call: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

impl<D: Device> fmt::Debug for Region<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("device", &self.device)
            .field("base_address", &format_args!("{:#x}", self.base_address))
            .field("capacity_bytes", &self.capacity_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Host;

    #[test]
    fn memory_at_address_0_or_beyond_any_is_refused() {
        let check = |address, bytes| {
            Claimed::Base(Alignment::ONE).check(&Host::new(), address, bytes).is_ok()
        };
        assert!(check(1, 100));
        assert!(!check(0, 100), "no buffer has the address 0");
        assert!(!check(u64::MAX - 10, 100));
    }
}
