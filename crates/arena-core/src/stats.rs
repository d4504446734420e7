//! The figures of an arena.

#![forbid(unsafe_code)]

/// The figures of an arena at one moment. All sizes are bytes; offsets count from the base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The region's size, exactly as asked for.
    pub capacity_bytes: u64,
    /// The end of the persistent part. While the mark is not set, the cursor.
    pub mark_bytes: u64,
    /// The cursor.
    pub used_bytes: u64,
    /// The bytes between the cursor and the kept part.
    pub free_bytes: u64,
    /// The kept part at the region's top, its gaps included.
    pub kept_bytes: u64,
    /// The highest cursor since the arena was built.
    pub peak_bytes: u64,
    /// Calls that obtained memory from the device: 1 for the region, and 1 for each buffer that is a separate
    /// allocation.
    pub driver_allocations: u64,
}

impl Stats {
    /// The most bytes that transient buffers took at one time since the arena was built, padding included.
    ///
    /// ```
    /// # use arena_core::{Alignment, ByteSize, Host, RawArena};
    /// # let mut arena = RawArena::new(Host::new(), ByteSize::kib(4))?;
    /// let weights = arena.persistent_from(&[0_u8; 100])?;
    /// arena.set_mark()?;
    /// drop(arena.transient::<u8>(1000, Alignment::ONE)?);
    /// arena.reset_to_mark();
    /// assert_eq!(arena.stats().peak_transient_bytes(), 1000);
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    #[must_use]
    pub const fn peak_transient_bytes(&self) -> u64 {
        self.peak_bytes - self.mark_bytes
    }
}
