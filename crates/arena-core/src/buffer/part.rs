//! Where a part of a view lies, and what is checked before it is made.

#![forbid(unsafe_code)]

use std::ops::{Bound, RangeBounds};

use crate::bytes::Alignment;
use crate::error::{Error, ErrorKind};
use crate::layout::RowLayout;

/// Bytes before element `index` of a buffer that has at least so many: in range, since its bytes are in memory.
pub(super) const fn offset_bytes<T>(index: usize) -> u64 {
    index as u64 * size_of::<T>() as u64
}

pub(super) fn resolve(
    range: &impl RangeBounds<usize>,
    len: usize,
) -> Result<(usize, usize), Error> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok((start, end - start)),
        _ => Err(ErrorKind::OutOfBounds {
            start: start.map_or(u64::MAX, |start| start as u64),
            end: end.map_or(u64::MAX, |end| end as u64),
            len: len as u64,
        }
        .into()),
    }
}

pub(super) fn check_aligned(address: u64, alignment_bytes: u64) -> Result<(), Error> {
    let alignment = Alignment::new(alignment_bytes)?;
    if alignment.divides(address) {
        return Ok(());
    }
    Err(ErrorKind::Misaligned { address, alignment }.into())
}

pub(super) fn row_range<T>(
    layout: &RowLayout,
    row: usize,
) -> Result<std::ops::Range<usize>, Error> {
    layout.check_element::<T>()?;
    if row >= layout.rows() {
        let row = row as u64;
        let rows = layout.rows() as u64;
        return Err(ErrorKind::OutOfBounds { start: row, end: row + 1, len: rows }.into());
    }
    let start = row * layout.pitch();
    Ok(start..start + layout.columns())
}

pub(super) fn same_len(given: usize, expected: usize) -> Result<(), Error> {
    if given == expected {
        return Ok(());
    }
    Err(ErrorKind::LengthMismatch { expected: expected as u64, given: given as u64 }.into())
}
