//! A fill repeats an element of one, two or four bytes.

use std::fmt::Debug;

use arena_core::device::{Call, Counting, Deferred, Device, Limited};
use arena_core::{Alignment, ByteSize, Error, ErrorKind, Host, Pod, Probe, RawArena};

type Outcome = Result<(), Error>;

const SIZE: ByteSize = ByteSize::kib(4);

fn on<D: Device>(device: D) -> Outcome {
    let device = Counting::new(device);
    let counts = device.counts();
    let arena = RawArena::new(device, SIZE)?;
    repeats(&arena, 0xa5_u8, 1)?;
    repeats(&arena, -1_i8, 1)?;
    repeats(&arena, 0x1234_u16, 1)?;
    repeats(&arena, [1_u8, 2], [3, 4])?;
    repeats(&arena, 0.1_f32, 1.0)?;
    repeats(&arena, -2_i32, 1)?;
    repeats(&arena, [1_u8, 2, 3, 4], [5; 4])?;
    repeats(&arena, [1_u16, 2], [3; 2])?;

    let (fills, bytes) = (counts.calls(Call::Fill), counts.bytes(Call::Fill));
    arena.transient::<f32>(0, Alignment::DEFAULT)?.view_mut().fill(1.0)?;
    assert_eq!(counts.calls(Call::Fill), fills, "nothing is filled without a call");
    arena.transient::<f32>(7, Alignment::DEFAULT)?.view_mut().fill(1.0)?;
    assert_eq!(counts.bytes(Call::Fill), bytes + 28);

    // Its element could start there, a pattern of four bytes cannot.
    let _one = arena.transient::<u8>(1, Alignment::ONE)?;
    let mut odd = arena.transient::<[u8; 4]>(2, Alignment::ONE)?;
    let refused = odd.view_mut().fill([7; 4]).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Misaligned { .. }), "{refused}");
    odd.view_mut().fill_bytes(7)?;
    let expected = if D::MEASURES_ONLY { [[0; 4]; 2] } else { [[7; 4]; 2] };
    assert_eq!(odd.view().to_vec()?, expected);
    Ok(())
}

/// That a fill writes its range, and not the elements beside it.
fn repeats<T: Pod + PartialEq + Debug, D: Device>(
    arena: &RawArena<D>,
    value: T,
    before: T,
) -> Outcome {
    let mut buffer = arena.transient::<T>(37, Alignment::DEFAULT)?;
    buffer.view_mut().write(&[before; 37])?;
    buffer.view_mut().range(3..36)?.fill(value)?;
    let mut expected = [before; 37];
    expected[3..36].fill(value);
    if D::MEASURES_ONLY {
        expected = [T::zeroed(); 37];
    }
    assert_eq!(buffer.view().to_vec()?, expected);
    Ok(())
}

#[test]
fn on_the_host() -> Outcome {
    on(Host::new())
}

#[test]
fn on_a_probe() -> Outcome {
    on(Probe::new())
}

#[test]
fn in_a_wrapper() -> Outcome {
    on(Limited::new(Host::new(), SIZE))
}

#[test]
fn in_an_order_drawn_from_a_seed() -> Outcome {
    (0..10).try_for_each(|seed| on(Deferred::new(seed)))
}

#[cfg(feature = "_cuda")]
#[test]
fn on_cuda_by_one_driver_call() -> Outcome {
    let standin = cuda_standin::Standin::load().unwrap();
    on(arena_core::Cuda::new(0)?)?;
    if !standin.is_real_driver() {
        for name in ["cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async"] {
            assert!(standin.calls(name) > 0, "{name}");
        }
        assert_eq!(standin.calls("cuLaunchKernel"), 0);
    }
    Ok(())
}
