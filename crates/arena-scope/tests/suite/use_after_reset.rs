//! Use after reset, late frees, escaping results. What does not compile is in `compile_fail`.

use arena_scope::{Device, Error, Host, Pod, Scope, Transient, View};

use crate::common::{KIB, Outcome, arena, builder, host, written};

on_every_device!(
    a_promoted_result_survives_what_the_outer_scope_writes_next,
    a_copy_into_a_buffer_of_the_outer_scope_is_a_way_out,
    a_late_drop_frees_nothing,
);

type HostScope<'s, 'outer> = Scope<'s, 'outer, Host>;

fn relu<'s>(
    step: &HostScope<'s, '_>,
    x: View<'_, f32>,
) -> Result<(Transient<'s, f32>, Transient<'s, u8>), Error> {
    let mut y = step.alloc::<f32>(x.len())?;
    let mut mask = step.alloc::<u8>(x.len())?;
    for (n, x) in x.as_slice().iter().enumerate() {
        y.as_mut_slice()[n] = x.max(0.0);
        mask.as_mut_slice()[n] = u8::from(*x > 0.0);
    }
    Ok((y, mask))
}

fn relu_backward<'s>(
    step: &HostScope<'s, '_>,
    gradient: View<'_, f32>,
    mask: View<'_, u8>,
) -> Result<Transient<'s, f32>, Error> {
    let mut dx = step.alloc::<f32>(gradient.len())?;
    let pairs = gradient.as_slice().iter().zip(mask.as_slice());
    for (dx, (g, m)) in dx.as_mut_slice().iter_mut().zip(pairs) {
        *dx = g * f32::from(*m);
    }
    Ok(dx)
}

// B012
#[test]
fn what_forward_saves_backward_finds_in_the_same_scope() -> Outcome {
    for reset in [arena_scope::Reset::Keep, arena_scope::Reset::Poison] {
        let mut arena = builder(Host::new(), 64 * KIB).reset(reset).build()?;
        for _ in 0..3 {
            let dx = arena.scope(|step| {
                let x = step.upload(&[-1.0, 2.0, 3.0, -4.0_f32])?;
                let (_y, mask) = relu(step, x.view())?;
                let g = step.upload(&[10.0, 20.0, 30.0, 40.0_f32])?;
                let dx = relu_backward(step, g.view(), mask.view())?;
                step.read(dx.view())
            })?;
            assert_eq!(dx, [0.0, 20.0, 30.0, 0.0]);
        }
    }
    Ok(())
}

// B013
fn a_promoted_result_survives_what_the_outer_scope_writes_next<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 64 * KIB)?;
    let promoted = arena.scope(|outer| {
        let level = outer.stats().used_bytes;
        let promoted = outer.scope(|inner| {
            let t = inner.upload(&[1.0, 2.0, 3.0, 4.0_f32])?;
            let _scratch = inner.alloc::<f32>(1000)?;
            inner.promote(t.view())
        })?;
        assert_eq!(outer.stats().used_bytes, level, "inner scratch is back");
        let nine = outer.upload(&[9.0_f32; 4])?;
        assert!(nine.address().abs_diff(promoted.address()) >= 16, "disjoint");
        assert_eq!(outer.read(promoted.view())?, written::<D, _>(&[1.0, 2.0, 3.0, 4.0_f32]));
        arena_scope::Ok(promoted)
    })?;
    arena.scope(|step| step.upload(&[8.0_f32; 4000]).map(drop))?;
    assert_eq!(promoted.view().to_vec()?, written::<D, _>(&[1.0, 2.0, 3.0, 4.0_f32]));
    Ok(())
}

// B013
fn a_copy_into_a_buffer_of_the_outer_scope_is_a_way_out<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 64 * KIB)?;
    arena.scope(|outer| {
        let mut result = outer.alloc::<f32>(4)?;
        outer.scope(|inner| {
            let t = inner.upload(&[1.0, 2.0, 3.0, 4.0_f32])?;
            result.view_mut().copy_from(t.view())
        })?;
        let _nine = outer.upload(&[9.0_f32; 4])?;
        assert_eq!(outer.read(result.view())?, written::<D, _>(&[1.0, 2.0, 3.0, 4.0_f32]));
        Ok(())
    })
}

// B014, B077: dropping a handle never puts bytes anywhere.
fn a_late_drop_frees_nothing<D: Device>(device: D) -> Outcome {
    let mut arena = arena(device, 64 * KIB)?;
    let first = arena.scope(|step| arena_scope::Ok(step.alloc::<u8>(64)?.address()))?;
    arena.scope(|step| {
        let early = step.alloc::<u8>(64)?;
        assert_eq!(early.address(), first, "the reset gave the address back");
        let second = step.upload(&[2_u8; 64])?;
        drop(early);
        let third = step.upload(&[3_u8; 64])?;
        let fourth = step.upload(&[4_u8; 64])?;
        let offsets = [second.offset_bytes(), third.offset_bytes(), fourth.offset_bytes()];
        assert_eq!(offsets, [256, 512, 768], "a drop reuses nothing inside its scope");
        assert_eq!(step.read(second.view())?, written::<D, _>(&[2_u8; 64]));
        Ok(())
    })
}

// Promise 2: dropping an outer buffer in an inner scope is legal.
#[test]
fn an_outer_buffer_dropped_inside_keeps_its_bytes_until_the_outer_scope_closes() -> Outcome {
    let mut arena = host(64 * KIB)?;
    arena.scope(|outer| {
        let moved = outer.upload(&[7_u8; 64])?;
        let address = moved.address();
        outer.scope(move |inner| {
            drop(moved);
            assert!(inner.alloc::<u8>(64)?.address() > address);
            arena_scope::Ok(())
        })?;
        assert!(outer.alloc::<u8>(64)?.address() > address);
        Ok(())
    })
}

// B089
#[test]
fn an_operation_that_returns_its_input_borrows_it() -> Outcome {
    fn identity<'v, T: Pod>(x: View<'v, T>) -> View<'v, T> {
        x
    }
    let mut arena = host(64 * KIB)?;
    arena.scope(|outer| {
        let mut x = outer.upload(&[5.0, 6.0, 7.0_f32])?;
        let doubled = {
            let y = identity(x.view());
            assert_eq!(y.as_slice(), [5.0, 6.0, 7.0]);
            y.as_slice().iter().map(|y| 2.0 * y).collect::<Vec<_>>()
        };
        x.view_mut().write(&doubled)?;
        assert_eq!(x.as_slice(), [10.0, 12.0, 14.0]);
        Ok(())
    })
}
