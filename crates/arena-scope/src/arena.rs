//! The arena: a region, its mark, and the scopes above it.

mod builder;
mod memory;
mod plans;
mod watching;

pub use builder::ArenaBuilder;
pub use watching::RunDemand;

use std::fmt;

use arena_core::for_scopes::Steps;
use arena_core::{Alignment, Device, Error, Host, Persistent, Pod, Probe, Stats, StepSignature};

use crate::guard::Guard;
use crate::options::ScopeOptions;
use crate::scope::{Scope, run};
use crate::state::State;

/// One device region: persistent buffers at its bottom, the mark where they end, and scopes above the mark.
/// When a root scope closes, the cursor goes back to the mark.
///
/// An arena can be sent to another thread, but not shared between threads. The region goes back to the device
/// when the arena and the last [`Persistent`] are dropped.
pub struct Arena<D: Device = Host> {
    pub(crate) state: State<D>,
}

impl<D: Device> Arena<D> {
    /// Begins to build an arena on `device`.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// let arena = Arena::builder(Host::new()).capacity(ByteSize::bytes_exact(1000)).build()?;
    /// assert_eq!((arena.stats().capacity_bytes, arena.stats().used_bytes), (1000, 0));
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub const fn builder(device: D) -> ArenaBuilder<D> {
        ArenaBuilder::new(device)
    }

    // --- persistent buffers and the mark ------------------------------------------------------

    /// A persistent buffer of `len` elements with unspecified but initialised contents. Before the mark is set
    /// it lies below the mark; afterwards it is kept at the top of the region.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Exhausted`](arena_core::ErrorKind::Exhausted) when it does not fit,
    /// [`ErrorKind::TooBig`](arena_core::ErrorKind::TooBig) when it never can, or an error that an
    /// earlier close left behind.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let mut weights = arena.persistent::<f32>(3)?;
    /// weights.view_mut().write(&[1.0, 2.0, 3.0])?;
    /// arena.scope(|step| step.alloc_zeroed::<f32>(100).map(drop))?;
    /// assert_eq!(weights.as_slice(), [1.0, 2.0, 3.0]); // no scope touches it
    /// # arena_scope::Ok(())
    /// ```
    #[track_caller]
    pub fn persistent<T: Pod>(&self, len: usize) -> Result<Persistent<T, D>, Error> {
        self.state.steps.persistent(len, Alignment::DEFAULT, 0)
    }

    /// [`persistent`](Self::persistent), filled with zero bytes in stream order.
    ///
    /// # Errors
    ///
    /// As for [`persistent`](Self::persistent), or the device's refusal of the fill.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let velocity = arena.persistent_zeroed::<f32>(3)?;
    /// assert_eq!(velocity.as_slice(), [0.0; 3]);
    /// # arena_scope::Ok(())
    /// ```
    #[track_caller]
    pub fn persistent_zeroed<T: Pod>(&self, len: usize) -> Result<Persistent<T, D>, Error> {
        self.state.steps.persistent_zeroed(len, Alignment::DEFAULT)
    }

    /// A persistent buffer that holds `values`, copied in stream order.
    ///
    /// # Errors
    ///
    /// As for [`persistent`](Self::persistent), or the device's refusal of the copy.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let weights = arena.persistent_from(&[1.0_f32, 2.0])?;
    /// assert_eq!(weights.as_slice(), [1.0, 2.0]);
    /// assert_eq!(arena.stats().used_bytes, 8);
    /// # arena_scope::Ok(())
    /// ```
    #[track_caller]
    pub fn persistent_from<T: Pod>(&self, values: &[T]) -> Result<Persistent<T, D>, Error> {
        self.state.steps.persistent_from(values, Alignment::DEFAULT)
    }

    /// Sets the mark where the persistent buffers end. The first scope sets it if this was not
    /// called.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MarkAlreadySet`](arena_core::ErrorKind::MarkAlreadySet) when it is set already.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let weights = arena.persistent::<f32>(100)?;
    /// arena.mark()?;
    /// assert_eq!(arena.stats().mark_bytes, 400);
    /// let later = arena.persistent::<f32>(100)?;
    /// assert!(!weights.is_kept() && later.is_kept()); // at the region's top
    /// assert!(arena.mark().is_err()); // once
    /// # arena_scope::Ok(())
    /// ```
    pub fn mark(&mut self) -> Result<(), Error> {
        self.state.steps.set_mark()
    }

    // --- scopes -------------------------------------------------------------------------------

    /// Runs `body` in a scope above the mark. When `body` ends, by a return, an error or a panic, the cursor
    /// goes back to the mark.
    ///
    /// # Errors
    ///
    /// What `body` returns; or an error of opening (an earlier failure) or closing (a refused
    /// clearing).
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let sum = arena.scope(|step| {
    ///     let x = step.upload(&[1.0_f32, 2.0])?;
    ///     arena_scope::Ok(x.as_slice().iter().sum::<f32>())
    /// })?;
    /// assert_eq!((sum, arena.stats().used_bytes), (3.0, 0));
    /// # arena_scope::Ok(())
    /// ```
    pub fn scope<'a, R, E: From<Error>>(
        &'a mut self,
        body: impl for<'s> FnOnce(&mut Scope<'s, 'a, D>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.scope_with(ScopeOptions::default(), body)
    }

    /// [`scope`](Self::scope) with a name. Errors show it, and steps of one name are compared with each other.
    ///
    /// # Errors
    ///
    /// As for [`scope`](Self::scope).
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let too_large = arena.scope_named("train", |step| step.alloc::<u8>(5000).map(drop));
    /// assert!(too_large.unwrap_err().to_string().contains("`train` (depth 1)"));
    /// # arena_scope::Ok(())
    /// ```
    pub fn scope_named<'a, R, E: From<Error>>(
        &'a mut self,
        name: &'static str,
        body: impl for<'s> FnOnce(&mut Scope<'s, 'a, D>) -> Result<R, E>,
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
    /// let zero = ScopeOptions::named("train").reset(Reset::Zero);
    /// arena.scope_with(zero, |step| step.upload(&[7_u8; 4]).map(drop))?;
    /// let next = arena.scope(|step| step.read(step.alloc::<u8>(4)?.view()))?;
    /// assert_eq!(next, [0; 4]);
    /// # arena_scope::Ok(())
    /// ```
    pub fn scope_with<'a, R, E: From<Error>>(
        &'a mut self,
        options: impl Into<ScopeOptions>,
        body: impl for<'s> FnOnce(&mut Scope<'s, 'a, D>) -> Result<R, E>,
    ) -> Result<R, E> {
        let options = options.into();
        self.state.prepare_root(options.key());
        run(&self.state, self.state.open_root(options)?, body)
    }

    /// Opens a scope in the guard form, for loops where a closure does not fit.
    ///
    /// # Errors
    ///
    /// An error that an earlier close left behind.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let mut steps = 0;
    /// for batch in [8, 4, 0, 2] {
    ///     let mut guard = arena.enter()?;
    ///     if batch == 0 {
    ///         break; // the guard is dropped, and closes the scope
    ///     }
    ///     guard.scope().alloc::<f32>(batch)?;
    ///     guard.close()?;
    ///     steps += 1;
    /// }
    /// assert_eq!((steps, arena.resets(), arena.stats().used_bytes), (2, 3, 0));
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
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, ScopeOptions};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let mut guard = arena.enter_with(ScopeOptions::named("evaluation"))?;
    /// let refused = guard.scope().alloc::<u8>(5000).map(drop).unwrap_err();
    /// assert!(refused.to_string().contains("`evaluation`"));
    /// guard.close()?;
    /// # arena_scope::Ok(())
    /// ```
    pub fn enter_with(&mut self, options: impl Into<ScopeOptions>) -> Result<Guard<'_, D>, Error> {
        let options = options.into();
        self.state.prepare_root(options.key());
        Ok(Guard::of(&self.state, self.state.open_root(options)?))
    }

    // --- figures ------------------------------------------------------------------------------

    /// The figures of the arena now.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let weights = arena.persistent::<u8>(100)?;
    /// let stats = arena.stats();
    /// assert_eq!((stats.used_bytes, stats.free_bytes), (100, 4096 - 100));
    /// assert_eq!((stats.mark_bytes, stats.driver_allocations), (100, 1));
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.state.steps.stats()
    }

    /// Scopes closed so far, of any depth.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.scope(|step| step.scope(|inner| inner.alloc::<u8>(1).map(drop)))?;
    /// assert_eq!(arena.generation(), 2); // the inner scope and the root scope
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.state.steps.generation()
    }

    /// Root scopes closed so far: resets to the mark.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.scope(|step| step.scope(|inner| inner.alloc::<u8>(1).map(drop)))?;
    /// assert_eq!(arena.resets(), 1); // one root scope
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.state.steps.resets()
    }

    /// The signature of the last root scope that closed, if it was observed, recorded or planned, or if the
    /// device captures graphs. `None` for any other step, so that a plain bump does not pay for it.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// arena.observe(None);
    /// let mut signature_of = |len: usize| {
    ///     arena.scope(|step| step.alloc::<f32>(len).map(drop))?;
    ///     arena_scope::Ok(arena.last_step_signature().expect("the step was observed"))
    /// };
    /// let first = signature_of(10)?;
    /// assert_eq!(signature_of(10)?, first);
    /// assert_ne!(signature_of(11)?, first);
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn last_step_signature(&self) -> Option<StepSignature> {
        self.state.steps.last_step().signature
    }

    /// The highest cursor of the last root scope that closed, in bytes from the base.
    #[must_use]
    pub fn last_step_high_water_bytes(&self) -> u64 {
        self.state.steps.last_step().high_water_bytes
    }

    /// The device that the region came from.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Device, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// assert_eq!(arena.device().name(), "host");
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn device(&self) -> &D {
        self.state.steps.region().device()
    }

    /// The device address of the region's first byte.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
    /// let weights = arena.persistent::<f32>(4)?;
    /// assert_eq!(weights.address(), arena.base_address() + weights.offset_bytes());
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn base_address(&self) -> u64 {
        self.state.steps.region().base_address()
    }

    /// What the arena stands on, for its own tests.
    #[doc(hidden)]
    #[must_use]
    pub fn steps(&self) -> &Steps<D> {
        &self.state.steps
    }

    /// Returns the error that an earlier close could not return, if there is one. Otherwise it tries again what a
    /// close left undone. Every request and every opening of a scope does the same, so only a loop that ends by
    /// dropping a guard needs this call.
    ///
    /// # Errors
    ///
    /// That error, once; or the failure of the new try.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, Reset};
    /// use arena_scope::device::{Call, Failing};
    ///
    /// let device = Failing::new(Host::new()); // a wrapper for tests
    /// let switch = device.switch();
    /// let builder = Arena::builder(device).capacity(ByteSize::kib(4));
    /// let mut arena = builder.reset(Reset::Zero).build()?;
    /// let mut guard = arena.enter()?;
    /// guard.scope().alloc::<u8>(100)?;
    /// switch.fail_nth(Call::Fill, 1);
    /// drop(guard); // the close cannot clear, and a drop returns nothing
    /// assert!(arena.check().is_err()); // so this call returns the error
    /// assert!(arena.check().is_ok()); // and this one clears
    /// # arena_scope::Ok(())
    /// ```
    pub fn check(&mut self) -> Result<(), Error> {
        self.state.settle_all();
        self.state.steps.ready()
    }
}

impl Arena<Probe> {
    /// The smallest capacity in bytes for the requests made so far, in their order and with the padding of the
    /// kept part.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, Probe};
    /// let step = |arena: &mut Arena<Probe>| arena.scope(|step| {
    ///     step.alloc::<f32>(100)?;
    ///     step.alloc::<f32>(100).map(drop)
    /// });
    /// let mut probe = Arena::builder(Probe::new()).capacity(ByteSize::gib(1)).build()?;
    /// step(&mut probe)?;
    /// assert_eq!(probe.smallest_capacity_bytes(), 512 + 400); // the second one starts at 512
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn smallest_capacity_bytes(&self) -> u64 {
        self.state.steps.smallest_capacity_bytes()
    }
}

impl<D: Device> fmt::Debug for Arena<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Arena").field(&self.state).finish()
    }
}
