//! Buffers lent as slices of other elements, parts of a session's buffers, and lent buffers beside others in one call.

use crate::cuda::{arena, side_stream};
use arena_scope::cuda::{LentMut, Session};
use arena_scope::cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_N;
use arena_scope::cudarc::cublas::{CudaBlas, Gemm, GemmConfig};
use arena_scope::cudarc::cufft::sys::{double2, float2};
use arena_scope::cudarc::driver::{
    CudaSlice, CudaViewMut, DriverError, LaunchConfig, PushKernelArg,
};
use arena_scope::cudarc::nvrtc::Ptx;
use arena_scope::{Alignment, ByteSize, Cuda, Device, Error, ErrorKind, ViewMut};
use cuda_standin::Standin;
use rstest::rstest;

const PTX: &str = include_str!("../../../../standins/cuda/tests/ptx/cnn.ptx");

/// Somebody's functions.
fn conjugated(x: &CudaSlice<float2>, y: &mut CudaViewMut<'_, float2>) -> Result<(), DriverError> {
    let conjugate = |value: &float2| float2 { x: value.x, y: -value.y };
    let host: Vec<float2> = x.stream().clone_dtoh(x)?.iter().map(conjugate).collect();
    x.stream().memcpy_htod(&host, y)
}

fn sum(x: &CudaSlice<f32>) -> Result<f32, DriverError> {
    Ok(x.stream().clone_dtoh(x)?.iter().sum())
}

const COMPLEX: [[f32; 2]; 2] = [[1.0, 2.0], [-3.0, 4.0]];
const CONJUGATE: [[f32; 2]; 2] = [[1.0, -2.0], [-3.0, -4.0]];

#[test]
fn pairs_of_floats_are_lent_as_the_complex_numbers_of_cufft() {
    let _standin = Standin::load().unwrap();
    let mut arena = arena();
    arena
        .scope(|step| {
            let (x, mut y) = (step.upload(&COMPLEX)?, step.alloc::<[f32; 2]>(2)?);
            let mut lent = y.view_mut().lend_mut_as::<float2>()?;
            conjugated(&*x.view().lend_as()?, &mut lent.view_mut())?;
            drop(lent);
            assert_eq!(step.read(y.view())?, CONJUGATE);
            let wide = step.upload(&[[1.0_f64, 2.0]])?;
            let lent = wide.view().lend_as::<double2>()?;
            assert_eq!(lent.stream().clone_dtoh(&*lent)?, [double2 { x: 1.0, y: 2.0 }]);
            arena_scope::Ok(())
        })
        .unwrap();
}

#[cfg(feature = "num-complex")]
#[test]
fn complex_numbers_are_lent_as_those_of_cufft() {
    use arena_scope::num_complex::Complex;

    let _standin = Standin::load().unwrap();
    let mut arena = arena();
    arena
        .scope(|step| {
            let x = step.upload(&COMPLEX.map(|[re, im]| Complex { re, im }))?;
            let mut y = step.alloc::<Complex<f32>>(2)?;
            conjugated(&*x.view().lend_as()?, &mut y.view_mut().lend_mut_as()?.view_mut())?;
            let found = step.read(y.view())?;
            assert_eq!(found, CONJUGATE.map(|[re, im]| Complex { re, im }));
            arena_scope::Ok(())
        })
        .unwrap();
}

#[test]
fn a_view_that_is_less_aligned_than_the_elements_it_is_lent_as_is_refused() {
    let _standin = Standin::load().unwrap();
    let mut arena = arena();
    arena
        .scope(|step| {
            let eight = Alignment::new(8)?;
            let _eight_bytes = step.alloc_aligned::<u8>(8, eight)?;
            let mut wide = step.alloc_aligned::<[f64; 2]>(2, eight)?;
            assert_eq!(wide.address() % 16, 8);
            let errors = [
                wide.view().lend_as::<double2>().unwrap_err(),
                wide.view_mut().lend_mut_as::<double2>().unwrap_err(),
            ];
            for error in errors {
                assert!(matches!(error.kind(), ErrorKind::Misaligned { .. }), "{error}");
            }
            wide.lend().map(drop)
        })
        .unwrap();
}

const MASK: [bool; 4] = [true, false, false, true];

#[test]
fn bytes_are_lent_as_a_mask_after_they_were_made_one() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    arena
        .scope(|step| {
            let mut bytes = step.upload(&[7_u8; 4])?;
            let lent = bytes.view_mut().lend_zeroed_mask()?;
            assert_eq!(lent.stream().clone_dtoh(&*lent)?, [false; 4]);
            drop(lent);
            bytes.view_mut().fill_bytes(7)?;
            let mut lent = bytes.view_mut().lend_mask(&MASK)?;
            assert_eq!(lent.stream().clone_dtoh(&*lent)?, MASK);
            let stream = lent.stream().clone();
            stream.memcpy_htod(&[true], &mut lent.view_mut().slice_mut(1..2))?;
            drop(lent);
            // SAFETY: only `bool`s were written.
            let lent = unsafe { bytes.view().lend_as_mask() }?;
            assert_eq!(lent.stream().clone_dtoh(&*lent)?, [true, true, false, true]);
            drop(lent);
            assert_eq!(step.read(bytes.view())?, [1, 1, 0, 1]);
            let error = bytes.view_mut().lend_mask(&MASK[1..]).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::LengthMismatch { .. }), "{error}");
            arena_scope::Ok(())
        })
        .unwrap();
    drop(arena);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

fn zeroed(bytes: ViewMut<'_, u8, Cuda>) -> Result<LentMut<'_, bool>, Error> {
    bytes.lend_zeroed_mask()
}

fn uploaded(bytes: ViewMut<'_, u8, Cuda>) -> Result<LentMut<'_, bool>, Error> {
    bytes.lend_mask(&[false; 4])
}

#[rstest]
#[case::zeroed(zeroed)]
#[case::uploaded(uploaded)]
fn no_byte_that_another_stream_writes_late_gets_into_a_mask(
    #[case] lend: fn(ViewMut<'_, u8, Cuda>) -> Result<LentMut<'_, bool>, Error>,
) {
    let standin = Standin::load().unwrap();
    for seed in 0..40 {
        standin.reset(seed);
        let mut arena = arena();
        let side = side_stream(&arena);
        let sevens = arena.persistent_from(&[7_u8; 4]).unwrap();
        arena.device().synchronise().unwrap();
        arena
            .scope(|step| {
                let mut bytes = step.alloc::<u8>(4)?;
                side.memcpy_dtod(&sevens, &mut bytes)?;
                drop(lend(bytes.view_mut())?);
                side.synchronize()?;
                // As bytes: in a test that fails they would be no `bool`s.
                assert_eq!(step.read(bytes.view())?, [0; 4], "seed {seed}");
                arena_scope::Ok(())
            })
            .unwrap();
    }
}

#[rstest]
#[case::of_a_step(false)]
#[case::persistent(true)]
fn parts_of_a_session_s_buffer_are_lent(#[case] is_persistent: bool) {
    let _standin = Standin::load().unwrap();
    let stream = Session::new(arena());
    let step = stream.enter().unwrap();
    let make = || stream.clone_htod(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let mut x = if is_persistent { stream.keep(make) } else { make() }.unwrap();
    assert_eq!(x.is_persistent(), is_persistent);
    assert_eq!(sum(&x.slice(4..).lend().unwrap()).unwrap(), 11.0);
    assert_eq!(sum(&x.lend().unwrap()).unwrap(), 21.0);
    stream.memset_zeros(&mut x.slice_mut(1..3).lend_mut().unwrap().view_mut()).unwrap();
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [1.0, 0.0, 0.0, 4.0, 5.0, 6.0]);
    let (left, right) = x.split_at_mut(3);
    let (left, mut right) = (left.lend_mut().unwrap(), right.lend_mut().unwrap());
    stream.memcpy_dtod(&*left, &mut right.view_mut()).unwrap();
    drop((left, right));
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);

    let lent = x.slice(..1).lend().unwrap();
    let closed = step.close();
    assert_eq!(closed.is_err(), !is_persistent, "a step waits for its lent parts");
    assert_eq!(sum(&lent).unwrap(), 1.0);
    drop(lent);
    assert!(is_persistent || stream.stats().unwrap().used_bytes == 0, "and then ends");
    assert_eq!(x.slice(..1).lend().is_ok(), is_persistent);
}

#[test]
fn lent_buffers_and_views_are_operands_of_one_kernel_and_of_one_product() {
    let standin = Standin::load().unwrap();
    for seed in 0..40 {
        standin.reset(seed);
        let mut arena = crate::cuda::arena_of(ByteSize::mib(8));
        let stream = arena.device().stream().clone();
        let module = stream.context().load_module(Ptx::from_src(PTX)).unwrap();
        let sgd = module.load_function("sgd_momentum").unwrap();
        let blas = CudaBlas::new(stream.clone()).unwrap();
        let mut weights = arena.persistent_from(&[1.0_f32, 2.0, 3.0, 4.0]).unwrap();
        let mut momentum = arena.persistent_from(&[0.0_f32, 1.0, 0.0, 1.0]).unwrap();
        for _ in 0..2 {
            arena
                .scope(|step| {
                    let (gradient, x) =
                        (step.upload(&[1.0_f32; 4])?, step.upload(&[1.0_f32, 1.0])?);
                    let mut y = step.alloc::<f32>(2)?;
                    {
                        let mut lent = weights.lend_mut()?;
                        let lent_gradient = gradient.lend()?;
                        let mut velocity = momentum.view_mut();
                        let mut of_weights = lent.view_mut();
                        let mut launch = stream.launch_builder(&sgd);
                        launch.arg(&mut of_weights).arg(&mut velocity).arg(&*lent_gradient);
                        launch.arg(&0.5_f32).arg(&1.0_f32).arg(&4_i32);
                        // SAFETY: the kernel takes these, and all three have four elements.
                        unsafe { launch.launch(LaunchConfig::for_num_elems(4)) }?;
                    }
                    let (lent, lent_x, mut view) = (weights.lend()?, x.lend()?, y.view_mut());
                    let config = GemmConfig {
                        transa: CUBLAS_OP_N,
                        transb: CUBLAS_OP_N,
                        m: 2,
                        n: 1,
                        k: 2,
                        alpha: 1.0,
                        lda: 2,
                        ldb: 2,
                        beta: 0.0,
                        ldc: 2,
                    };
                    // SAFETY: two by two, and two columns of two.
                    unsafe { blas.gemm(config, &*lent, &*lent_x, &mut view) }.unwrap();
                    drop((lent, lent_x));
                    let (rows, momentum) = (step.read(y.view())?, step.read(momentum.view())?);
                    let sums = if momentum[0] == 1.0 { [3.0, 4.0] } else { [1.0, 1.0] };
                    assert_eq!(rows, sums, "seed {seed}: {momentum:?}");
                    arena_scope::Ok(())
                })
                .unwrap();
        }
        assert_eq!(weights.view().to_vec().unwrap(), [-0.5, -0.5, 1.5, 1.5], "seed {seed}");
    }
}
