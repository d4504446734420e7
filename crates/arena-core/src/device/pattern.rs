//! What a fill repeats.

#![forbid(unsafe_code)]

use bytemuck::Pod;

/// The bits of one element of 1, 2 or 4 bytes, which a fill repeats.
///
/// ```
/// use arena_core::device::Pattern;
/// assert_eq!(Pattern::of(1.0_f32), Pattern::Bits32(0x3f80_0000));
/// assert_eq!(Pattern::from(7), Pattern::Bits8(7));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Each byte is this one.
    Bits8(u8),
    /// Each two bytes are this number, in the order of the machine.
    Bits16(u16),
    /// Each four bytes are this number, in the order of the machine.
    Bits32(u32),
}

impl Pattern {
    /// The bits of `value`. An element of another size than 1, 2 or 4 bytes does not compile.
    #[must_use]
    pub fn of<T: Pod>(value: T) -> Self {
        const {
            let fills = matches!(size_of::<T>(), 1 | 2 | 4);
            assert!(fills, "a fill repeats elements of 1, 2 or 4 bytes: upload larger ones");
        }
        match size_of::<T>() {
            1 => Self::Bits8(bytemuck::cast(value)),
            2 => Self::Bits16(bytemuck::cast(value)),
            _ => Self::Bits32(bytemuck::cast(value)),
        }
    }

    /// Bytes of the element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bits8(_) => 1,
            Self::Bits16(_) => 2,
            Self::Bits32(_) => 4,
        }
    }

    /// Repeats it over host memory, from the start on. A rest that is shorter than the element stays.
    pub fn repeat(self, range: &mut [u8]) {
        fn each<const N: usize>(range: &mut [u8], element: [u8; N]) {
            range.as_chunks_mut().0.fill(element);
        }
        match self {
            Self::Bits8(value) => range.fill(value),
            Self::Bits16(value) => each(range, value.to_ne_bytes()),
            Self::Bits32(value) => each(range, value.to_ne_bytes()),
        }
    }
}

impl From<u8> for Pattern {
    fn from(value: u8) -> Self {
        Self::Bits8(value)
    }
}
