//! The arena without scopes: persistent buffers at the bottom, a bump pointer above the mark.

#![forbid(unsafe_code)]

use std::fmt;

use bytemuck::Pod;

use crate::buffer::{Persistent, Transient, View};
use crate::bytes::{Alignment, ByteSize};
use crate::device::{Device, Host, Probe};
use crate::error::Error;
use crate::pin::RegionPin;
use crate::placement::Placement;
use crate::reset::Reset;
use crate::stats::Stats;
use crate::steps::Steps;

/// A region with its mark. `arena-scope` gives it scopes; by itself it offers transient buffers that live
/// until [`reset_to_mark`](Self::reset_to_mark), which needs `&mut self`.
///
/// It can be sent to another thread, but not shared with one.
pub struct RawArena<D: Device = Host>(Steps<D>);

/// Outside every scope.
const NO_SCOPE: u32 = 0;

impl<D: Device> RawArena<D> {
    /// Obtains a region of exactly `capacity` from `device`, in one call.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) when the device refuses; nothing is held then.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// let arena = RawArena::new(Host::new(), ByteSize::bytes_exact(1000))?;
    /// assert_eq!(arena.stats().capacity_bytes, 1000); // never rounded
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    pub fn new(device: D, capacity: ByteSize) -> Result<Self, Error> {
        Self::with_placement(device, capacity, Placement::Bump)
    }

    /// [`new`](Self::new) with a placement.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn with_placement(
        device: D,
        capacity: ByteSize,
        placement: Placement,
    ) -> Result<Self, Error> {
        Steps::new(device, capacity, placement, Reset::Keep).map(Self)
    }

    /// The device that the region came from.
    #[must_use]
    pub fn device(&self) -> &D {
        self.0.region().device()
    }

    /// The figures of the arena now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Keeps the region and its layout as long as the pin exists.
    #[must_use]
    pub fn pin(&self) -> RegionPin<D> {
        self.0.pin()
    }

    /// Sets the mark at the end of the persistent buffers made so far. A reset never goes below it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MarkAlreadySet`](crate::ErrorKind::MarkAlreadySet) the second time.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let weights = arena.persistent_from(&[0_u8; 100])?;
    /// arena.set_mark()?;
    /// assert_eq!(arena.stats().mark_bytes, 100);
    /// assert!(arena.set_mark().is_err()); // once
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    pub fn set_mark(&self) -> Result<(), Error> {
        self.0.set_mark()
    }

    /// A persistent buffer of `len` elements with unspecified contents: below the mark before it is
    /// set, kept at the region's top afterwards.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted) when it does not fit,
    /// [`ErrorKind::TooBig`](crate::ErrorKind::TooBig) when it never can, or an error that an earlier
    /// reset left behind.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let mut weights = arena.persistent::<f32>(2, Alignment::DEFAULT)?;
    /// weights.view_mut().write(&[1.0, 2.0])?;
    /// arena.reset_to_mark();
    /// assert_eq!(weights.as_slice(), [1.0, 2.0]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn persistent<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
    ) -> Result<Persistent<T, D>, Error> {
        self.0.persistent(len, alignment, NO_SCOPE)
    }

    /// A persistent buffer that holds `values`, at the default alignment.
    ///
    /// # Errors
    ///
    /// As for [`persistent`](Self::persistent), or the device's refusal of the copy. Nothing is
    /// changed then.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let weights = arena.persistent_from(&[1.0_f32, 2.0])?;
    /// assert_eq!(weights.as_slice(), [1.0, 2.0]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn persistent_from<T: Pod>(&self, values: &[T]) -> Result<Persistent<T, D>, Error> {
        self.0.persistent_from(values, Alignment::DEFAULT)
    }

    /// A persistent buffer of zero bytes.
    ///
    /// # Errors
    ///
    /// As for [`persistent_from`](Self::persistent_from).
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let velocity = arena.persistent_zeroed::<f32>(3, Alignment::DEFAULT)?;
    /// assert_eq!(velocity.as_slice(), [0.0; 3]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn persistent_zeroed<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
    ) -> Result<Persistent<T, D>, Error> {
        self.0.persistent_zeroed(len, alignment)
    }

    /// A persistent copy of a view, made on the device.
    ///
    /// # Errors
    ///
    /// As for [`persistent_from`](Self::persistent_from).
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let step = arena.transient_from(&[1_u8, 2], Alignment::DEFAULT)?;
    /// let kept = arena.persistent_copy(step.view(), Alignment::DEFAULT)?;
    /// drop(step);
    /// arena.reset_to_mark();
    /// assert_eq!(kept.as_slice(), [1, 2]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn persistent_copy<T: Pod>(
        &self,
        view: View<'_, T, D>,
        alignment: Alignment,
    ) -> Result<Persistent<T, D>, Error> {
        self.0.persistent_copy(view, alignment, NO_SCOPE)
    }

    /// A transient buffer of `len` elements with unspecified but initialised contents.
    ///
    /// # Errors
    ///
    /// As for [`persistent`](Self::persistent).
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let a = arena.transient::<u8>(100, Alignment::ONE)?;
    /// let b = arena.transient::<u8>(100, Alignment::new(64)?)?;
    /// assert_eq!((a.offset_bytes(), b.offset_bytes()), (0, 128));
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[inline]
    #[track_caller]
    pub fn transient<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
    ) -> Result<Transient<'_, T, D>, Error> {
        self.0.transient(len, alignment, NO_SCOPE)
    }

    /// [`transient`](Self::transient), filled with zero bytes in stream order.
    ///
    /// # Errors
    ///
    /// As for [`persistent_from`](Self::persistent_from).
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// drop(arena.transient_from(&[7_u8; 8], Alignment::ONE)?); // leaves its bytes there
    /// arena.reset_to_mark();
    /// assert_eq!(arena.transient_zeroed::<u8>(8, Alignment::ONE)?.as_slice(), [0; 8]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn transient_zeroed<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
    ) -> Result<Transient<'_, T, D>, Error> {
        self.0.transient_zeroed(len, alignment, NO_SCOPE)
    }

    /// A transient buffer that holds `values`, copied in stream order.
    ///
    /// # Errors
    ///
    /// As for [`persistent_from`](Self::persistent_from).
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let x = arena.transient_from(&[1.0_f32, 2.0], Alignment::DEFAULT)?;
    /// assert_eq!(x.as_slice(), [1.0, 2.0]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn transient_from<T: Pod>(
        &self,
        values: &[T],
        alignment: Alignment,
    ) -> Result<Transient<'_, T, D>, Error> {
        self.0.transient_from(values, alignment, NO_SCOPE)
    }

    /// Puts the cursor back to the mark, and sets the mark at the cursor if it is not set. `&mut self` proves
    /// that no transient buffer is alive. The device waits for work on declared streams; if that fails, the next
    /// call that can fail returns the error.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let weights = arena.persistent_from(&[0_u8; 100])?;
    /// arena.set_mark()?;
    /// drop(arena.transient::<u8>(1000, Alignment::ONE)?);
    /// assert_eq!(arena.stats().used_bytes, 1100);
    /// arena.reset_to_mark();
    /// assert_eq!(arena.stats().used_bytes, 100);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    pub fn reset_to_mark(&mut self) {
        self.0.reset_to_mark();
    }

    /// Gives physical memory back to the system, from `above_bytes` (or the cursor, if that is higher) up to the
    /// kept part. Every address stays valid. Returns the number of bytes given back: 0 while the region is
    /// pinned, or if the device cannot do so.
    ///
    /// # Errors
    ///
    /// The device's refusal, or an error that an earlier reset left behind.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::mib(1))?;
    /// arena.set_mark()?;
    /// drop(arena.transient_zeroed::<u8>(1_000_000, Alignment::ONE)?);
    /// arena.reset_to_mark();
    /// assert!(arena.trim(4096)? > 900_000);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    pub fn trim(&mut self, above_bytes: u64) -> Result<u64, Error> {
        self.0.trim(above_bytes)
    }

    /// What `arena-scope` stands on.
    #[doc(hidden)]
    #[must_use]
    pub fn steps(&self) -> &Steps<D> {
        &self.0
    }
}

impl RawArena<Probe> {
    /// The smallest capacity in bytes for which the requests made so far fit, in their order and
    /// with the padding of the kept part.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Probe, RawArena};
    /// let probe = RawArena::new(Probe::new(), ByteSize::gib(1))?;
    /// let a = probe.transient::<u8>(100, Alignment::DEFAULT)?;
    /// let b = probe.transient::<u8>(100, Alignment::DEFAULT)?;
    /// assert_eq!(probe.smallest_capacity_bytes(), 256 + 100);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    pub fn smallest_capacity_bytes(&self) -> u64 {
        self.0.smallest_capacity_bytes()
    }
}

impl<D: Device> fmt::Debug for RawArena<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RawArena").field(&self.0).finish()
    }
}
