//! Whether a kernel wrote its whole output, for every type.

use std::fmt::Debug;

use arena_scope::{Arena, Device, Error, ErrorKind, Host, Pod, Reset, ViewMut};
use bytemuck::Zeroable;
use rstest::rstest;

use crate::common::{KIB, Outcome, arena, builder};

on_every_device!(what_a_kernel_wrote_is_not_accused_whatever_its_type_and_value);

/// Values that look like nothing was written there: those of the poison, and those of the two patterns.
fn suspicious<T: Pod>() -> [T; 5] {
    let values = [0xff_u8, 0x55, 0xaa, 0x00, 0x01];
    values.map(|byte| {
        let mut value = T::zeroed();
        bytemuck::bytes_of_mut(&mut value).fill(byte);
        value
    })
}

fn what_a_kernel_wrote_is_not_accused_whatever_its_type_and_value<D: Device>(device: D) -> Outcome {
    fn check<T: Pod, D: Device>(arena: &mut Arena<D>, values: &[T]) -> Outcome {
        arena.scope(|step| {
            let mut buffer = step.alloc::<T>(values.len())?;
            step.check_written_by("buffer", buffer.view_mut(), |mut out| out.write(values))
        })
    }
    let mut arena = arena(device, 64 * KIB)?;
    check(&mut arena, &[3_i32, -1, 7])?;
    check(&mut arena, &[0_u8, 255, 128])?;
    check(&mut arena, &[0_u64, u64::MAX])?;
    check(&mut arena, &suspicious::<u8>())?;
    check(&mut arena, &suspicious::<u16>())?;
    check(&mut arena, &suspicious::<i64>())?;
    check(&mut arena, &suspicious::<f32>())?;
    check(&mut arena, &suspicious::<[u8; 3]>())?;
    check::<u32, D>(&mut arena, &[])?;
    check(&mut arena, &[(), ()])
}

#[track_caller]
fn assert_unwritten(error: &Error, name: &str, first: u64) {
    let ErrorKind::Unwritten { buffer, index } = error.kind() else { panic!("{error}") };
    assert_eq!((buffer.as_str(), *index), (name, first));
}

#[rstest]
#[case::nothing(&[], 0)]
#[case::one_short(&[0, 1, 2], 3)]
#[case::the_first_is_left_out(&[1, 2, 3], 0)]
#[case::one_in_the_middle(&[0, 1, 3], 2)]
fn an_element_that_a_kernel_left_out_is_named(
    #[case] written: &[usize],
    #[case] first: u64,
    #[values(Reset::Keep, Reset::Zero, Reset::Poison)] reset: Reset,
) -> Outcome {
    fn left_out<T: Pod + Debug>(reset: Reset, written: &[usize]) -> Result<Error, Error> {
        let mut arena = builder(Host::new(), 64 * KIB).reset(reset).build()?;
        arena.scope(|step| {
            let mut buffer = step.alloc::<T>(4)?;
            let kernel = |mut out: ViewMut<'_, T>| {
                written.iter().for_each(|&at| out.as_mut_slice()[at] = suspicious()[at]);
                arena_scope::Ok(())
            };
            Ok(step.check_written_by("labels", buffer.view_mut(), kernel).unwrap_err())
        })
    }
    assert_unwritten(&left_out::<i32>(reset, written)?, "labels", first);
    assert_unwritten(&left_out::<u8>(reset, written)?, "labels", first);
    assert_unwritten(&left_out::<f64>(reset, written)?, "labels", first);
    Ok(())
}

#[test]
fn an_element_of_which_a_kernel_wrote_only_a_part_is_named() -> Outcome {
    arena(Host::new(), 64 * KIB)?.scope(|step| {
        let mut buffer = step.alloc::<u32>(8)?;
        let mut upper_half = 0;
        let upper_halves = |mut out: ViewMut<'_, u32>| {
            out.as_mut_slice()[..3].fill(9);
            for value in &mut out.as_mut_slice()[3..] {
                *value = *value & 0xffff | 0x1234_0000;
                upper_half = *value >> 16;
            }
            arena_scope::Ok(())
        };
        let error = step.check_written_by("halves", buffer.view_mut(), upper_halves).unwrap_err();
        assert_unwritten(&error, "halves", 3);
        assert_eq!(upper_half, 0x1234);
        Ok(())
    })
}

#[test]
fn a_kernel_s_own_error_is_passed_on_and_its_second_result_stays() -> Outcome {
    arena(Host::new(), 64 * KIB)?.scope(|step| {
        let mut buffer = step.alloc::<u16>(2)?;
        let mut run = 0;
        step.check_written_by("twice", buffer.view_mut(), |mut out| {
            run += 1;
            out.write(&[run, 7])
        })?;
        assert_eq!(buffer.as_slice(), [2, 7]);
        let fails = |mut out: ViewMut<'_, u16>| out.write(&[1]);
        let error = step.check_written_by("fails", buffer.view_mut(), fails).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::LengthMismatch { .. }), "{error}");
        Ok(())
    })
}

/// A float with half the bits, as other crates have it.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
struct Half(u16);

// SAFETY: it is a `u16`.
unsafe impl Zeroable for Half {}
// SAFETY: as above.
unsafe impl Pod for Half {}

impl PartialEq for Half {
    fn eq(&self, other: &Self) -> bool {
        self.0 & 0x7fff <= 0x7c00 && self.0 == other.0
    }
}

/// Whether poison is told from what a kernel wrote: `None` where it cannot be told.
fn poison_is_told<T: Pod + PartialEq>(written: T) -> Result<Option<bool>, Error> {
    let mut arena = builder(Host::new(), 64 * KIB).reset(Reset::Poison).build()?;
    arena.scope(|step| {
        let mut buffer = step.alloc::<T>(3)?;
        buffer.as_mut_slice()[..2].fill(written);
        let short = step.check_written("buffer", buffer.view()).unwrap_err();
        buffer.as_mut_slice().fill(written);
        match step.check_written("buffer", buffer.view()) {
            Err(error) if matches!(error.kind(), ErrorKind::CannotTell { .. }) => {
                assert!(matches!(short.kind(), ErrorKind::CannotTell { .. }), "{short}");
                let element = std::any::type_name::<T>();
                assert!(error.to_string().contains("cannot tell whether `buffer` was written"));
                assert!(error.to_string().contains(element), "{error}");
                Ok(None)
            }
            whole => {
                assert_unwritten(&short, "buffer", 2);
                Ok(Some(whole.is_ok()))
            }
        }
    })
}

#[test]
fn floats_are_told_from_poison_nan_included() -> Outcome {
    for written in [0.0, -0.0, 1.5, f32::NAN, -f32::NAN, f32::INFINITY, f32::MIN] {
        assert_eq!(poison_is_told(written)?, Some(true), "{written}");
        assert_eq!(poison_is_told(f64::from(written))?, Some(true), "{written}");
        assert_eq!(poison_is_told([written, f32::from_bits(u32::MAX)])?, Some(true));
    }
    assert_eq!(poison_is_told(Half(0x3c00))?, Some(true));
    assert_eq!(poison_is_told(Half(0x7fff))?, Some(true), "the NaN that a device makes");
    Ok(())
}

#[test]
fn of_a_type_in_which_the_poison_is_a_value_nothing_is_told() -> Outcome {
    for written in [0, -1, 7] {
        assert_eq!(poison_is_told::<i32>(written)?, None);
        assert_eq!(poison_is_told::<i8>(written as i8)?, None);
    }
    assert_eq!(poison_is_told(u8::MAX)?, None);
    assert_eq!(poison_is_told(u64::MAX)?, None);
    assert_eq!(poison_is_told([u16::MAX; 2])?, None);
    Ok(())
}
