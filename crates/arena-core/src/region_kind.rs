//! Which kind of memory a region is made of.

#![forbid(unsafe_code)]

use crate::bytes::ByteSize;
use crate::pressure::OnPressure;

/// How a region gets its physical memory. It is chosen when an arena is built, and changes no address: a program
/// gives the same results, with the same figures and signatures, with each kind.
///
/// A region over memory that the program holds (`Cuda::over`) is `Fixed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum RegionKind {
    /// All of it at once, in one call of the device. It does not grow, and on a GPU it gives nothing back.
    #[default]
    Fixed,
    /// The addresses at once, up to the capacity; the memory as it is needed, in few large pieces. It grows without
    /// moving anything, gives back what is not needed, and can be paused and resumed at the same addresses.
    Virtual,
}

/// What of an arena's contents outlives a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Keep {
    /// The persistent buffers. They are copied to host memory, and back by `resume`.
    Persistent,
    /// Nothing. There must be no persistent buffer, and graphs of the arena can never be replayed again.
    Nothing,
}

/// What a region is made of, and of what size.
#[derive(Debug, Clone)]
pub struct RegionOptions {
    /// The most that it can hold: never rounded.
    pub capacity: ByteSize,
    /// Its kind.
    pub kind: RegionKind,
    /// The most physical memory that is committed ahead of what is needed, in one call. Only for
    /// [`RegionKind::Virtual`].
    pub ahead: ByteSize,
    /// Beyond this much physical memory nothing is committed ahead, and what a step did not need goes back. Only for
    /// [`RegionKind::Virtual`].
    pub soft_limit: Option<ByteSize>,
    /// Told, and asked, when memory gets scarce.
    pub on_pressure: Option<OnPressure>,
}

impl RegionOptions {
    /// One allocation of this size.
    #[must_use]
    pub const fn fixed(capacity: ByteSize) -> Self {
        Self {
            capacity,
            kind: RegionKind::Fixed,
            ahead: ByteSize::gib(1),
            soft_limit: None,
            on_pressure: None,
        }
    }
}
