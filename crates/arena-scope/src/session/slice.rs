//! The buffers of a session, and parts of them, in cudarc's calls.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;
use std::sync::Arc;

use arena_core::cudarc::driver::sys::CUdeviceptr;
use arena_core::cudarc::driver::{CudaContext, CudaStream, DeviceRepr};
use arena_core::for_scopes::{Detached, Region};
use arena_core::{Cuda, Error, Persistent, Pod, in_cudarc_calls};

use super::{Inner, Session};

/// A buffer of a [`Session`]: what a program has in place of a `CudaSlice`. It goes into cudarc's copies, memsets,
/// launches and cuBLAS.
///
/// It is persistent, or of the step in which it was made. Dropping it calls no driver: a dropped persistent buffer
/// gives its bytes back at the next close, and one of a step under a plan at once.
///
/// # Panics
///
/// Each use of a buffer whose step has ended panics, with both steps in the message: cudarc's calls on a buffer return
/// no error that could say so.
pub struct SessionSlice<T> {
    /// A launch reads its argument from here.
    address: CUdeviceptr,
    len: usize,
    pub(super) buffer: Buffer<T>,
    pub(super) session: Rc<Inner>,
}

pub(super) enum Buffer<T> {
    OfStep(Detached<T>),
    Kept(Persistent<T, Cuda>),
}

/// A part of a [`SessionSlice`], for reading: what a program has in place of a `CudaView`.
pub struct SessionView<'b, T> {
    pub(super) address: CUdeviceptr,
    pub(super) len: usize,
    pub(super) whole: &'b SessionSlice<T>,
}

/// A part of a [`SessionSlice`], for writing: what a program has in place of a `CudaViewMut`.
pub struct SessionViewMut<'b, T> {
    pub(super) address: CUdeviceptr,
    pub(super) len: usize,
    pub(super) whole: &'b SessionSlice<T>,
    exclusive: PhantomData<&'b mut [T]>,
}

impl<T> SessionSlice<T> {
    /// Elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all elements.
    #[must_use]
    pub const fn num_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The session's stream.
    #[must_use]
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.session.stream
    }

    /// The context of the session's stream.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        self.session.stream.context()
    }

    /// The number of the device.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.context().ordinal()
    }

    /// Whether it outlives steps.
    #[must_use]
    pub const fn is_persistent(&self) -> bool {
        matches!(self.buffer, Buffer::Kept(_))
    }

    fn part(&self, range: &impl RangeBounds<usize>) -> Option<(CUdeviceptr, usize)> {
        part::<T>(self.address, self.len, range)
    }
}

impl<T: Pod> SessionSlice<T> {
    pub(super) fn of_step(session: &Rc<Inner>, buffer: Detached<T>) -> Self {
        let (address, len, session) = (buffer.address(), buffer.len(), Rc::clone(session));
        Self { address, len, buffer: Buffer::OfStep(buffer), session }
    }

    pub(super) fn kept(session: &Rc<Inner>, buffer: Persistent<T, Cuda>) -> Self {
        let (address, len, session) = (buffer.address(), buffer.len(), Rc::clone(session));
        Self { address, len, buffer: Buffer::Kept(buffer), session }
    }

    /// That it can be used now.
    #[inline]
    #[track_caller]
    fn check(&self) {
        if let Buffer::OfStep(buffer) = &self.buffer
            && let Err(error) = self.session.check(buffer)
        {
            panic!("{error}");
        }
    }

    /// A copy, made in the open step, or persistent if none is open.
    ///
    /// # Errors
    ///
    /// As for [`Session::clone_dtod`].
    #[track_caller]
    pub fn try_clone(&self) -> Result<Self, Error>
    where
        T: DeviceRepr,
    {
        Session { inner: Rc::clone(&self.session) }.clone_dtod(self)
    }

    /// The whole buffer, for reading.
    #[must_use]
    pub fn as_view(&self) -> SessionView<'_, T> {
        SessionView { address: self.address, len: self.len, whole: self }
    }

    /// The whole buffer, for writing.
    #[must_use]
    pub fn as_view_mut(&mut self) -> SessionViewMut<'_, T> {
        let (address, len) = (self.address, self.len);
        SessionViewMut { address, len, whole: self, exclusive: PhantomData }
    }

    /// The elements of `range`, for reading.
    ///
    /// # Panics
    ///
    /// If the range is not inside the buffer, as cudarc's does.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> SessionView<'_, T> {
        self.try_slice(range).expect(OUT_OF_RANGE)
    }

    /// The elements of `range`, for reading; `None` if it is not inside the buffer.
    #[must_use]
    pub fn try_slice(&self, range: impl RangeBounds<usize>) -> Option<SessionView<'_, T>> {
        let (address, len) = self.part(&range)?;
        Some(SessionView { address, len, whole: self })
    }

    /// The elements of `range`, for writing.
    ///
    /// # Panics
    ///
    /// If the range is not inside the buffer, as cudarc's does.
    #[must_use]
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> SessionViewMut<'_, T> {
        self.try_slice_mut(range).expect(OUT_OF_RANGE)
    }

    /// The elements of `range`, for writing; `None` if it is not inside the buffer.
    #[must_use]
    pub fn try_slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Option<SessionViewMut<'_, T>> {
        let (address, len) = self.part(&range)?;
        Some(SessionViewMut { address, len, whole: self, exclusive: PhantomData })
    }

    /// Two parts, for writing: the elements before `mid`, and the elements from `mid` on.
    ///
    /// # Panics
    ///
    /// If `mid` is larger than the length, as cudarc's does.
    #[must_use]
    pub fn split_at_mut(&mut self, mid: usize) -> (SessionViewMut<'_, T>, SessionViewMut<'_, T>) {
        let parts = self.part(&(..mid)).zip(self.part(&(mid..)));
        let (left, right) = parts.expect(OUT_OF_RANGE);
        let whole = &*self;
        let view = |(address, len)| SessionViewMut { address, len, whole, exclusive: PhantomData };
        (view(left), view(right))
    }
}

const OUT_OF_RANGE: &str = "the range is not inside the buffer";

/// The start and the length of a part.
fn part<T>(
    address: CUdeviceptr,
    len: usize,
    range: &impl RangeBounds<usize>,
) -> Option<(CUdeviceptr, usize)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1)?,
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    // The buffer's bytes are in range, and so are those of a part.
    (start <= end && end <= len).then(|| (address + (start * size_of::<T>()) as u64, end - start))
}

impl<T: Pod> SessionSlice<T> {
    fn region(&self) -> &Region<Cuda> {
        &self.session.region
    }

    /// Where the address lies, while the buffer can be used.
    #[inline]
    #[track_caller]
    fn address_ref(&self) -> &CUdeviceptr {
        self.check();
        &self.address
    }
}

macro_rules! part_of_a_slice {
    ($view:ident) => {
        impl<T: Pod> $view<'_, T> {
            /// Elements.
            #[must_use]
            pub const fn len(&self) -> usize {
                self.len
            }

            /// Whether there is no element.
            #[must_use]
            pub const fn is_empty(&self) -> bool {
                self.len == 0
            }

            fn region(&self) -> &Region<Cuda> {
                self.whole.region()
            }

            #[inline]
            #[track_caller]
            fn address_ref(&self) -> &CUdeviceptr {
                self.whole.check();
                &self.address
            }
        }

        impl<T> fmt::Debug for $view<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let (len, address) = (self.len, self.address);
                write!(f, "{}<{len}>@{address:#x} of {:?}", stringify!($view), self.whole)
            }
        }
    };
}

part_of_a_slice!(SessionView);
part_of_a_slice!(SessionViewMut);

in_cudarc_calls!(read: SessionSlice<T>, SessionView<'_, T>, SessionViewMut<'_, T>);
in_cudarc_calls!(write: SessionSlice<T>, SessionViewMut<'_, T>);

impl<T> fmt::Debug for SessionSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.buffer {
            Buffer::OfStep(buffer) => write!(f, "SessionSlice{buffer:?}"),
            Buffer::Kept(buffer) => write!(f, "SessionSlice of {buffer:?}"),
        }
    }
}
