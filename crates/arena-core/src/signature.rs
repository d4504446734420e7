//! The step signature: equal signature, equal addresses.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::fmt;

use crate::bytes::Alignment;

/// A hash over the requests of a root scope in order (offset, size, alignment and depth of each) and over the
/// plan that it follows. Empty requests do not count.
///
/// Offsets count from the base of the region. So two steps of one arena with equal signatures got equal
/// addresses, except for a collision of the 64-bit hash. A step has a signature if it was observed, recorded,
/// planned or captured; a plain bump step has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
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
    /// Where a step's hash begins: the fractional part of the golden ratio, which is odd and has no
    /// pattern, as in Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4).
    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
    /// What a request's factor is counted from: the seed's low half. It fits an instruction, is so
    /// large that two factors fill 64 bits, and is 5 modulo 8, so that for sizes in whole floats
    /// (multiples of 4) the powers of a factor run through as many values as any can.
    const FACTOR: u64 = Self::SEED & 0xffff_ffff;

    /// Adds a request: the hash less the place, times the size.
    ///
    /// The factor is odd, so nothing that the hash knows is lost, and a change of the place alone
    /// always shows. Two changes hide each other only if the first, times all factors up to the
    /// second, equals the second to the last of 64 bits (less the low bits that both have not set).
    /// That a size is followed by an offset moved as far cannot: `d * (2x + 1)` is not zero.
    ///
    /// On the way from one request's hash to the next lie a subtraction and the multiply. That it is a
    /// subtraction matters: the hash is then loaded into a register of its own, and processors
    /// hand a stored value on to such a load without delay, but not to one inside an addition.
    #[inline]
    pub(crate) fn add(&self, offset_bytes: u64, bytes: u64, alignment: Alignment, depth: u32) {
        // Alignment and depth reach above any offset, and the alignment below as well.
        let low_bits = alignment.low_bits();
        let tag = low_bits ^ low_bits.rotate_left(41) ^ u64::from(depth).rotate_left(40);
        let place = offset_bytes ^ tag;
        let factor = bytes.wrapping_mul(2).wrapping_add(Self::FACTOR);
        self.hash.set(self.hash.get().wrapping_sub(place).wrapping_mul(factor));
        self.requests.set(self.requests.get() + 1);
        if bytes > self.largest_bytes.get() {
            self.largest_bytes.set(bytes);
        }
    }

    /// Begins a step that follows the plan of this identity; 0 is none.
    pub(crate) fn restart(&self, plan_id: u64) {
        self.hash.set(Self::SEED ^ plan_id);
        self.requests.set(0);
        self.largest_bytes.set(0);
    }

    pub(crate) fn finish(&self) -> StepSignature {
        StepSignature(self.hash.get())
    }

    /// All of it, to go back to with [`restore`](Self::restore).
    pub(crate) fn snapshot(&self) -> [u64; 3] {
        [self.hash.get(), self.requests.get(), self.largest_bytes.get()]
    }

    /// Goes back to a snapshot of the same step.
    pub(crate) fn restore(&self, [hash, requests, largest_bytes]: [u64; 3]) {
        self.hash.set(hash);
        self.requests.set(requests);
        self.largest_bytes.set(largest_bytes);
    }

    /// Requests since the step began.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// The largest of them, in bytes.
    pub(crate) fn largest_bytes(&self) -> u64 {
        self.largest_bytes.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    const A: u64 = 256;
    type Request = (u64, u64, u64, u32);

    fn signature(requests: &[Request]) -> StepSignature {
        let running = Running::default();
        running.restart(0);
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
    #[case::sizes_swapped(&[(256, 8, A, 1), (512, 40, A, 1)])]
    #[case::offsets_swapped(&[(512, 40, A, 1), (256, 8, A, 1)])]
    #[case::offset_and_alignment(&[(384, 40, 128, 1), (512, 8, A, 1)])]
    #[case::offset_and_size(&[(0, 296, A, 1), (512, 8, A, 1)])]
    #[case::size_and_next_offset(&[(256, 296, A, 1), (768, 8, A, 1)])]
    #[case::number(&[(256, 40, A, 1), (512, 8, A, 1), (520, 0, A, 1)])]
    #[case::none(&[])]
    fn a_difference_in_any_field_or_in_the_order_shows(#[case] other: &[Request]) {
        let reference = signature(&[(256, 40, A, 1), (512, 8, A, 1)]);
        assert_ne!(signature(other), reference);
        assert_eq!(signature(&[(256, 40, A, 1), (512, 8, A, 1)]), reference);
    }

    // A loop of micro-batches asks for the same again and again: the copies must not cancel.
    #[rstest]
    fn a_repeated_request_counts_each_time(#[values(1, 2, 16, 64, 128, 1024)] times: usize) {
        let (small, large) = ((0, 4096, A, 2), (0, 8192, A, 2));
        assert_ne!(signature(&vec![small; times]), signature(&vec![large; times]));
        assert_ne!(signature(&vec![small; times]), signature(&vec![small; 2 * times]));
        assert_ne!(signature(&vec![small; times]), signature(&vec![(256, 4096, A, 2); times]));
    }

    /// A step as placed by a plan: offsets anywhere, sizes small or in whole MiB.
    fn steps() -> impl Strategy<Value = Vec<Request>> {
        let bytes = prop_oneof![1..100_000_u64, (1..4096_u64).prop_map(|mib| mib << 20)];
        let request = (0..1_u64 << 28, bytes, 0..10_u32, 1..4_u32)
            .prop_map(|(unit, bytes, shift, depth)| (unit << shift, bytes, 1 << shift, depth));
        prop::collection::vec(request, 2..200)
    }

    fn change(request: &mut Request, field: usize, by: i64) {
        match field {
            0 => request.0 = request.0.wrapping_add_signed(by) & ((1 << 40) - 1),
            1 => request.1 = request.1.wrapping_add_signed(by) & ((1 << 40) - 1),
            2 => request.2 = if by % 2 == 0 { request.2 << 1 } else { request.2 << 2 },
            _ => request.3 = request.3.wrapping_add_signed(if by > 0 { 1 } else { -1 }),
        }
    }

    proptest! {
        #[test]
        fn any_change_of_one_request_shows(
            step in steps(), at: prop::sample::Index, field in 0..4_usize, by in 1..1_i64 << 34,
        ) {
            let mut other = step.clone();
            change(&mut other[at.index(step.len())], field, by);
            prop_assert_ne!(signature(&other), signature(&step));
        }

        #[test]
        fn two_changes_do_not_hide_each_other(
            step in steps(),
            fields in (0..4_usize, 0..4_usize),
            unit in prop_oneof![Just(1_i64), Just(256), Just(1 << 20), Just(1 << 30)],
            count in 1..9_i64,
            ratio in prop::sample::select(vec![-2_i64, -1, 1, 2]),
        ) {
            // At every distance: a hash that only turns would come round again at some.
            for at in 1..step.len() {
                let mut other = step.clone();
                change(&mut other[0], fields.0, unit * count);
                change(&mut other[at], fields.1, unit * count * ratio);
                prop_assert_ne!(signature(&other), signature(&step), "distance {}", at);
            }
        }

        #[test]
        fn equal_changes_of_equal_requests_do_not_cancel(
            request in steps().prop_map(|step| step[0]), field in 0..4_usize, by in 1..1_i64 << 34,
        ) {
            let step = vec![request; 200];
            for at in 1..step.len() {
                let mut other = step.clone();
                change(&mut other[0], field, by);
                change(&mut other[at], field, by);
                prop_assert_ne!(signature(&other), signature(&step), "distance {}", at);
            }
        }

        #[test]
        fn two_requests_that_change_places_show(
            step in steps(), places: (prop::sample::Index, prop::sample::Index),
        ) {
            let (first, second) = (places.0.index(step.len()), places.1.index(step.len()));
            prop_assume!(step[first] != step[second]);
            let mut other = step.clone();
            other.swap(first, second);
            prop_assert_ne!(signature(&other), signature(&step));
        }
    }
}
