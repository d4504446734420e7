//! An independent check of plans: it shares no code and no compressed time with the solvers.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::instance::Instance;

/// Why offsets are not a valid plan for an instance.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// The number of offsets is not the number of buffers.
    #[error("each buffer needs one offset: buffers {buffers}, offsets {offsets}")]
    Count {
        /// How many offsets were given.
        offsets: usize,
        /// How many buffers there are.
        buffers: usize,
    },
    /// An offset is not a multiple of its buffer's alignment.
    #[error(
        "buffer {index} lies at offset {offset_bytes}, which is not a multiple of its alignment {alignment_bytes}"
    )]
    Misaligned {
        /// Position of the buffer.
        index: usize,
        /// Where it lies.
        offset_bytes: u64,
        /// Its alignment.
        alignment_bytes: u64,
    },
    /// A buffer with a fixed offset lies elsewhere.
    #[error("buffer {index} lies at offset {offset_bytes}, but is fixed at offset {fixed_bytes}")]
    Moved {
        /// Position of the buffer.
        index: usize,
        /// Where it lies.
        offset_bytes: u64,
        /// Where it must lie.
        fixed_bytes: u64,
    },
    /// Two buffers share bytes while both live.
    #[error("buffers {first} and {second} share bytes while both live")]
    Overlap {
        /// Position of the lower-numbered one.
        first: usize,
        /// Position of the other.
        second: usize,
    },
    /// An offset so large that its end cannot be expressed.
    #[error("buffer {index} ends above the largest address")]
    Overflow {
        /// Position of the buffer.
        index: usize,
    },
    /// The peak is not what was claimed.
    #[error("the plan claims a peak of {claimed_bytes} bytes, but its peak is {actual_bytes}")]
    WrongPeak {
        /// The peak found here.
        actual_bytes: u64,
        /// The peak that was claimed.
        claimed_bytes: u64,
    },
}

/// A rectangle in time and addresses, both half-open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) index: usize,
    pub(crate) birth: u64,
    pub(crate) death: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// Sweeps over time with the live address ranges in an ordered map; O(n log n).
pub(crate) fn first_overlap(mut spans: Vec<Span>) -> Option<(usize, usize)> {
    spans.sort_unstable_by_key(|span| span.birth);
    let mut by_death: Vec<Span> = spans.clone();
    by_death.sort_unstable_by_key(|span| span.death);
    let mut dying = by_death.into_iter().peekable();
    // start -> (end, index); disjoint, so the neighbour on each side decides.
    let mut live: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for span in spans {
        while let Some(dead) = dying.next_if(|next| next.death <= span.birth) {
            live.remove(&dead.start);
        }
        if let Some((_, &(end, other))) = live.range(..=span.start).next_back()
            && end > span.start
        {
            return Some((other, span.index));
        }
        if let Some((_, &(_, other))) = live.range(span.start..span.end).next() {
            return Some((other, span.index));
        }
        live.insert(span.start, (span.end, span.index));
    }
    None
}

/// Checks offsets against an instance and returns the peak in bytes: the largest end of an occupied
/// range. Each buffer occupies its size rounded up to the instance's granule.
///
/// # Errors
///
/// The first [`Violation`] found.
///
/// ```
/// # use arena_plan::{Buffer, Instance, validate};
/// let instance = Instance::new(vec![Buffer::new(0, 2, 100), Buffer::new(1, 3, 50)])?;
/// assert_eq!(validate(&instance, &[0, 100])?, 150); // the peak
/// assert!(validate(&instance, &[0, 99]).is_err()); // both live at 1, and share byte 99
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn validate(instance: &Instance, offsets_bytes: &[u64]) -> Result<u64, Violation> {
    if offsets_bytes.len() != instance.len() {
        return Err(Violation::Count { offsets: offsets_bytes.len(), buffers: instance.len() });
    }
    let mut peak_bytes = 0;
    let mut spans = Vec::with_capacity(instance.len());
    for (index, (buffer, &offset_bytes)) in instance.buffers().iter().zip(offsets_bytes).enumerate()
    {
        let alignment_bytes = buffer.alignment_bytes;
        if offset_bytes % alignment_bytes != 0 {
            return Err(Violation::Misaligned { index, offset_bytes, alignment_bytes });
        }
        if let Some(fixed_bytes) = buffer.fixed_offset_bytes
            && fixed_bytes != offset_bytes
        {
            return Err(Violation::Moved { index, offset_bytes, fixed_bytes });
        }
        if buffer.size_bytes == 0 {
            continue;
        }
        let end = offset_bytes
            .checked_add(instance.occupied_bytes(index))
            .ok_or(Violation::Overflow { index })?;
        peak_bytes = peak_bytes.max(end);
        spans.push(Span {
            index,
            birth: buffer.birth,
            death: buffer.death,
            start: offset_bytes,
            end,
        });
    }
    match first_overlap(spans) {
        Some((one, other)) => {
            Err(Violation::Overlap { first: one.min(other), second: one.max(other) })
        }
        None => Ok(peak_bytes),
    }
}

/// [`validate`] that also checks that the peak is the claimed one.
///
/// # Errors
///
/// The first [`Violation`] found.
pub fn validate_peak(
    instance: &Instance,
    offsets_bytes: &[u64],
    claimed_bytes: u64,
) -> Result<(), Violation> {
    let actual_bytes = validate(instance, offsets_bytes)?;
    if actual_bytes == claimed_bytes {
        Ok(())
    } else {
        Err(Violation::WrongPeak { actual_bytes, claimed_bytes })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::instance::Buffer;

    fn three() -> Instance {
        Instance::new(vec![
            Buffer::new(0, 4, 30).aligned(16),
            Buffer::new(2, 6, 16).aligned(16),
            Buffer::new(4, 8, 32).aligned(16),
        ])
        .unwrap()
    }

    #[rstest]
    #[case::good(&[0, 32, 0], Ok(48))]
    #[case::too_few(&[0, 32], Err(Violation::Count { offsets: 2, buffers: 3 }))]
    #[case::crooked(&[0, 40, 0], Err(Violation::Misaligned { index: 1, offset_bytes: 40, alignment_bytes: 16 }))]
    #[case::on_the_first(&[0, 16, 32], Err(Violation::Overlap { first: 0, second: 1 }))]
    #[case::under_the_first(&[16, 0, 0], Err(Violation::Overlap { first: 1, second: 2 }))]
    #[case::same_start(&[0, 0, 16], Err(Violation::Overlap { first: 0, second: 1 }))]
    #[case::beyond(&[0, u64::MAX - 15, 0], Err(Violation::Overflow { index: 1 }))]
    fn planted_faults_are_found(#[case] offsets: &[u64], #[case] expected: Result<u64, Violation>) {
        assert_eq!(validate(&three(), offsets), expected);
    }

    #[test]
    fn the_rounded_end_counts_not_only_the_requested_one() {
        // 30 bytes at 0 occupy 32, so the peak of the first buffer alone is 32.
        let one = Instance::new(vec![Buffer::new(0, 4, 30).aligned(16)]).unwrap();
        assert_eq!(validate(&one, &[0]), Ok(32));
        assert_eq!(
            validate_peak(&one, &[0], 30),
            Err(Violation::WrongPeak { actual_bytes: 32, claimed_bytes: 30 })
        );
    }

    #[test]
    fn a_fixed_buffer_may_not_move() {
        let one = Instance::new(vec![Buffer::new(0, 4, 8).fixed_at(8)]).unwrap();
        assert_eq!(validate(&one, &[8]), Ok(16));
        assert_eq!(
            validate(&one, &[0]),
            Err(Violation::Moved { index: 0, offset_bytes: 0, fixed_bytes: 8 })
        );
    }
}
