//! Stale contents, and clearing the right bytes.

use arena_scope::device::{Call, Counting};
use arena_scope::{Device, ErrorKind, Host, Reset, ScopeOptions, View, ViewMut};
use rstest::rstest;

use crate::common::{KIB, MIB, Outcome, arena, builder, counting, host};

on_every_device!(zeroing_asks_for_the_bytes_and_not_for_the_elements);

// B016
#[test]
fn a_zeroed_buffer_is_zero_where_a_kernel_did_not_write() -> Outcome {
    let mut arena = host(64 * KIB)?;
    arena.scope(|step| step.upload(&[7.0_f32; 32]).map(drop))?;
    arena.scope(|step| {
        let mut rows = step.alloc_zeroed::<f32>(32)?;
        rows.as_mut_slice()[..20].fill(1.0);
        assert_eq!(rows.as_slice().iter().sum::<f32>(), 20.0);
        assert_eq!(rows.as_slice()[20..], [0.0; 12]);
        Ok(())
    })
}

// B016
#[test]
fn poison_names_the_unwritten_buffer_in_the_first_step() -> Outcome {
    let mut arena = builder(Host::new(), 64 * KIB).reset(Reset::Poison).build()?;
    for _ in 0..2 {
        arena.scope(|step| {
            let mut rows = step.alloc::<f32>(32)?;
            rows.as_mut_slice()[..20].fill(1.0);
            assert!(rows.as_slice()[20..].iter().all(|value| value.is_nan()));
            let error = step.check_written("rows", rows.view()).unwrap_err();
            let ErrorKind::Unwritten { buffer, index } = error.kind() else { panic!("{error}") };
            assert_eq!((buffer.as_str(), *index), ("rows", 20));
            rows.as_mut_slice().fill(1.0);
            step.check_written("rows", rows.view())
        })?;
    }
    Ok(())
}

// B017
#[test]
fn nan_does_not_survive_a_beta_of_zero_nor_a_clearing() -> Outcome {
    fn gemm_2x2(a: View<'_, f32>, b: View<'_, f32>, beta: f32, mut c: ViewMut<'_, f32>) {
        let (a, b, c) = (a.as_slice(), b.as_slice(), c.as_mut_slice());
        for (row, column) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let sum = a[2 * row] * b[column] + a[2 * row + 1] * b[2 + column];
            let old = if beta == 0.0 { 0.0 } else { beta * c[2 * row + column] };
            c[2 * row + column] = old + sum;
        }
    }
    let mut arena = builder(Host::new(), 64 * KIB).reset(Reset::Poison).build()?;
    arena.scope(|step| {
        let identity = step.upload(&[1.0, 0.0, 0.0, 1.0_f32])?;
        let b = step.upload(&[1.0, 2.0, 3.0, 4.0_f32])?;
        let mut c = step.alloc::<f32>(4)?;
        assert!(c.as_slice().iter().all(|value| value.is_nan()));
        gemm_2x2(identity.view(), b.view(), 0.0, c.view_mut());
        assert_eq!(c.as_slice(), [1.0, 2.0, 3.0, 4.0]);
        c.as_mut_slice().fill(f32::NAN);
        c.view_mut().zero()?;
        assert_eq!(c.as_slice().map_bits(), [0; 4]);
        Ok(())
    })
}

trait Bits {
    fn map_bits(&self) -> Vec<u32>;
}

impl Bits for [f32] {
    fn map_bits(&self) -> Vec<u32> {
        self.iter().map(|value| value.to_bits()).collect()
    }
}

// B018
fn zeroing_asks_for_the_bytes_and_not_for_the_elements<D: Device>(device: D) -> Outcome {
    let device = Counting::new(device);
    let counts = device.counts();
    let mut arena = arena(device, 64 * KIB)?;
    arena.scope(|step| {
        let one = arena_scope::Alignment::of::<f32>();
        let mut guards = [step.alloc_aligned::<u8>(4, one)?, step.alloc_aligned::<u8>(0, one)?];
        let mut data = step.alloc_aligned::<f32>(1000, one)?;
        guards[1] = step.alloc_aligned::<u8>(4, one)?;
        for guard in &mut guards {
            guard.view_mut().write(&[0xa5; 4])?;
        }
        data.view_mut().write(&[3.0; 1000])?;
        data.view_mut().zero()?;
        assert_eq!((counts.calls(Call::Fill), counts.bytes(Call::Fill)), (1, 4000));
        let values = step.read(data.view())?;
        assert_eq!([0, 249, 250, 999].map(|n| values[n]), [0.0; 4]);
        assert!(values.iter().all(|value| *value == 0.0));
        for guard in &guards {
            assert_eq!(step.read(guard.view())?, crate::common::written::<D, _>(&[0xa5; 4]));
        }
        Ok(())
    })
}

// B019
#[test]
fn zeroing_reaches_the_high_water_of_inner_scopes_and_no_further() -> Outcome {
    let (device, counts) = counting();
    let mut arena = arena(device, MIB)?;
    let weights = arena.persistent_from(&[0x11_u8; 4096])?;
    arena.mark()?;
    let zero = ScopeOptions::default().reset(Reset::Zero);
    arena.scope_with(zero, |step| {
        let _a = step.upload(&[0xff_u8; 1000])?;
        step.scope(|inner| inner.upload(&[0xff_u8; 100_000]).map(drop))?;
        assert_eq!((counts.calls(Call::Fill), step.stats().used_bytes), (0, 5096));
        arena_scope::Ok(())
    })?;
    // The inner buffer starts at the next multiple of 256: 5120 and 100 000 more.
    assert_eq!((counts.calls(Call::Fill), counts.bytes(Call::Fill)), (1, 101_024));
    assert_eq!(arena.last_step_high_water_bytes(), 105_120);
    arena.scope(|step| {
        let all = step.alloc::<u8>(200_000)?;
        assert!(all.as_slice().iter().all(|byte| *byte == 0));
        arena_scope::Ok(())
    })?;
    assert!(weights.as_slice().iter().all(|byte| *byte == 0x11));
    arena.scope_with(zero, |_| arena_scope::Ok(()))?;
    assert_eq!(counts.calls(Call::Fill), 1, "nothing allocated, nothing cleared");
    Ok(())
}

// B019: the same where the deepest memory was used by a forgotten guard.
#[test]
fn zeroing_reaches_what_a_forgotten_guard_used() -> Outcome {
    let mut arena = host(MIB)?;
    let mut guard = arena.enter_with(ScopeOptions::default().reset(Reset::Zero))?;
    let mut step = guard.scope();
    let mut inner = step.enter()?;
    drop(inner.scope().upload(&[0xff_u8; 1000])?);
    std::mem::forget(inner);
    guard.close()?;
    arena.scope(|step| {
        assert_eq!(step.alloc::<u8>(1000)?.as_slice(), [0; 1000]);
        Ok(())
    })
}

// B019: an inner scope's high-water may lie where a kept buffer was put afterwards.
#[rstest]
#[case::zero(Reset::Zero, 0)]
#[case::poison(Reset::Poison, 0xff)]
fn clearing_stops_below_what_was_kept_meanwhile(
    #[case] reset: Reset,
    #[case] cleared_to: u8,
) -> Outcome {
    let (device, counts) = counting();
    let mut arena = builder(device, 4096).reset(Reset::Keep).build()?;
    let kept = arena.scope_with(ScopeOptions::default().reset(reset), |step| {
        step.scope(|inner| inner.upload(&[1_u8; 4000]).map(drop))?;
        let _low = step.upload(&[2_u8; 100])?;
        let mut kept = step.persistent::<u8>(1024)?;
        assert_eq!(kept.offset_bytes(), 3072, "it covers what the inner scope used");
        kept.view_mut().fill_bytes(7)?;
        arena_scope::Ok(kept)
    })?;
    assert_eq!((counts.calls(Call::Fill), counts.bytes(Call::Fill)), (2, 1024 + 3072));
    assert_eq!(kept.as_slice(), [7; 1024]);
    arena.scope(|step| {
        assert_eq!(step.alloc::<u8>(3072)?.as_slice(), [cleared_to; 3072]);
        Ok(())
    })
}
