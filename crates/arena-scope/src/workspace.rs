//! Memory for a library call that can be done by several algorithms.

use std::panic::Location;

use arena_core::{Device, Error, ErrorKind, Transient};

use crate::scope::Scope;

impl<'s, D: Device> Scope<'s, '_, D> {
    /// Runs `body` with a workspace, in an inner scope called `name`. The workspace is gone when `body` ends. If
    /// no workspace fits, the error contains the name.
    ///
    /// A library often has several algorithms for one call, as cuDNN does, and each needs a workspace of another
    /// size, which depends on the whole configuration of the call. So `bytes_of` asks the library how many bytes
    /// a choice needs, and the first of `choices` that fits into what is free is taken. Give them in your order
    /// of preference. A choice that needs 0 bytes gets an empty buffer. Put what later calls need into the outer
    /// scope. On a [`Probe`](crate::Probe) everything fits, so the capacity that it reports has room for the
    /// first choice.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`] when no choice fits, about the last one;
    /// [`ErrorKind::NoChoice`] when `choices` is empty; what `bytes_of` or `body` returns; or an error of opening or
    /// closing the scope.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(8)).build()?;
    /// // The fastest first: 16 KiB, for which the arena is too small, then 4 KiB.
    /// let ways = [("with transforms", 16_384), ("by tiles", 4096)];
    /// let way = arena.scope(|step| {
    ///     step.with_workspace("convolution", ways, |way| Ok(way.1), |_, way, workspace| {
    ///         assert_eq!(workspace.len(), 4096);
    ///         arena_scope::Ok(way.0)
    ///     })
    /// })?;
    /// assert_eq!(way, "by tiles");
    /// # arena_scope::Ok(())
    /// ```
    #[track_caller]
    pub fn with_workspace<A, R, E: From<Error>>(
        &mut self,
        name: &'static str,
        choices: impl IntoIterator<Item = A>,
        mut bytes_of: impl FnMut(&A) -> Result<u64, E>,
        body: impl for<'i> FnOnce(&mut Scope<'i, 's, D>, A, Transient<'i, u8, D>) -> Result<R, E>,
    ) -> Result<R, E> {
        let call_site = Location::caller();
        self.scope_named(name, |inner| {
            let mut told = Error::from(ErrorKind::NoChoice { what: name });
            for choice in choices {
                let bytes = bytes_of(&choice)?;
                let too_big =
                    || Error::from(ErrorKind::TooBig { elements: bytes, element_bytes: 1 });
                let len = usize::try_from(bytes).map_err(|_| too_big());
                match len.and_then(|len| inner.alloc_at(len, call_site)) {
                    Ok(workspace) => return body(inner, choice, workspace),
                    Err(error) if does_not_fit(&error) => told = error,
                    Err(error) => return Err(error.into()),
                }
            }
            Err(told.into())
        })
    }
}

fn does_not_fit(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Exhausted(_) | ErrorKind::TooBig { .. })
}
