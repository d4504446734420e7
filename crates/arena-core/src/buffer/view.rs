//! Borrowed buffers: what layers and kernels take.
//!
//! A view is to a buffer what a slice is to a `Vec`. Its fields are private to this module, and the
//! two constructors are `unsafe`, so every view keeps the invariants that its proofs rest on.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use bytemuck::Pod;

use crate::bytes::Alignment;
use crate::device::{Device, Host, HostVisible, Pattern};
use crate::error::{Error, ErrorKind};
use crate::fence::UNTIL_THE_ROOT_CLOSES;
use crate::layout::{RowLayout, equal_parts};
use crate::region::Region;

/// Shared access to `len` elements of `T` in device memory.
///
/// # Invariants
///
/// 1. `address` is a multiple of the alignment of `T`, and not zero.
/// 2. The `len` elements from there on lie inside `region`, or `len` is zero.
/// 3. For `'v` nobody writes them, except work that was queued on the arena's stream before.
pub struct View<'v, T, D: Device = Host> {
    address: u64,
    len: usize,
    region: &'v Region<D>,
    elements: PhantomData<&'v [T]>,
}

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

impl<T, D: Device> Clone for View<'_, T, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, D: Device> Copy for View<'_, T, D> {}

impl<'v, T: Pod, D: Device> View<'v, T, D> {
    /// # Safety
    ///
    /// The invariants of [`View`], by number.
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

    /// Bytes of all elements.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let x = arena.persistent_from(&[1.0_f32, 2.0, 3.0])?;
    /// assert_eq!((x.view().len(), x.view().len_bytes()), (3, 12));
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        // In range by invariant 2.
        self.len as u64 * size_of::<T>() as u64
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

    /// Tells a recording that the buffer is used here. All other methods that read the elements do it by
    /// themselves. A stand-in for a kernel that computes nothing, on a [`Probe`](crate::Probe), calls it for each
    /// operand, so that a view that was taken earlier counts as used by the kernel.
    ///
    /// If the step is not recorded, it does nothing.
    #[inline]
    #[track_caller]
    pub fn mark_used(&self) {
        self.region.uses().note_used(self.address, self.len_bytes());
    }

    pub(crate) fn region(&self) -> &'v Region<D> {
        self.region
    }

    /// Whether the address is a multiple of `alignment`. A view that starts in the middle of a buffer may be
    /// less aligned than the buffer.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let x = arena.persistent_from(&[0.0_f32; 8])?;
    /// let sixteen = Alignment::new(16)?;
    /// assert!(x.view().is_aligned(sixteen));
    /// assert!(!x.view().range(1..)?.is_aligned(sixteen)); // starts 4 bytes later
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    pub fn is_aligned(&self, alignment: Alignment) -> bool {
        alignment.divides(self.address)
    }

    /// This view, if its address is a multiple of `alignment_bytes`. A layer or a launch calls it before a kernel
    /// that needs the alignment: a kernel with vector loads on another address breaks the CUDA context. The
    /// alignments that kernels and libraries need have names, such as [`Alignment::VECTOR_LOAD`].
    ///
    /// A whole buffer has the alignment of its request; a view that starts in its middle may have less.
    ///
    /// ```
    /// use arena_core::{ByteSize, ErrorKind, Host, RawArena};
    ///
    /// let arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let x = arena.persistent_from(&[1.0_f32; 9])?;
    /// assert_eq!(x.view().aligned(16)?.len(), 9);
    /// let error = x.view().range(1..)?.aligned(16).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::Misaligned { .. }));
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misaligned`] with the address and the alignment; [`ErrorKind::BadAlignment`] when
    /// `alignment_bytes` is not a power of two.
    pub fn aligned(self, alignment_bytes: u64) -> Result<Self, Error> {
        check_aligned(self.address, alignment_bytes)?;
        Ok(self)
    }

    /// The elements of `range`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] when the range is not inside the view.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let x = arena.persistent_from(&[1, 2, 3, 4])?;
    /// assert_eq!(x.view().range(1..3)?.as_slice(), [2, 3]);
    /// assert!(x.view().range(2..5).is_err());
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<Self, Error> {
        self.mark_used();
        let (start, len) = resolve(&range, self.len)?;
        // SAFETY: 1 and 2: a part of a range inside the region, a whole number of elements from an
        // aligned start. 3: held for the whole.
        Ok(unsafe { Self::new(self.address + offset_bytes::<T>(start), len, self.region) })
    }

    /// Two views: the elements before `mid`, and the elements from `mid` on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] when `mid` is larger than the length.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let x = arena.persistent_from(&[1, 2, 3])?;
    /// let (left, right) = x.view().split_at(1)?;
    /// assert_eq!((left.as_slice(), right.as_slice()), (&[1][..], &[2, 3][..]));
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn split_at(&self, mid: usize) -> Result<(Self, Self), Error> {
        Ok((self.range(..mid)?, self.range(mid..)?))
    }

    /// `parts` views of equal length, each of which starts at a multiple of `alignment`. Elements at the end that
    /// do not fill a part are left over.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadParts`] when a part would be empty, or when this view itself is not aligned.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let x = arena.persistent_from(&[1_u8, 2, 3, 4, 5])?;
    /// let parts: Vec<_> = x.view().parts(2, Alignment::ONE)?.map(|part| part.as_slice()).collect();
    /// assert_eq!(parts, [[1, 2], [3, 4]]); // 5 is left over
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn parts(
        self,
        parts: usize,
        alignment: Alignment,
    ) -> Result<impl Iterator<Item = Self>, Error> {
        self.mark_used();
        let part = self.part_len(parts, alignment)?;
        let at = move |n: usize| {
            // SAFETY: 1 and 2: `parts` pieces of `part` elements lie inside this view. 3: held for
            // the whole.
            unsafe { Self::new(self.address + offset_bytes::<T>(n * part), part, self.region) }
        };
        Ok((0..parts).map(at))
    }

    fn part_len(&self, parts: usize, alignment: Alignment) -> Result<usize, Error> {
        if !self.is_aligned(alignment) {
            let (len, parts) = (self.len as u64, parts as u64);
            return Err(ErrorKind::BadParts { len, parts, alignment }.into());
        }
        equal_parts::<T>(self.len, parts, alignment)
    }

    /// One row of a buffer with this layout, without its padding.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfBounds`] when there is no such row; [`ErrorKind::ElementMismatch`] when
    /// the layout is for other elements.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena, RowLayout};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let layout = RowLayout::new::<u8>(2, 3, Alignment::new(4)?)?; // rows start 4 bytes apart
    /// let image = arena.persistent_from(&[1_u8, 2, 3, 0, 4, 5, 6, 0])?;
    /// assert_eq!(image.view().row(&layout, 1)?.as_slice(), [4, 5, 6]);
    /// assert!(image.view().row(&layout, 2).is_err());
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn row(&self, layout: &RowLayout, row: usize) -> Result<Self, Error> {
        self.range(row_range::<T>(layout, row)?)
    }

    /// A copy of the elements in host memory. It waits for the work queued on the arena's stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`] when the device refuses the copy, or an error that an earlier close left
    /// behind.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let x = arena.persistent_from(&[1.0_f32, 2.0])?;
    /// assert_eq!(x.view().to_vec()?, vec![1.0, 2.0]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        let mut host = vec![T::zeroed(); self.len];
        self.read_into(&mut host)?;
        Ok(host)
    }

    /// Copies the elements to host memory. It waits for the work queued on the arena's stream.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`] when the lengths differ; [`ErrorKind::Device`] when the device
    /// refuses the copy; or an error that an earlier close left behind.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let x = arena.persistent_from(&[1.0_f32, 2.0])?;
    /// let mut host = [0.0; 2];
    /// x.view().read_into(&mut host)?;
    /// assert_eq!(host, [1.0, 2.0]);
    /// assert!(x.view().read_into(&mut [0.0; 3]).is_err()); // another length
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[track_caller]
    pub fn read_into(&self, host: &mut [T]) -> Result<(), Error> {
        self.mark_used();
        same_len(host.len(), self.len)?;
        self.region.check()?;
        if self.len_bytes() > 0 {
            let bytes = bytemuck::cast_slice_mut(host);
            let _work = self.region.begin_work()?;
            // SAFETY: by invariant 2 the range lies in the region, and has as many bytes as the
            // slice; by 3 nobody writes it outside the stream.
            unsafe { self.region.device().copy_out(bytes, self.address) }?;
        }
        Ok(())
    }
}

impl<'v, T: Pod, D: Device> View<'v, T, D> {
    /// The elements as a slice.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let x = arena.persistent_from(&[1.0_f32, 2.0])?;
    /// assert_eq!(x.view().as_slice().iter().sum::<f32>(), 3.0);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn as_slice(&self) -> &'v [T]
    where
        D: HostVisible,
    {
        self.mark_used();
        self.elements()
    }

    /// [`as_slice`](Self::as_slice), and no recording is told.
    pub(crate) fn elements(&self) -> &'v [T]
    where
        D: HostVisible,
    {
        // SAFETY: `D` keeps the duties.
        unsafe { self.slice() }
    }

    /// The elements as a slice on a device whose memory the host can use, and `None` on any other: on a probe, and
    /// on a GPU. So a step that is generic over the device can compute on the host, and is skipped where only
    /// its sizes are wanted.
    ///
    /// ```
    /// use arena_core::{ByteSize, Device, Error, Host, Probe, RawArena};
    ///
    /// fn sum<D: Device>(device: D) -> Result<Option<f32>, Error> {
    ///     let arena = RawArena::new(device, ByteSize::kib(4))?;
    ///     let x = arena.persistent_from(&[1.0_f32, 2.0])?;
    ///     Ok(x.host().map(|values| values.iter().sum()))
    /// }
    /// assert_eq!(sum(Host::new())?, Some(3.0));
    /// assert_eq!(sum(Probe::new())?, None);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn host(&self) -> Option<&'v [T]> {
        self.mark_used();
        self.host_elements()
    }

    /// [`host`](Self::host), and no recording is told.
    pub(crate) fn host_elements(&self) -> Option<&'v [T]> {
        // SAFETY: a device that says so keeps the duties, by its own duty 2.
        D::HOST_VISIBLE.then(|| unsafe { self.slice() })
    }

    /// # Safety
    ///
    /// The device keeps the duties of [`HostVisible`].
    unsafe fn slice(&self) -> &'v [T] {
        let start = std::ptr::with_exposed_provenance::<T>(host_address(self.address));
        // SAFETY: the device is host visible, so addresses in its region can be dereferenced and
        // are initialised; aligned by 1, in range by 2, not written for `'v` by 3, since the
        // device's calls are done when they return. Any bytes are a `T: Pod`.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }
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

    fn shared(&self) -> View<'_, T, D> {
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

    fn again(&mut self) -> ViewMut<'_, T, D> {
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
    /// [`ErrorKind::OutOfBounds`] when the range is not inside the view.
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
    /// [`ErrorKind::OutOfBounds`] when `mid` is larger than the length.
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
    /// [`ErrorKind::OutOfBounds`] when there is no such row; [`ErrorKind::ElementMismatch`] when
    /// the layout is for other elements.
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
    /// [`ErrorKind::LengthMismatch`] when the lengths differ; [`ErrorKind::Device`] when the device
    /// refuses the copy.
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
    /// As for [`write`](Self::write); or [`ErrorKind::WrongDevice`] when the streams of the two devices cannot be
    /// ordered.
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
        same_len(from.len, self.len)?;
        let bytes = from.len_bytes();
        if bytes > 0 {
            let device = self.region.device();
            // In one order for all threads, and once if it is one region: a pause may wait to begin between the two.
            let mut regions = [self.region, from.region];
            regions.sort_by_key(|region| std::ptr::from_ref(*region));
            let _first = regions[0].begin_work()?;
            let mut second = None;
            if !std::ptr::eq(self.region, from.region) {
                second = regions[1].begin_work()?;
                // The copy runs on this arena's stream, which the other arena must know of.
                from.region.declare(device.stream(), UNTIL_THE_ROOT_CLOSES)?;
            }
            let (to, from) = (self.address, from.address);
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
    /// [`ErrorKind::Device`] when the device refuses the fill.
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
    /// [`ErrorKind::Device`] when the device refuses the fill.
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
    /// [`ErrorKind::Device`] when the device refuses the fill; [`ErrorKind::Misaligned`] when the view does
    /// not start at a multiple of the element's size, which is possible for types like `[u8; 4]`.
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

impl<'v, T: Pod, D: Device> ViewMut<'v, T, D> {
    /// The elements as a slice.
    #[must_use]
    #[track_caller]
    pub fn as_slice(&self) -> &[T]
    where
        D: HostVisible,
    {
        self.mark_used();
        self.shared().elements()
    }

    /// The elements as a mutable slice.
    #[must_use]
    #[track_caller]
    pub fn as_mut_slice(&mut self) -> &mut [T]
    where
        D: HostVisible,
    {
        self.mark_used();
        self.again().into_elements()
    }

    /// The elements as a mutable slice with the lifetime of this access.
    ///
    /// ```
    /// # use arena_core::{ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let mut x = arena.persistent_from(&[1, 2])?;
    /// x.view_mut().into_mut_slice().reverse();
    /// assert_eq!(x.as_slice(), [2, 1]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn into_mut_slice(self) -> &'v mut [T]
    where
        D: HostVisible,
    {
        self.mark_used();
        self.into_elements()
    }

    /// [`into_mut_slice`](Self::into_mut_slice), and no recording is told.
    pub(crate) fn into_elements(self) -> &'v mut [T]
    where
        D: HostVisible,
    {
        // SAFETY: `D` keeps the duties.
        unsafe { self.mut_slice() }
    }

    /// The elements as a slice on a device whose memory the host can use, and `None` on any other: see
    /// [`View::host`].
    #[must_use]
    #[track_caller]
    pub fn host(&self) -> Option<&[T]> {
        self.mark_used();
        self.shared().host_elements()
    }

    /// The elements as a mutable slice on a device whose memory the host can use, and `None` on any other: see
    /// [`View::host`].
    ///
    /// ```
    /// use arena_core::{ByteSize, Device, Error, Host, Probe, RawArena, ViewMut};
    ///
    /// fn double<D: Device>(mut x: ViewMut<'_, f32, D>) {
    ///     for value in x.host_mut().into_iter().flatten() {
    ///         *value *= 2.0;
    ///     }
    /// }
    /// let arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let mut x = arena.persistent_from(&[1.0_f32, 2.0])?;
    /// double(x.view_mut());
    /// assert_eq!(x.as_slice(), [2.0, 4.0]);
    /// # let probe = RawArena::new(Probe::new(), ByteSize::kib(4))?;
    /// # double(probe.persistent_from(&[1.0_f32])?.view_mut());
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn host_mut(&mut self) -> Option<&mut [T]> {
        self.mark_used();
        self.again().into_host_elements()
    }

    /// [`host_mut`](Self::host_mut) with the lifetime of this access.
    #[must_use]
    #[track_caller]
    pub fn into_host_mut(self) -> Option<&'v mut [T]> {
        self.mark_used();
        self.into_host_elements()
    }

    /// [`into_host_mut`](Self::into_host_mut), and no recording is told.
    pub(crate) fn into_host_elements(self) -> Option<&'v mut [T]> {
        // SAFETY: a device that says so keeps the duties, by its own duty 2.
        D::HOST_VISIBLE.then(|| unsafe { self.mut_slice() })
    }

    /// # Safety
    ///
    /// The device keeps the duties of [`HostVisible`].
    unsafe fn mut_slice(self) -> &'v mut [T] {
        let start = std::ptr::with_exposed_provenance_mut::<T>(host_address(self.address));
        // SAFETY: the device is host visible, so addresses in its region can be dereferenced and
        // are initialised; aligned by 1, in range by 2, nobody else's for `'v` by 3, since the
        // device's calls are done when they return. Any bytes are a `T: Pod`.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }
}

impl<'v, T: Pod, D: Device> From<ViewMut<'v, T, D>> for View<'v, T, D> {
    fn from(view: ViewMut<'v, T, D>) -> Self {
        // SAFETY: 1 and 2 are the same. 3: the exclusive access is given up for it.
        unsafe { Self::new(view.address, view.len, view.region) }
    }
}

macro_rules! debug_like_a_buffer {
    ($view:ident) => {
        impl<T, D: Device> fmt::Debug for $view<'_, T, D> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let element = std::any::type_name::<T>();
                write!(f, "{}<{element}; {}>@{:#x}", stringify!($view), self.len, self.address)
            }
        }
    };
}
debug_like_a_buffer!(View);
debug_like_a_buffer!(ViewMut);

/// Bytes before element `index` of a buffer that has at least so many: in range by invariant 2.
const fn offset_bytes<T>(index: usize) -> u64 {
    index as u64 * size_of::<T>() as u64
}

#[expect(clippy::cast_possible_truncation, reason = "a `usize` has 64 bits, see the crate's root")]
const fn host_address(address: u64) -> usize {
    address as usize
}

fn resolve(range: &impl RangeBounds<usize>, len: usize) -> Result<(usize, usize), Error> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok((start, end - start)),
        _ => Err(ErrorKind::OutOfBounds {
            start: start.map_or(u64::MAX, |start| start as u64),
            end: end.map_or(u64::MAX, |end| end as u64),
            len: len as u64,
        }
        .into()),
    }
}

fn check_aligned(address: u64, alignment_bytes: u64) -> Result<(), Error> {
    let alignment = Alignment::new(alignment_bytes)?;
    if alignment.divides(address) {
        return Ok(());
    }
    Err(ErrorKind::Misaligned { address, alignment }.into())
}

fn row_range<T>(layout: &RowLayout, row: usize) -> Result<std::ops::Range<usize>, Error> {
    layout.check_element::<T>()?;
    if row >= layout.rows() {
        let row = row as u64;
        let rows = layout.rows() as u64;
        return Err(ErrorKind::OutOfBounds { start: row, end: row + 1, len: rows }.into());
    }
    let start = row * layout.pitch();
    Ok(start..start + layout.columns())
}

fn same_len(given: usize, expected: usize) -> Result<(), Error> {
    if given == expected {
        return Ok(());
    }
    Err(ErrorKind::LengthMismatch { expected: expected as u64, given: given as u64 }.into())
}
