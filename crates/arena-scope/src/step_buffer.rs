//! The second form of a step's buffer: without a lifetime, for the fields of existing programs.

use std::fmt;
use std::marker::PhantomData;

use arena_core::for_scopes::Detached;
use arena_core::{Device, Error, Host, Pod, Transient, View, ViewMut};

use crate::scope::Scope;

/// A transient buffer without a lifetime, for activations that a layer keeps in a field, or in a list that
/// lives across steps. [`Scope::alloc_owned`] makes one, and [`Scope::own`] makes one of a [`Transient`].
///
/// It is used through a scope: the one that made it, or one inside that. After that scope has ended, or with
/// another arena, each use is a typed error that names both scopes. So what a [`Transient`] gets from the
/// compiler costs this form one comparison at each use. Prefer a [`Transient`] where the program allows it.
///
/// It can be sent to another thread, and dropped anywhere at any time. Dropped inside its scope it counts like
/// any buffer: a recording learns from it that the buffer is dead, and a plan reuses its bytes. It keeps no
/// memory alive.
///
/// ```
/// use arena_scope::{Arena, ByteSize, ErrorKind, Host};
///
/// let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
/// let late = arena.scope(|step| {
///     let x = step.own(step.upload(&[1.0_f32, 2.0])?)?;
///     assert_eq!(x.view(step)?.as_slice(), [1.0, 2.0]);
///     step.scope(|inner| inner.read(x.view(inner)?))?; // inner scopes see it too
///     arena_scope::Ok(x)
/// })?;
/// arena.scope(|next_step| {
///     let refused = late.view(next_step).unwrap_err();
///     assert!(matches!(refused.kind(), ErrorKind::StaleBuffer { .. }));
///     arena_scope::Ok(())
/// })?;
/// # arena_scope::Ok(())
/// ```
pub struct StepBuffer<T, D: Device = Host> {
    buffer: Detached<T>,
    device: PhantomData<fn() -> D>,
}

impl<'s, D: Device> Scope<'s, '_, D> {
    /// [`alloc`](Self::alloc), without a lifetime: for the fields of a program that exists.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc).
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, StepBuffer};
    /// struct Layer { cached: Option<StepBuffer<f32>> } // no lifetime
    /// let mut layer = Layer { cached: None };
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.scope(|step| {
    ///     let mut input = step.alloc_owned(2)?;
    ///     input.view_mut(step)?.as_mut_slice().fill(0.5);
    ///     layer.cached = Some(input); // the forward pass keeps it, the backward pass reads it
    ///     let input = layer.cached.take().expect("forward ran");
    ///     assert_eq!(input.view(step)?.as_slice(), [0.5; 2]);
    ///     arena_scope::Ok(())
    /// })?;
    /// # arena_scope::Ok(())
    /// ```
    #[track_caller]
    pub fn alloc_owned<T: Pod>(&self, len: usize) -> Result<StepBuffer<T, D>, Error> {
        self.own(self.alloc(len)?)
    }

    /// Takes a buffer out of its lifetime. From here on it belongs to this scope: it can be used in it and in
    /// scopes inside it, and its late use is an error instead of a program that does not compile.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ForeignBuffer`](arena_core::ErrorKind::ForeignBuffer) for a buffer of another arena.
    pub fn own<T: Pod>(&self, buffer: Transient<'s, T, D>) -> Result<StepBuffer<T, D>, Error> {
        self.steps().detach(buffer, self.depth()).map(StepBuffer::new)
    }
}

#[expect(single_use_lifetimes, reason = "that `'s` outlives `'v` is what makes an access sound")]
impl<T: Pod, D: Device> StepBuffer<T, D> {
    pub(crate) const fn new(buffer: Detached<T>) -> Self {
        Self { buffer, device: PhantomData }
    }

    /// Elements. They are known after the scope's end as well.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether there is no element.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Shared access, as long as `scope` and this handle live.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::StaleBuffer`](arena_core::ErrorKind::StaleBuffer) when the scope that made the buffer has
    /// ended, [`ErrorKind::ForeignBuffer`](arena_core::ErrorKind::ForeignBuffer) when `scope` is of another
    /// arena.
    #[inline]
    #[track_caller]
    pub fn view<'v, 's: 'v>(&'v self, scope: &Scope<'s, '_, D>) -> Result<View<'v, T, D>, Error> {
        scope.steps().view_of(&self.buffer, scope.depth())
    }

    /// Exclusive access, as long as `scope` and this handle live.
    ///
    /// # Errors
    ///
    /// As for [`view`](Self::view).
    #[inline]
    #[track_caller]
    pub fn view_mut<'v, 's: 'v>(
        &'v mut self,
        scope: &Scope<'s, '_, D>,
    ) -> Result<ViewMut<'v, T, D>, Error> {
        scope.steps().view_mut_of(&mut self.buffer, scope.depth())
    }

    /// Gives the buffer a lifetime again, that of `scope`.
    ///
    /// # Errors
    ///
    /// As for [`view`](Self::view). The handle is dropped then.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.scope(|step| {
    ///     let cached = step.own(step.upload(&[7_u8; 3])?)?;
    ///     let buffer = cached.take(step)?; // a `Transient`
    ///     assert_eq!(buffer.as_slice(), [7; 3]);
    ///     arena_scope::Ok(())
    /// })?;
    /// # arena_scope::Ok(())
    /// ```
    pub fn take<'s>(self, scope: &Scope<'s, '_, D>) -> Result<Transient<'s, T, D>, Error> {
        scope.steps().attach(self.buffer, scope.depth())
    }
}

impl<T, D: Device> fmt::Debug for StepBuffer<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StepBuffer{:?}", self.buffer)
    }
}
