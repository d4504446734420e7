//! Borrowed buffers: what layers and kernels take.
//!
//! A view is to a buffer what a slice is to a `Vec`. Its fields are private to this module, and the
//! constructor is `unsafe`, so every view keeps the invariants that its proofs rest on.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use bytemuck::Pod;

use super::part::{check_aligned, offset_bytes, resolve, row_range, same_len};
use crate::bytes::Alignment;
use crate::device::{Device, Host};
use crate::error::{Error, ErrorKind};
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

    /// [`address`](Self::address), and no recording is told.
    pub(super) const fn start(&self) -> u64 {
        self.address
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

    pub(super) fn part_len(&self, parts: usize, alignment: Alignment) -> Result<usize, Error> {
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

impl<T, D: Device> fmt::Debug for View<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View<{}; {}>@{:#x}", std::any::type_name::<T>(), self.len, self.address)
    }
}
