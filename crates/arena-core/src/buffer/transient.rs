//! Buffers that die with their scope: activations, gradients, workspaces, staging.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;

use super::{View, ViewMut};
use crate::device::{Device, Host, HostVisible};
use crate::packed::{NO_SLOT, len_of, pack, slot_of};
use crate::region::Region;
use crate::steps::Steps;

/// A buffer above the mark, alive for `'s`: until its scope closes.
///
/// Dropping it early reuses nothing under the bump; a recording learns from it that the buffer is
/// dead, and a plan reuses its bytes. No safety rests on the drop being run.
///
/// It can be read from other threads (`Sync`), but not sent to one, for its drop talks to the arena,
/// not even to a thread that cannot outlive the scope:
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

    /// The device address of the first element.
    #[must_use]
    #[inline]
    pub fn address(&self) -> u64 {
        *self.address_ref()
    }

    /// Where the address lies: a kernel's argument is read from there.
    #[inline]
    pub(crate) fn address_ref(&self) -> &u64 {
        &self.address
    }

    /// The first byte, counted from the region's base. Where the buffer lies elsewhere, for hunting
    /// bugs ([`Placement`](crate::Placement)), the offset at which the bump would have
    /// placed it: the offset is the same under each placement, the address is not.
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

    /// Shared access. A view keeps its buffer alive.
    #[must_use]
    pub fn view(&self) -> View<'_, T, D> {
        // SAFETY: 1 and 2 are this buffer's. 3: the buffer is borrowed shared.
        unsafe { View::new(self.address, self.len(), self.steps.region()) }
    }

    /// Exclusive access.
    #[must_use]
    pub fn view_mut(&mut self) -> ViewMut<'_, T, D> {
        // SAFETY: 1 and 2 are this buffer's. 3: the buffer is borrowed mutably, and alone in its
        // bytes for `'s`.
        unsafe { ViewMut::new(self.address, self.len(), self.steps.region()) }
    }
}

impl<T: Pod, D: Device> Transient<'_, T, D> {
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
