//! What is to be planned: the buffers of one step, each with its lifetime, size and alignment.

use thiserror::Error;

/// One buffer of a step. Its identity is its position in the [`Instance`]: allocation order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Time of the allocation, in any unit that orders the step's events.
    pub birth: u64,
    /// Time of the death. The lifetime is half-open: a buffer born at another's death may take its bytes.
    pub death: u64,
    /// The size in bytes. 0 is allowed and occupies nothing.
    pub size_bytes: u64,
    /// The offset is a multiple of this power of two.
    pub alignment_bytes: u64,
    /// Where the buffer must lie, if that is already decided.
    pub fixed_offset_bytes: Option<u64>,
}

impl Buffer {
    /// A buffer that may lie anywhere, byte-aligned.
    #[must_use]
    pub fn new(birth: u64, death: u64, size_bytes: u64) -> Self {
        Self { birth, death, size_bytes, alignment_bytes: 1, fixed_offset_bytes: None }
    }

    /// The same buffer with another alignment.
    ///
    /// ```
    /// # use arena_plan::{Buffer};
    /// assert_eq!(Buffer::new(0, 1, 100).aligned(64).alignment_bytes, 64);
    /// ```
    #[must_use]
    pub fn aligned(self, alignment_bytes: u64) -> Self {
        Self { alignment_bytes, ..self }
    }

    /// The same buffer, bound to one offset.
    #[must_use]
    pub fn fixed_at(self, offset_bytes: u64) -> Self {
        Self { fixed_offset_bytes: Some(offset_bytes), ..self }
    }

    /// Whether both are live at some moment.
    ///
    /// ```
    /// # use arena_plan::{Buffer};
    /// let first = Buffer::new(0, 2, 100);
    /// assert!(first.overlaps_in_time(&Buffer::new(1, 3, 100)));
    /// assert!(!first.overlaps_in_time(&Buffer::new(2, 3, 100))); // a death at 2 comes before a birth at 2
    /// ```
    #[must_use]
    pub fn overlaps_in_time(&self, other: &Self) -> bool {
        self.birth < other.death && other.birth < self.death
    }
}

/// Why a list of buffers is not a valid instance.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstanceError {
    /// A buffer would die before or at its birth.
    #[error("buffer {index} lives from {birth} to {death}: the death must come after the birth")]
    EmptyLifetime {
        /// Position of the buffer.
        index: usize,
        /// Its birth.
        birth: u64,
        /// Its death.
        death: u64,
    },
    /// An alignment is zero or not a power of two.
    #[error("buffer {index} asks for alignment {alignment_bytes}, which is not a power of two")]
    BadAlignment {
        /// Position of the buffer.
        index: usize,
        /// Its alignment.
        alignment_bytes: u64,
    },
    /// A fixed offset is not a multiple of the buffer's own alignment.
    #[error(
        "buffer {index} is fixed at offset {offset_bytes}, which is not a multiple of its \
         alignment {alignment_bytes}"
    )]
    MisalignedFixed {
        /// Position of the buffer.
        index: usize,
        /// Its fixed offset.
        offset_bytes: u64,
        /// Its alignment.
        alignment_bytes: u64,
    },
    /// Two fixed buffers share bytes while both are live.
    #[error("buffers {first} and {second} are fixed on the same bytes while both live")]
    FixedOverlap {
        /// Position of one of them.
        first: usize,
        /// Position of the other.
        second: usize,
    },
    /// The sum of the sizes is larger than this crate supports.
    #[error("the sizes and fixed offsets add up to more than {} bytes", Instance::MAX_TOTAL_BYTES)]
    TooLarge,
    /// More buffers than an index of 32 bits can name.
    #[error("an instance holds at most {max} buffers, not {0}", max = Instance::MAX_BUFFERS)]
    TooMany(usize),
}

impl InstanceError {
    /// Position of the buffer at fault, where one buffer is.
    #[must_use]
    pub fn buffer(&self) -> Option<usize> {
        match *self {
            Self::EmptyLifetime { index, .. }
            | Self::BadAlignment { index, .. }
            | Self::MisalignedFixed { index, .. } => Some(index),
            Self::FixedOverlap { second, .. } => Some(second),
            Self::TooLarge | Self::TooMany(_) => None,
        }
    }
}

/// A checked list of buffers.
///
/// Every start is a multiple of the *granule*, the smallest alignment in the instance, so a buffer
/// occupies its size rounded up to the granule. Bounds and peaks are sums of such rounded sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    buffers: Vec<Buffer>,
    granule_bytes: u64,
}

impl Instance {
    /// No sum of sizes, paddings and fixed offsets passes this, so offsets never overflow.
    pub const MAX_TOTAL_BYTES: u64 = u64::MAX / 4;
    /// Most buffers of one instance.
    pub const MAX_BUFFERS: usize = (u32::MAX / 4) as usize;

    /// Checks the buffers; their order is kept.
    ///
    /// # Errors
    ///
    /// The first fault found, see [`InstanceError`].
    ///
    /// ```
    /// use arena_plan::{Buffer, Instance, InstanceError};
    ///
    /// let one = Instance::new(vec![Buffer::new(0, 3, 100).aligned(256)]).unwrap();
    /// assert_eq!(one.occupied_bytes(0), 256);
    /// let backwards = Instance::new(vec![Buffer::new(3, 3, 100)]);
    /// assert!(matches!(backwards, Err(InstanceError::EmptyLifetime { index: 0, .. })));
    /// ```
    pub fn new(buffers: Vec<Buffer>) -> Result<Self, InstanceError> {
        if buffers.len() > Self::MAX_BUFFERS {
            return Err(InstanceError::TooMany(buffers.len()));
        }
        let mut furthest: u64 = 0;
        for (index, buffer) in buffers.iter().enumerate() {
            let Buffer { birth, death, alignment_bytes, .. } = *buffer;
            if birth >= death {
                return Err(InstanceError::EmptyLifetime { index, birth, death });
            }
            if !alignment_bytes.is_power_of_two() {
                return Err(InstanceError::BadAlignment { index, alignment_bytes });
            }
            if let Some(offset_bytes) = buffer.fixed_offset_bytes {
                if !offset_bytes.is_multiple_of(alignment_bytes) {
                    return Err(InstanceError::MisalignedFixed {
                        index,
                        offset_bytes,
                        alignment_bytes,
                    });
                }
                furthest = furthest.max(offset_bytes);
            }
        }
        // Any sensible offset lies below the furthest fixed one plus every size and its padding.
        let mut total = furthest;
        for buffer in &buffers {
            total = total
                .checked_add(buffer.size_bytes)
                .and_then(|sum| sum.checked_add(buffer.alignment_bytes))
                .and_then(|sum| sum.checked_add(buffer.alignment_bytes))
                .filter(|sum| *sum <= Self::MAX_TOTAL_BYTES)
                .ok_or(InstanceError::TooLarge)?;
        }
        let granule_bytes = buffers.iter().map(|buffer| buffer.alignment_bytes).min().unwrap_or(1);
        let instance = Self { buffers, granule_bytes };
        instance.check_fixed()?;
        Ok(instance)
    }

    fn check_fixed(&self) -> Result<(), InstanceError> {
        let spans: Vec<_> = self
            .buffers
            .iter()
            .enumerate()
            .filter(|(_, buffer)| buffer.size_bytes > 0)
            .filter_map(|(index, buffer)| {
                let start = buffer.fixed_offset_bytes?;
                Some(crate::validate::Span {
                    index,
                    birth: buffer.birth,
                    death: buffer.death,
                    start,
                    end: start + self.occupied_bytes(index),
                })
            })
            .collect();
        match crate::validate::first_overlap(spans) {
            Some((first, second)) => Err(InstanceError::FixedOverlap {
                first: first.min(second),
                second: first.max(second),
            }),
            None => Ok(()),
        }
    }

    /// The buffers, in the order given.
    #[must_use]
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// How many buffers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Whether there is nothing to plan.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// The smallest alignment: every start is a multiple of it. 1 without buffers.
    #[must_use]
    pub fn granule_bytes(&self) -> u64 {
        self.granule_bytes
    }

    /// The largest alignment, which the region's base must have. 1 without buffers.
    #[must_use]
    pub fn alignment_bytes(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.alignment_bytes).max().unwrap_or(1)
    }

    /// What a buffer occupies: its size rounded up to the granule.
    ///
    /// # Panics
    ///
    /// When `index` is not below [`len`](Self::len).
    #[must_use]
    pub fn occupied_bytes(&self, index: usize) -> u64 {
        self.buffers[index].size_bytes.next_multiple_of(self.granule_bytes)
    }

    /// What a bump arena needs: the sum of the bytes that the buffers occupy.
    ///
    /// ```
    /// # use arena_plan::{Buffer, Instance};
    /// let buffers = vec![Buffer::new(0, 1, 100).aligned(64), Buffer::new(1, 2, 64).aligned(64)];
    /// assert_eq!(Instance::new(buffers)?.sum_bytes(), 128 + 64); // rounded up to the alignment
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn sum_bytes(&self) -> u64 {
        (0..self.len()).map(|index| self.occupied_bytes(index)).sum()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::no_alignment(Buffer::new(0, 1, 8).aligned(0), "not a power of two")]
    #[case::odd_alignment(Buffer::new(0, 1, 8).aligned(24), "not a power of two")]
    #[case::backwards(Buffer::new(2, 1, 8), "the death must come after the birth")]
    #[case::no_time(Buffer::new(2, 2, 8), "the death must come after the birth")]
    #[case::fixed_between(Buffer::new(0, 1, 8).aligned(16).fixed_at(8), "not a multiple")]
    #[case::huge(Buffer::new(0, 1, u64::MAX), "add up to more")]
    #[case::fixed_far_away(Buffer::new(0, 1, 8).fixed_at(u64::MAX - 2), "add up to more")]
    #[case::huge_alignment(Buffer::new(0, 1, 8).aligned(1 << 63), "add up to more")]
    fn a_faulty_buffer_is_refused_and_named(#[case] faulty: Buffer, #[case] words: &str) {
        let error = Instance::new(vec![Buffer::new(0, 9, 1), faulty]).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.buffer().is_none_or(|index| index == 1));
    }

    #[test]
    fn fixed_buffers_may_share_bytes_only_at_different_times() {
        let early = Buffer::new(0, 4, 16).fixed_at(8);
        assert!(Instance::new(vec![early, Buffer::new(4, 6, 16).fixed_at(8)]).is_ok());
        assert!(Instance::new(vec![early, Buffer::new(3, 6, 16).fixed_at(24)]).is_ok());
        assert_eq!(
            Instance::new(vec![early, Buffer::new(3, 6, 16).fixed_at(23)]),
            Err(InstanceError::FixedOverlap { first: 0, second: 1 })
        );
    }

    #[test]
    fn the_granule_is_the_smallest_alignment() {
        let instance =
            Instance::new(vec![Buffer::new(0, 4, 4).aligned(256), Buffer::new(0, 4, 4).aligned(4)])
                .unwrap();
        assert_eq!(instance.granule_bytes(), 4);
        assert_eq!(instance.alignment_bytes(), 256);
        assert_eq!(instance.sum_bytes(), 8);
    }
}
