//! The zones of a region: persistent, transient, free, kept.
//!
//! ```text
//! base                                                            base + capacity
//!  | persistent | transient ->                    free            <- kept |
//!               ^mark        ^cursor                              ^kept floor
//! ```
//!
//! This is the arena without memory: it decides where, and never touches a byte. The cells let a
//! scope allocate through a shared reference; nothing here is shared between threads.

#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::hint::cold_path;

use crate::bytes::Alignment;
use crate::error::{Error, ErrorKind};
use crate::exhausted::Exhausted;
use crate::kept::KeptZone;
use crate::layout::{Span, align_down, align_up, fit};

/// How far ahead of itself the cursor is kept: the low bits of the default alignment, so that
/// rounding it up is a single `and`. What one request waits for of the one before is the length of
/// the hot path; this makes it two operations.
const AHEAD: u64 = Alignment::DEFAULT.low_bits();

/// The zones of one region. What the hot path needs is kept as addresses, the rest as offsets from
/// the base in bytes.
#[derive(Debug)]
#[repr(C)] // The hot path's three come first: see `Steps`.
pub(crate) struct Zones {
    base_address: u64,
    /// The cursor's address + [`AHEAD`].
    cursor_ahead: Cell<u64>,
    /// What a request may fill: up to the kept floor, or to the end of the committed memory below it; its
    /// address + [`AHEAD`].
    limit_ahead: Cell<u64>,
    capacity_bytes: u64,
    /// Where the memory ends that the cursor may go into.
    committed_bytes: Cell<u64>,
    mark: Cell<Option<u64>>,
    peak: Cell<u64>,
    kept: RefCell<KeptZone>,
}

impl Zones {
    /// Zones of a region for which [`region_fits`](crate::layout::region_fits) holds.
    pub(crate) const fn new(base_address: u64, capacity_bytes: u64) -> Self {
        Self {
            base_address,
            capacity_bytes,
            committed_bytes: Cell::new(capacity_bytes),
            cursor_ahead: Cell::new(base_address + AHEAD),
            limit_ahead: Cell::new(base_address + capacity_bytes + AHEAD),
            mark: Cell::new(None),
            peak: Cell::new(0),
            kept: RefCell::new(KeptZone::new(base_address, capacity_bytes)),
        }
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    #[inline]
    pub(crate) fn base_address(&self) -> u64 {
        self.base_address
    }

    /// An address of the region as an offset from its base.
    #[inline]
    pub(crate) fn offset_of(&self, address: u64) -> u64 {
        address - self.base_address
    }

    fn cursor_address(&self) -> u64 {
        self.cursor_ahead.get() - AHEAD
    }

    fn set_cursor_address(&self, address: u64) {
        self.cursor_ahead.set(address + AHEAD);
    }

    pub(crate) fn cursor_bytes(&self) -> u64 {
        self.cursor_address() - self.base_address
    }

    /// The mark, or where it would be if it were set now.
    pub(crate) fn mark_bytes(&self) -> u64 {
        self.mark.get().unwrap_or_else(|| self.cursor_bytes())
    }

    pub(crate) fn mark_is_set(&self) -> bool {
        self.mark.get().is_some()
    }

    /// The highest cursor ever.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak.get().max(self.cursor_bytes())
    }

    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept.borrow().bytes()
    }

    pub(crate) fn floor_bytes(&self) -> u64 {
        self.kept.borrow().floor_bytes()
    }

    /// Sets the mark at the cursor, once.
    pub(crate) fn set_mark(&self) -> Result<(), Error> {
        if let Some(mark_bytes) = self.mark.get() {
            return Err(ErrorKind::MarkAlreadySet { mark_bytes }.into());
        }
        self.mark.set(Some(self.cursor_bytes()));
        Ok(())
    }

    /// The hot path: the address of the next `bytes` bytes above the cursor, or `None` if they do not
    /// fit. It agrees with [`fit`](crate::layout::fit) for
    /// 0 < `bytes` <= [`MAX_BYTES`](crate::bytes::MAX_BYTES).
    #[inline]
    pub(crate) fn bump(&self, bytes: u64, alignment: Alignment) -> Option<u64> {
        // `cursor + low_bits`, from a cursor that is `AHEAD` already: nothing is left to add for the
        // default alignment. As in `fit` the start is at most 2⁶² and `bytes` below 2⁶³, so the end
        // stays in range with room for `AHEAD`.
        let reach = self.cursor_ahead.get().wrapping_add(alignment.low_bits().wrapping_sub(AHEAD));
        let start_address = align_down(reach, alignment);
        let end_ahead = start_address + (bytes + AHEAD);
        if end_ahead > self.limit_ahead.get() {
            cold_path();
            return None;
        }
        self.cursor_ahead.set(end_ahead);
        Some(start_address)
    }

    /// The same with the error, and for empty requests, which take no room. Its memory is committed.
    #[cold]
    pub(crate) fn bump_checked(&self, bytes: u64, alignment: Alignment) -> Result<Span, Error> {
        let (cursor, floor) = (self.cursor_address(), self.base_address + self.floor_bytes());
        if bytes == 0 {
            // Where an empty buffer points to is aligned, and may lie past the region's end.
            let start_bytes = align_up(cursor, alignment) - self.base_address;
            return Ok(Span { start_bytes, end_bytes: start_bytes });
        }
        let (start_address, end_address) =
            fit(cursor, floor, bytes, alignment).ok_or_else(|| self.exhausted(bytes, alignment))?;
        self.set_cursor_address(end_address);
        Ok(Span {
            start_bytes: start_address - self.base_address,
            end_bytes: end_address - self.base_address,
        })
    }

    /// Room for a persistent buffer: above the cursor before the mark is set, kept afterwards.
    /// The second value says whether it is kept.
    pub(crate) fn place_persistent(
        &self,
        bytes: u64,
        alignment: Alignment,
    ) -> Result<(Span, bool), Error> {
        if bytes == 0 || !self.mark_is_set() {
            return Ok((self.bump_checked(bytes, alignment)?, false));
        }
        let placed = self.kept.borrow_mut().place(bytes, alignment, self.cursor_bytes());
        match placed {
            Some(span) => {
                self.follow_limit();
                Ok((span, true))
            }
            None => Err(self.exhausted(bytes, alignment).into()),
        }
    }

    /// Takes a kept span back.
    pub(crate) fn give_back_kept(&self, span: Span) {
        self.kept.borrow_mut().give_back(span);
        self.follow_limit();
    }

    /// Moves the cursor back to `to_bytes`, but never below the mark.
    #[inline]
    pub(crate) fn rewind(&self, to_bytes: u64) {
        self.peak.set(self.peak_bytes());
        let to_bytes = to_bytes.max(self.mark_bytes()).min(self.cursor_bytes());
        self.set_cursor_address(self.base_address + to_bytes);
    }

    /// Moves the cursor up to `to_bytes`, over bytes that a plan hands out.
    pub(crate) fn raise(&self, to_bytes: u64) {
        self.set_cursor_address(self.base_address + to_bytes.max(self.cursor_bytes()));
    }

    /// Takes back the request that put the cursor from `before_bytes` to the end of `span`, as if it had
    /// not been made: unlike a rewind it leaves no trace in the peak. `false` if something was placed
    /// since; nothing is taken back then.
    pub(crate) fn take_back(&self, before_bytes: u64, span: Span) -> bool {
        let is_last = span.is_empty() || self.cursor_bytes() == span.end_bytes;
        if is_last && !span.is_empty() {
            // The cursor was higher before if the request made the step leave its plan.
            let to_bytes = before_bytes.min(span.start_bytes);
            self.set_cursor_address(self.base_address + to_bytes);
        }
        is_last
    }

    fn follow_limit(&self) {
        let limit_bytes = self.floor_bytes().min(self.committed_bytes());
        self.limit_ahead.set(self.base_address + limit_bytes + AHEAD);
    }

    /// Where the memory ends that the cursor may go into: the capacity if the region has all its memory.
    #[inline]
    pub(crate) fn committed_bytes(&self) -> u64 {
        self.committed_bytes.get()
    }

    /// The memory that the cursor may go into ends here.
    pub(crate) fn set_committed(&self, bytes: u64) {
        self.committed_bytes.set(bytes.min(self.capacity_bytes));
        self.follow_limit();
    }

    /// Where a request would end, if it fits below what is kept: its memory may still be missing.
    pub(crate) fn end_of(&self, bytes: u64, alignment: Alignment) -> Option<u64> {
        let (cursor, floor) = (self.cursor_address(), self.base_address + self.floor_bytes());
        let (_, end_address) = fit(cursor, floor, bytes, alignment)?;
        Some(end_address - self.base_address)
    }

    pub(crate) fn exhausted(&self, asked_bytes: u64, alignment: Alignment) -> Exhausted {
        let used_bytes = self.cursor_bytes();
        let free_bytes = self.floor_bytes() - used_bytes;
        // The request from the cursor on, its padding included, against what is free.
        let cursor = self.cursor_address();
        let padding_bytes = align_up(cursor, alignment) - cursor;
        let needed_bytes = padding_bytes.saturating_add(asked_bytes);
        Exhausted {
            asked_bytes,
            alignment,
            capacity_bytes: self.capacity_bytes,
            mark_bytes: self.mark_bytes(),
            used_bytes,
            free_bytes,
            kept_bytes: self.kept_bytes(),
            missing_bytes: needed_bytes.saturating_sub(free_bytes),
            call_site: None,
            scope: None,
            kept: Vec::new(),
            plan: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bytes::MAX_BYTES;

    const A256: Alignment = Alignment::DEFAULT;

    #[test]
    fn the_mark_is_set_once_and_a_rewind_never_goes_below_it() {
        let zones = Zones::new(0, 4096);
        zones.bump_checked(300, A256).unwrap();
        zones.set_mark().unwrap();
        assert!(matches!(
            zones.set_mark().unwrap_err().kind(),
            ErrorKind::MarkAlreadySet { mark_bytes: 300 }
        ));
        assert_eq!(zones.bump(10, A256), Some(512));
        zones.rewind(0);
        assert_eq!((zones.cursor_bytes(), zones.peak_bytes()), (300, 522));
    }

    // B036
    #[test]
    fn a_refused_request_changes_nothing() {
        let zones = Zones::new(0, 1000);
        zones.bump_checked(10, Alignment::ONE).unwrap();
        let error = zones.bump_checked(2000, A256).unwrap_err();
        let facts = error.as_exhausted().unwrap();
        assert_eq!((facts.asked_bytes, facts.used_bytes, facts.free_bytes), (2000, 10, 990));
        assert_eq!(facts.missing_bytes, 256 + 2000 - 1000);
        assert_eq!((zones.cursor_bytes(), zones.peak_bytes()), (10, 10));
        assert_eq!(zones.bump_checked(10, Alignment::ONE).unwrap().start_bytes, 10);
    }

    #[test]
    fn persistent_requests_after_the_mark_are_kept_and_leave_cursor_and_mark_alone() {
        let zones = Zones::new(0, 4096);
        assert!(!zones.place_persistent(256, A256).unwrap().1);
        zones.set_mark().unwrap();
        zones.bump(100, A256).unwrap();
        let (span, kept) = zones.place_persistent(256, A256).unwrap();
        assert!(kept);
        assert_eq!((span.start_bytes, zones.mark_bytes(), zones.cursor_bytes()), (3840, 256, 356));
        // The bump stops at the new floor, exactly.
        assert_eq!(zones.bump(3328, A256), Some(512));
        assert_eq!(zones.cursor_bytes(), 3840);
        assert!(zones.bump(1, Alignment::ONE).is_none());
        zones.give_back_kept(span);
        assert_eq!(zones.bump(256, A256), Some(3840));
    }

    #[test]
    fn what_is_kept_lies_above_the_cursor() {
        let zones = Zones::new(0, 4096);
        zones.set_mark().unwrap();
        zones.bump(4000, A256).unwrap();
        assert!(zones.place_persistent(97, Alignment::ONE).unwrap_err().is_exhausted());
        assert_eq!(zones.place_persistent(96, Alignment::ONE).unwrap().0.start_bytes, 4000);
    }

    #[test]
    fn raising_the_cursor_never_lowers_it() {
        let zones = Zones::new(0, 4096);
        zones.raise(1000);
        zones.raise(500);
        assert_eq!(zones.cursor_bytes(), 1000);
    }

    #[test]
    fn a_request_is_taken_back_only_as_long_as_it_is_the_last() {
        let zones = Zones::new(0, 4096);
        let first = zones.bump_checked(100, A256).unwrap();
        let second = zones.bump_checked(100, A256).unwrap();
        assert!(!zones.take_back(0, first));
        assert_eq!(zones.cursor_bytes(), 356);
        assert!(zones.take_back(100, second) && zones.take_back(0, first));
        assert_eq!((zones.cursor_bytes(), zones.peak_bytes()), (0, 0));
    }

    // B008
    #[test]
    fn empty_requests_succeed_even_without_capacity() {
        let zones = Zones::new(256, 0);
        assert!(zones.bump_checked(0, A256).unwrap().is_empty());
        assert!(zones.bump_checked(1, A256).unwrap_err().is_exhausted());
        zones.set_mark().unwrap();
        assert!(zones.place_persistent(0, A256).unwrap().0.is_empty());
        assert_eq!(zones.kept_bytes(), 0);
    }

    proptest! {
        #[test]
        fn the_fast_path_places_as_the_rule_of_the_layout_does(
            cursor in any_up_to(1 << 62),
            anywhere in any_up_to(1 << 62),
            room_over in prop::option::of(-1..=1_i64),
            bytes in any_up_to(MAX_BYTES - 1).prop_map(|less_one| less_one + 1),
            alignment in (0..=61_u32).prop_map(|shift| Alignment::new(1 << shift).unwrap()),
        ) {
            // Where an exact fit would end, give or take a byte, or anywhere.
            let exact_end = align_up(cursor, alignment) + bytes;
            let limit = room_over
                .map_or(anywhere, |over| exact_end.saturating_add_signed(over).min(1 << 62));
            // With a limit below the cursor too: the rounded start of any request may lie beyond.
            let zones = Zones::new(cursor.min(limit), limit.saturating_sub(cursor));
            zones.set_cursor_address(cursor);
            zones.limit_ahead.set(limit + AHEAD);
            let expected = fit(cursor, limit, bytes, alignment);
            prop_assert_eq!(zones.bump(bytes, alignment), expected.map(|(start, _)| start));
            let cursor_after = expected.map_or(cursor, |(_, end)| end);
            prop_assert_eq!(zones.cursor_address(), cursor_after);
        }
    }

    /// Small, large, and close to powers of two, up to `most`.
    fn any_up_to(most: u64) -> impl Strategy<Value = u64> {
        let near_power = (0..=62_u32, -300..=300_i64)
            .prop_map(|(shift, off)| (1_u64 << shift).saturating_add_signed(off));
        prop_oneof![0..=4096_u64, 0..=most, near_power, Just(most)]
            .prop_map(move |value| value.min(most))
    }
}
