//! Alignment and address arithmetic.

use arena_scope::layout::RowLayout;
use arena_scope::{Alignment, Device, ErrorKind};
use rstest::rstest;

use crate::common::{KIB, Outcome, arena, at, host};

on_every_device!(
    buffers_start_at_256_bytes_and_never_overlap,
    only_the_start_is_rounded_never_the_size,
    an_operand_is_aligned_as_asked_or_says_where_it_starts,
);

// B001
fn buffers_start_at_256_bytes_and_never_overlap<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 8192)?;
    arena.scope(|step| {
        let singles = step.alloc::<f32>(1)?;
        let triples = step.alloc::<f32>(3)?;
        let doubles = step.alloc::<f64>(5)?;
        let byte = step.alloc::<u8>(1)?;
        let image = step.alloc::<f32>(784)?;
        let spans = [
            (singles.offset_bytes(), singles.view().len_bytes()),
            (triples.offset_bytes(), triples.view().len_bytes()),
            (doubles.offset_bytes(), doubles.view().len_bytes()),
            (byte.offset_bytes(), byte.view().len_bytes()),
            (image.offset_bytes(), image.view().len_bytes()),
        ];
        assert_eq!(spans.map(|(offset, _)| offset), [0, 256, 512, 768, 1024]);
        assert_eq!(step.stats().used_bytes, 4160);
        for pair in spans.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?} overlap");
        }
        for address in [singles.address(), triples.address(), doubles.address(), image.address()] {
            assert_eq!(address % 256, 0);
        }
        Ok(())
    })
}

// B001
fn only_the_start_is_rounded_never_the_size<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 8192)?;
    arena.scope(|step| {
        let one = Alignment::ONE;
        let offsets = [
            step.alloc_aligned::<u8>(4, one)?.offset_bytes(),
            step.alloc_aligned::<u8>(12, one)?.offset_bytes(),
            step.alloc_aligned::<u8>(40, one)?.offset_bytes(),
            step.alloc_aligned::<u8>(1, one)?.offset_bytes(),
            step.alloc_aligned::<u8>(3136, one)?.offset_bytes(),
        ];
        assert_eq!(offsets, [0, 4, 16, 56, 57]);
        assert_eq!(step.stats().used_bytes, 3193);
        Ok(())
    })
}

// B001, B037: the address counts, not the offset.
#[rstest]
#[case::a_256_boundary(256, [0, 256])]
#[case::a_512_boundary(512, [0, 256])]
#[case::half_of_it(128, [128, 384])]
#[case::an_odd_base(257, [255, 511])]
fn the_address_is_aligned_not_only_the_offset(
    #[case] base_address: u64,
    #[case] offsets: [u64; 2],
) -> Outcome {
    let mut arena = at(base_address, 4096)?;
    arena.scope(|step| {
        let (first, second) = (step.alloc::<u8>(1)?, step.alloc::<u8>(1)?);
        assert_eq!([first.offset_bytes(), second.offset_bytes()], offsets);
        assert_eq!([first.address() % 256, second.address() % 256], [0, 0]);
        arena_scope::Ok(())
    })?;
    let kept = arena.persistent::<u8>(1)?;
    assert_eq!(kept.address() % 256, 0);
    Ok(())
}

#[test]
fn an_element_that_needs_more_alignment_gets_it() -> Outcome {
    let mut arena = at(1 << 20, 4096)?;
    arena.scope(|step| {
        let _ = step.alloc_aligned::<u8>(1, Alignment::ONE)?;
        let wide = step.alloc_aligned::<u64>(1, Alignment::ONE)?;
        assert_eq!(wide.offset_bytes(), 8);
        Ok(())
    })
}

// B002
#[test]
fn one_workspace_is_cut_into_aligned_pieces_inside_it_or_not_at_all() -> Outcome {
    let mut arena = host(8 * KIB)?;
    arena.scope(|step| {
        let align_16 = Alignment::new(16)?;
        let mut block = step.alloc::<u8>(1000)?;
        let start = block.address();
        let parts: Vec<_> = block.view().parts(3, align_16)?.collect();
        let offsets: Vec<u64> = parts.iter().map(|part| part.address() - start).collect();
        assert_eq!(offsets, [0, 320, 640]);
        assert!(parts.iter().all(|part| part.len() == 320));
        for (n, mut part) in block.view_mut().parts_mut(3, align_16)?.enumerate() {
            part.fill_bytes(1 + u8::try_from(n).unwrap_or(0))?;
        }
        let bytes = block.as_slice();
        assert_eq!([0, 319, 320, 639, 640, 959, 960].map(|at| bytes[at]), [1, 1, 2, 2, 3, 3, 0]);

        let small = step.alloc::<u8>(15)?;
        let refused = small.view().parts(3, align_16).map(drop).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::BadParts { len: 15, parts: 3, .. }));
        let refused = small.view().parts(0, Alignment::ONE).map(drop).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::BadParts { len: 15, parts: 0, .. }));
        let shifted = block.view().range(1..)?;
        let refused = shifted.parts(2, align_16).map(drop).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::BadParts { len: 999, parts: 2, .. }));
        Ok(())
    })
}

// B003
#[test]
fn alignments_below_the_default_do_not_wrap() -> Outcome {
    let mut arena = host(1024)?;
    arena.scope(|step| {
        let offsets = [
            step.alloc_aligned::<u8>(32, Alignment::new(32)?)?.offset_bytes(),
            step.alloc_aligned::<u8>(1, Alignment::new(1)?)?.offset_bytes(),
            step.alloc_aligned::<u8>(8, Alignment::new(8)?)?.offset_bytes(),
        ];
        assert_eq!(offsets, [0, 32, 40]);
        assert_eq!([0, 3].map(|bytes| Alignment::new(bytes).unwrap_err().asked), [0, 3]);
        Ok(())
    })
}

// B003
#[test]
fn an_alignment_that_reaches_past_the_region_is_exhausted_and_moves_nothing() -> Outcome {
    let mut arena = at((1 << 20) + 512, 1024)?;
    arena.scope(|step| {
        let _ = step.alloc::<u8>(8)?;
        for alignment in [Alignment::new(1 << 20)?, Alignment::MAX] {
            let error = step.alloc_aligned::<u8>(8, alignment).unwrap_err();
            let facts = error.as_exhausted().expect("it does not fit");
            assert_eq!((facts.used_bytes, facts.alignment), (8, alignment));
            assert_eq!(step.stats().used_bytes, 8);
        }
        Ok(())
    })
}

// B004
#[test]
fn a_contiguous_view_is_not_an_aligned_view() -> Outcome {
    let mut arena = host(8 * KIB)?;
    arena.scope(|step| {
        let buffer = step.alloc::<u16>(1025)?;
        let view = buffer.view().range(1..1025)?;
        assert_eq!(view.address() % 16, 2);
        assert!(!view.is_aligned(Alignment::new(16)?));
        assert!(view.is_aligned(Alignment::new(2)?));
        assert!(buffer.view().is_aligned(Alignment::DEFAULT));
        assert!(step.alloc::<u16>(1).is_ok());
        Ok(())
    })
}

// B004
fn an_operand_is_aligned_as_asked_or_says_where_it_starts<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 8 * KIB)?;
    arena.scope(|step| {
        let mut buffer = step.alloc::<f32>(64)?;
        for (first, aligned_to) in [(0, 256), (1, 4), (2, 8), (4, 16), (60, 16)] {
            for bytes in [1, 4, 8, 16, 256] {
                let view = buffer.view().range(first..)?;
                let (address, len) = (view.address(), view.len());
                let shared = view.aligned(bytes).map(|view| (view.address(), view.len()));
                let view = buffer.view_mut().range(first..)?;
                let exclusive = view.aligned(bytes).map(|view| (view.address(), view.len()));
                for found in [shared, exclusive] {
                    if bytes <= aligned_to {
                        assert_eq!(found?, (address, len), "the same view");
                        continue;
                    }
                    let error = found.unwrap_err();
                    let ErrorKind::Misaligned { address: at, alignment } = error.kind() else {
                        panic!("{error}")
                    };
                    assert_eq!((*at, alignment.bytes()), (address, bytes));
                    let behind = format!("(remainder {})", address % bytes);
                    assert!(error.to_string().ends_with(&behind), "{error}");
                }
            }
        }
        for no_alignment in [0, 3, 24, 1 << 62] {
            let error = buffer.view().aligned(no_alignment).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::BadAlignment(_)), "{error}");
        }
        Ok(())
    })
}

#[rstest]
#[case(Alignment::VECTOR_LOAD, 16)]
#[case(Alignment::CUBLAS_OPERAND, 16)]
#[case(Alignment::CUBLAS_WORKSPACE, 256)]
#[case(Alignment::TENSOR_MAP, 16)]
#[case(Alignment::TEXTURE, 512)]
fn named_alignments_are_what_their_sources_say(#[case] alignment: Alignment, #[case] bytes: u64) {
    assert_eq!(Alignment::new(bytes), Ok(alignment));
}

// B007
#[test]
fn a_tensor_map_needs_the_address_and_the_row_stride_at_16_bytes() -> Outcome {
    let mut arena = host(8 * KIB)?;
    arena.scope(|step| {
        let packed = RowLayout::new::<u16>(8, 30, Alignment::of::<u16>())?;
        let padded = RowLayout::new::<u16>(8, 30, Alignment::new(64)?)?;
        let matrix = step.alloc_rows::<u16>(&padded)?;
        let shifted = matrix.view().range(1..)?;
        assert_eq!((packed.pitch_bytes(), padded.pitch_bytes()), (60, 64));
        let ready = [
            packed.tma_ready(matrix.address()),
            padded.tma_ready(matrix.address()),
            padded.tma_ready(shifted.address()),
        ];
        assert_eq!(ready, [false, true, false]);
        let rows = (0..8).map(|row| matrix.view().row(&padded, row));
        for row in rows {
            let row = row?;
            assert!(row.len() == 30 && row.is_aligned(Alignment::new(64)?));
        }
        let below = matrix.view().row(&padded, 8).map(drop).unwrap_err();
        assert!(matches!(below.kind(), ErrorKind::OutOfBounds { start: 8, end: 9, len: 8 }));
        let descriptor = step.alloc_aligned::<u8>(128, Alignment::new(128)?)?;
        assert!(descriptor.view().is_aligned(Alignment::new(128)?));
        Ok(())
    })
}

#[test]
fn a_layout_for_other_elements_is_refused() -> Outcome {
    let mut arena = host(8 * KIB)?;
    arena.scope(|step| {
        // 32 elements of two bytes are 64 bytes; 32 of one byte would not be aligned.
        let halves = RowLayout::new::<u16>(4, 30, Alignment::new(64)?)?;
        let before = step.stats();
        for refused in [
            step.alloc_rows::<u8>(&halves).map(drop),
            step.alloc_rows::<f32>(&halves).map(drop),
            step.alloc::<u8>(128)?.view().row(&halves, 0).map(drop),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::ElementMismatch { expected: 2, .. }));
        }
        assert_eq!(step.stats().used_bytes, before.used_bytes + 128, "only the plain buffer");
        Ok(())
    })
}
