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

/// An open scope. A buffer that it makes has the lifetime `'s`, which ends when the scope closes.
///
/// `'outer` is the lifetime of the scope around it (or of the borrow of the arena). Buffers of the outer scope
/// can be used in this one. While an inner scope is open the outer one is borrowed, so the outer one cannot
/// make a buffer.
///
/// A scope stays on its thread: it can be neither sent to another thread nor shared between threads.
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

    /// A buffer of `len` elements, aligned to 256 bytes, with unspecified but initialised contents.
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

    /// [`alloc`](Self::alloc) with another alignment. The alignment of `T` is the minimum.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc).
    ///
    /// ```
    /// # use arena_scope::{Alignment, Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.scope(|step| {
    ///     let byte = step.alloc::<u8>(1)?;
    ///     let near = step.alloc_aligned::<f32>(4, Alignment::new(16)?)?;
    ///     assert_eq!(near.offset_bytes(), 16);
    ///     arena_scope::Ok(())
    /// })?;
    /// # arena_scope::Ok(())
    /// ```
    #[inline]
    #[track_caller]
    pub fn alloc_aligned<T: Pod>(
        &self,
        len: usize,
        alignment: Alignment,
    ) -> Result<Transient<'s, T, D>, Error> {
        self.state.steps.transient(len, alignment, self.depth)
    }

    /// [`alloc`](Self::alloc) on behalf of another call, which errors name.
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
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.scope(|step| step.upload(&[7_u8; 100]).map(drop))?; // leaves its bytes there
    /// let zeros = arena.scope(|step| step.read(step.alloc_zeroed::<u8>(100)?.view()))?;
    /// assert_eq!(zeros, [0; 100]);
    /// # arena_scope::Ok(())
    /// ```
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
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let sum = arena.scope(|step| {
    ///     let images = step.upload(&[1.0_f32, 2.0, 3.0])?;
    ///     assert_eq!(images.len(), 3);
    ///     arena_scope::Ok(images.as_slice().iter().sum::<f32>())
    /// })?;
    /// assert_eq!(sum, 6.0);
    /// # arena_scope::Ok(())
    /// ```
    #[track_caller]
    pub fn upload<T: Pod>(&self, values: &[T]) -> Result<Transient<'s, T, D>, Error> {
        self.state.steps.transient_from(values, Alignment::DEFAULT, self.depth)
    }

    /// A 2-D buffer whose rows start aligned, with unspecified contents. [`View::row`] gives a row.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc); [`ErrorKind::ElementMismatch`] when the layout is for elements
    /// of another size.
    ///
    /// ```
    /// # use arena_scope::layout::RowLayout;
    /// # use arena_scope::{Alignment, Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let layout = RowLayout::new::<f32>(4, 30, Alignment::new(64)?)?;
    /// arena.scope(|step| {
    ///     let image = step.alloc_rows::<f32>(&layout)?;
    ///     let row = image.view().row(&layout, 3)?;
    ///     assert_eq!(row.len(), 30);
    ///     assert_eq!(row.address() - image.address(), 3 * 128); // 120 bytes rounded up to 128
    ///     arena_scope::Ok(())
    /// })?;
    /// # arena_scope::Ok(())
    /// ```
    #[track_caller]
    pub fn alloc_rows<T: Pod>(&self, layout: &RowLayout) -> Result<Transient<'s, T, D>, Error> {
        layout.check_element::<T>()?;
        self.alloc_aligned(layout.len(), layout.alignment())
    }

    /// A persistent buffer of `len` elements with unspecified contents. It lies at the top of the region and
    /// outlives the scope. The mark and the addresses of transient buffers do not change.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc).
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let mut velocity = arena.scope(|step| step.persistent::<f32>(4))?;
    /// velocity.view_mut().zero()?;
    /// arena.scope(|step| step.upload(&[1.0_f32; 100]).map(drop))?;
    /// assert!(velocity.is_kept());
    /// assert_eq!(velocity.as_slice(), [0.0; 4]);
    /// # arena_scope::Ok(())
    /// ```
    #[track_caller]
    pub fn persistent<T: Pod>(&self, len: usize) -> Result<Persistent<T, D>, Error> {
        self.state.steps.persistent(len, Alignment::DEFAULT, self.depth)
    }

    /// A persistent copy of a buffer, made on the device. Use it for a buffer that is needed after the scope.
    ///
    /// # Errors
    ///
    /// As for [`persistent`](Self::persistent), or the device's refusal of the copy.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let best = arena.scope(|step| {
    ///     let weights = step.upload(&[1.0_f32, 2.0])?;
    ///     step.promote(weights.view())
    /// })?;
    /// assert_eq!((best.as_slice(), arena.stats().used_bytes), (&[1.0, 2.0][..], 0));
    /// # arena_scope::Ok(())
    /// ```
    #[track_caller]
    pub fn promote<T: Pod>(&self, result: View<'_, T, D>) -> Result<Persistent<T, D>, Error> {
        self.state.steps.persistent_copy(result, Alignment::DEFAULT, self.depth)
    }

    // --- results ------------------------------------------------------------------------------

    /// The elements of a buffer as host values. It waits for the work that was queued before.
    ///
    /// # Errors
    ///
    /// The device's refusal of the copy, or an error that an earlier close left behind.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let logits = arena.scope(|step| {
    ///     let logits = step.upload(&[0.1_f32, 0.9])?;
    ///     step.read(logits.view())
    /// })?;
    /// assert_eq!(logits, [0.1, 0.9]);
    /// # arena_scope::Ok(())
    /// ```
    #[track_caller]
    pub fn read<T: Pod>(&self, result: View<'_, T, D>) -> Result<Vec<T>, Error> {
        result.to_vec()
    }

    /// The only element of a buffer as a host value. It waits for the work that was queued before. Unlike
    /// [`read`](Self::read) it allocates nothing on the host.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LengthMismatch`] when the buffer has not exactly one element; otherwise as for
    /// [`read`](Self::read).
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let loss = arena.scope(|step| {
    ///     let both = step.upload(&[0.5_f32, 9.0])?;
    ///     assert!(step.read_one(both.view()).is_err()); // two elements
    ///     step.read_one(both.view().range(..1)?)
    /// })?;
    /// assert_eq!(loss, 0.5);
    /// # arena_scope::Ok(())
    /// ```
    #[track_caller]
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
    #[track_caller]
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

    /// Host memory for the data of this scope: tape nodes, shapes, lists of views. It is emptied when a scope of
    /// this depth opens. From the third step of a loop on it allocates nothing on the heap.
    ///
    /// `bumpalo` does not run `Drop`: put a value that contains buffers into a `bumpalo::boxed::Box`.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let lens = arena.scope(|step| {
    ///     let shapes = step.host_bump().alloc_slice_copy(&[64, 28, 28]);
    ///     step.alloc::<u8>(shapes[1] * shapes[2]).map(|image| image.len())
    /// })?;
    /// assert_eq!(lens, 784);
    /// # arena_scope::Ok(())
    /// ```
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
    /// clearing). In every case the cursor goes back to where the inner scope began.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.scope(|step| {
    ///     let mut sum = step.alloc_zeroed::<f32>(1)?;
    ///     step.scope(|inner| {
    ///         let scratch = inner.upload(&[1.0_f32, 2.0])?;
    ///         sum.as_mut_slice()[0] = scratch.as_slice().iter().sum();
    ///         arena_scope::Ok(())
    ///     })?;
    ///     assert_eq!(sum.as_slice(), [3.0]);
    ///     assert_eq!(step.stats().used_bytes, 4); // the scratch is gone
    ///     arena_scope::Ok(())
    /// })?;
    /// # arena_scope::Ok(())
    /// ```
    pub fn scope<R, E: From<Error>>(
        &mut self,
        body: impl for<'i> FnOnce(&mut Scope<'i, 's, D>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.scope_with(ScopeOptions::default(), body)
    }

    /// [`scope`](Self::scope) with a name. Errors show it.
    ///
    /// # Errors
    ///
    /// As for [`scope`](Self::scope).
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let refused = arena.scope(|step| {
    ///     step.scope_named("attention", |inner| inner.alloc::<u8>(5000).map(drop))
    /// });
    /// let refused = refused.unwrap_err();
    /// let scope = refused.as_exhausted().and_then(|exhausted| exhausted.scope.as_ref());
    /// assert_eq!(scope.map(|scope| (scope.name, scope.depth)), Some(("attention", 2)));
    /// # arena_scope::Ok(())
    /// ```
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
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, Reset, ScopeOptions};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.scope(|step| {
    ///     let poison = ScopeOptions::named("scratch").reset(Reset::Poison);
    ///     step.scope_with(poison, |inner| inner.upload(&[1.0_f32; 4]).map(drop))?;
    ///     assert!(step.alloc::<f32>(4)?.as_slice()[0].is_nan()); // the same bytes
    ///     arena_scope::Ok(())
    /// })?;
    /// # arena_scope::Ok(())
    /// ```
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
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.scope(|step| {
    ///     let mut guard = step.enter()?;
    ///     let inner = guard.scope();
    ///     inner.alloc::<u8>(100)?;
    ///     assert_eq!((inner.depth(), inner.stats().used_bytes), (2, 100));
    ///     drop(guard);
    ///     assert_eq!(step.stats().used_bytes, 0);
    ///     arena_scope::Ok(())
    /// })?;
    /// # arena_scope::Ok(())
    /// ```
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
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let depths = arena.scope(|step| {
    ///     let outer = step.depth();
    ///     step.scope(|inner| arena_scope::Ok((outer, inner.depth())))
    /// })?;
    /// assert_eq!(depths, (1, 2));
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Names what this scope asks for from here on, until the next tag or the scope's end. Inner scopes begin with the
    /// tag of the scope around them. An empty name ends the tag. It is written into the record of the step, and does
    /// nothing in a step that is not [recorded](crate::Arena::record).
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, record::StepEvent};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.record(None);
    /// arena.scope(|step| {
    ///     step.tag("activations");
    ///     step.alloc::<f32>(8).map(drop)
    /// })?;
    /// let log = arena.last_recorded().expect("it is recorded");
    /// assert_eq!(log.events()[1], StepEvent::Tag { name: "activations" });
    /// # arena_scope::Ok(())
    /// ```
    pub fn tag(&self, name: &'static str) {
        self.state.steps.tag(name);
    }

    /// The figures of the arena now.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.scope(|step| {
    ///     let x = step.alloc::<u8>(100)?;
    ///     assert_eq!((step.stats().used_bytes, step.stats().free_bytes), (100, 3996));
    ///     arena_scope::Ok(())
    /// })?;
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.state.steps.stats()
    }

    /// The device of the arena, for a backend that launches kernels on it.
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
