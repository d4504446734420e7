//! Each buffer in a driver allocation of its own, on the stand-in driver.

use crate::cuda::{CAPACITY, arena, side_stream};
use arena_scope::cudarc::driver::sys;
use arena_scope::{Arena, Cuda, Device, Error, ErrorKind, Placement, Reset};
use cuda_standin::Standin;
use rstest::rstest;

fn placed(placement: Placement, reset: Reset) -> Arena<Cuda> {
    let builder = Arena::builder(Cuda::new(0).unwrap()).capacity(CAPACITY);
    builder.reset(reset).placement(placement).build().unwrap()
}

/// Two steps with a nested scope and a second stream; what they read.
fn steps(arena: &mut Arena<Cuda>) -> Result<Vec<Vec<f32>>, Error> {
    let side = side_stream(arena);
    let mut sums = arena.persistent_from(&[0.0_f32; 4])?;
    let mut read = Vec::new();
    for n in [1.0_f32, 2.0] {
        arena.scope(|step| {
            let x = step.upload(&[n; 4])?;
            let mut y = step.alloc_zeroed::<f32>(4)?;
            step.declare_stream(&side)?;
            step.scope(|inner| {
                let mut scratch = inner.alloc::<f32>(4)?;
                scratch.view_mut().copy_from(x.view())?;
                y.view_mut().copy_from(scratch.view())
            })?;
            sums.view_mut().copy_from(y.view())?;
            read.push(step.read(y.view())?);
            arena_scope::Ok(())
        })?;
    }
    read.push(sums.view().to_vec()?);
    Ok(read)
}

// B076
#[rstest]
fn a_buffer_is_one_driver_allocation_and_one_release(
    #[values(Placement::Separate, Placement::Unguarded)] placement: Placement,
    #[values(Reset::Keep, Reset::Zero, Reset::Poison)] reset: Reset,
) {
    let standin = Standin::load().unwrap();
    let expected = steps(&mut arena()).unwrap();
    standin.clear_calls();
    let mut arena = placed(placement, reset);
    assert_eq!(steps(&mut arena).unwrap(), expected);
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuMemAlloc_v2"), 1 + 2 * 3);
        assert_eq!(standin.calls("cuMemFree_v2"), 2 * 3);
    }
    assert_eq!(arena.stats().driver_allocations, 1 + 2 * 3);
    drop(arena);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

#[rstest]
fn shuffled_buffers_lie_in_a_second_driver_allocation(
    #[values(1, 2, 3)] seed: u64,
    #[values(Reset::Keep, Reset::Zero, Reset::Poison)] reset: Reset,
) {
    let standin = Standin::load().unwrap();
    let expected = steps(&mut arena()).unwrap();
    standin.clear_calls();
    let mut arena = placed(Placement::Shuffled { seed }, reset);
    assert_eq!(steps(&mut arena).unwrap(), expected);
    if !standin.is_real_driver() {
        assert_eq!((standin.calls("cuMemAlloc_v2"), standin.calls("cuMemFree_v2")), (2, 0));
    }
    assert_eq!(arena.stats().driver_allocations, 2);
    drop(arena);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

fn poke(address: u64) -> sys::CUresult {
    // SAFETY: where the byte lies outside every allocation the stand-in refuses, and elsewhere it is in
    // a guard zone.
    unsafe { sys::cuMemsetD8_v2(address, 7, 1) }
}

#[test]
fn a_write_of_one_byte_past_a_buffer_is_found_in_its_guard_zone() {
    let _standin = Standin::load().unwrap();
    let mut arena = placed(Placement::Separate, Reset::Keep);
    let told = arena.scope_named("train", |step| {
        let x = step.alloc::<u8>(100)?;
        // The zones are filled on the arena's stream, and the poke is not on it.
        step.device().synchronise()?;
        assert_eq!(poke(x.address() + 100), sys::CUresult::CUDA_SUCCESS);
        arena_scope::Ok(())
    });
    let told = told.unwrap_err();
    let ErrorKind::GuardZone(found) = told.kind() else { panic!("{told}") };
    assert_eq!((found.scope, found.request, found.offset_bytes), ("train", 0, 100));
}

// The allocation ends with the buffer, so a driver that checks ranges refuses what the bump hides.
#[rstest]
#[case::the_bump_hides_it(Placement::Bump, true)]
#[case::an_allocation_of_its_own_shows_it(Placement::Unguarded, false)]
fn without_guard_zones_the_first_byte_past_a_buffer_is_out_of_range(
    #[case] placement: Placement,
    #[case] hidden: bool,
) {
    let standin = Standin::load().unwrap();
    standin.needed_for("a driver that checks each byte");
    let mut arena = placed(placement, Reset::Keep);
    let poked = arena.scope(|step| {
        let x = step.alloc::<u8>(100)?;
        arena_scope::Ok(poke(x.address() + 100))
    });
    let poked = poked.map_or(sys::CUresult::CUDA_ERROR_UNKNOWN, |code| code);
    assert_eq!(poked == sys::CUresult::CUDA_SUCCESS, hidden, "{poked:?}");
}
