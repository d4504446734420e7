//! Buffers that die with their scope: activations, gradients, workspaces, staging.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;

use super::{View, ViewMut};
use crate::device::{Device, Host, HostVisible};
use crate::packed::{NO_SLOT, len_of, pack, slot_of};
use crate::region::Region;
use crate::steps::Steps;

/// A buffer above the mark. It lives for `'s`: until its scope closes.
///
/// Under the bump, dropping it early frees nothing. Under a plan, a later buffer gets its bytes; and a recording
/// learns from the drop that the buffer is dead. Safety does not depend on the drop.
///
/// Other threads can read it (`Sync`). It cannot be sent to another thread, not even to one that ends before the
/// scope, because its drop uses the arena:
///
/// ```compile_fail,E0277
/// # use arena_core::{Alignment, ByteSize, Host, RawArena};
/// # let arena = RawArena::new(Host::new(), ByteSize::kib(8)).unwrap();
/// let buffer = arena.transient::<f32>(4, Alignment::DEFAULT).unwrap();
/// std::thread::scope(|threads| {
///     threads.spawn(move || drop(buffer));
/// });
/// ```
///
/// # Invariants
///
/// 1. `address` is a multiple of the alignment of `T`, and not zero.
/// 2. The `len` elements from there on lie inside the arena's region, or in an allocation of their own
///    that the arena holds, or `len` is zero.
/// 3. For `'s` no other buffer has a byte of them.
///
/// `len` is at most 2⁴⁴ - 1.
pub struct Transient<'s, T, D: Device = Host> {
    address: u64,
    /// The length, and the slot of a plan or [`NO_SLOT`].
    packed: u64,
    steps: &'s Steps<D>,
    elements: PhantomData<T>,
}

// SAFETY: what a shared reference reaches is the address, the length, the region, which is `Sync`, and
// the table of separate allocations, which is behind a lock; the arena's cells are used by `drop`
// alone, which needs the buffer itself.
unsafe impl<T: Sync, D: Device> Sync for Transient<'_, T, D> {}

impl<'s, T: Pod, D: Device> Transient<'s, T, D> {
    /// # Safety
    ///
    /// The invariants of [`Transient`], by number; `len` is at most
    /// [`MAX_ELEMENTS`](crate::packed::MAX_ELEMENTS).
    #[inline]
    pub(crate) unsafe fn new(address: u64, len: usize, steps: &'s Steps<D>, slot: u32) -> Self {
        Self { address, packed: pack(len, slot), steps, elements: PhantomData }
    }

    /// Its slot, if a plan placed it.
    pub(crate) fn slot(&self) -> Option<u32> {
        Some(slot_of(self.packed)).filter(|&slot| slot != NO_SLOT)
    }

    /// Elements.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        len_of(self.packed)
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device address of the first element. For a recording, to ask for it is to use the buffer.
    #[must_use]
    #[inline]
    #[track_caller]
    pub fn address(&self) -> u64 {
        *self.address_ref()
    }

    /// [`address`](Self::address), and no recording is told. Public for our benchmarks, which measure requests alone.
    #[doc(hidden)]
    #[must_use]
    #[inline]
    pub fn bare_address(&self) -> u64 {
        self.address
    }

    /// Bytes of all elements.
    pub(crate) fn len_bytes(&self) -> u64 {
        // In range by invariant 2.
        self.len() as u64 * size_of::<T>() as u64
    }

    /// A view, a slice or an argument of the buffer is taken.
    #[inline]
    #[track_caller]
    fn note_taken(&self) {
        self.steps.region().uses().note_taken(self.address, self.len_bytes());
    }

    /// Where the address lies: a kernel's argument is read from there.
    #[inline]
    #[track_caller]
    pub(crate) fn address_ref(&self) -> &u64 {
        self.note_taken();
        &self.address
    }

    /// The first byte, counted from the base of the region. Under the placements for finding bugs
    /// ([`Placement`](crate::Placement)) it is the offset at which the bump would have placed the buffer. So the
    /// offset is the same under each placement, and the address is not.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let a = arena.transient::<u8>(1, Alignment::DEFAULT)?;
    /// let b = arena.transient::<u8>(1, Alignment::DEFAULT)?;
    /// assert_eq!((a.offset_bytes(), b.offset_bytes()), (0, 256));
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    #[inline]
    pub fn offset_bytes(&self) -> u64 {
        if self.is_empty() {
            self.steps.offset_of(self.address)
        } else {
            self.steps.offset_of_buffer(self.address)
        }
    }

    pub(crate) fn steps(&self) -> &'s Steps<D> {
        self.steps
    }

    /// The length and the slot in one word.
    pub(crate) fn packed(&self) -> u64 {
        self.packed
    }

    pub(crate) fn region(&self) -> &Region<D> {
        self.steps.region()
    }

    /// Shared access. The buffer cannot be dropped or written while a view exists.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let x = arena.transient_from(&[1, 2, 3], Alignment::DEFAULT)?;
    /// let (all, last) = (x.view(), x.view().range(2..)?); // any number of views at once
    /// assert_eq!((all.len(), last.as_slice()), (3, &[3][..]));
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn view(&self) -> View<'_, T, D> {
        self.note_taken();
        self.shared()
    }

    /// [`view`](Self::view), and no recording is told.
    fn shared(&self) -> View<'_, T, D> {
        // SAFETY: 1 and 2 are this buffer's. 3: the buffer is borrowed shared.
        unsafe { View::new(self.address, self.len(), self.steps.region()) }
    }

    /// Exclusive access.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let mut x = arena.transient_from(&[1, 2, 3], Alignment::DEFAULT)?;
    /// x.view_mut().write(&[4, 5, 6])?;
    /// assert_eq!(x.as_slice(), [4, 5, 6]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn view_mut(&mut self) -> ViewMut<'_, T, D> {
        self.note_taken();
        self.access()
    }

    /// [`view_mut`](Self::view_mut), and no recording is told.
    pub(crate) fn access(&mut self) -> ViewMut<'_, T, D> {
        // SAFETY: 1 and 2 are this buffer's. 3: the buffer is borrowed mutably, and alone in its
        // bytes for `'s`.
        unsafe { ViewMut::new(self.address, self.len(), self.steps.region()) }
    }
}

impl<T: Pod, D: Device> Transient<'_, T, D> {
    /// The elements as a slice.
    #[must_use]
    #[track_caller]
    pub fn as_slice(&self) -> &[T]
    where
        D: HostVisible,
    {
        self.note_taken();
        self.shared().elements()
    }

    /// The elements as a mutable slice.
    #[must_use]
    #[track_caller]
    pub fn as_mut_slice(&mut self) -> &mut [T]
    where
        D: HostVisible,
    {
        self.note_taken();
        self.access().into_elements()
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

impl<T, D: Device> Drop for Transient<'_, T, D> {
    #[inline]
    fn drop(&mut self) {
        // Without a byte it has no place that could come free: its offset may be another's.
        if size_of::<T>() > 0 {
            self.steps.note_drop(self.address, self.packed);
        }
    }
}

impl<T, D: Device> fmt::Debug for Transient<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        let len = len_of(self.packed);
        write!(f, "Transient<{element}; {len}>@{:#x}", self.address)
    }
}
