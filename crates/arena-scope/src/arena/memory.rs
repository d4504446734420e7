//! The physical memory of the region: giving it back, pausing, and where the arena stands.

use arena_core::{Device, Error, Keep, RegionKind, Status};

use super::Arena;

impl<D: Device> Arena<D> {
    /// How the region gets its memory.
    #[must_use]
    pub fn region_kind(&self) -> RegionKind {
        self.state.steps.region().kind()
    }

    /// Where the arena stands, in two lines for people.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Probe};
    /// let arena = Arena::builder(Probe::new()).capacity(ByteSize::mib(64)).build()?;
    /// let _weights = arena.persistent::<u8>(3 << 20)?;
    /// let status = arena.status().to_string();
    /// let (first, second) = status.split_once('\n').expect("two lines");
    /// assert_eq!(first, "used 3.00 MiB, persistent 3.00 MiB, kept 0 bytes, high-water 3.00 MiB");
    /// assert_eq!(second, "committed 64.00 MiB of 64.00 MiB, the device does not tell what is free");
    /// # arena_scope::Ok(())
    /// ```
    #[must_use]
    pub fn status(&self) -> Status {
        self.state.steps.status()
    }

    /// Gives physical memory back to the system, from the high-water of the last root scope up to the kept
    /// part. Every address stays valid. Returns the number of bytes given back.
    ///
    /// With [`RegionKind::Virtual`] whole pieces go back, and come again when they are needed. On
    /// [`Host`](crate::Host) whole pages go back with any kind of region. A [`Probe`](crate::Probe) has nothing to
    /// give.
    ///
    /// # Errors
    ///
    /// The device's refusal: of the kind [`Unsupported`](arena_core::DeviceErrorKind::Unsupported) where it never
    /// gives back, as a GPU with [`RegionKind::Fixed`]. [`ErrorKind::InUse`](crate::ErrorKind::InUse) while a captured
    /// graph holds the region, whose addresses it may use. Or an error that an earlier close left behind.
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host};
    /// # let mut arena = Arena::builder(Host::new()).capacity(ByteSize::mib(1)).build()?;
    /// for len in [1_000_000, 1000] {
    ///     arena.scope(|step| step.alloc_zeroed::<u8>(len).map(drop))?; // one large step, one small one
    /// }
    /// assert!(arena.trim()? > 900_000);
    /// # arena_scope::Ok(())
    /// ```
    pub fn trim(&mut self) -> Result<u64, Error> {
        self.state.settle_all();
        self.state.steps.trim(self.state.steps.last_step().high_water_bytes)
    }

    /// [`trim`](Self::trim), and the first `bytes` bytes of the region keep the memory that they have; the persistent
    /// buffers keep theirs in any case.
    ///
    /// # Errors
    ///
    /// As for [`trim`](Self::trim).
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, RegionKind};
    /// # let builder = Arena::builder(Host::new()).capacity(ByteSize::gib(1));
    /// let mut arena = builder.region(RegionKind::Virtual).build()?;
    /// arena.scope(|step| step.alloc_zeroed::<u8>(20 << 20).map(drop))?;
    /// assert_eq!(arena.stats().committed_bytes, 20 << 20);
    /// assert_eq!(arena.trim_to(4 << 20)?, 16 << 20);
    /// assert_eq!(arena.trim_to(0)?, 4 << 20);
    /// # arena_scope::Ok(())
    /// ```
    pub fn trim_to(&mut self, bytes: u64) -> Result<u64, Error> {
        self.state.settle_all();
        self.state.steps.trim(bytes)
    }

    /// Keeps the memory that the steps need, and gives the rest back: for a program whose need is known only when it
    /// has run. Steps of a kind need what their plan takes, or else what the first observed one took; if the arena
    /// knows no kind, the highest cursor so far counts. Returns the number of bytes given back.
    ///
    /// Call it when the steps have run once, or when their plans are installed. If a later step needs more, a
    /// [`RegionKind::Virtual`] region grows again.
    ///
    /// # Errors
    ///
    /// As for [`trim`](Self::trim).
    ///
    /// ```
    /// # use arena_scope::{Arena, ByteSize, Host, RegionKind};
    /// let builder = Arena::builder(Host::new()).capacity(ByteSize::gib(64));
    /// let mut arena = builder.region(RegionKind::Virtual).build()?;
    /// for _ in 0..12 {
    ///     arena.scope(|step| (0..9).try_for_each(|_| step.alloc::<u8>(1 << 20).map(drop)))?;
    /// }
    /// assert_eq!(arena.stats().committed_bytes, 16 << 20); // it doubles
    /// arena.fit()?;
    /// assert_eq!(arena.stats().committed_bytes, 9 << 20);
    /// # arena_scope::Ok(())
    /// ```
    pub fn fit(&mut self) -> Result<u64, Error> {
        self.state.settle_all();
        let needs_bytes = self.state.needs_bytes();
        self.state.steps.trim(needs_bytes)
    }

    /// Gives all physical memory back and keeps the addresses, until [`resume`](Self::resume). It first waits for every
    /// stream of the device, and copies what is kept to host memory. Meanwhile every scope, read, copy and request is refused
    /// ([`ErrorKind::Paused`](crate::ErrorKind::Paused)). The program's own work on an address of the region, such as
    /// a kernel on a persistent buffer, is an error of the device until then.
    ///
    /// Graphs cannot be replayed while the arena is paused; afterwards they can, if the persistent buffers were kept.
    /// After [`Keep::Nothing`] the graphs captured before are stale for ever.
    ///
    /// It needs [`RegionKind::Virtual`]. On a device whose memory the host uses as slices, such as
    /// [`Host`](crate::Host), nothing is paused: it gives back what is free, as [`trim_to`](Self::trim_to) 0, and `resume`
    /// does nothing. Returns the number of bytes given back.
    ///
    /// # Errors
    ///
    /// The arena is not paused after:
    ///
    /// - [`ErrorKind::NotVirtual`](crate::ErrorKind::NotVirtual) for a region of another kind,
    /// - [`ErrorKind::WouldBeLost`](crate::ErrorKind::WouldBeLost) for [`Keep::Nothing`] while there is a persistent
    ///   buffer,
    /// - [`ErrorKind::InUse`](crate::ErrorKind::InUse) while a buffer is lent,
    /// - [`ErrorKind::NoHostMemory`](crate::ErrorKind::NoHostMemory) for the copies,
    /// - an error that an earlier close left behind, or the device's refusal of a wait or a copy.
    ///
    /// If the device refuses to take the memory itself, the arena is paused, and [`pause`](Self::pause) again goes on.
    ///
    /// ```
    /// use arena_scope::device::Deferred; // a GPU in host memory, for tests
    /// use arena_scope::{Arena, ByteSize, Keep, RegionKind};
    ///
    /// let builder = Arena::builder(Deferred::new(0)).capacity(ByteSize::mib(64));
    /// let mut arena = builder.region(RegionKind::Virtual).build()?;
    /// let weights = arena.persistent_from(&[1.0_f32; 1000])?;
    /// arena.pause(Keep::Persistent)?;
    /// assert_eq!(arena.stats().committed_bytes, 0);
    /// assert!(weights.view().to_vec().is_err());
    /// arena.resume()?;
    /// assert_eq!(weights.view().to_vec()?, [1.0; 1000]); // at the same address
    /// # arena_scope::Ok(())
    /// ```
    pub fn pause(&mut self, keep: Keep) -> Result<u64, Error> {
        self.state.settle_all();
        self.state.steps.pause(keep)
    }

    /// Takes the memory again that [`pause`](Self::pause) gave back, and writes what was kept to where it was. If the
    /// arena is not paused, it does nothing.
    ///
    /// # Errors
    ///
    /// The device's refusal: it has no memory now, or a copy failed. The arena is still paused then; try again.
    pub fn resume(&mut self) -> Result<(), Error> {
        self.state.steps.resume()
    }

    /// Whether the arena is [paused](Self::pause).
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.state.steps.is_paused()
    }
}
