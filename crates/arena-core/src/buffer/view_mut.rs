//! Borrowed buffers for writing.
//!
//! As in `view.rs`, the fields are private to this module, and the constructor is `unsafe`.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use bytemuck::Pod;

use super::View;
use super::part::{check_aligned, offset_bytes, resolve, row_range, same_len};
use crate::bytes::Alignment;
use crate::device::{Device, Host, Pattern};
use crate::error::Error;
use crate::fence::UNTIL_THE_ROOT_CLOSES;
use crate::layout::RowLayout;
use crate::region::Region;

/// Exclusive access to `len` elements of `T` in device memory.
///
/// # Invariants
///
/// 1 and 2 of [`View`], and:
///
/// 3. For `'v` nobody else reads or writes them, except work that was queued on the arena's stream
///    before.
pub struct ViewMut<'v, T, D: Device = Host> {
    address: u64,
    len: usize,
    region: &'v Region<D>,
    elements: PhantomData<&'v mut [T]>,
}

impl<'v, T: Pod, D: Device> ViewMut<'v, T, D> {
    /// # Safety
    ///
    /// The invariants of [`ViewMut`], by number.
    pub(crate) unsafe fn new(address: u64, len: usize, region: &'v Region<D>) -> Self {
        debug_assert!(Alignment::of::<T>().divides(address) && address != 0);
        Self { address, len, region, elements: PhantomData }
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

    /// The device address of the first element.
    #[must_use]
    #[track_caller]
    pub fn address(&self) -> u64 {
        *self.address_ref()
    }

    /// Where the address lies: a kernel's argument is read from there.
    #[inline]
    #[track_caller]
    pub(crate) fn address_ref(&self) -> &u64 {
        self.mark_used();
        &self.address
    }

    /// Tells a recording that the buffer is used here; see [`View::mark_used`].
    #[inline]
    #[track_caller]
    pub fn mark_used(&self) {
        self.region.uses().note_used(self.address, self.shared().len_bytes());
    }

    /// [`address`](Self::address), and no recording is told.
    pub(super) const fn start(&self) -> u64 {
        self.address
    }

    pub(crate) fn region(&self) -> &'v Region<D> {
        self.region
    }

    /// Shared access to the same elements. This access cannot be used meanwhile.
    #[must_use]
    #[track_caller]
    pub fn view(&self) -> View<'_, T, D> {
        self.mark_used();
        self.shared()
    }

    pub(super) fn shared(&self) -> View<'_, T, D> {
        // SAFETY: 1 and 2 are the same. 3: the mutable access is borrowed shared meanwhile.
        unsafe { View::new(self.address, self.len, self.region) }
    }

    /// The same access with a shorter lifetime, to pass to a function without giving this one up.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena, ViewMut};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// fn double(x: ViewMut<'_, f32>) {
    ///     x.into_mut_slice().iter_mut().for_each(|value| *value *= 2.0);
    /// }
    /// let mut x = arena.persistent_from(&[1.0_f32])?;
    /// let mut access = x.view_mut();
    /// double(access.reborrow());
    /// double(access);
    /// assert_eq!(x.as_slice(), [4.0]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn reborrow(&mut self) -> ViewMut<'_, T, D> {
        self.mark_used();
        self.again()
    }

    pub(super) fn again(&mut self) -> ViewMut<'_, T, D> {
        // SAFETY: 1 and 2 are the same. 3: this access is borrowed mutably meanwhile.
        unsafe { ViewMut::new(self.address, self.len, self.region) }
    }

    /// This access, if its address is a multiple of `alignment_bytes`; see [`View::aligned`].
    ///
    /// # Errors
    ///
    /// As for [`View::aligned`].
    pub fn aligned(self, alignment_bytes: u64) -> Result<Self, Error> {
        check_aligned(self.address, alignment_bytes)?;
        Ok(self)
    }

    /// Access to the elements of `range`, with the same lifetime as this access.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`](crate::ErrorKind::OutOfBounds) when the range is not inside the view.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let mut x = arena.persistent_from(&[1, 2, 3, 4])?;
    /// x.view_mut().range(1..3)?.zero()?;
    /// assert_eq!(x.as_slice(), [1, 0, 0, 4]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn range(self, range: impl RangeBounds<usize>) -> Result<Self, Error> {
        self.mark_used();
        let (start, len) = resolve(&range, self.len)?;
        // SAFETY: 1 and 2: a part of a range inside the region, from an aligned start. 3: this
        // access is given up for it.
        Ok(unsafe { Self::new(self.address + offset_bytes::<T>(start), len, self.region) })
    }

    /// Two disjoint accesses: the elements before `mid`, and the elements from `mid` on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`](crate::ErrorKind::OutOfBounds) when `mid` is larger than the length.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let mut x = arena.persistent_from(&[1, 2, 3])?;
    /// let (mut left, right) = x.view_mut().split_at_mut(1)?;
    /// left.copy_from(right.view().range(1..)?)?;
    /// assert_eq!(x.as_slice(), [3, 2, 3]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn split_at_mut(self, mid: usize) -> Result<(Self, Self), Error> {
        self.mark_used();
        let (_, rest) = resolve(&(mid..), self.len)?;
        let behind = self.address + offset_bytes::<T>(mid);
        // SAFETY: 1 and 2: the first `mid` of `len` elements. 3: this access is given up, and the
        // other half begins where this one ends.
        let first = unsafe { Self::new(self.address, mid, self.region) };
        // SAFETY: 1 and 2: the last `len - mid` elements. 3: as above.
        let second = unsafe { Self::new(behind, rest, self.region) };
        Ok((first, second))
    }

    /// `parts` equal, disjoint pieces; see [`View::parts`].
    ///
    /// # Errors
    ///
    /// As for [`View::parts`].
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let mut x = arena.persistent_from(&[0_u8; 4])?;
    /// for (n, mut part) in (1..).zip(x.view_mut().parts_mut(2, Alignment::ONE)?) {
    ///     part.fill_bytes(n)?;
    /// }
    /// assert_eq!(x.as_slice(), [1, 1, 2, 2]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn parts_mut(
        self,
        parts: usize,
        alignment: Alignment,
    ) -> Result<impl Iterator<Item = Self>, Error> {
        let part = self.view().part_len(parts, alignment)?;
        let (address, region) = (self.address, self.region);
        let at = move |n: usize| {
            // SAFETY: 1 and 2: `parts` pieces of `part` elements lie inside this view. 3: this access
            // is given up, each piece is made once, and they do not overlap.
            unsafe { Self::new(address + offset_bytes::<T>(n * part), part, region) }
        };
        Ok((0..parts).map(at))
    }

    /// One row of a buffer with this layout, without its padding.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`](crate::ErrorKind::OutOfBounds) when there is no such row;
    /// [`ErrorKind::ElementMismatch`](crate::ErrorKind::ElementMismatch) when the layout is for other elements.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena, RowLayout};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let layout = RowLayout::new::<u8>(2, 3, Alignment::new(4)?)?; // rows start 4 bytes apart
    /// let mut image = arena.persistent_zeroed::<u8>(layout.len(), Alignment::new(4)?)?;
    /// image.view_mut().row_mut(&layout, 1)?.fill_bytes(9)?;
    /// assert_eq!(image.as_slice(), [0, 0, 0, 0, 9, 9, 9, 0]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn row_mut(self, layout: &RowLayout, row: usize) -> Result<Self, Error> {
        self.range(row_range::<T>(layout, row)?)
    }

    /// Copies `host` in, in stream order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`](crate::ErrorKind::LengthMismatch) when the lengths differ;
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) when the device refuses the copy.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let mut x = arena.persistent::<f32>(2, Alignment::DEFAULT)?;
    /// x.view_mut().write(&[1.0, 2.0])?;
    /// assert_eq!(x.as_slice(), [1.0, 2.0]);
    /// assert!(x.view_mut().write(&[1.0]).is_err()); // another length
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn write(&mut self, host: &[T]) -> Result<(), Error> {
        self.mark_used();
        self.copy_in(host)
    }

    /// [`write`](Self::write), and no recording is told.
    pub(crate) fn copy_in(&mut self, host: &[T]) -> Result<(), Error> {
        same_len(host.len(), self.len)?;
        let bytes = bytemuck::cast_slice(host);
        if !bytes.is_empty() {
            let _work = self.region.begin_work()?;
            // SAFETY: by invariant 2 the range lies in the region and has as many bytes as the
            // slice; by 3 nobody else touches it.
            unsafe { self.region.device().copy_in(self.address, bytes) }?;
        }
        Ok(())
    }

    /// Copies `from` in, in stream order. The two cannot overlap, because this access is exclusive. `from` may lie
    /// in another arena, on CUDA on another device too; the stream of this arena is then declared to that arena. So
    /// the bytes of `from` are not used again before the copy has ended, and no thread waits for it.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write); or [`ErrorKind::WrongDevice`](crate::ErrorKind::WrongDevice) when the streams of
    /// the two devices cannot be ordered.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let from = arena.persistent_from(&[1, 2, 3])?;
    /// let mut to = arena.persistent_from(&[0, 0])?;
    /// to.view_mut().copy_from(from.view().range(1..)?)?;
    /// assert_eq!(to.as_slice(), [2, 3]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn copy_from(&mut self, from: View<'_, T, D>) -> Result<(), Error> {
        self.mark_used();
        from.mark_used();
        self.copy_view(from)
    }

    /// [`copy_from`](Self::copy_from), and no recording is told.
    pub(crate) fn copy_view(&mut self, from: View<'_, T, D>) -> Result<(), Error> {
        same_len(from.len(), self.len)?;
        let bytes = from.len_bytes();
        if bytes > 0 {
            let device = self.region.device();
            // In one order for all threads, and once if it is one region: a pause may wait to begin between the two.
            let mut regions = [self.region, from.region()];
            regions.sort_by_key(|region| std::ptr::from_ref(*region));
            let _first = regions[0].begin_work()?;
            let mut second = None;
            if !std::ptr::eq(self.region, from.region()) {
                second = regions[1].begin_work()?;
                // The copy runs on this arena's stream, which the other arena must know of.
                from.region().declare(device.stream(), UNTIL_THE_ROOT_CLOSES)?;
            }
            let (to, from) = (self.address, from.start());
            // SAFETY: both ranges lie in their regions by invariant 2; the exclusive access and the
            // shared one cannot overlap by 3.
            unsafe { device.copy_within(to, from, bytes) }?;
            drop(second);
        }
        Ok(())
    }

    /// Sets every byte to zero, in stream order. It is a fill, not a multiplication by zero, so it also removes
    /// NaN.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) when the device refuses the fill.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let mut gradient = arena.persistent_from(&[1.0, f32::NAN])?;
    /// gradient.view_mut().zero()?;
    /// assert_eq!(gradient.as_slice(), [0.0, 0.0]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn zero(&mut self) -> Result<(), Error> {
        self.fill_bytes(0)
    }

    /// Sets every byte to `value`, in stream order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) when the device refuses the fill.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let mut x = arena.persistent_from(&[0_u16; 2])?;
    /// x.view_mut().fill_bytes(0x01)?;
    /// assert_eq!(x.as_slice(), [0x0101; 2]); // each byte, not each element
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn fill_bytes(&mut self, value: u8) -> Result<(), Error> {
        self.mark_used();
        self.repeat(value.into())
    }

    /// Sets every element to `value`, in stream order: without a kernel, and without a copy from the
    /// host. `T` has 1, 2 or 4 bytes; another one does not compile.
    ///
    /// ```
    /// use arena_core::{ByteSize, Host, RawArena};
    ///
    /// let arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let mut rates = arena.persistent_from(&[0.0_f32; 3])?;
    /// rates.view_mut().fill(0.25)?;
    /// assert_eq!(rates.view().to_vec()?, [0.25; 3]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    ///
    /// ```compile_fail,E0080
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let mut wide = arena.persistent_from(&[0.0_f64; 3])?;
    /// wide.view_mut().fill(0.25)?; // eight bytes
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::ErrorKind::Device) when the device refuses the fill;
    /// [`ErrorKind::Misaligned`](crate::ErrorKind::Misaligned) when the view does not start at a multiple of the
    /// element's size, which is possible for types like `[u8; 4]`.
    #[track_caller]
    pub fn fill(&mut self, value: T) -> Result<(), Error> {
        self.mark_used();
        self.repeat(Pattern::of(value))
    }

    /// A fill, and no recording is told.
    pub(crate) fn repeat(&mut self, pattern: Pattern) -> Result<(), Error> {
        let bytes = self.shared().len_bytes();
        if bytes > 0 {
            check_aligned(self.address, pattern.bytes())?;
            let _work = self.region.begin_work()?;
            // SAFETY: by invariant 2 the range lies in the region; by 3 nobody else touches it. The start
            // was checked, and the pattern is one byte or has the size of `T`. Any bytes are a `T: Pod`.
            unsafe { self.region.device().fill(self.address, bytes, pattern) }?;
        }
        Ok(())
    }
}

impl<'v, T: Pod, D: Device> From<ViewMut<'v, T, D>> for View<'v, T, D> {
    fn from(view: ViewMut<'v, T, D>) -> Self {
        // SAFETY: 1 and 2 are the same. 3: the exclusive access is given up for it.
        unsafe { Self::new(view.address, view.len, view.region) }
    }
}

impl<T, D: Device> fmt::Debug for ViewMut<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ViewMut<{}; {}>@{:#x}", std::any::type_name::<T>(), self.len, self.address)
    }
}
