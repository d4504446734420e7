//! Streams other than the arena's own that use the region, and how reuse waits for them.
//!
//! The arena's own stream orders reuse by itself. Another stream is *declared*: it then waits for
//! what is queued on the arena's stream, and every close makes the arena's stream wait for what was
//! queued on it. Both happen on the device, through one event that is recorded again and again: a
//! wait is for the record before it.
//!
//! A buffer can also be *lent* as a slice of the library that the program uses, which any stream may then work on
//! without a declaration. As long as one is lent, and once after that, a close waits for every stream that there is.
//!
//! A declaration may come from any thread that holds a buffer, so it is behind a lock; a close without
//! any looks at one flag.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use crate::device::Device;
use crate::error::{DeviceError, DeviceErrorKind, Error, ErrorKind};

/// How long a declaration lasts, as a depth: for a persistent buffer.
pub(crate) const FOR_GOOD: u32 = 0;
/// For a buffer that dies with a scope, since it does not know which.
pub(crate) const UNTIL_THE_ROOT_CLOSES: u32 = 1;

/// The declared streams of one region.
pub(crate) struct Fences<D: Device> {
    /// Whether the state holds anything. A thread that declared has ended its use of the buffer before
    /// the scope closes, and that order is all that reading this flag needs.
    busy: AtomicBool,
    /// Whether the region has no memory now, so that nothing may use it.
    paused: AtomicBool,
    /// The region holds more than its soft limit.
    beyond_limit: AtomicBool,
    /// Held for reading by calls of any thread that give the device work on the region's bytes.
    working: RwLock<()>,
    state: Mutex<State<D>>,
}

struct State<D: Device> {
    declared: Vec<Declared<D::Stream>>,
    lent: Lent<D>,
    /// Made at the first declaration.
    event: Option<D::Event>,
    /// A failure that no call could return. The next call that can fail returns it.
    failure: Option<Error>,
    /// Why a stream could not be waited for: the end of this arena.
    lost: Option<DeviceError>,
}

/// What is lent.
struct Lent<D> {
    /// Handles that exist. One that was forgotten exists for ever, which costs waiting, and no safety.
    handles: u64,
    /// How to wait for every stream, if anything was lent since the last such wait.
    wait: Option<WaitForEvery<D>>,
}

/// Makes the device's stream wait for all that is queued on any stream.
pub(crate) type WaitForEvery<D> = fn(&D) -> Result<(), DeviceError>;

struct Declared<S> {
    stream: S,
    /// For a persistent buffer, which the stream may use at any time.
    for_good: bool,
    /// For what dies with a scope: until one of this depth, or an outer one, closes.
    scope_depth: Option<u32>,
}

impl<S> Declared<S> {
    /// `depth` as in [`Fences::declare`].
    fn add(&mut self, depth: u32) {
        if depth == FOR_GOOD {
            self.for_good = true;
        } else {
            self.scope_depth = Some(self.scope_depth.map_or(depth, |before| before.min(depth)));
        }
    }
}

impl<D: Device> Fences<D> {
    pub(crate) const fn new() -> Self {
        let lent = Lent { handles: 0, wait: None };
        let state = State { declared: Vec::new(), lent, event: None, failure: None, lost: None };
        let [busy, paused, beyond_limit] = [const { AtomicBool::new(false) }; 3];
        Self { busy, paused, beyond_limit, working: RwLock::new(()), state: Mutex::new(state) }
    }

    /// What another thread's panic left behind is whole: each change below is a single push or store.
    fn lock(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Declares `stream` until a scope of `depth` closes (0: permanently, for a persistent buffer), and makes
    /// it wait for the arena's stream.
    /// It is declared even if the wait fails, since its user may not be able to hold back.
    pub(crate) fn declare(&self, device: &D, stream: &D::Stream, depth: u32) -> Result<(), Error> {
        if stream == device.stream() {
            return Ok(());
        }
        if !device.owns_stream(stream) {
            return Err(wrong_device(device, stream));
        }
        let mut state = self.lock();
        match state.declared.iter_mut().find(|declared| declared.stream == *stream) {
            Some(declared) => declared.add(depth),
            None => {
                let stream = stream.clone();
                let mut declared = Declared { stream, for_good: false, scope_depth: None };
                declared.add(depth);
                state.declared.push(declared);
            }
        }
        self.busy.store(true, Ordering::Relaxed);
        let event = made(&mut state.event, device)?;
        Ok(order(device, event, device.stream(), stream)?)
    }

    /// Makes the arena's stream wait for what is queued on `stream` now.
    pub(crate) fn wait_for(&self, device: &D, stream: &D::Stream) -> Result<(), Error> {
        if stream == device.stream() {
            return Ok(());
        }
        if !device.owns_stream(stream) {
            return Err(wrong_device(device, stream));
        }
        let mut state = self.lock();
        let event = made(&mut state.event, device)?;
        Ok(order(device, event, stream, device.stream())?)
    }

    /// Something is lent from now on; `wait` waits for all who may use it.
    #[cfg(feature = "_cuda")]
    pub(crate) fn begin_lend(&self, wait: WaitForEvery<D>) {
        let mut state = self.lock();
        state.lent.handles += 1;
        state.lent.wait = Some(wait);
        self.busy.store(true, Ordering::Relaxed);
    }

    /// The handle of what was lent is gone. Its uses are waited for at the next close.
    #[cfg(feature = "_cuda")]
    pub(crate) fn end_lend(&self) {
        let mut state = self.lock();
        state.lent.handles = state.lent.handles.saturating_sub(1);
    }

    /// Whether anything is lent, or was since the last wait for every stream.
    pub(crate) fn any_lent(&self) -> bool {
        self.is_busy() && self.lock().lent.wait.is_some()
    }

    /// Makes the arena's stream wait for every declared stream, and for every other one if anything is or was lent,
    /// then forgets those that were declared at `depth` or deeper.
    ///
    /// A stream that it cannot wait for on the device is waited for on the host, and the first error
    /// is returned all the same; if that fails too the arena is lost. A panic of the device forgets no
    /// declaration.
    #[inline]
    pub(crate) fn wait_for_all(&self, device: &D, depth: u32) -> Result<(), Error> {
        if self.busy.load(Ordering::Relaxed) {
            self.wait_for_declared(device, depth)
        } else {
            Ok(())
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_for_declared(&self, device: &D, depth: u32) -> Result<(), Error> {
        let mut state = self.lock();
        let State { declared, lent, event, lost, .. } = &mut *state;
        let mut outcome = Ok(());
        if let Some(wait) = lent.wait {
            match wait(device) {
                Ok(()) => lent.wait = lent.wait.filter(|_| lent.handles > 0),
                Err(error) => {
                    lost.get_or_insert(error.clone());
                    outcome = Err(error.into());
                }
            }
        }
        // Should the device panic, every stream is still declared, and the next close waits for all.
        for Declared { stream, for_good, .. } in declared.iter_mut() {
            let waited =
                made(event, device).and_then(|event| order(device, event, stream, device.stream()));
            let Err(error) = waited else { continue };
            match device.synchronise_stream(stream) {
                // Nothing runs while it is recorded, so no order is lost with the recording.
                Ok(()) | Err(DeviceError { kind: DeviceErrorKind::InCapture, .. }) => {}
                Err(error) => {
                    lost.get_or_insert(error);
                    // The region's end tries once more.
                    *for_good = true;
                }
            }
            outcome = outcome.and(Err(error.into()));
        }
        declared.retain_mut(|declared| {
            declared.scope_depth = declared.scope_depth.filter(|&scope| scope < depth);
            declared.for_good && depth > 0 || declared.scope_depth.is_some()
        });
        self.note_busy(&state);
        outcome
    }

    fn note_busy(&self, state: &State<D>) {
        let waits = state.failure.is_some() || state.lost.is_some() || state.lent.wait.is_some();
        let here = self.is_paused() || self.is_beyond_limit();
        let busy = waits || here || !state.declared.is_empty();
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// While it is set, every [`check`](Self::check) and every [`begin_work`](Self::begin_work) says so. What other
    /// threads are giving the device just now has been given when this returns.
    pub(crate) fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
        drop(self.working.write().unwrap_or_else(PoisonError::into_inner));
        self.note_busy(&self.lock());
    }

    /// While it is set, every close of a root scope looks for memory to give back.
    pub(crate) fn set_beyond_limit(&self, beyond: bool) {
        self.beyond_limit.store(beyond, Ordering::Relaxed);
        self.note_busy(&self.lock());
    }

    #[inline]
    pub(crate) fn is_beyond_limit(&self) -> bool {
        self.beyond_limit.load(Ordering::Relaxed)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    pub(crate) fn refuse_paused(&self) -> Result<(), Error> {
        if self.is_paused() { Err(ErrorKind::Paused.into()) } else { Ok(()) }
    }

    /// The device may be given work on the region's bytes as long as the result lives: no pause begins meanwhile.
    pub(crate) fn begin_work(&self) -> Result<RwLockReadGuard<'_, ()>, Error> {
        let working = self.working.read().unwrap_or_else(PoisonError::into_inner);
        self.refuse_paused()?;
        Ok(working)
    }

    /// Whether there is anything to know: a declared stream, a failure.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Whether another stream may be using buffers that die with a scope.
    pub(crate) fn any_in_scopes(&self) -> bool {
        let in_scope = |declared: &Declared<_>| declared.scope_depth.is_some();
        self.is_busy() && {
            let state = self.lock();
            state.lent.wait.is_some() || state.declared.iter().any(in_scope)
        }
    }

    /// The declared stream that `is_it` recognises.
    pub(crate) fn find(&self, is_it: impl Fn(&D::Stream) -> bool) -> Option<D::Stream> {
        let state = self.lock();
        state.declared.iter().map(|declared| &declared.stream).find(|stream| is_it(stream)).cloned()
    }

    /// Keeps an error for the next fallible call; the first is the cause.
    pub(crate) fn keep_failure(&self, error: Error) {
        let mut state = self.lock();
        state.failure.get_or_insert(error);
        self.note_busy(&state);
    }

    /// The error that was kept, once; or the loss, or the pause, again and again.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_busy() { self.check_state() } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn check_state(&self) -> Result<(), Error> {
        let mut state = self.lock();
        if let Some(lost) = &state.lost {
            return Err(ErrorKind::OrderLost(lost.clone()).into());
        }
        self.refuse_paused()?;
        let failure = state.failure.take();
        self.note_busy(&state);
        failure.map_or(Ok(()), Err)
    }

    /// Whether an error waits to be told, or the region is paused.
    pub(crate) fn has_failure(&self) -> bool {
        self.is_busy() && {
            let state = self.lock();
            state.failure.is_some() || state.lost.is_some() || self.is_paused()
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_busy() && self.lock().lost.is_some()
    }
}

/// The event that every order goes through, made when it is first needed.
fn made<'e, D: Device>(
    event: &'e mut Option<D::Event>,
    device: &D,
) -> Result<&'e D::Event, DeviceError> {
    match event {
        Some(event) => Ok(event),
        none => Ok(none.insert(device.new_event()?)),
    }
}

/// Makes what comes on `second` wait for what is on `first`.
fn order<D: Device>(
    device: &D,
    event: &D::Event,
    first: &D::Stream,
    second: &D::Stream,
) -> Result<(), DeviceError> {
    device.record(event, first)?;
    device.wait(second, event)
}

fn wrong_device<D: Device>(device: &D, stream: &D::Stream) -> Error {
    ErrorKind::WrongDevice { what: format!("{stream:?}"), device: device.name() }.into()
}

impl<D: Device> fmt::Debug for Fences<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Fences")
            .field("declared", &state.declared.len())
            .field("lost", &state.lost)
            .finish_non_exhaustive()
    }
}
