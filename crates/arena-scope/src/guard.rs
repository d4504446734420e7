//! The guard form of a scope, for loops where a closure does not fit.

use std::fmt;

use arena_core::for_scopes::FrameId;
use arena_core::{Device, Error, Host};
use scopeguard::ScopeGuard;

use crate::scope::Scope;
use crate::state::{State, WayBack};

/// Keeps a scope open until it is dropped.
///
/// [`scope`](Self::scope) returns the open scope, which borrows the guard. If a guard is leaked
/// (`std::mem::forget`), the bytes of its scope stay in use until the scope around it closes.
///
/// ```
/// use arena_scope::{Arena, ByteSize, Host};
///
/// let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
/// let mut guard = arena.enter()?;
/// let step = guard.scope();
/// let a = step.upload(&[1.0_f32, 2.0])?;
/// assert_eq!(step.read(a.view())?, [1.0, 2.0]);
/// drop(a);
/// guard.close()?; // or drop it: the next call then returns a failure
/// assert_eq!(arena.stats().used_bytes, 0);
/// # arena_scope::Ok(())
/// ```
#[must_use = "a guard that is not bound to a name closes its scope at once"]
pub struct Guard<'a, D: Device = Host> {
    depth: u32,
    way_back: ScopeGuard<WayBack<'a, D>, fn(WayBack<'a, D>)>,
}

impl<'a, D: Device> Guard<'a, D> {
    pub(crate) fn of(state: &'a State<D>, frame: FrameId) -> Self {
        let close: fn(WayBack<'a, D>) = WayBack::close_quietly;
        Self {
            depth: state.steps.depth(),
            way_back: scopeguard::guard(WayBack { state, frame }, close),
        }
    }

    /// The open scope. Its buffers live as long as this borrow of the guard.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let mut guard = arena.enter()?;
    /// let step = guard.scope();
    /// let x = step.upload(&[2.0_f32])?;
    /// assert_eq!(step.read_one(x.view())?, 2.0);
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn scope(&mut self) -> Scope<'_, 'a, D> {
        Scope::new(self.way_back.state, self.depth)
    }

    /// Closes the scope and returns its error, if there is one.
    ///
    /// # Errors
    ///
    /// A failure of the device, or a damaged guard zone. In both cases the cursor is back where the scope began,
    /// and the next request or opening tries again what was not done.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let mut guard = arena.enter()?;
    /// guard.scope().alloc::<f32>(100)?;
    /// guard.close()?;
    /// assert_eq!((arena.resets(), arena.stats().used_bytes), (1, 0));
    /// # arena_scope::Ok(())
    /// ```
    pub fn close(self) -> Result<(), Error> {
        ScopeGuard::into_inner(self.way_back).close()
    }
}

impl<D: Device> fmt::Debug for Guard<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("depth", &self.depth).finish_non_exhaustive()
    }
}
