//! Many tensors in one buffer: where they lie, that each is alone in its part, and that an update over the whole is
//! the update of each.

use arena_scope::{
    Alignment, Arena, BlockLayout, ByteSize, Device, ErrorKind, Host, ParameterBlock, PartId, Probe,
};
use rstest::rstest;

fn arena<D: Device>(device: D) -> Arena<D> {
    Arena::builder(device).capacity(ByteSize::kib(64)).build().unwrap()
}

fn layout(alignment: Alignment, lens: &[usize]) -> (BlockLayout, Vec<PartId>) {
    let mut layout = BlockLayout::aligned::<f32>(alignment);
    let names = (0..).map(|n| format!("part{n}"));
    let parts = lens.iter().zip(names).map(|(len, name)| layout.add(name, *len).unwrap()).collect();
    (layout, parts)
}

const LENS: [usize; 6] = [1, 64, 65, 0, 100, 3];

#[rstest]
fn each_part_begins_aligned_and_nothing_follows_the_last(
    #[values(4, 64, 256, 4096)] alignment_bytes: u64,
    #[values(false, true)] on_a_probe: bool,
) {
    let alignment = Alignment::new(alignment_bytes).unwrap();
    let (layout, parts) = layout(alignment, &LENS);
    fn check<D: Device>(device: D, layout: &BlockLayout, parts: &[PartId], alignment: Alignment) {
        let arena = arena(device);
        let block = ParameterBlock::<f32, D>::zeroed(&arena, layout).unwrap();
        let mut end = block.buffer().address();
        for part in parts {
            let view = block.view(*part).unwrap();
            assert!(view.is_aligned(alignment));
            assert!(view.address() >= end && view.address() - end < alignment.bytes());
            end = view.address() + view.len_bytes();
        }
        assert_eq!(end, block.buffer().address() + block.whole().len_bytes());
        assert_eq!(arena.stats().used_bytes, block.whole().len_bytes());
    }
    if on_a_probe {
        check(Probe::new(), &layout, &parts, alignment);
    } else {
        check(Host::new(), &layout, &parts, alignment);
    }
    let lens: Vec<usize> = layout.parts().map(|(part, _)| part.len()).collect();
    assert_eq!(lens, LENS);
    assert_eq!(layout.parts().nth(4).unwrap().1, "part4");
}

#[test]
fn a_layout_without_parts_is_an_empty_block() {
    let arena = arena(Host::new());
    let mut block = ParameterBlock::<f32>::zeroed(&arena, &BlockLayout::new::<f32>()).unwrap();
    assert!(block.whole().is_empty() && block.layout().is_empty());
    assert_eq!((block.split_mut().count(), arena.stats().used_bytes), (0, 0));
}

#[test]
fn parts_lie_apart_and_the_padding_stays_zero_under_an_update_of_the_whole() {
    let (layout, parts) = layout(Alignment::DEFAULT, &LENS);
    let arena = arena(Host::new());
    let block = || ParameterBlock::<f32>::zeroed(&arena, &layout).unwrap();
    let (mut values, mut gradients, mut velocity) = (block(), block(), block());
    let value = |part: usize, at: usize| (part * 1000 + at) as f32;
    for (n, (part, mut view)) in values.split_mut().enumerate() {
        assert_eq!(part, parts[n]);
        view.write(&(0..LENS[n]).map(|at| value(n, at)).collect::<Vec<_>>()).unwrap();
    }
    for part in &parts {
        gradients.view_mut(*part).unwrap().fill(0.5).unwrap();
    }
    for _ in 0..2 {
        let moved = values.whole_mut().into_mut_slice().iter_mut();
        let velocity = velocity.whole_mut().into_mut_slice().iter_mut();
        for ((value, velocity), gradient) in moved.zip(velocity).zip(gradients.whole().as_slice()) {
            *velocity = 0.5 * *velocity + gradient;
            *value -= *velocity;
        }
    }
    let mut in_a_part = vec![false; layout.len()];
    for (n, part) in parts.iter().enumerate() {
        let view = values.view(*part).unwrap();
        for (at, found) in view.as_slice().iter().enumerate() {
            assert_eq!(*found, value(n, at) - 1.25, "{n} {at}");
        }
        let start = (view.address() - values.buffer().address()) as usize / size_of::<f32>();
        in_a_part[start..start + view.len()].fill(true);
    }
    for block in [&values, &gradients, &velocity] {
        let padding =
            block.whole().as_slice().iter().zip(&in_a_part).filter(|(_, inside)| !**inside);
        assert!(padding.map(|(value, _)| value.to_bits()).all(|bits| bits == 0));
    }
}

#[test]
fn several_parts_are_borrowed_at_once_in_the_order_asked_for_and_none_twice() {
    let (layout, parts) = layout(Alignment::DEFAULT, &LENS);
    let arena = arena(Host::new());
    let mut block = ParameterBlock::<f32>::zeroed(&arena, &layout).unwrap();
    let addresses = parts.iter().map(|part| block.view(*part).unwrap().address());
    let addresses: Vec<u64> = addresses.collect();
    let asked = [4, 0, 3, 2];
    let views = block.views_mut(asked.map(|n| parts[n])).unwrap();
    for (view, n) in views.iter().zip(asked) {
        assert_eq!((view.address(), view.len()), (addresses[n], LENS[n]));
    }
    let twice = block.views_mut([parts[1], parts[2], parts[1]]).unwrap_err();
    assert!(matches!(twice.kind(), ErrorKind::OutOfBounds { .. }), "{twice}");
    let [] = block.views_mut([]).unwrap();
}

#[test]
fn a_part_of_another_layout_is_refused_and_one_of_an_equal_layout_is_not() {
    let (ours, parts) = layout(Alignment::DEFAULT, &LENS);
    let (_, equal) = layout(Alignment::DEFAULT, &LENS);
    let (_, others) = layout(Alignment::DEFAULT, &[1, 64, 64, 0, 100, 3, 7]);
    let arena = arena(Host::new());
    let mut block = ParameterBlock::<f32>::zeroed(&arena, &ours).unwrap();
    assert!(block.view(equal[5]).is_ok() && equal == parts);
    for foreign in [others[2], others[6]] {
        for error in [
            block.view(foreign).unwrap_err(),
            block.view_mut(foreign).unwrap_err(),
            block.views_mut([parts[0], foreign]).unwrap_err(),
        ] {
            assert!(matches!(error.kind(), ErrorKind::OtherLayout { .. }), "{error}");
        }
    }
}

#[test]
fn a_layout_for_elements_of_another_size_is_refused() {
    let (layout, _) = layout(Alignment::DEFAULT, &LENS);
    let arena = arena(Host::new());
    let error = ParameterBlock::<f64>::zeroed(&arena, &layout).unwrap_err();
    let expected = ErrorKind::ElementMismatch { expected: 4, given: 8 };
    assert_eq!(error.to_string(), arena_scope::Error::from(expected).to_string());
    assert!(ParameterBlock::<u32>::zeroed(&arena, &layout).is_ok());
}

#[rstest]
#[case(&[usize::MAX], 1)]
#[case(&[1, usize::MAX], 1)]
#[case(&[1, usize::MAX / 4], 4)]
#[case(&[usize::MAX / 8 + 1], 4)]
fn what_no_memory_holds_is_too_big_and_adds_nothing(#[case] lens: &[usize], #[case] bytes: usize) {
    let mut layout = if bytes == 1 { BlockLayout::new::<u8>() } else { BlockLayout::new::<f32>() };
    let (last, first) = lens.split_last().unwrap();
    for len in first {
        layout.add("first", *len).unwrap();
    }
    let before = layout.clone();
    let error = layout.add("last", *last).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooBig { .. }), "{error}");
    assert_eq!(layout, before);
}
