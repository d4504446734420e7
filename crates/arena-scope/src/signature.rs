//! The step signature: equal signature, equal addresses.

use std::cell::Cell;
use std::fmt;

use arena_core::{Alignment, ScopeFacts};

/// A hash over the (offset, size, alignment, depth) of a root scope's requests, in order.
///
/// Offsets count from the region's base, so inside one arena two steps with equal signatures got
/// equal addresses, up to a collision of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StepSignature(u64);

impl StepSignature {
    /// The hash.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }
}

impl fmt::Display for StepSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The signature while it grows, and two figures for the error that may come.
#[derive(Debug, Default)]
pub(crate) struct Running {
    hash: Cell<u64>,
    requests: Cell<u64>,
    largest_bytes: Cell<u64>,
}

impl Running {
    /// An odd number without a pattern: the fractional part of the golden ratio, as in Fibonacci
    /// hashing (Knuth, The Art of Computer Programming 3, 6.4).
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

    /// Adds a request: one multiply, off the chain that the hash itself is. The rotation makes the
    /// order of requests count.
    #[inline]
    pub(crate) fn add(&self, offset_bytes: u64, bytes: u64, alignment: Alignment, depth: u32) {
        // From one cursor on, a larger alignment gives an offset at least as large, so the sum of
        // the offset and the low bits tells the two apart.
        let placed = offset_bytes + alignment.low_bits();
        let request = placed ^ bytes.rotate_left(32) ^ u64::from(depth).rotate_left(56);
        let mixed = request.wrapping_mul(Self::MULTIPLIER);
        self.hash.set(self.hash.get().rotate_left(29) ^ mixed);
        self.requests.set(self.requests.get() + 1);
        if bytes > self.largest_bytes.get() {
            self.largest_bytes.set(bytes);
        }
    }

    pub(crate) fn restart(&self) {
        self.hash.set(Self::MULTIPLIER);
        self.requests.set(0);
        self.largest_bytes.set(0);
    }

    pub(crate) fn finish(&self) -> StepSignature {
        StepSignature(self.hash.get())
    }

    pub(crate) fn facts(&self, name: &'static str, depth: u32, resets: u64) -> ScopeFacts {
        ScopeFacts::new(name, depth, self.requests.get(), self.largest_bytes.get(), resets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const A: u64 = 256;

    fn signature(requests: &[(u64, u64, u64, u32)]) -> StepSignature {
        let running = Running::default();
        for &(offset, bytes, alignment, depth) in requests {
            running.add(offset, bytes, Alignment::new(alignment).unwrap(), depth);
        }
        running.finish()
    }

    #[rstest]
    #[case::offset(&[(512, 40, A, 1), (512, 8, A, 1)])]
    #[case::size(&[(256, 41, A, 1), (512, 8, A, 1)])]
    #[case::alignment(&[(256, 40, 64, 1), (512, 8, A, 1)])]
    #[case::depth(&[(256, 40, A, 2), (512, 8, A, 1)])]
    #[case::order(&[(512, 8, A, 1), (256, 40, A, 1)])]
    #[case::number(&[(256, 40, A, 1), (512, 8, A, 1), (520, 0, A, 1)])]
    #[case::none(&[])]
    fn a_difference_in_any_field_or_in_the_order_shows(#[case] other: &[(u64, u64, u64, u32)]) {
        let reference = signature(&[(256, 40, A, 1), (512, 8, A, 1)]);
        assert_ne!(signature(other), reference);
        assert_eq!(signature(&[(256, 40, A, 1), (512, 8, A, 1)]), reference);
    }
}
