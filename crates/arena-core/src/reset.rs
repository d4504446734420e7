//! What happens to a scope's bytes when it closes.

#![forbid(unsafe_code)]

/// What poisoned memory is filled with: every float of every width reads as NaN, every signed
/// integer as -1.
pub const POISON_BYTE: u8 = 0xff;

/// What a scope does with its bytes when it closes: the bytes from its start up to its high-water, in stream
/// order, before any of them is given out again. The bytes of a dropped kept buffer are treated in the same
/// way before they are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reset {
    /// Nothing: the next scope finds what this one left. Closing costs the same for any size.
    #[default]
    Keep,
    /// Sets them to zero. The bytes that a scope used are zero at the start of the next scope. A buffer that is
    /// made later in a scope may contain other bytes; use `alloc_zeroed` for that.
    Zero,
    /// Sets each byte to `0xff`, so that every float reads as NaN and a read of stale memory is visible. As the
    /// policy of the arena it also poisons new memory before its first use.
    Poison,
}

impl Reset {
    /// The value that each byte is set to; `None` for [`Keep`](Self::Keep).
    ///
    /// ```
    /// # use arena_core::{Reset};
    /// assert_eq!((Reset::Keep.byte(), Reset::Zero.byte()), (None, Some(0)));
    /// ```
    #[must_use]
    pub const fn byte(self) -> Option<u8> {
        match self {
            Self::Keep => None,
            Self::Zero => Some(0),
            Self::Poison => Some(POISON_BYTE),
        }
    }

    /// This policy, or `other` where this one is [`Keep`](Self::Keep).
    #[must_use]
    pub(crate) const fn or(self, other: Self) -> Self {
        match self {
            Self::Keep => other,
            Self::Zero | Self::Poison => self,
        }
    }
}
