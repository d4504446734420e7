//! Lending a buffer as a slice of other elements: complex numbers as the types of cuFFT, bytes as `bool`.
//!
//! A slice of cudarc's is more than an address: safe code copies its elements to the host. So the bytes have to be values
//! of the type that they are lent as.
//!
//! Every byte is a `u8`, and only 0 and 1 are a `bool`. A type for masks could not keep that: the arena's buffers hold
//! [`Pod`]s, whose bytes may be anything. So a mask is lent together with what makes it one, a fill or an upload, or by
//! `unsafe` code. While it is lent, safe calls of cudarc write only values of `bool` there. Work that was queued before,
//! on whatever stream, might write other bytes late; so the fill is queued behind all of it.

use bytemuck::Pod;
use cudarc::cufft::sys::{double2, float2};
use static_assertions::{assert_eq_size, const_assert_eq};

use super::lending::{Lent, LentMut, lend, lend_mut};
use crate::buffer::{View, ViewMut};
use crate::device::Cuda;
use crate::error::{DeviceError, Error};

/// Elements that may be lent as elements of type `U`, for reading and for writing.
///
/// # Safety
///
/// 1. Both types have the same size.
/// 2. The bytes of each value of the one are a value of the other. So `U` has no padding, as `Self` has none.
pub unsafe trait LendAs<U: Copy + Send + Sync + 'static>: Pod {}

macro_rules! complex {
    ($real:ty, $vector:ty) => {
        assert_eq_size!([$real; 2], $vector);
        const_assert_eq!(std::mem::offset_of!($vector, x), 0);
        const_assert_eq!(std::mem::offset_of!($vector, y), size_of::<$real>());

        // SAFETY: 1 and 2: both are two floats without padding, as asserted above.
        unsafe impl LendAs<$vector> for [$real; 2] {}

        #[cfg(feature = "num-complex")]
        const _: () = {
            use num_complex::Complex;

            assert_eq_size!(Complex<$real>, $vector);
            const_assert_eq!(std::mem::offset_of!(Complex<$real>, re), 0);
            const_assert_eq!(std::mem::offset_of!(Complex<$real>, im), size_of::<$real>());

            // SAFETY: as above. The real part comes first in both.
            unsafe impl LendAs<$vector> for Complex<$real> {}
        };
    };
}

complex!(f32, float2);
complex!(f64, double2);

impl<'v, T: Pod> View<'v, T, Cuda> {
    /// Lends the elements to code that takes a `&CudaSlice<U>`, such as cudarc's cuFFT.
    ///
    /// ```no_run
    /// use arena_core::cudarc::cufft::{CudaFft, FftDirection, sys::{cufftType, float2}};
    /// use arena_core::{Alignment, ByteSize, Cuda, RawArena};
    ///
    /// let arena = RawArena::new(Cuda::new(0)?, ByteSize::mib(1))?;
    /// let plan = CudaFft::plan_1d(8, cufftType::CUFFT_C2C, 1, arena.device().stream().clone()).unwrap();
    /// let mut x = arena.transient_from(&[[1.0_f32, 0.0]; 8], Alignment::DEFAULT)?; // or `Complex<f32>`s
    /// let mut y = arena.transient::<[f32; 2]>(8, Alignment::DEFAULT)?;
    /// let (mut from, mut to) = (x.view_mut().lend_mut_as::<float2>()?, y.view_mut().lend_mut_as::<float2>()?);
    /// plan.exec_c2c(&mut from.view_mut(), &mut to.view_mut(), FftDirection::Forward).unwrap();
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    ///
    /// Bytes are not lent as `bool`s this way, for not each of them is one:
    ///
    /// ```compile_fail,E0277
    /// # use arena_core::{ByteSize, Cuda, RawArena};
    /// # let arena = RawArena::new(Cuda::new(0).unwrap(), ByteSize::mib(1)).unwrap();
    /// let x = arena.persistent_from(&[7_u8]).unwrap();
    /// x.view().lend_as::<bool>();
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`lend`](Self::lend); [`ErrorKind::Misaligned`](crate::ErrorKind::Misaligned) where the view is less
    /// aligned than a `U` has to be.
    #[track_caller]
    pub fn lend_as<U: Copy + Send + Sync + 'static>(self) -> Result<Lent<'v, U>, Error>
    where
        T: LendAs<U>,
    {
        let view = self.aligned(align_of::<U>() as u64)?;
        // SAFETY: 1 was checked; 2 and 3 of `View` hold, for `U` has the size of `T`. The bytes are values of `U`, by what
        // `LendAs` promises.
        unsafe { lend(view.region(), view.address(), view.len()) }
    }
}

impl<'v, T: Pod> ViewMut<'v, T, Cuda> {
    /// Lends the elements to code that writes a `CudaViewMut<U>`; see [`View::lend_as`].
    ///
    /// # Errors
    ///
    /// As for [`View::lend_as`].
    #[track_caller]
    pub fn lend_mut_as<U: Copy + Send + Sync + 'static>(self) -> Result<LentMut<'v, U>, Error>
    where
        T: LendAs<U>,
    {
        let view = View::from(self.aligned(align_of::<U>() as u64)?);
        // SAFETY: as above, of a `ViewMut` that was given up. Each value of `U` may be written there: its bytes are a `T`.
        unsafe { lend_mut(view.region(), view.address(), view.len()) }
    }
}

impl<'v> View<'v, u8, Cuda> {
    /// Lends a mask to code that takes a `&CudaSlice<bool>`.
    ///
    /// # Safety
    ///
    /// Each byte is 0 or 1 when the slice is used, as after [`ViewMut::lend_mask`].
    ///
    /// # Errors
    ///
    /// As for [`lend`](Self::lend).
    #[track_caller]
    pub unsafe fn lend_as_mask(self) -> Result<Lent<'v, bool>, Error> {
        // SAFETY: 1 to 3 of `View` hold, for a `bool` has the size of a byte. The bytes are the caller's promise.
        unsafe { lend(self.region(), self.address(), self.len()) }
    }
}

impl<'v> ViewMut<'v, u8, Cuda> {
    /// What is queued on the arena's stream from now on comes after all that any stream may be writing now.
    fn wait_for_writers(&self) -> Result<(), DeviceError> {
        self.region().device().wait_for_every_stream()
    }

    /// Fills the buffer with `false`, and lends it to code that reads or writes `bool`s.
    ///
    /// ```no_run
    /// use arena_core::{Alignment, ByteSize, Cuda, RawArena};
    ///
    /// let arena = RawArena::new(Cuda::new(0)?, ByteSize::mib(1))?;
    /// let mut mask = arena.transient::<u8>(100, Alignment::DEFAULT)?;
    /// let lent = mask.view_mut().lend_zeroed_mask()?;
    /// assert!(!lent.stream().clone_dtoh(&*lent).unwrap()[99]);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`View::lend`]; or the device's refusal of the fill. It is refused in a capture.
    #[track_caller]
    pub fn lend_zeroed_mask(mut self) -> Result<LentMut<'v, bool>, Error> {
        self.wait_for_writers()?;
        self.zero()?;
        // SAFETY: nobody else has access, and what was queued before has ended before the fill.
        unsafe { self.lend_mut_as_mask() }
    }

    /// Copies `values` in, and lends the buffer to code that reads or writes `bool`s.
    ///
    /// # Errors
    ///
    /// As for [`lend_zeroed_mask`](Self::lend_zeroed_mask);
    /// [`ErrorKind::LengthMismatch`](crate::ErrorKind::LengthMismatch) when there are fewer or more values than elements.
    #[track_caller]
    pub fn lend_mask(mut self, values: &[bool]) -> Result<LentMut<'v, bool>, Error> {
        self.wait_for_writers()?;
        self.write(bytemuck::cast_slice(values))?;
        // SAFETY: as above; the copy was queued, or has ended.
        unsafe { self.lend_mut_as_mask() }
    }

    /// Lends a mask to code that reads or writes `bool`s.
    ///
    /// # Safety
    ///
    /// As for [`View::lend_as_mask`].
    ///
    /// # Errors
    ///
    /// As for [`View::lend`].
    #[track_caller]
    pub unsafe fn lend_mut_as_mask(self) -> Result<LentMut<'v, bool>, Error> {
        let view = View::from(self);
        // SAFETY: 1 to 3 of `ViewMut`, which was given up, hold; the bytes are the caller's promise. Every `bool` is a byte.
        unsafe { lend_mut(view.region(), view.address(), view.len()) }
    }
}
