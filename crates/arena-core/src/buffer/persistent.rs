//! Buffers that live as long as their owner: weights, optimizer state, running statistics.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;

use super::{View, ViewMut};
use crate::device::{Device, Host, HostVisible};
use crate::layout::Span;
use crate::region::Region;

/// An owned buffer that outlives scopes and never moves.
///
/// It keeps the region alive, so it can outlive the arena, and it can be sent to any thread. If it was made
/// after the mark was set, its bytes can be reused after it is dropped and the next scope has closed. Otherwise
/// they are not reused.
///
/// # Invariants
///
/// 1. `address` is a multiple of the alignment of `T`, and not zero.
/// 2. The `len` elements from there on lie inside `region`, or `len` is zero.
/// 3. No other buffer has a byte of them, as long as this one lives.
pub struct Persistent<T, D: Device = Host> {
    address: u64,
    len: usize,
    region: Arc<Region<D>>,
    /// What to give back: the span of a kept buffer.
    kept: Option<Span>,
    elements: PhantomData<T>,
}

impl<T: Pod, D: Device> Persistent<T, D> {
    /// # Safety
    ///
    /// The invariants of [`Persistent`], by number; `kept` is its span in the kept zone, if there.
    pub(crate) unsafe fn new(
        address: u64,
        len: usize,
        region: Arc<Region<D>>,
        kept: Option<Span>,
    ) -> Self {
        region.count_persistent();
        Self { address, len, region, kept, elements: PhantomData }
    }

    /// Drops the buffer without queueing its span, and returns that.
    pub(crate) fn into_kept_span(mut self) -> Option<Span> {
        self.kept.take()
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device address of the first element. It never changes.
    #[must_use]
    pub fn address(&self) -> u64 {
        *self.address_ref()
    }

    /// Where the address lies: a kernel's argument is read from there.
    #[inline]
    pub(crate) fn address_ref(&self) -> &u64 {
        &self.address
    }

    /// The first byte, counted from the region's base.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let first = arena.persistent_from(&[0_u8; 10])?;
    /// let second = arena.persistent_from(&[0_u8; 10])?;
    /// assert_eq!((first.offset_bytes(), second.offset_bytes()), (0, 256));
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        self.address - self.region.base_address()
    }

    /// Whether it was made after the mark was set and so lies at the top of the region.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let weights = arena.persistent_from(&[1.0_f32])?;
    /// arena.set_mark()?;
    /// let velocity = arena.persistent_from(&[0.0_f32])?;
    /// assert!(!weights.is_kept() && velocity.is_kept());
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    pub(crate) fn region(&self) -> &Region<D> {
        &self.region
    }

    /// Shared access.
    #[must_use]
    pub fn view(&self) -> View<'_, T, D> {
        // SAFETY: 1 and 2 are this buffer's. 3: the buffer is borrowed shared.
        unsafe { View::new(self.address, self.len, &self.region) }
    }

    /// Exclusive access.
    #[must_use]
    pub fn view_mut(&mut self) -> ViewMut<'_, T, D> {
        // SAFETY: 1 and 2 are this buffer's. 3: the buffer is borrowed mutably, and alone in its
        // bytes.
        unsafe { ViewMut::new(self.address, self.len, &self.region) }
    }
}

impl<T: Pod, D: Device> Persistent<T, D> {
    /// The elements as a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[T]
    where
        D: HostVisible,
    {
        self.view().as_slice()
    }

    /// The elements as a mutable slice.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [T]
    where
        D: HostVisible,
    {
        self.view_mut().into_mut_slice()
    }

    /// The elements as a slice on a device whose memory the host can use, and `None` on any other: see
    /// [`View::host`].
    #[must_use]
    pub fn host(&self) -> Option<&[T]> {
        self.view().host()
    }

    /// The same as a mutable slice.
    #[must_use]
    pub fn host_mut(&mut self) -> Option<&mut [T]> {
        self.view_mut().into_host_mut()
    }
}

impl<T, D: Device> Drop for Persistent<T, D> {
    fn drop(&mut self) {
        if let Some(span) = self.kept {
            self.region.queue_returned(span);
        }
        self.region.count_dropped();
    }
}

impl<T, D: Device> fmt::Debug for Persistent<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        write!(f, "Persistent<{element}; {}>@{:#x}", self.len, self.address)
    }
}
