//! Where a buffer may lie: pure, checked `u64` arithmetic over addresses and offsets.
//!
//! Nothing here knows a device or touches memory, so it can be tested over every number.

#![forbid(unsafe_code)]

use crate::bytes::{Alignment, MAX_BYTES};
use crate::error::{Error, ErrorKind};

/// The bytes of `len` elements of `T`.
///
/// # Errors
///
/// [`ErrorKind::TooBig`] when that is more than [`MAX_BYTES`].
///
/// ```
/// # use arena_core::{bytes_of};
/// assert_eq!(bytes_of::<f32>(10)?, 40);
/// assert!(bytes_of::<f32>(usize::MAX).is_err());
/// # Ok::<(), arena_core::Error>(())
/// ```
#[inline]
pub fn bytes_of<T>(len: usize) -> Result<u64, Error> {
    let element_bytes = size_of::<T>() as u64;
    match (len as u64).checked_mul(element_bytes) {
        Some(bytes) if bytes <= MAX_BYTES => Ok(bytes),
        _ => Err(too_big(len as u64, element_bytes)),
    }
}

/// The number of elements of a shape, for example `[batch, channels, height, width]`.
///
/// # Errors
///
/// [`ErrorKind::TooBig`] when the product is more than [`MAX_BYTES`].
///
/// ```
/// # use arena_core::{elements_of};
/// assert_eq!(elements_of(&[64, 1, 28, 28])?, 50_176);
/// assert!(elements_of(&[usize::MAX, 2]).is_err());
/// # Ok::<(), arena_core::Error>(())
/// ```
pub fn elements_of(shape: &[usize]) -> Result<usize, Error> {
    let mut elements: u64 = 1;
    for &extent in shape {
        elements = match elements.checked_mul(extent as u64) {
            Some(product) if product <= MAX_BYTES => product,
            _ => return Err(too_big(u64::MAX, 1)),
        };
    }
    // At most `isize::MAX`, so it fits a `usize`.
    usize::try_from(elements).map_err(|_| too_big(elements, 1))
}

#[cold]
fn too_big(elements: u64, element_bytes: u64) -> Error {
    ErrorKind::TooBig { elements, element_bytes }.into()
}

/// A half-open range of offsets from the region's base, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First byte.
    pub start_bytes: u64,
    /// One past the last byte.
    pub end_bytes: u64,
}

impl Span {
    /// The number of bytes.
    #[must_use]
    pub const fn len_bytes(self) -> u64 {
        self.end_bytes - self.start_bytes
    }

    /// Whether there is no byte in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start_bytes == self.end_bytes
    }
}

/// The first multiple of `alignment` at or after `address`.
///
/// Cannot overflow for an address inside a region: that is at most 2⁶² ([`region_fits`]), which is
/// itself a multiple of every alignment.
///
/// ```
/// # use arena_core::{Alignment};
/// # use arena_core::layout::align_up;
/// assert_eq!(align_up(257, Alignment::DEFAULT), 512);
/// assert_eq!(align_up(512, Alignment::DEFAULT), 512);
/// ```
#[inline]
#[must_use]
pub const fn align_up(address: u64, alignment: Alignment) -> u64 {
    (address + alignment.low_bits()) & !alignment.low_bits()
}

/// The last multiple of `alignment` at or before `address`.
#[inline]
#[must_use]
pub const fn align_down(address: u64, alignment: Alignment) -> u64 {
    address & !alignment.low_bits()
}

/// Places `bytes` bytes at the first aligned address from `cursor_address` on, if they end at or
/// before `limit_address`; gives their start and end. Only the start is rounded, never the size; an
/// exact fit succeeds.
///
/// `bytes` is at most [`MAX_BYTES`], as [`bytes_of`] makes sure. So the end cannot overflow: the
/// rounded start is at most 2⁶². An empty request never fits here: it takes no room, so its caller
/// answers it without asking. A limit of 0 refuses everything.
///
/// ```
/// # use arena_core::{Alignment};
/// # use arena_core::layout::fit;
/// assert_eq!(fit(10, 1000, 40, Alignment::DEFAULT), Some((256, 296)));
/// assert_eq!(fit(10, 295, 40, Alignment::DEFAULT), None); // one byte less
/// ```
#[inline]
#[must_use]
pub const fn fit(
    cursor_address: u64,
    limit_address: u64,
    bytes: u64,
    alignment: Alignment,
) -> Option<(u64, u64)> {
    debug_assert!(bytes <= MAX_BYTES);
    let start_address = align_up(cursor_address, alignment);
    let end_address = start_address + bytes;
    if end_address <= limit_address && bytes != 0 {
        Some((start_address, end_address))
    } else {
        None
    }
}

/// Whether a region of `capacity_bytes` at `base_address` keeps every sum of this module in range.
#[must_use]
pub const fn region_fits(base_address: u64, capacity_bytes: u64) -> bool {
    match base_address.checked_add(capacity_bytes) {
        Some(end) => end <= 1 << 62 && capacity_bytes <= MAX_BYTES,
        None => false,
    }
}

/// The length in elements of `parts` equal pieces of `len` elements whose starts are all aligned,
/// given that the first one is.
///
/// # Errors
///
/// [`ErrorKind::BadParts`] when that leaves nothing for a piece, or `parts` is zero.
pub fn equal_parts<T>(len: usize, parts: usize, alignment: Alignment) -> Result<usize, Error> {
    let bad = || ErrorKind::BadParts { len: len as u64, parts: parts as u64, alignment };
    let plain = len.checked_div(parts).ok_or_else(bad)?;
    let step = elements_per(alignment, size_of::<T>() as u64);
    let step = usize::try_from(step).map_err(|_| bad())?;
    match plain / step * step {
        0 => Err(bad().into()),
        part => Ok(part),
    }
}

/// The smallest number of elements of `element_bytes` whose bytes are a multiple of `alignment`.
#[must_use]
pub const fn elements_per(alignment: Alignment, element_bytes: u64) -> u64 {
    if element_bytes == 0 {
        return 1;
    }
    // The alignment is a power of two, so its common divisor with the size is the size's lowest bit.
    let common = 1 << element_bytes.trailing_zeros();
    if common >= alignment.bytes() { 1 } else { alignment.bytes() / common }
}

/// The shape of a 2-D buffer whose rows all start aligned: rows of `columns` elements, each row
/// `pitch` elements after the one before it.
///
/// It can be asked for without allocating anything:
///
/// ```
/// use arena_core::{Alignment, RowLayout};
/// let rows = RowLayout::new::<u16>(8, 30, Alignment::new(64)?)?;
/// assert_eq!((rows.pitch(), rows.pitch_bytes(), rows.len()), (32, 64, 8 * 32));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLayout {
    rows: usize,
    columns: usize,
    pitch: usize,
    element_bytes: u64,
    alignment: Alignment,
}

impl RowLayout {
    /// `rows` rows of `columns` elements of `T`, each row's start a multiple of `alignment`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TooBig`] when the whole, padding included, is more than [`MAX_BYTES`].
    pub fn new<T>(rows: usize, columns: usize, alignment: Alignment) -> Result<Self, Error> {
        let element_bytes = size_of::<T>() as u64;
        let too_big = || ErrorKind::TooBig { elements: u64::MAX, element_bytes };
        let step =
            usize::try_from(elements_per(alignment, element_bytes)).map_err(|_| too_big())?;
        let pitch = columns.checked_next_multiple_of(step).ok_or_else(too_big)?;
        bytes_of::<T>(rows.checked_mul(pitch).ok_or_else(too_big)?)?;
        Ok(Self { rows, columns, pitch, element_bytes, alignment })
    }

    /// Rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Elements in a row, without the padding.
    #[must_use]
    pub const fn columns(&self) -> usize {
        self.columns
    }

    /// Elements from the start of one row to the start of the next.
    #[must_use]
    pub const fn pitch(&self) -> usize {
        self.pitch
    }

    /// Bytes from the start of one row to the start of the next: a multiple of the alignment.
    #[must_use]
    pub const fn pitch_bytes(&self) -> u64 {
        // In range: the constructor multiplied it by `rows`, or there is no row at all.
        (self.pitch as u64).saturating_mul(self.element_bytes)
    }

    /// Elements of the whole buffer, padding included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows * self.pitch
    }

    /// Whether there is no element.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The alignment of each row, and so of the whole.
    #[must_use]
    pub const fn alignment(&self) -> Alignment {
        self.alignment
    }

    /// Whether the layout was made for elements as large as `T`: rows of others are not aligned.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ElementMismatch`] when it was not.
    ///
    /// ```
    /// # use arena_core::{Alignment, RowLayout};
    /// let layout = RowLayout::new::<f32>(2, 3, Alignment::DEFAULT)?;
    /// assert!(layout.check_element::<u32>().is_ok()); // 4 bytes as well
    /// assert!(layout.check_element::<f64>().is_err());
    /// # Ok::<(), arena_core::Error>(())
    /// ```
    pub fn check_element<T>(&self) -> Result<(), Error> {
        let (expected, given) = (self.element_bytes, size_of::<T>() as u64);
        if expected == given {
            return Ok(());
        }
        Err(ErrorKind::ElementMismatch { expected, given }.into())
    }

    /// Whether a buffer of this layout at `address` can be described to the tensor memory
    /// accelerator: its global address and its row stride must be multiples of 16 bytes
    /// (CUDA driver API, `cuTensorMapEncodeTiled`).
    #[must_use]
    pub const fn tma_ready(&self, address: u64) -> bool {
        Alignment::TENSOR_MAP.divides(address) && self.pitch_bytes().is_multiple_of(16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    const fn align(bytes: u64) -> Alignment {
        match Alignment::new(bytes) {
            Ok(alignment) => alignment,
            Err(_) => panic!("no alignment"),
        }
    }

    /// The offsets at which requests are placed in a region at 512.
    fn offsets(capacity: u64, requests: &[(u64, u64)]) -> Vec<Option<u64>> {
        let mut cursor = 512;
        let place = |&(bytes, alignment): &(u64, u64)| {
            let (start, end) = fit(cursor, 512 + capacity, bytes, align(alignment))?;
            cursor = end;
            Some(start - 512)
        };
        requests.iter().map(place).collect()
    }

    // B001, B003, B036, B037
    #[rstest]
    #[case::default_alignment(8192, &[(4, 256), (12, 256), (40, 256), (1, 256), (3136, 256)],
        &[Some(0), Some(256), Some(512), Some(768), Some(1024)])]
    #[case::unaligned(8192, &[(4, 1), (12, 1), (40, 1), (1, 1), (3136, 1)],
        &[Some(0), Some(4), Some(16), Some(56), Some(57)])]
    #[case::small_alignments(1024, &[(32, 32), (1, 1), (8, 8)], &[Some(0), Some(32), Some(40)])]
    #[case::exact_fit(1024, &[(512, 256), (512, 256), (1, 256)], &[Some(0), Some(512), None])]
    #[case::exact_fit_after_padding(556, &[(256, 256), (300, 256)], &[Some(0), Some(256)])]
    #[case::only_the_start_is_rounded(30, &[(10, 1), (14, 16)], &[Some(0), Some(16)])]
    #[case::a_refused_request_moves_nothing(1000, &[(10, 1), (2000, 256), (10, 1)],
        &[Some(0), None, Some(10)])]
    #[case::near_the_largest_number(4096,
        &[(200, 1), (MAX_BYTES, 1), (MAX_BYTES, 256), (MAX_BYTES - 99, 256), (16, 256)],
        &[Some(0), None, None, None, Some(256)])]
    fn requests_are_placed_at_the_first_aligned_offset_that_fits(
        #[case] capacity: u64,
        #[case] requests: &[(u64, u64)],
        #[case] expected: &[Option<u64>],
    ) {
        assert_eq!(offsets(capacity, requests), expected);
    }

    // B003
    #[test]
    fn the_address_is_aligned_not_the_offset() {
        let base = (7 << 20) + 512;
        assert_eq!(fit(base, base + 1024, 8, align(1 << 20)), None);
        assert_eq!(fit(base, base + (2 << 20), 8, align(1 << 20)), Some((8 << 20, (8 << 20) + 8)));
    }

    // B002
    #[test]
    fn equal_parts_start_aligned_or_are_refused() {
        assert_eq!(equal_parts::<u8>(1000, 3, align(16)).unwrap(), 320);
        for asked in [3, 0] {
            let error = equal_parts::<u8>(15, asked, align(16)).unwrap_err();
            let ErrorKind::BadParts { len: 15, parts, .. } = error.kind() else {
                panic!("{error}")
            };
            assert_eq!(*parts, asked as u64);
        }
        assert_eq!(equal_parts::<[f32; 3]>(100, 2, align(16)).unwrap(), 48);
    }

    // B007
    #[test]
    fn a_tensor_map_needs_a_16_byte_address_and_stride() {
        let packed = RowLayout::new::<u16>(8, 30, align(2)).unwrap();
        assert_eq!(packed.pitch_bytes(), 60);
        assert!(!packed.tma_ready(4096));
        let padded = RowLayout::new::<u16>(8, 30, align(64)).unwrap();
        assert!(padded.tma_ready(4096));
        assert!(!padded.tma_ready(4098));
    }

    #[test]
    fn row_layouts_that_overflow_are_too_big() {
        for (rows, cols) in [(usize::MAX, 1), (1, usize::MAX)] {
            let error = RowLayout::new::<f32>(rows, cols, align(256)).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::TooBig { .. }), "{error}");
        }
        assert_eq!(RowLayout::new::<f32>(0, 5, align(256)).unwrap().len(), 0);
    }

    proptest! {
        #[test]
        fn a_fit_is_aligned_tight_and_inside(
            cursor in 0_u64..1 << 61,
            room in 0_u64..1 << 41,
            bytes in prop_oneof![0_u64..1 << 20, 0..=MAX_BYTES],
            log in 0_u32..62,
        ) {
            let alignment = align(1 << log);
            let limit = cursor + room;
            // The naive model works in 128 bits, where nothing can wrap.
            let start = u128::from(cursor).next_multiple_of(u128::from(alignment.bytes()));
            let end = start + u128::from(bytes);
            let expected = bytes > 0 && end <= u128::from(limit);
            let found = fit(cursor, limit, bytes, alignment);
            prop_assert_eq!(found.is_some(), expected);
            if let Some((found_start, found_end)) = found {
                prop_assert_eq!(u128::from(found_start), start);
                prop_assert_eq!(u128::from(found_end), end);
            }
        }

        #[test]
        fn aligning_down_then_up_never_passes_the_address(address in 0_u64..=1 << 62, log in 0_u32..62) {
            let alignment = align(1 << log);
            let down = align_down(address, alignment);
            prop_assert!(down <= address && address - down < alignment.bytes());
            prop_assert!(alignment.divides(down));
            prop_assert_eq!(align_up(down, alignment), down);
        }
    }

    // B010
    #[test]
    fn byte_counts_above_32_bits_are_exact() {
        let square = elements_of(&[65_536, 65_536]).unwrap();
        assert_eq!(bytes_of::<f32>(square).unwrap(), 17_179_869_184);
        assert_eq!(elements_of(&[46_341, 46_341]).unwrap(), 2_147_488_281);
        assert_eq!(elements_of(&[70_000, 70_000]).unwrap(), 4_900_000_000);
    }

    // B009
    #[rstest]
    #[case(usize::MAX)]
    #[case(usize::MAX / 4)]
    #[case(isize::MAX as usize / 8 + 1)]
    fn counts_whose_bytes_no_slice_can_span_are_too_big(#[case] len: usize) {
        let error = bytes_of::<f64>(len).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TooBig { element_bytes: 8, .. }), "{error}");
    }

    #[test]
    fn the_largest_count_that_fits_is_accepted() {
        assert_eq!(bytes_of::<u8>(isize::MAX as usize).unwrap(), MAX_BYTES);
        let error = elements_of(&[usize::MAX, 2]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TooBig { elements: u64::MAX, .. }), "{error}");
        assert_eq!(elements_of(&[]).unwrap(), 1);
        assert_eq!(elements_of(&[7, 0]).unwrap(), 0);
    }
}
