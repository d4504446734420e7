//! The length of a buffer and the slot that a plan gave it, in one word: a plan makes no handle larger.

#![forbid(unsafe_code)]

/// The slot of a buffer that no plan placed. Slots are counted from 1.
pub(crate) const NO_SLOT: u32 = 0;

/// Bits of a length; the slot is kept above them.
const LEN_BITS: u32 = 44;

/// The most elements of one transient buffer.
pub(crate) const MAX_ELEMENTS: u64 = (1 << LEN_BITS) - 1;

/// The largest slot number.
pub(crate) const MAX_SLOT: u32 = u32::MAX >> (LEN_BITS - 32);

/// Both in one word; `len` is at most [`MAX_ELEMENTS`], and `slot` at most [`MAX_SLOT`].
#[inline]
pub(crate) const fn pack(len: usize, slot: u32) -> u64 {
    len as u64 | (slot as u64) << LEN_BITS
}

/// The slot: fewer than 32 bits are left of it.
#[inline]
pub(crate) const fn slot_of(packed: u64) -> u32 {
    (packed >> LEN_BITS) as u32
}

/// The length.
#[inline]
pub(crate) const fn len_of(packed: u64) -> usize {
    (packed & MAX_ELEMENTS) as usize
}
