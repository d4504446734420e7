//! Zero sizes, overflow, very large sizes.

use arena_scope::device::{Call, Counting};
use arena_scope::layout::{bytes_of, elements_of};
use arena_scope::{Alignment, ByteSize, Device, ErrorKind, Probe, Reset, ScopeOptions};
use rstest::rstest;

use crate::common::{KIB, Outcome, arena, at, builder, host};

on_every_device!(
    an_empty_buffer_is_served_anywhere_without_a_call,
    sizes_near_the_largest_are_refused_and_move_nothing,
);

// B008
fn an_empty_buffer_is_served_anywhere_without_a_call<D: Device>(device: D) -> Outcome {
    let device = Counting::new(device);
    let counts = device.counts();
    let mut arena = builder(device, 1024).reset(Reset::Zero).build()?;
    arena.scope(|step| {
        let fresh = step.alloc::<f32>(0)?;
        assert_eq!(step.stats().used_bytes, 0);
        let _one = step.alloc::<u8>(10)?;
        let between = step.alloc_zeroed::<f32>(0)?;
        assert_eq!(step.stats().used_bytes, 10);
        let _rest = step.alloc_aligned::<u8>(1014, Alignment::ONE)?;
        assert_eq!(step.stats().free_bytes, 0);
        let full = step.upload::<f32>(&[])?;
        for empty in [&fresh, &between, &full] {
            assert!(empty.is_empty() && empty.address() != 0 && empty.address() % 256 == 0);
            assert_eq!(step.read(empty.view())?, [0.0; 0]);
        }
        assert_eq!(step.promote(full.view())?.len(), 0);
        assert_eq!(step.stats().kept_bytes, 0);
        arena_scope::Ok(())
    })?;
    assert_eq!(counts.calls(Call::Fill), 1, "the close cleared what the step used");

    arena.scope(|_| arena_scope::Ok(()))?;
    let calls = Call::ALL.map(|call| counts.calls(call));
    assert_eq!(calls.iter().sum::<u64>(), 2, "an empty scope has nothing to clear");
    Ok(())
}

// B008
#[test]
fn an_arena_without_capacity_runs_empty_steps() -> Outcome {
    let mut arena = host(0)?;
    arena.scope_with(ScopeOptions::default().reset(Reset::Zero), |step| {
        assert!(step.alloc::<f32>(0)?.is_empty());
        assert!(step.alloc::<u8>(1).unwrap_err().is_exhausted());
        assert!(step.persistent::<f32>(0)?.is_empty());
        assert!(step.persistent::<f32>(1).unwrap_err().is_exhausted());
        Ok(())
    })
}

// B009
fn sizes_near_the_largest_are_refused_and_move_nothing<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 4096)?;
    arena.scope(|step| {
        let _ = step.alloc_aligned::<u8>(200, Alignment::ONE)?;
        let errors = [
            step.alloc::<u8>(usize::MAX).map(drop),
            step.alloc::<u8>(isize::MAX as usize + 1).map(drop),
            step.alloc::<u8>(isize::MAX as usize).map(drop),
            step.alloc::<f64>(usize::MAX / 4).map(drop),
            step.alloc::<u8>(usize::MAX - 99).map(drop),
            step.alloc_aligned::<u8>(isize::MAX as usize, Alignment::MAX).map(drop),
            step.persistent::<u8>(isize::MAX as usize).map(drop),
            step.persistent::<f64>(usize::MAX / 8).map(drop),
        ];
        for outcome in errors {
            let error = outcome.unwrap_err();
            let kind = error.kind();
            assert!(matches!(kind, ErrorKind::TooBig { .. } | ErrorKind::Exhausted(_)), "{kind:?}");
            assert!(!error.to_string().is_empty());
        }
        assert_eq!((step.stats().used_bytes, step.stats().kept_bytes), (200, 0));
        assert_eq!(step.alloc::<u8>(16)?.offset_bytes(), 256);
        Ok(())
    })
}

// B010
#[test]
fn byte_counts_beyond_32_bits_are_exact() -> Outcome {
    let matrix = elements_of(&[65_536, 65_536])?;
    assert_eq!(bytes_of::<f32>(matrix)?, 17_179_869_184);
    assert_eq!(bytes_of::<u8>(elements_of(&[46_341, 46_341])?)?, 2_147_488_281);
    assert_eq!(elements_of(&[70_000, 70_000])?, 4_900_000_000);

    let mut small = host(1 << 30)?;
    small.scope(|step| {
        let error = step.alloc::<f32>(matrix).unwrap_err();
        let facts = error.as_exhausted().expect("it does not fit");
        assert_eq!(facts.asked_bytes, 17_179_869_184);
        assert_eq!(facts.missing_bytes, 17_179_869_184 - (1 << 30));
        arena_scope::Ok(())
    })?;

    let mut large = arena(Probe::new(), 20 << 30)?;
    large.scope(|step| {
        let _ = step.alloc::<u8>(5 << 30)?;
        assert_eq!(step.alloc::<f32>(1)?.offset_bytes(), 5_368_709_120);
        Ok(())
    })
}

// B009: the highest address that a region may end at.
#[rstest]
#[case::one_byte(1)]
#[case::default(256)]
#[case::largest(1 << 61)]
fn no_alignment_wraps_at_the_top_of_the_address_space(#[case] alignment: u64) -> Outcome {
    let mut arena = at(1 << 61, 1 << 61)?;
    let alignment = Alignment::new(alignment)?;
    arena.scope(|step| {
        // All bytes but one: no single buffer has so many elements.
        let most = step.alloc_aligned::<[u8; 1 << 20]>((1 << 41) - 1, Alignment::ONE)?;
        assert_eq!(most.address(), 1 << 61);
        step.alloc_aligned::<u8>((1 << 20) - 1, Alignment::ONE)?;
        let empty = step.alloc_aligned::<u8>(0, alignment)?;
        assert!(alignment.divides(empty.address()));
        assert_eq!(step.alloc_aligned::<u8>(1, alignment).is_ok(), alignment == Alignment::ONE);
        assert!(step.alloc_aligned::<u8>(2, alignment).unwrap_err().is_exhausted());
        Ok(())
    })
}

#[test]
fn a_host_bump_that_no_memory_holds_is_no_panic() -> Outcome {
    let presized = ByteSize::gib(u64::MAX);
    match builder(arena_scope::Host::new(), KIB).host_bump(presized).build() {
        Err(_) => Ok(()),
        Ok(mut arena) => {
            let _ = arena.scope(|step| step.alloc::<u8>(1).map(drop));
            arena.scope(|step| step.alloc::<u8>(1).map(drop)).or(Ok(()))
        }
    }
}
