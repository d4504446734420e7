//! What an arena is built with.

use arena_core::for_scopes::{RegionOptions, Steps};
use arena_core::{
    ByteSize, Capacity, Device, Error, ErrorKind, OnPressure, Placement, Pressure, RegionKind,
    Reset,
};

use super::Arena;
use crate::state::State;

/// What an arena is built with.
#[derive(Debug, Clone)]
pub struct ArenaBuilder<D> {
    device: D,
    capacity: Option<Capacity>,
    reset: Reset,
    host_bump: ByteSize,
    step_memory: ByteSize,
    placement: Placement,
    kind: RegionKind,
    ahead: ByteSize,
    soft_limit: Option<Capacity>,
    on_pressure: Option<OnPressure>,
}

impl<D: Device> ArenaBuilder<D> {
    /// A builder with the defaults.
    pub(super) const fn new(device: D) -> Self {
        Self {
            device,
            capacity: None,
            reset: Reset::Keep,
            host_bump: ByteSize::kib(16),
            step_memory: ByteSize::mib(128),
            placement: Placement::Bump,
            kind: RegionKind::Fixed,
            ahead: ByteSize::gib(1),
            soft_limit: None,
            on_pressure: None,
        }
    }

    /// The size of the region: a [`ByteSize`], which is never rounded, or a [`Capacity`], such as a fraction of the
    /// device's memory. It is required, because no default would suit. An arena on the device
    /// [`Probe`](arena_core::Probe) reports the [smallest capacity](Arena::smallest_capacity_bytes) for a program.
    ///
    /// ```
    /// use arena_scope::{Arena, ByteSize, Capacity, Host};
    ///
    /// let capacity = Capacity::fraction_of_free(0.01).headroom(ByteSize::mib(64));
    /// let arena = Arena::builder(Host::new()).capacity(capacity).build()?;
    /// assert!(arena.stats().capacity_bytes > 0);
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn capacity(mut self, capacity: impl Into<Capacity>) -> Self {
        self.capacity = Some(capacity.into());
        self
    }

    /// What a scope does with its bytes when it closes, unless the scope has its own policy. The default is
    /// [`Reset::Keep`].
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, Reset};
    /// let builder = Arena::builder(Host::new()).capacity(ByteSize::kib(4));
    /// let mut arena = builder.reset(Reset::Poison).build()?;
    /// let fresh = arena.scope(|step| step.read(step.alloc::<f32>(2)?.view()))?;
    /// assert!(fresh.iter().all(|value| value.is_nan()));
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub const fn reset(mut self, reset: Reset) -> Self {
        self.reset = reset;
        self
    }

    /// The initial size of the host bump of each depth. The default is 16 KiB. It grows when a step needs
    /// more.
    #[must_use]
    pub const fn host_bump(mut self, size: ByteSize) -> Self {
        self.host_bump = size;
        self
    }

    /// The most host memory for what the arena remembers of each kind of step: its figures, its
    /// [record](Arena::record), its plan. The default is 128 MiB. When it is full, the arena gives memory back, that of
    /// the least recently used kinds first:
    ///
    /// 1. A plan shrinks to its slots, 16 bytes for each request. The next step of its kind makes the rest again, about
    ///    60 bytes for each request and 17 KiB, and follows the same plan as before.
    /// 2. A kind is forgotten. If it comes again, it is a new kind, and the [planner](crate::plan::Planner), if there is
    ///    one, is asked for its plan again. [`SteadyState::forgotten`](crate::steady::SteadyState::forgotten) counts
    ///    these kinds.
    ///
    /// The kind of the open step is not counted out, and neither are kinds that cannot be had again: those whose plan
    /// the program [installed](Arena::install_plan) or [shared](Arena::share_plan), and those of a
    /// [graph](crate::StepGraph) that is alive. Of these only the records are forgotten. So such kinds can
    /// take more than the budget.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, StepKey};
    /// let builder = Arena::builder(Host::new()).capacity(ByteSize::kib(64));
    /// let mut arena = builder.step_memory(ByteSize::kib(32)).build()?;
    /// arena.observe(None);
    /// for length in 1..1000 {
    ///     let key = StepKey::named("train").variant(length);
    ///     arena.scope_with(key, |step| step.alloc::<f32>(length as usize).map(drop))?;
    /// }
    /// assert!(arena.step_memory_bytes() <= 32 << 10);
    /// let seen = arena.observed().expect("it is observed");
    /// assert_eq!(seen.kinds.len() as u64 + seen.forgotten, 999);
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub const fn step_memory(mut self, size: ByteSize) -> Self {
        self.step_memory = size;
        self
    }

    /// Where transient buffers lie. The default is [`Placement::Bump`]; the other placements are for finding
    /// bugs.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, Placement};
    /// let builder = Arena::builder(Host::new()).capacity(ByteSize::kib(4));
    /// let mut arena = builder.placement(Placement::Separate).build()?;
    /// let region = arena.base_address()..arena.base_address() + 4096;
    /// arena.scope(|step| {
    ///     let buffer = step.alloc::<f32>(8)?;
    ///     assert!(!region.contains(&buffer.address())); // a separate allocation
    ///     assert_eq!(buffer.offset_bytes(), 0); // the offset stays that of the bump
    ///     arena_scope::Ok(())
    /// })?;
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub const fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// How the region gets its memory. The default is [`RegionKind::Fixed`]. With [`RegionKind::Virtual`] the
    /// capacity is a limit: the region takes addresses for it, and memory as it is needed.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, RegionKind};
    /// let builder = Arena::builder(Host::new()).capacity(ByteSize::gib(64));
    /// let mut arena = builder.region(RegionKind::Virtual).build()?;
    /// assert_eq!(arena.stats().committed_bytes, 0);
    /// arena.scope(|step| step.alloc_zeroed::<u8>(5 << 20).map(drop))?;
    /// assert_eq!(arena.stats().committed_bytes, 5 << 20);
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub const fn region(mut self, kind: RegionKind) -> Self {
        self.kind = kind;
        self
    }

    /// The most memory that a [`RegionKind::Virtual`] region takes ahead of what it needs, in one step. It takes as
    /// much again as it has, up to this size, so that a growing step makes few calls of the device. The default is
    /// 1 GiB; 0 takes just what is needed.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, RegionKind};
    /// let builder = Arena::builder(Host::new()).capacity(ByteSize::gib(1)).region(RegionKind::Virtual);
    /// let mut arena = builder.commit_ahead(ByteSize::kib(0)).build()?;
    /// arena.scope(|step| step.alloc::<u8>(10_000).map(drop))?;
    /// assert_eq!(arena.stats().committed_bytes, 12_288); // whole pages
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub const fn commit_ahead(mut self, size: ByteSize) -> Self {
        self.ahead = size;
        self
    }

    /// How much memory a [`RegionKind::Virtual`] region holds at most without being asked to give some back: bytes, or a
    /// [fraction](Capacity) of the device's memory. Beyond it the region grows on, up to its capacity, which is the hard
    /// limit; but it takes nothing ahead, and each root scope that closes gives back what it did not need. The program
    /// is told by [`on_pressure`](Self::on_pressure). A step that needs more than the limit keeps its memory from step to
    /// step.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, RegionKind};
    /// let builder = Arena::builder(Host::new()).capacity(ByteSize::gib(1)).region(RegionKind::Virtual);
    /// let mut arena = builder.soft_limit(ByteSize::mib(8)).build()?;
    /// for mib in [40, 4] {
    ///     arena.scope(|step| step.alloc::<u8>(mib << 20).map(drop))?;
    /// }
    /// assert_eq!(arena.stats().committed_bytes, 8 << 20); // the large step's memory is gone
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn soft_limit(mut self, limit: impl Into<Capacity>) -> Self {
        self.soft_limit = Some(limit.into());
        self
    }

    /// A callback for when memory gets scarce. It is called where the region is built or takes physical memory, and
    /// nowhere else: if the device has too little, it may free what something else holds, and returns whether to ask the
    /// device once more.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, RegionKind};
    /// use arena_scope::Pressure;
    /// use arena_scope::device::Limited;
    ///
    /// let device = Limited::new(Host::new(), ByteSize::mib(8));
    /// let builder = Arena::builder(device).capacity(ByteSize::gib(1)).region(RegionKind::Virtual);
    /// let builder = builder.on_pressure(|pressure| {
    ///     if let Pressure::OutOfMemory { shortage: Some(shortage), .. } = pressure {
    ///         println!("{shortage}"); // ... and empty a cache
    ///     }
    ///     true // ask once more
    /// });
    /// let mut arena = builder.build()?;
    /// assert!(arena.scope(|step| step.alloc::<u8>(9 << 20).map(drop)).is_err());
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn on_pressure(
        mut self,
        callback: impl Fn(&Pressure) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.on_pressure = Some(OnPressure::new(callback));
        self
    }

    /// Obtains the region: one call of the device.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoCapacity`] without a [capacity](Self::capacity); [`ErrorKind::Device`] when the device
    /// refuses, has not so much memory, has no region of this [kind](Self::region), or cannot tell of how much a
    /// fraction is asked. Nothing is held then.
    pub fn build(self) -> Result<Arena<D>, Error> {
        let capacity = self.capacity.ok_or(ErrorKind::NoCapacity)?.on(&self.device)?;
        let soft_limit = self.soft_limit.map(|limit| limit.on(&self.device)).transpose()?;
        let (kind, ahead, on_pressure) = (self.kind, self.ahead, self.on_pressure);
        let options = RegionOptions { capacity, kind, ahead, soft_limit, on_pressure };
        let steps = Steps::with_region(self.device, options, self.placement, self.reset)?;
        let host_bump_bytes = usize::try_from(self.host_bump.bytes()).unwrap_or(usize::MAX);
        Ok(Arena { state: State::new(steps, host_bump_bytes, self.step_memory.bytes()) })
    }
}
