//! Lending a session's buffer to code that takes cudarc's own slices.

use std::ops::Deref;
use std::rc::Rc;

use arena_core::cuda::{Lent, LentMut};
use arena_core::cudarc::driver::{CudaSlice, CudaViewMut};
use arena_core::for_scopes::{lend, lend_mut};
use arena_core::{Error, Pod};

use super::slice::Buffer;
use super::{Inner, SessionSlice, SessionView, SessionViewMut};

/// A session's buffer that is lent for reading: it goes where a `&CudaSlice<T>` of cudarc's is wanted. See
/// [`Lent`](crate::cuda::Lent).
///
/// Its step does not close before this is dropped.
#[derive(Debug)]
pub struct SessionLent<'b, T: Pod> {
    lent: Lent<'b, T>,
    _open: Option<StaysOpen>,
}

/// A session's buffer that is lent for reading and writing. See [`LentMut`](crate::cuda::LentMut).
///
/// Its step does not close before this is dropped.
#[derive(Debug)]
pub struct SessionLentMut<'b, T: Pod> {
    lent: LentMut<'b, T>,
    _open: Option<StaysOpen>,
}

/// As long as it exists, no scope of its session closes.
struct StaysOpen(Rc<Inner>);

impl StaysOpen {
    fn new(session: &Rc<Inner>) -> Self {
        session.lent.set(session.lent.get() + 1);
        Self(Rc::clone(session))
    }
}

impl Drop for StaysOpen {
    fn drop(&mut self) {
        self.0.lent.set(self.0.lent.get() - 1);
        self.0.close_ended();
    }
}

impl std::fmt::Debug for StaysOpen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StaysOpen")
    }
}

impl<T: Pod> SessionSlice<T> {
    /// Lends the buffer to code that takes a `&CudaSlice<T>` of cudarc's.
    ///
    /// ```no_run
    /// use arena_scope::cuda::Session;
    /// use arena_scope::cudarc::driver::{CudaSlice, DriverError};
    ///
    /// /// Somebody's function.
    /// fn first(x: &CudaSlice<f32>) -> Result<f32, DriverError> {
    ///     Ok(x.stream().clone_dtoh(&x.slice(..1))?[0])
    /// }
    ///
    /// # fn step(stream: &Session) -> Result<(), arena_scope::Error> {
    /// let _step = stream.enter()?;
    /// let x = stream.clone_htod(&[0.5_f32; 100])?;
    /// assert_eq!(first(&*x.lend()?)?, 0.5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`View::lend`](crate::View::lend); [`ErrorKind::StaleBuffer`](crate::ErrorKind::StaleBuffer) when the
    /// step that made the buffer has ended.
    #[track_caller]
    pub fn lend(&self) -> Result<SessionLent<'_, T>, Error> {
        self.as_view().lend()
    }

    /// Lends the buffer to code that writes a `CudaViewMut<T>` of cudarc's.
    ///
    /// # Errors
    ///
    /// As for [`lend`](Self::lend).
    #[track_caller]
    pub fn lend_mut(&mut self) -> Result<SessionLentMut<'_, T>, Error> {
        self.as_view_mut().lend_mut()
    }

    /// What keeps the buffer's step open, if it is of one.
    #[track_caller]
    fn stays_open(&self) -> Result<Option<StaysOpen>, Error> {
        match &self.buffer {
            Buffer::OfStep(buffer) => {
                self.session.check(buffer)?;
                Ok(Some(StaysOpen::new(&self.session)))
            }
            Buffer::Kept(_) => Ok(None),
        }
    }
}

impl<'b, T: Pod> SessionView<'b, T> {
    /// Lends the elements to code that takes a `&CudaSlice<T>` of cudarc's, or a `CudaView` of it.
    ///
    /// # Errors
    ///
    /// As for [`SessionSlice::lend`].
    #[track_caller]
    pub fn lend(self) -> Result<SessionLent<'b, T>, Error> {
        let open = self.whole.stays_open()?;
        // SAFETY: the elements are a part of the buffer, which is borrowed shared for `'b`. Its scope is open, and none
        // closes as long as `open` is there, which is dropped after `lent`. Any bytes are a `T: Pod`.
        let lent = unsafe { lend(&self.whole.session.region, self.address, self.len) }?;
        Ok(SessionLent { lent, _open: open })
    }
}

impl<'b, T: Pod> SessionViewMut<'b, T> {
    /// Lends the elements to code that writes a `CudaViewMut<T>` of cudarc's.
    ///
    /// # Errors
    ///
    /// As for [`SessionSlice::lend`].
    #[track_caller]
    pub fn lend_mut(self) -> Result<SessionLentMut<'b, T>, Error> {
        let open = self.whole.stays_open()?;
        // SAFETY: as above; of two parts for writing, which do not overlap, this one is given up.
        let lent = unsafe { lend_mut(&self.whole.session.region, self.address, self.len) }?;
        Ok(SessionLentMut { lent, _open: open })
    }
}

impl<T: Pod> Deref for SessionLent<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.lent
    }
}

impl<T: Pod> SessionLentMut<'_, T> {
    /// The elements, for writing.
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.lent.view_mut()
    }

    /// The slice, for code that takes a `&mut CudaSlice<T>` of cudarc's.
    ///
    /// # Safety
    ///
    /// As for [`LentMut::as_mut_slice`]: the slice stays where it is.
    pub unsafe fn as_mut_slice(&mut self) -> &mut CudaSlice<T> {
        // SAFETY: the caller's promise.
        unsafe { self.lent.as_mut_slice() }
    }
}

/// The `LentMut` itself is not given out: taken out of a mutable reference, it would be used after its step.
impl<T: Pod> Deref for SessionLentMut<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.lent
    }
}
