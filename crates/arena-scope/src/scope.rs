//! The scope: a piece of work whose transient buffers die together.

use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

use arena_core::for_scopes::{FrameId, Region, Steps};
use arena_core::{
    Alignment, Device, Error, ErrorKind, Host, POISON_BYTE, Persistent, Pod, RowLayout, Stats,
    Transient, View, ViewMut,
};
use bumpalo::Bump;
use scopeguard::ScopeGuard;

use crate::guard::Guard;
use crate::options::ScopeOptions;
use crate::state::{State, WayBack};

type Invariant<'x> = fn(&'x ()) -> &'x ();

/// An open scope. Buffers asked for through it carry `'s`, which ends when it closes.
///
/// `'outer` is the life of the scope around it (or of the borrow of the arena), whose buffers can be
/// read in here. While an inner scope is open the outer one is borrowed, so nothing can be allocated
/// from it.
///
/// A scope can be neither sent to another thread nor shared with one.
pub struct Scope<'s, 'outer: 's, D: Device = Host> {
    state: &'s State<D>,
    depth: u32,
    /// Invariant in both lifetimes: a scope is never mistaken for one that lives longer or shorter.
    brand: PhantomData<(Invariant<'s>, Invariant<'outer>)>,
}

impl<'s, D: Device> Scope<'s, '_, D> {
    pub(crate) fn new(state: &'s State<D>, depth: u32) -> Self {
        Self { state, depth, brand: PhantomData }
    }

    // --- buffers ------------------------------------------------------------------------------

    /// A buffer of `len` elements, aligned to 256 bytes, with unspecified
    /// but initialised contents.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`] when it does not fit, [`ErrorKind::TooBig`] when it never can, or an
    /// error that an earlier close left behind. Nothing is changed then.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.scope(|step| {
    ///     let a = step.alloc::<f32>(1)?;
    ///     let b = step.alloc::<f32>(3)?;
    ///     assert_eq!((a.offset_bytes(), b.offset_bytes()), (0, 256));
    ///     arena_scope::Ok(())
    /// })?;
    /// # arena_scope::Ok(())
    /// ```
    #[inline]
    #[track_caller]
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<Transient<'s, T, D>, Error> {
        self.alloc_aligned(len, Alignment::DEFAULT)
    }

    /// [`alloc`](Self::alloc) with an alignment for this buffer alone; that of `T` is the least.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc).
    #[inline]
    #[track_caller]
    pub fn alloc_aligned<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
    ) -> Result<Transient<'s, T, D>, Error> {
        self.state.steps.transient(len, alignment, self.depth)
    }

    /// [`alloc`](Self::alloc) for somebody else, whose call is named.
    pub(crate) fn alloc_at<T: Pod>(
        &self,
        len: usize,
        call_site: &'static Location<'static>,
    ) -> Result<Transient<'s, T, D>, Error> {
        self.state.steps.transient_at(len, Alignment::DEFAULT, self.depth, call_site)
    }

    /// [`alloc`](Self::alloc), filled with zero bytes in stream order.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc), or the device's refusal of the fill.
    #[track_caller]
    pub fn alloc_zeroed<T: Pod>(&self, len: usize) -> Result<Transient<'s, T, D>, Error> {
        self.state.steps.transient_zeroed(len, Alignment::DEFAULT, self.depth)
    }

    /// A buffer that holds `values`, copied in stream order. `values` may be changed as soon as the
    /// call returns.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc), or the device's refusal of the copy.
    #[track_caller]
    pub fn upload<T: Pod>(&self, values: &[T]) -> Result<Transient<'s, T, D>, Error> {
        self.state.steps.transient_from(values, Alignment::DEFAULT, self.depth)
    }

    /// A 2-D buffer whose rows start aligned, with unspecified contents; its rows are reached by
    /// [`View::row`].
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc); [`ErrorKind::ElementMismatch`] when the layout is for elements
    /// of another size.
    #[track_caller]
    pub fn alloc_rows<T: Pod>(&self, layout: &RowLayout) -> Result<Transient<'s, T, D>, Error> {
        layout.check_element::<T>()?;
        self.alloc_aligned(layout.len(), layout.alignment())
    }

    /// A persistent buffer of `len` elements with unspecified contents. Asked for inside a scope it
    /// is kept at the region's top: it survives the scope, and the mark and every transient address
    /// stay where they are.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc).
    #[track_caller]
    pub fn persistent<T: Pod>(&self, len: usize) -> Result<Persistent<T, D>, Error> {
        self.state.steps.persistent(len, Alignment::DEFAULT, self.depth)
    }

    /// A persistent copy of a result, made on the device: the way out of a scope for a buffer.
    ///
    /// # Errors
    ///
    /// As for [`persistent`](Self::persistent), or the device's refusal of the copy.
    #[track_caller]
    pub fn promote<T: Pod>(&self, result: View<'_, T, D>) -> Result<Persistent<T, D>, Error> {
        self.state.steps.persistent_copy(result, Alignment::DEFAULT, self.depth)
    }

    // --- results ------------------------------------------------------------------------------

    /// The elements of a buffer as host values, after the work queued before.
    ///
    /// # Errors
    ///
    /// The device's refusal of the copy, or an error that an earlier close left behind.
    pub fn read<T: Pod>(&self, result: View<'_, T, D>) -> Result<Vec<T>, Error> {
        result.to_vec()
    }

    /// The only element of a buffer as a host value, after the work queued before. Unlike
    /// [`read`](Self::read) it needs no host memory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`] when the buffer has not exactly one element; otherwise as for
    /// [`read`](Self::read).
    pub fn read_one<T: Pod>(&self, result: View<'_, T, D>) -> Result<T, Error> {
        let mut value = [T::zeroed()];
        result.read_into(&mut value)?;
        Ok(value[0])
    }

    /// Checks under [`Reset::Poison`](crate::Reset::Poison) that a kernel wrote a whole buffer of floats: no
    /// element may still hold the poison pattern. It reads the buffer back, so it is for debugging.
    ///
    /// The pattern has all bits set. As a float of any width it is a NaN that arithmetic does not make of
    /// other values, so an element that holds it was not written, or was computed from one that was not.
    /// As an integer it is a value like any other (-1, 255); there this check cannot tell, and says so.
    /// [`check_written_by`](Self::check_written_by) can, for every type.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unwritten`] with `buffer_name` and the first such element; [`ErrorKind::CannotTell`] for
    /// a type in which the pattern is a value: one that is equal to itself; otherwise as for
    /// [`read`](Self::read).
    pub fn check_written<T: Pod + PartialEq>(
        &self,
        buffer_name: &str,
        buffer: View<'_, T, D>,
    ) -> Result<(), Error> {
        let mut poison = T::zeroed();
        bytemuck::bytes_of_mut(&mut poison).fill(POISON_BYTE);
        #[expect(clippy::eq_op, reason = "a NaN is not equal to itself")]
        if poison == poison {
            let (buffer, element) = (buffer_name.to_owned(), std::any::type_name::<T>());
            return Err(ErrorKind::CannotTell { buffer, element }.into());
        }
        let poison = bytemuck::bytes_of(&poison);
        let elements = self.read(buffer)?;
        let unwritten = elements.iter().position(|element| bytemuck::bytes_of(element) == poison);
        unwritten.map_or(Ok(()), |index| Err(unwritten_at(buffer_name, index)))
    }

    /// Checks that `write` writes each byte of a buffer, whatever its type and the reset policy. It runs
    /// `write` twice: first with the buffer filled with one pattern, then with another one. A byte that holds
    /// the first pattern after the first run and the second after the second was written by neither.
    ///
    /// For debugging: `write` must give the same result each time, and must not read what the buffer held
    /// before. The buffer holds the result of the second run afterwards.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, ErrorKind, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.scope(|step| {
    ///     let mut labels = step.alloc::<i32>(3)?;
    ///     step.check_written_by("labels", labels.view_mut(), |mut out| out.write(&[3, -1, 7]))?;
    ///     let stops_short = step.check_written_by("labels", labels.view_mut(), |out| {
    ///         out.range(..2)?.write(&[3, -1])
    ///     });
    ///     let error = stops_short.unwrap_err();
    ///     assert!(matches!(error.kind(), ErrorKind::Unwritten { index: 2, .. }));
    ///     arena_scope::Ok(())
    /// })?;
    /// # arena_scope::Ok(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unwritten`] with `buffer_name` and the first element with such a byte; what `write`
    /// returns; otherwise as for [`read`](Self::read).
    pub fn check_written_by<T: Pod, E: From<Error>>(
        &self,
        buffer_name: &str,
        mut buffer: ViewMut<'_, T, D>,
        mut write: impl FnMut(ViewMut<'_, T, D>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut run = |pattern: u8| -> Result<Vec<T>, E> {
            buffer.fill_bytes(pattern)?;
            write(buffer.reborrow())?;
            Ok(self.read(buffer.view())?)
        };
        let (first, second) = (run(PATTERNS.0)?, run(PATTERNS.1)?);
        let unwritten = first.iter().zip(&second).position(|(first, second)| {
            let bytes = bytemuck::bytes_of(first).iter().zip(bytemuck::bytes_of(second));
            bytes.into_iter().any(|(first, second)| (*first, *second) == PATTERNS)
        });
        Ok(unwritten.map_or(Ok(()), |index| Err(unwritten_at(buffer_name, index)))?)
    }

    // --- host data ----------------------------------------------------------------------------

    /// Host memory for this scope's own data: tape nodes, shapes, lists of views. It is emptied when
    /// a scope of this depth opens, and allocates nothing on the heap from a loop's third step on.
    ///
    /// `bumpalo` runs no `Drop`: put what holds buffers into a `bumpalo::boxed::Box`.
    #[must_use]
    pub fn host_bump(&self) -> &'s Bump {
        self.state.bump(self.depth)
    }

    // --- inner scopes -------------------------------------------------------------------------

    /// Runs `body` in a scope inside this one. Buffers of this scope can be used in it.
    ///
    /// # Errors
    ///
    /// What `body` returns; or an error of opening (an earlier failure) or closing (a refused
    /// clearing). However it ends, the cursor is back where the inner scope began.
    pub fn scope<R, E: From<Error>>(
        &mut self,
        body: impl for<'i> FnOnce(&mut Scope<'i, 's, D>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.scope_with(ScopeOptions::default(), body)
    }

    /// [`scope`](Self::scope) with a name, which errors show.
    ///
    /// # Errors
    ///
    /// As for [`scope`](Self::scope).
    pub fn scope_named<R, E: From<Error>>(
        &mut self,
        name: &'static str,
        body: impl for<'i> FnOnce(&mut Scope<'i, 's, D>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.scope_with(ScopeOptions::named(name), body)
    }

    /// [`scope`](Self::scope) with options.
    ///
    /// # Errors
    ///
    /// As for [`scope`](Self::scope).
    pub fn scope_with<R, E: From<Error>>(
        &mut self,
        options: impl Into<ScopeOptions>,
        body: impl for<'i> FnOnce(&mut Scope<'i, 's, D>) -> Result<R, E>,
    ) -> Result<R, E> {
        run(self.state, self.state.open_inner(self.depth, options.into())?, body)
    }

    /// Opens a scope inside this one in the guard form, where a closure does not fit.
    ///
    /// # Errors
    ///
    /// An error that an earlier close left behind.
    pub fn enter(&mut self) -> Result<Guard<'_, D>, Error> {
        self.enter_with(ScopeOptions::default())
    }

    /// [`enter`](Self::enter) with options.
    ///
    /// # Errors
    ///
    /// As for [`enter`](Self::enter).
    pub fn enter_with(&mut self, options: impl Into<ScopeOptions>) -> Result<Guard<'_, D>, Error> {
        Ok(Guard::of(self.state, self.state.open_inner(self.depth, options.into())?))
    }

    // --- figures ------------------------------------------------------------------------------

    /// 1 for a root scope, 2 for a scope in it, and so on.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Where the arena stands.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.state.steps.stats()
    }

    /// The device of the arena, for a backend that launches its own kernels on it.
    #[must_use]
    pub fn device(&self) -> &'s D {
        self.region().device()
    }

    pub(crate) fn region(&self) -> &'s Region<D> {
        self.steps().region()
    }

    pub(crate) fn steps(&self) -> &'s Steps<D> {
        &self.state.steps
    }
}

impl<D: Device> fmt::Debug for Scope<'_, '_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("depth", &self.depth).field("stats", &self.stats()).finish()
    }
}

/// What a byte that nobody writes holds in the two runs of a check. They differ in each bit.
const PATTERNS: (u8, u8) = (0x55, 0xaa);

fn unwritten_at(buffer_name: &str, index: usize) -> Error {
    ErrorKind::Unwritten { buffer: buffer_name.to_owned(), index: index as u64 }.into()
}

/// Runs `body` in a scope that was opened just now, and closes it, whether the body returns or panics.
#[inline]
pub(crate) fn run<'outer, R, E: From<Error>, D: Device>(
    state: &'outer State<D>,
    frame: FrameId,
    body: impl for<'s> FnOnce(&mut Scope<'s, 'outer, D>) -> Result<R, E>,
) -> Result<R, E> {
    let way_back = scopeguard::guard(WayBack { state, frame }, WayBack::close_quietly);
    let value = body(&mut Scope::new(state, state.steps.depth()))?; // The body's error is the cause.
    ScopeGuard::into_inner(way_back).close()?;
    Ok(value)
}
