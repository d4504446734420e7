//! What a file tells of the steps of a run: the importers make it, and the tools take it.

use std::fmt;

use arena_plan::{Instance, InstanceError};

use crate::names::{NameId, Names, SiteId};

/// What was read from a file.
#[derive(Debug, Clone)]
pub struct Recording {
    /// What kind of file it was.
    pub source: Source,
    /// The texts and the call sites that the steps name.
    pub names: Names,
    /// The arena's region, if the file knows it.
    pub region: Option<Region>,
    /// In the order in which they ran, one device after another.
    pub steps: Vec<Step>,
    /// So many steps were not written, because the writer was behind.
    pub lost_steps: u64,
}

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The events of an arena, as JSON Lines.
    Events,
    /// A trace of allocations.
    Trace,
    /// A table of buffers with their lifetimes.
    Table,
    /// Plans.
    Plan,
    /// A memory snapshot of PyTorch.
    Snapshot,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Events => "events of an arena",
            Self::Trace => "a trace of allocations",
            Self::Table => "a table of buffers",
            Self::Plan => "plans",
            Self::Snapshot => "a PyTorch memory snapshot",
        })
    }
}

/// How the steps of a file were told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// The file says where a step begins and ends.
    ByFile,
    /// The sizes of the allocations repeat with this period.
    ByRepetition {
        /// Allocations of one step.
        allocations: u32,
    },
    /// The file does not say, and the sizes do not repeat: all of the file is one step.
    DoesNotRepeat,
    /// The file has no history, only what was held at one moment.
    NoHistory,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByFile => f.write_str("as the file says"),
            Self::ByRepetition { allocations } => {
                write!(f, "told apart by repetition, every {allocations} allocations")
            }
            Self::DoesNotRepeat => f.write_str("the sizes do not repeat: taken as one step"),
            Self::NoHistory => f.write_str("the file has no history: what was held at one moment"),
        }
    }
}

/// The region of an arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// What the device is called.
    pub device: String,
    /// All bytes of the region.
    pub capacity_bytes: u64,
    /// Where the persistent part ends, in bytes from the base.
    pub mark_bytes: u64,
}

/// One step.
#[derive(Debug, Clone)]
pub struct Step {
    /// What people call it.
    pub name: String,
    /// How it was told apart from the others.
    pub told: Told,
    /// `false` for what lies before the first step, or after the last one that is complete.
    pub is_whole: bool,
    /// The number of the device.
    pub device: u32,
    /// Every birth and every drop lies at a moment below this.
    pub moments: u32,
    /// In the order of their births.
    pub buffers: Vec<Buffer>,
    /// Bytes that were live before the step and are live after it: persistent, or kept.
    pub through_bytes: u64,
    /// How many buffers these are.
    pub through_buffers: u64,
    /// What another allocator held meanwhile.
    pub held: Option<Held>,
    /// What the arena or the program said about the step.
    pub figures: Figures,
}

/// What the allocator that was recorded had reserved, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// At most, during the step.
    pub most_bytes: u64,
    /// While the most was live.
    pub at_live_peak_bytes: u64,
}

/// What a file with events says of a step, as far as it does.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Figures {
    /// How requests were served: `bump`, `planned` and so on.
    pub mode: Option<String>,
    /// The cursor when the step began, in bytes from the base.
    pub start_bytes: Option<u64>,
    /// Where the kept part began then, in bytes from the base.
    pub kept_floor_bytes: Option<u64>,
    /// The highest cursor in the step, in bytes from the base.
    pub high_water_bytes: Option<u64>,
    /// The cursor at the step's end, in bytes from the base.
    pub used_bytes: Option<u64>,
    /// Bytes of the region that had memory at its end.
    pub committed_bytes: Option<u64>,
    /// Bytes that were kept at its end.
    pub kept_bytes: Option<u64>,
    /// How often the step differed from its plan.
    pub deviations: Option<u64>,
    /// Why the step failed, if it did.
    pub failed: Option<String>,
    /// Whether its end is in the file.
    pub ended: bool,
    /// When it began and ended, in nanoseconds since the file's begin.
    pub time_ns: (Option<u64>, Option<u64>),
    /// What the program said: the loss.
    pub loss: Option<f64>,
    /// What the program said: how many predictions the step made.
    pub predictions: Option<u64>,
    /// What the program said: how long the step took, in nanoseconds.
    pub elapsed_ns: Option<u64>,
}

/// Where a buffer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was born in the step.
    Step,
    /// It was born before the step, and dropped in it.
    Carried,
}

/// A number that stands for none.
const NONE: u32 = u32::MAX;
const NO_OFFSET: u64 = u64::MAX;

/// A buffer of a step. Its moments count the events of the step; many of these are held, so it is small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    bytes: u64,
    offset_bytes: u64,
    birth: u32,
    dropped: u32,
    last_use: u32,
    site: Option<SiteId>,
    tag: Option<NameId>,
    scope: Option<NameId>,
    alignment_log2: u8,
    origin: Origin,
}

impl Buffer {
    /// A buffer that lives from a moment to the step's end, and is aligned to bytes.
    #[must_use]
    pub fn new(birth: u32, bytes: u64) -> Self {
        Self {
            bytes,
            offset_bytes: NO_OFFSET,
            birth,
            dropped: NONE,
            last_use: NONE,
            site: None,
            tag: None,
            scope: None,
            alignment_log2: 0,
            origin: Origin::Step,
        }
    }

    /// The moment of its birth. 0 is before all others for a carried one.
    #[must_use]
    pub fn birth(&self) -> u32 {
        self.birth
    }

    /// The moment of its drop; `None` if it lives to the end of the step or longer.
    #[must_use]
    pub fn dropped(&self) -> Option<u32> {
        (self.dropped != NONE).then_some(self.dropped)
    }

    /// The first moment at which it is dead; `moments` is how many the step has.
    #[must_use]
    pub fn death(&self, moments: u32) -> u32 {
        self.dropped.min(moments)
    }

    /// The moment after which it was used last, if that is known.
    #[must_use]
    pub fn last_use(&self) -> Option<u32> {
        (self.last_use != NONE).then_some(self.last_use)
    }

    /// Its size in bytes, as it was requested.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its alignment in bytes, a power of two.
    #[must_use]
    pub fn alignment_bytes(&self) -> u64 {
        1 << self.alignment_log2
    }

    /// Where it began when it was recorded, if that is known: in bytes from the region's base, or an address.
    #[must_use]
    pub fn offset_bytes(&self) -> Option<u64> {
        (self.offset_bytes != NO_OFFSET).then_some(self.offset_bytes)
    }

    /// The line that requested it.
    #[must_use]
    pub fn site(&self) -> Option<SiteId> {
        self.site
    }

    /// What its program calls it.
    #[must_use]
    pub fn tag(&self) -> Option<NameId> {
        self.tag
    }

    /// The open scopes when it was requested, from the outermost in.
    #[must_use]
    pub fn scope(&self) -> Option<NameId> {
        self.scope
    }

    /// Where it comes from.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The same, born at another moment.
    #[must_use]
    pub(crate) fn born(self, birth: u32) -> Self {
        Self { birth, ..self }
    }

    /// The same, dropped at a moment.
    #[must_use]
    pub fn dropped_at(self, dropped: Option<u32>) -> Self {
        Self { dropped: dropped.unwrap_or(NONE), ..self }
    }

    /// The same, used last after a moment.
    #[must_use]
    pub fn used_last(self, last_use: Option<u32>) -> Self {
        Self { last_use: last_use.unwrap_or(NONE), ..self }
    }

    /// The same at an offset or an address.
    #[must_use]
    pub fn at(self, offset_bytes: u64) -> Self {
        Self { offset_bytes, ..self }
    }

    /// The same with an alignment in bytes.
    ///
    /// # Panics
    ///
    /// When it is no power of two.
    #[must_use]
    pub fn aligned(self, alignment_bytes: u64) -> Self {
        assert!(alignment_bytes.is_power_of_two(), "{alignment_bytes} is no power of two");
        Self { alignment_log2: alignment_bytes.trailing_zeros() as u8, ..self }
    }

    /// The same, requested by a line.
    #[must_use]
    pub fn requested_by(self, site: Option<SiteId>) -> Self {
        Self { site, ..self }
    }

    /// The same with a tag.
    #[must_use]
    pub fn tagged(self, tag: Option<NameId>) -> Self {
        Self { tag, ..self }
    }

    /// The same, requested in a scope.
    #[must_use]
    pub fn within(self, scope: Option<NameId>) -> Self {
        Self { scope, ..self }
    }

    /// The same, of an origin.
    #[must_use]
    pub(crate) fn with_origin(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }
}

impl Step {
    /// A whole step of which only its buffers are known.
    #[must_use]
    pub fn new(name: String, told: Told, moments: u32, buffers: Vec<Buffer>) -> Self {
        Self {
            name,
            told,
            is_whole: true,
            device: 0,
            moments,
            buffers,
            through_bytes: 0,
            through_buffers: 0,
            held: None,
            figures: Figures::default(),
        }
    }

    /// The buffers that were born in the step.
    pub fn own(&self) -> impl Iterator<Item = &Buffer> {
        self.buffers.iter().filter(|buffer| buffer.origin == Origin::Step)
    }

    /// The buffers that were born in the step, as an instance to plan.
    ///
    /// # Errors
    ///
    /// When their sizes add up to more than the planner supports.
    pub fn instance(&self) -> Result<Instance, InstanceError> {
        Instance::new(self.own().map(|buffer| self.planned(buffer)).collect())
    }

    /// A buffer as the planner knows it.
    pub(crate) fn planned(&self, buffer: &Buffer) -> arena_plan::Buffer {
        let (birth, death) = (u64::from(buffer.birth), u64::from(buffer.death(self.moments)));
        arena_plan::Buffer::new(birth, death, buffer.bytes).aligned(buffer.alignment_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_takes_48_bytes_so_that_a_snapshot_fits_into_four_times_its_file() {
        assert_eq!(size_of::<Buffer>(), 48);
    }
}
