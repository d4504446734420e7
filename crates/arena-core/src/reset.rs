//! What happens to a scope's bytes when it closes.

#![forbid(unsafe_code)]

/// What poisoned memory is filled with: every float of every width reads as NaN, every signed
/// integer as -1.
pub const POISON_BYTE: u8 = 0xff;

/// What a closing scope does with the bytes it used: exactly [start of the scope, high-water), in
/// stream order, before any of them is given out again. The bytes of a kept buffer that was dropped are
/// treated alike before they come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reset {
    /// Nothing: the next scope finds what this one left. Closing costs the same for any size.
    #[default]
    Keep,
    /// Sets them to zero. What a scope used is zero at the start of the next one; a buffer that is
    /// asked for in the middle of a scope is not promised to be (that is `alloc_zeroed`).
    Zero,
    /// Sets each to `0xff`, so that every float reads as NaN and a read of stale memory shows. With
    /// this as the arena's policy, fresh memory is poisoned too, before its first use.
    Poison,
}

impl Reset {
    /// What each byte is set to, if any.
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
