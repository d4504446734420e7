//! A program of cudarc's on an arena: a stream whose `alloc` takes the memory from the arena.
//!
//! A buffer of a session has no lifetime, so it goes where the program has a `CudaSlice`: parameters, return types,
//! fields. Each use compares the scope that made it with the open ones, as for a [`StepBuffer`](crate::StepBuffer).
//!
//! Proof that no buffer is used after its scope: everything of a session holds an `Rc`, so all of it stays on one
//! thread. A use is one call, `device_ptr` or `arg`, that checks the buffer; no scope can close inside that call. What
//! such a call returns is an address, which only `unsafe` code can use. So safe code queues work on a buffer only while
//! its scope is open, and the close orders reuse behind that work, as for every other buffer. A buffer that is *lent*
//! is used in other calls too; so no scope closes while one is lent. If what lends is forgotten, none ever does.
//!
//! This module opens `unsafe` for the one trait that makes a buffer a kernel's argument, for lending, and for
//! [`Session::alloc`], which is `unsafe` where cudarc's is.

#![allow(unsafe_code)]

mod lent;
mod slice;

use std::cell::{Cell, Ref, RefCell};
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use arena_core::cudarc::driver::{CudaStream, DevicePtr, DeviceRepr, HostSlice, ValidAsZeroBits};
use arena_core::for_scopes::{Detached, FrameId, Region};
use arena_core::{Alignment, Cuda, Error, ErrorKind, Pod, Stats};

use crate::arena::Arena;
use crate::options::ScopeOptions;
use crate::state::WayBack;

pub use lent::{SessionLent, SessionLentMut};
pub use slice::{SessionSlice, SessionView, SessionViewMut};

/// A stream with an arena: it goes where a program has an `Arc<CudaStream>`, and its `alloc`, `alloc_zeros`,
/// `clone_htod` and `clone_dtod` take their memory from the arena.
///
/// A buffer that is made while a [step](Self::enter) is open dies with the step. Before the first step, and in
/// [`keep`](Self::keep), buffers are persistent. All of them are [`SessionSlice`]s, so a program that exists changes
/// the type of its stream, the name of its buffers' type, and gets one line for each step:
///
/// ```no_run
/// use arena_scope::cuda::{Session, SessionSlice as CudaSlice};
/// use arena_scope::cudarc::driver::CudaContext;
/// use arena_scope::{Arena, ByteSize, Cuda, Error};
///
/// struct Layer {
///     weights: CudaSlice<f32>, // persistent: made before the first step
/// }
///
/// fn forward(stream: &Session, layer: &Layer, x: &CudaSlice<f32>) -> Result<CudaSlice<f32>, Error> {
///     let mut y = stream.alloc_zeros::<f32>(x.len())?; // the step's
///     stream.memcpy_dtod(&layer.weights, &mut y)?; // every call of cudarc's stream
///     Ok(y)
/// }
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let stream = Session::new(Arena::builder(Cuda::on(stream)?).capacity(ByteSize::gib(1)).build()?);
/// let layer = Layer { weights: stream.clone_htod(&[0.5_f32; 100])? };
/// for _ in 0..1000 {
///     let _step = stream.enter()?; // what is made from here on dies with `_step`
///     let x = stream.clone_htod(&[1.0_f32; 100])?;
///     let y = forward(&stream, &layer, &x)?;
///     println!("{:?}", stream.clone_dtoh(&y)?);
/// }
/// # Ok::<(), Error>(())
/// ```
///
/// # Streams
///
/// As for all buffers of an arena, the arena's stream needs nothing. A copy, a memset or a call of cuBLAS on another
/// stream is ordered behind what is queued on the arena's stream; then the host waits for it, unless the stream was
/// [declared](Self::declare_stream). A *kernel* on another stream is ordered by nobody: cudarc does not tell a
/// launch's arguments the stream. Declare the stream before the launch, and let the session
/// [wait for it](Self::wait_for_stream) before the results are used.
///
/// # Threads
///
/// A session, its steps and its buffers stay on one thread:
///
/// ```compile_fail,E0277
/// fn to_another_thread(stream: arena_scope::cuda::Session) {
///     std::thread::spawn(move || stream.synchronize());
/// }
/// ```
///
/// It is not `Clone`: `clone()` gives the `Arc<CudaStream>` that libraries want, such as cuBLAS.
/// [`share`](Self::share) gives another handle of the session.
pub struct Session {
    inner: Rc<Inner>,
}

struct Inner {
    stream: Arc<CudaStream>,
    region: Arc<Region<Cuda>>,
    /// How many [`Session::keep`] run now.
    keeping: Cell<u32>,
    /// How many buffers of steps are lent now. No scope closes meanwhile.
    lent: Cell<usize>,
    /// Steps that have ended meanwhile.
    ended: RefCell<Vec<FrameId>>,
    /// Borrowed mutably only while a root scope opens.
    arena: RefCell<Arena<Cuda>>,
}

impl Session {
    /// A session on the stream of the arena's device. The arena's observer, plans and planner stay in force: set
    /// them before.
    #[must_use]
    pub fn new(arena: Arena<Cuda>) -> Self {
        let stream = Arc::clone(arena.device().stream());
        let region = arena.state.steps.region_arc();
        let (keeping, lent, ended) = (Cell::new(0), Cell::new(0), RefCell::default());
        let arena = RefCell::new(arena);
        Self { inner: Rc::new(Inner { stream, region, keeping, lent, ended, arena }) }
    }

    /// The device of the arena.
    #[must_use]
    pub fn device(&self) -> &Cuda {
        self.inner.region.device()
    }

    /// Another handle of this session.
    #[must_use]
    pub fn share(&self) -> Self {
        Self { inner: Rc::clone(&self.inner) }
    }

    /// Runs `body` with the arena, for its figures.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InUse`] while a step opens.
    pub fn with_arena<R>(&self, body: impl FnOnce(&Arena<Cuda>) -> R) -> Result<R, Error> {
        Ok(body(&*self.inner.arena()?))
    }

    /// The figures of the arena now.
    ///
    /// # Errors
    ///
    /// As for [`with_arena`](Self::with_arena).
    pub fn stats(&self) -> Result<Stats, Error> {
        self.with_arena(Arena::stats)
    }

    /// Between two steps: keeps the memory that the steps so far need, and gives the rest back: see
    /// [`Arena::fit`]. For a program that takes a large `Virtual` region because it does not know its need. Returns the
    /// number of bytes given back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InUse`] while a step is open or a buffer is lent, and as for [`Arena::fit`].
    pub fn fit(&self) -> Result<u64, Error> {
        let mut arena = self.inner.arena.try_borrow_mut().ok();
        let free = arena.as_mut().filter(|arena| arena.state.steps.depth() == 0);
        match free {
            Some(arena) if self.inner.lent.get() == 0 => arena.fit(),
            _ => Err(ErrorKind::InUse { what: ARENA, by: "an open step" }.into()),
        }
    }

    /// The arena, when no other handle of the session, no step and no buffer is left; otherwise the session again.
    ///
    /// # Errors
    ///
    /// The session, if something of it is in use.
    pub fn into_arena(self) -> Result<Arena<Cuda>, Self> {
        let inner = Rc::try_unwrap(self.inner).map_err(|inner| Self { inner })?;
        Ok(inner.arena.into_inner())
    }

    // --- steps --------------------------------------------------------------------------------

    /// Opens a step: what is made from now on dies when the step is dropped. Inside a step it opens an inner one.
    ///
    /// # Errors
    ///
    /// An error that an earlier close left behind; [`ErrorKind::InUse`] inside [`with_arena`](Self::with_arena).
    ///
    /// ```no_run
    /// # use arena_scope::cuda::Session;
    /// # fn training(stream: &Session) -> Result<(), arena_scope::Error> {
    /// let step = stream.enter()?;
    /// let x = stream.alloc_zeros::<f32>(1000)?;
    /// let y = {
    ///     let _micro_batch = stream.enter()?;
    ///     stream.clone_dtod(&x)?
    /// };
    /// stream.clone_dtoh(&x)?;
    /// // stream.clone_dtoh(&y)?; would panic: the step that made `y` has ended
    /// step.close()?; // or drop it: the next call then returns a failure
    /// # Ok(())
    /// # }
    /// ```
    pub fn enter(&self) -> Result<SessionStep, Error> {
        self.enter_with(ScopeOptions::default())
    }

    /// [`enter`](Self::enter) with options: a name, a reset policy, the bytes that the step needs.
    ///
    /// # Errors
    ///
    /// As for [`enter`](Self::enter), or [`ErrorKind::Exhausted`] when the bytes that it needs do not fit.
    pub fn enter_with(&self, options: impl Into<ScopeOptions>) -> Result<SessionStep, Error> {
        let frame = self.inner.open(options.into())?;
        Ok(SessionStep { inner: Rc::clone(&self.inner), frame: Some(frame) })
    }

    /// What is made while `body` runs is persistent, also inside a step: optimizer state that the first step makes,
    /// a result that later steps need.
    ///
    /// ```no_run
    /// # use arena_scope::cuda::{Session, SessionSlice};
    /// # fn first_step(stream: &Session) -> Result<SessionSlice<f32>, arena_scope::Error> {
    /// let _step = stream.enter()?;
    /// let momentum = stream.keep(|| stream.alloc_zeros::<f32>(1000))?;
    /// Ok(momentum)
    /// # }
    /// ```
    pub fn keep<R>(&self, body: impl FnOnce() -> R) -> R {
        let keeping = &self.inner.keeping;
        keeping.set(keeping.get() + 1);
        let _ends = scopeguard::guard((), |()| keeping.set(keeping.get() - 1));
        body()
    }

    // --- buffers, under the names of cudarc's stream ------------------------------------------

    /// A buffer of `len` elements with unspecified contents.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`] when it does not fit, [`ErrorKind::TooBig`] when it never can, or an error that an
    /// earlier close left behind.
    ///
    /// # Safety
    ///
    /// The buffer must be written before its contents are relied on, as after cudarc's `alloc`: it holds what was
    /// there before. Nothing else is asked of the caller, for any bytes are a value of a [`Pod`].
    #[track_caller]
    pub unsafe fn alloc<T: Pod + DeviceRepr>(&self, len: usize) -> Result<SessionSlice<T>, Error> {
        self.unset(len)
    }

    /// A buffer of `len` elements, filled with zero bytes in stream order.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc), or the device's refusal of the fill.
    #[track_caller]
    pub fn alloc_zeros<T: Pod + DeviceRepr + ValidAsZeroBits>(
        &self,
        len: usize,
    ) -> Result<SessionSlice<T>, Error> {
        let arena = self.inner.arena()?;
        let steps = &arena.state.steps;
        if self.inner.keeps(&arena) {
            // With the open scope's depth, for the error's facts, it is filled like a view.
            let mut buffer = steps.persistent(len, Alignment::DEFAULT, steps.depth())?;
            buffer.view_mut().zero()?;
            return Ok(SessionSlice::kept(&self.inner, buffer));
        }
        let buffer = steps.transient_zeroed(len, Alignment::DEFAULT, steps.depth())?;
        Ok(SessionSlice::of_step(&self.inner, steps.detach(buffer, steps.depth())?))
    }

    /// A buffer without elements.
    ///
    /// # Errors
    ///
    /// An error that an earlier close left behind.
    #[track_caller]
    pub fn null<T: Pod + DeviceRepr>(&self) -> Result<SessionSlice<T>, Error> {
        self.unset(0)
    }

    /// A buffer that holds `values`, copied in stream order by cudarc.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc), or the driver's refusal of the copy.
    #[track_caller]
    pub fn clone_htod<T: Pod + DeviceRepr, Src: HostSlice<T> + ?Sized>(
        &self,
        values: &Src,
    ) -> Result<SessionSlice<T>, Error> {
        let mut buffer = self.unset(values.len())?;
        if !values.is_empty() {
            self.inner.stream.memcpy_htod(values, &mut buffer)?;
        }
        Ok(buffer)
    }

    /// A copy of a buffer, made on the device in stream order.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc), or the driver's refusal of the copy.
    #[track_caller]
    pub fn clone_dtod<T: Pod + DeviceRepr, Src: DevicePtr<T>>(
        &self,
        from: &Src,
    ) -> Result<SessionSlice<T>, Error> {
        let mut buffer = self.unset(from.len())?;
        if !from.is_empty() {
            self.inner.stream.memcpy_dtod(from, &mut buffer)?;
        }
        Ok(buffer)
    }

    #[track_caller]
    fn unset<T: Pod>(&self, len: usize) -> Result<SessionSlice<T>, Error> {
        let arena = self.inner.arena()?;
        let (steps, alignment) = (&arena.state.steps, Alignment::DEFAULT);
        if self.inner.keeps(&arena) {
            let buffer = steps.persistent(len, alignment, steps.depth())?;
            return Ok(SessionSlice::kept(&self.inner, buffer));
        }
        let buffer = steps.transient(len, alignment, steps.depth())?;
        Ok(SessionSlice::of_step(&self.inner, steps.detach(buffer, steps.depth())?))
    }

    // --- other streams ------------------------------------------------------------------------

    /// Declares that `stream` uses buffers of the open step, or of the whole session if no step is open: it waits,
    /// on the device, for what is queued on the session's stream now, and no byte is reused before what is queued on
    /// it when the step closes. See [`Scope::declare_stream`](crate::Scope::declare_stream).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDevice`] for a stream of another device; [`ErrorKind::Device`] when the device refuses the
    /// wait.
    pub fn declare_stream(&self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let depth = self.inner.arena()?.state.steps.depth();
        self.inner.region.declare(stream, depth)
    }

    /// Makes the session's stream wait, on the device, for what is queued on `stream` now.
    ///
    /// # Errors
    ///
    /// As for [`declare_stream`](Self::declare_stream).
    pub fn wait_for_stream(&self, stream: &Arc<CudaStream>) -> Result<(), Error> {
        self.inner.region.wait_for(stream)
    }
}

/// All that a stream does: launches, copies, memsets, events, waiting.
impl Deref for Session {
    type Target = Arc<CudaStream>;

    fn deref(&self) -> &Arc<CudaStream> {
        &self.inner.stream
    }
}

impl Inner {
    fn arena(&self) -> Result<Ref<'_, Arena<Cuda>>, Error> {
        let by = "a step that is about to open";
        self.arena.try_borrow().map_err(|_| ErrorKind::InUse { what: ARENA, by }.into())
    }

    /// Whether a buffer that is made now is persistent.
    fn keeps(&self, arena: &Arena<Cuda>) -> bool {
        self.keeping.get() > 0 || arena.state.steps.depth() == 0
    }

    /// Closes a scope, or lets it wait until no buffer is lent.
    fn close(&self, frame: FrameId, close: impl FnOnce(WayBack<'_, Cuda>)) {
        if self.lent.get() > 0 {
            self.ended.borrow_mut().push(frame);
            return;
        }
        if let Ok(arena) = self.arena() {
            close(WayBack { state: &arena.state, frame });
        }
        self.close_ended();
    }

    /// Closes the scopes that have ended while a buffer was lent, from the innermost on.
    fn close_ended(&self) {
        let innermost = || {
            let arena = self.arena().ok()?;
            let steps = &arena.state.steps;
            steps.frame(steps.depth())
        };
        while self.lent.get() == 0
            && let Some(frame) = innermost()
            && let Some(ended) = self.position_of_ended(frame)
        {
            self.ended.borrow_mut().swap_remove(ended);
            self.close(frame, |way_back| way_back.close_quietly());
        }
    }

    fn position_of_ended(&self, frame: FrameId) -> Option<usize> {
        self.ended.borrow().iter().position(|&ended| ended == frame)
    }

    fn open(&self, options: ScopeOptions) -> Result<FrameId, Error> {
        let depth = self.arena()?.state.steps.depth();
        if depth > 0 {
            return self.arena()?.state.open_inner(depth, options);
        }
        let by = "`with_arena`";
        let arena = self.arena.try_borrow_mut();
        let mut arena = arena.map_err(|_| ErrorKind::InUse { what: ARENA, by })?;
        self.ended.borrow_mut().clear(); // Those that a step around them has closed.
        arena.state.prepare_root(options.key());
        arena.state.open_root(options)
    }

    /// That the scope of a buffer is open.
    #[track_caller]
    fn check<T: Pod>(&self, buffer: &Detached<T>) -> Result<(), Error> {
        let arena = self.arena()?;
        let steps = &arena.state.steps;
        steps.view_of(buffer, steps.depth()).map(drop)
    }
}

const ARENA: &str = "the session's arena";

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("arena", &self.inner.arena).finish_non_exhaustive()
    }
}

/// An open step of a [`Session`]. When it is dropped, the step's buffers are dead: a later use of one panics.
///
/// A step that is forgotten (`std::mem::forget`) stays open, and its bytes stay in use, until a step around it ends. The
/// session's arena stays for ever.
#[must_use = "a step that is not bound to a name ends at once"]
pub struct SessionStep {
    inner: Rc<Inner>,
    /// `None` once it is closed.
    frame: Option<FrameId>,
}

impl SessionStep {
    /// Closes the step and returns its error, if there is one. Steps inside it end with it.
    ///
    /// # Errors
    ///
    /// A failure of the device, or a damaged guard zone: what was not done is tried again by the next request or
    /// opening. [`ErrorKind::InUse`] while a buffer of a step is lent: the step ends when it no longer is.
    pub fn close(mut self) -> Result<(), Error> {
        let by = "a buffer that is lent";
        let mut outcome = Err(ErrorKind::InUse { what: "the step", by }.into());
        if let Some(frame) = self.frame.take() {
            self.inner.close(frame, |way_back| outcome = way_back.close());
        }
        outcome
    }
}

impl Drop for SessionStep {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.inner.close(frame, |way_back| way_back.close_quietly());
        }
    }
}

impl fmt::Debug for SessionStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionStep").field("frame", &self.frame).finish_non_exhaustive()
    }
}
