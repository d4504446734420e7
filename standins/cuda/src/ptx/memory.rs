//! The memory that a thread sees: global, shared, local, and its parameters.

use super::instruction::Space;
use crate::raw;

/// Generic addresses of shared memory begin here; no device address reaches that far.
pub(super) const SHARED_WINDOW: u64 = 1 << 60;
/// Generic addresses of local memory.
pub(super) const LOCAL_WINDOW: u64 = 2 << 60;
/// Generic addresses of parameters.
pub(super) const PARAM_WINDOW: u64 = 3 << 60;

/// Why an access failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Outside,
    Misaligned,
}

/// The device memory that a kernel may touch.
#[derive(Debug)]
pub(super) struct Global {
    /// Sorted, without overlap: start and end.
    ranges: Vec<(u64, u64)>,
    /// The range of the last access, which the next one most often falls into.
    recent: (u64, u64),
}

impl Global {
    pub(super) fn new(ranges: Vec<(u64, u64)>) -> Self {
        Self { ranges, recent: (0, 0) }
    }

    /// Whether the range may be touched.
    #[inline]
    fn admits(&mut self, address: u64, len: u64) -> bool {
        let Some(end) = address.checked_add(len) else { return false };
        if address >= self.recent.0 && end <= self.recent.1 {
            return true;
        }
        let after = self.ranges.partition_point(|(start, _)| *start <= address);
        match after.checked_sub(1).map(|i| self.ranges[i]) {
            Some(range) if end <= range.1 => {
                self.recent = range;
                true
            }
            _ => false,
        }
    }
}

/// The spaces of one thread at one moment.
pub(super) struct Spaces<'m> {
    pub(super) global: &'m mut Global,
    pub(super) shared: &'m mut [u8],
    pub(super) local: &'m mut [u8],
    pub(super) parameters: &'m mut [u8],
}

impl Spaces<'_> {
    /// The space of an address and the address within it.
    #[inline]
    fn resolve(space: Space, address: u64) -> (Space, u64) {
        match space {
            Space::Global => (Space::Global, address),
            // These spaces have 32-bit addresses, and registers may hold rubbish above.
            Space::Shared | Space::Local | Space::Param => (space, address & 0xFFFF_FFFF),
            Space::Generic => match address >> 60 {
                1 => (Space::Shared, address - SHARED_WINDOW),
                2 => (Space::Local, address - LOCAL_WINDOW),
                3 => (Space::Param, address - PARAM_WINDOW),
                _ => (Space::Global, address),
            },
        }
    }

    fn bytes_of(&mut self, space: Space) -> &mut [u8] {
        match space {
            Space::Shared => self.shared,
            Space::Local => self.local,
            _ => self.parameters,
        }
    }

    /// Checks an access of `lanes` values of `bytes` each, and gives the resolved address.
    #[inline]
    pub(super) fn check(
        &mut self,
        space: Space,
        address: u64,
        bytes: u8,
        lanes: usize,
    ) -> Result<(Space, u64), Refusal> {
        let (space, at) = Self::resolve(space, address);
        let len = u64::from(bytes) * lanes as u64;
        if !at.is_multiple_of(len) {
            return Err(Refusal::Misaligned);
        }
        let inside = match space {
            Space::Global => self.global.admits(at, len),
            space => {
                at.checked_add(len).is_some_and(|end| end <= self.bytes_of(space).len() as u64)
            }
        };
        if inside { Ok((space, at)) } else { Err(Refusal::Outside) }
    }

    /// Reads a value of 1, 2, 4 or 8 bytes from a checked address.
    #[inline]
    pub(super) fn read(&mut self, space: Space, at: u64, bytes: u8) -> u64 {
        if space == Space::Global {
            return raw::load(at, bytes);
        }
        let mut value = [0; 8];
        let (at, len) = (at as usize, usize::from(bytes));
        value[..len].copy_from_slice(&self.bytes_of(space)[at..at + len]);
        u64::from_le_bytes(value)
    }

    /// Writes a value of 1, 2, 4 or 8 bytes to a checked address.
    #[inline]
    pub(super) fn write(&mut self, space: Space, at: u64, bytes: u8, value: u64) {
        if space == Space::Global {
            return raw::store(at, bytes, value);
        }
        let (at, len) = (at as usize, usize::from(bytes));
        self.bytes_of(space)[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    }
}
