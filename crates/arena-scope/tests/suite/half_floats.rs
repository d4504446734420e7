//! Floats of 16 bits are elements like any other.

use arena_scope::half::{bf16, f16};
use arena_scope::{Alignment, Device, Host, Pod, Probe, Reset, Transient};
use rstest::rstest;

use crate::common::{KIB, Outcome, builder, host, written};

/// Two bytes an element, at each odd length.
#[rstest]
#[case::f16([f16::ONE, f16::MAX, f16::MIN_POSITIVE_SUBNORMAL])]
#[case::bf16([bf16::ONE, bf16::MAX, bf16::MIN_POSITIVE_SUBNORMAL])]
fn they_are_read_back_to_the_bit_on_every_device<T: Pod + PartialEq + std::fmt::Debug>(
    #[case] values: [T; 3],
) -> Outcome {
    fn on<D: Device, T: Pod + PartialEq + std::fmt::Debug>(device: D, values: &[T; 3]) -> Outcome {
        let mut arena = builder(device, 4 * KIB).build()?;
        let kept = arena.persistent_from(values)?;
        assert_eq!(arena.stats().used_bytes, 6);
        arena.scope(|step| {
            let given = step.alloc_aligned::<u8>(1, Alignment::ONE)?;
            let mut copy: Transient<T, D> = step.alloc_zeroed(3)?;
            assert_eq!((given.offset_bytes(), copy.offset_bytes()), (6, 256));
            copy.view_mut().copy_from(kept.view())?;
            assert_eq!(step.read(copy.view())?, written::<D, T>(values));
            arena_scope::Ok(())
        })
    }
    on(Host::new(), &values)?;
    on(Probe::new(), &values)
}

#[test]
fn poisoned_memory_is_nan_in_16_bits_too() -> Outcome {
    let mut arena = host(KIB)?;
    arena.scope_with(arena_scope::ScopeOptions::default().reset(Reset::Poison), |step| {
        step.upload(&[f16::ONE; 64]).map(drop)
    })?;
    arena.scope(|step| {
        let half: Transient<f16> = step.alloc(32)?;
        let brain: Transient<bf16> = step.alloc_aligned(32, Alignment::ONE)?;
        assert!(half.as_slice().iter().all(|value| value.is_nan()));
        assert!(!half.as_slice().is_empty() && brain.offset_bytes() == 64);
        assert!(brain.as_slice().iter().all(|value| value.is_nan()));
        arena_scope::Ok(())
    })
}
