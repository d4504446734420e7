//! The figures of an arena.

#![forbid(unsafe_code)]

use std::fmt;

use crate::bytes::ByteSize;
use crate::device::DeviceMemory;
use crate::shortage::LimitedBy;

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
    /// Bytes of the region that have physical memory: all of it, unless it is
    /// [`RegionKind::Virtual`](crate::RegionKind::Virtual).
    pub committed_bytes: u64,
    /// Calls that obtained memory from the device: 1 for the region, 1 for each piece of memory that it grew by, and
    /// 1 for each buffer that is a separate allocation.
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

/// Where an arena stands, in two lines for people: what it uses of its region, and what of that is physical memory.
/// [`Display`](fmt::Display) writes them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The figures of the arena.
    pub stats: Stats,
    /// What the device has, if it tells.
    pub memory: Option<DeviceMemory>,
}

impl Status {
    pub(crate) const fn new(stats: Stats, memory: Option<DeviceMemory>) -> Self {
        Self { stats, memory }
    }

    /// Bytes of persistent buffers below the mark, padding included.
    #[must_use]
    pub const fn persistent_bytes(&self) -> u64 {
        self.stats.mark_bytes
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = ByteSize::bytes_exact;
        let Stats {
            capacity_bytes,
            mark_bytes,
            used_bytes,
            kept_bytes,
            peak_bytes,
            committed_bytes,
            ..
        } = self.stats;
        writeln!(
            f,
            "used {}, persistent {}, kept {}, high-water {}",
            size(used_bytes),
            size(mark_bytes),
            size(kept_bytes),
            size(peak_bytes)
        )?;
        write!(f, "committed {} of {}, ", size(committed_bytes), size(capacity_bytes))?;
        match &self.memory {
            Some(DeviceMemory { device, free_bytes, total_bytes, limit_bytes, limited_by }) => {
                write!(f, "{device}: free {} of {}", size(*free_bytes), size(*total_bytes))?;
                match limited_by {
                    LimitedBy::Device => Ok(()),
                    other => write!(f, ", limit {} ({})", size(*limit_bytes), other.name()),
                }
            }
            None => f.write_str("the device does not tell what is free"),
        }
    }
}
