//! Views as slices, on a device whose memory the host can use.

use bytemuck::Pod;

use super::{View, ViewMut};
use crate::device::{Device, HostVisible};

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
        let start = std::ptr::with_exposed_provenance::<T>(host_address(self.start()));
        // SAFETY: the device is host visible, so addresses in its region can be dereferenced and
        // are initialised; aligned by 1, in range by 2, not written for `'v` by 3, since the
        // device's calls are done when they return. Any bytes are a `T: Pod`.
        unsafe { std::slice::from_raw_parts(start, self.len()) }
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
        let start = std::ptr::with_exposed_provenance_mut::<T>(host_address(self.start()));
        // SAFETY: the device is host visible, so addresses in its region can be dereferenced and
        // are initialised; aligned by 1, in range by 2, nobody else's for `'v` by 3, since the
        // device's calls are done when they return. Any bytes are a `T: Pod`.
        unsafe { std::slice::from_raw_parts_mut(start, self.len()) }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a `usize` has 64 bits, see the crate's root")]
const fn host_address(address: u64) -> usize {
    address as usize
}
