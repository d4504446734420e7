//! The cuBLAS stand-in through cudarc: results, order, refusals.

use crate::common::{assert_close, numbers};
use cuda_standin::Standin;
use cudarc::cublas::sys::{
    cublasOperation_t as Op, cublasPointerMode_t as Mode, cublasStatus_t as Status,
};
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig, StridedBatchedConfig, sys as blas_sys};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut, sys};
use std::sync::Arc;

fn open() -> (Arc<CudaStream>, CudaBlas) {
    let context = CudaContext::new(0).unwrap();
    // SAFETY: the tests order everything themselves.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().unwrap();
    let blas = CudaBlas::new(stream.clone()).unwrap();
    (stream, blas)
}

/// A column-major matrix product as the book has it, in doubles.
#[expect(clippy::too_many_arguments, reason = "the interface's own arguments")]
fn reference(
    ta: bool,
    tb: bool,
    m: usize,
    n: usize,
    k: usize,
    alpha: f32,
    a: &[f32],
    lda: usize,
    b: &[f32],
    ldb: usize,
    beta: f32,
    c: &mut [f32],
    ldc: usize,
) {
    for (row, col) in (0..m).flat_map(|row| (0..n).map(move |col| (row, col))) {
        let mut sum = 0f64;
        for i in 0..k {
            let x = if ta { a[i + row * lda] } else { a[row + i * lda] };
            let y = if tb { b[col + i * ldb] } else { b[i + col * ldb] };
            sum += f64::from(x) * f64::from(y);
        }
        let old = if beta == 0.0 { 0.0 } else { f64::from(beta) * f64::from(c[row + col * ldc]) };
        c[row + col * ldc] = (f64::from(alpha) * sum + old) as f32;
    }
}

fn config(
    ta: bool,
    tb: bool,
    shape: [usize; 3],
    leading: [usize; 3],
    alpha: f32,
    beta: f32,
) -> GemmConfig<f32> {
    let op = |t| if t { Op::CUBLAS_OP_T } else { Op::CUBLAS_OP_N };
    let [m, n, k] = shape.map(|v| v as i32);
    let [lda, ldb, ldc] = leading.map(|v| v as i32);
    GemmConfig { transa: op(ta), transb: op(tb), m, n, k, alpha, lda, ldb, beta, ldc }
}

#[test]
fn every_transpose_scalar_and_leading_dimension() {
    let _standin = Standin::load().unwrap();
    let (stream, blas) = open();
    let (m, n, k) = (5, 7, 3);
    for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
        for (alpha, beta) in [(1.0, 0.0), (-0.5, 1.0), (2.0, 0.25), (0.0, 2.0)] {
            let (lda, ldb, ldc) = (if ta { k } else { m } + 1, if tb { n } else { k } + 2, m + 3);
            let a = numbers(lda * if ta { m } else { k }, 1);
            let b = numbers(ldb * if tb { k } else { n }, 2);
            let mut c = numbers(ldc * n, 3);
            let (d_a, d_b) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
            let mut d_c = stream.clone_htod(&c).unwrap();
            let config = config(ta, tb, [m, n, k], [lda, ldb, ldc], alpha, beta);
            // SAFETY: the sizes are those of the matrices, which the stand-in checks as well.
            unsafe { blas.gemm(config, &d_a, &d_b, &mut d_c) }.unwrap();
            reference(ta, tb, m, n, k, alpha, &a, lda, &b, ldb, beta, &mut c, ldc);
            assert_close(&stream.clone_dtoh(&d_c).unwrap(), &c, 1e-6);
        }
    }
}

#[test]
fn a_beta_of_zero_does_not_read_what_was_there() {
    let _standin = Standin::load().unwrap();
    let (stream, blas) = open();
    let one = stream.clone_htod(&[2.0f32]).unwrap();
    let mut c = stream.clone_htod(&[f32::NAN]).unwrap();
    // SAFETY: matrices of one element.
    unsafe { blas.gemm(config(false, false, [1; 3], [1; 3], 1.0, 0.0), &one, &one, &mut c) }
        .unwrap();
    assert_eq!(stream.clone_dtoh(&c).unwrap(), [4.0]);
}

#[test]
fn a_batch_with_strides() {
    let _standin = Standin::load().unwrap();
    let (stream, blas) = open();
    let (m, n, k, batch) = (2, 3, 4, 3);
    let (a, b) = (numbers(m * k * batch, 1), numbers(k * n, 2));
    let (d_a, d_b) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
    let mut d_c = stream.alloc_zeros::<f32>(m * n * batch).unwrap();
    let gemm = config(false, false, [m, n, k], [m, k, m], 1.0, 0.0);
    let batched = StridedBatchedConfig {
        gemm,
        batch_size: batch as i32,
        stride_a: (m * k) as i64,
        stride_b: 0,
        stride_c: (m * n) as i64,
    };
    // SAFETY: as above.
    unsafe { blas.gemm_strided_batched(batched, &d_a, &d_b, &mut d_c) }.unwrap();
    let mut c = vec![0.0; m * n * batch];
    for i in 0..batch {
        let (a, c) = (&a[i * m * k..], &mut c[i * m * n..]);
        reference(false, false, m, n, k, 1.0, a, m, &b, k, 0.0, c, m);
    }
    assert_close(&stream.clone_dtoh(&d_c).unwrap(), &c, 1e-6);
}

#[test]
fn a_product_runs_in_stream_order() {
    let standin = Standin::load().unwrap();
    let mut early = 0;
    for (seed, joined) in (0..40).flat_map(|seed| [(seed, false), (seed, true)]) {
        standin.reset(seed);
        let (stream, blas) = open();
        let other = stream.context().new_stream().unwrap();
        let one = stream.clone_htod(&[3.0f32]).unwrap();
        let mut c = stream.clone_htod(&[0.0f32]).unwrap();
        let mut seen = stream.clone_htod(&[0.0f32]).unwrap();
        stream.synchronize().unwrap();
        // SAFETY: matrices of one element.
        unsafe { blas.gemm(config(false, false, [1; 3], [1; 3], 1.0, 0.0), &one, &one, &mut c) }
            .unwrap();
        if joined {
            other.join(&stream).unwrap();
        }
        other.memcpy_dtod(&c, &mut seen).unwrap();
        stream.context().synchronize().unwrap();
        let right = stream.clone_dtoh(&seen).unwrap() == [9.0];
        assert!(right || !joined, "seed {seed}");
        early += u32::from(!right);
    }
    assert!(early > 0, "a missing wait never showed");
}

#[test]
fn a_captured_product_reads_scalars_of_the_device_at_each_launch() {
    let standin = Standin::load().unwrap();
    let (stream, blas) = open();
    let one = stream.clone_htod(&[3.0f32]).unwrap();
    let mut c = stream.clone_htod(&[1.0f32]).unwrap();
    let mut scalars = stream.clone_htod(&[2.0f32, 1.0]).unwrap();
    let workspace = stream.clone_htod(&[0u8; 1024]).unwrap();
    stream.synchronize().unwrap();
    let address = workspace.device_ptr(&stream).0;
    // SAFETY: the memory outlives the handle, and nobody else uses it.
    let given = unsafe {
        blas_sys::cublasSetWorkspace_v2(*blas.handle(), address as *mut _, workspace.len())
    };
    assert_eq!(given, Status::CUBLAS_STATUS_SUCCESS, "without, a product in a capture is refused");
    blas.set_pointer_mode(Mode::CUBLAS_POINTER_MODE_DEVICE).unwrap();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    {
        let ((alpha, _), (a, _)) = (scalars.device_ptr(&stream), one.device_ptr(&stream));
        let (out, _guard) = c.device_ptr_mut(&stream);
        // SAFETY: matrices of one element, scalars in device memory as the mode says.
        let status = unsafe {
            blas_sys::cublasSgemm_v2(
                *blas.handle(),
                Op::CUBLAS_OP_N,
                Op::CUBLAS_OP_N,
                1,
                1,
                1,
                alpha as *const f32,
                a as *const f32,
                1,
                a as *const f32,
                1,
                (alpha + 4) as *const f32,
                out as *mut f32,
                1,
            )
        };
        assert_eq!(status, Status::CUBLAS_STATUS_SUCCESS);
    }
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().unwrap();
    graph.launch().unwrap();
    assert_eq!(stream.clone_dtoh(&c).unwrap(), [19.0]);
    stream.memcpy_htod(&[0.0f32, 2.0], &mut scalars).unwrap();
    graph.launch().unwrap();
    assert_eq!(stream.clone_dtoh(&c).unwrap(), [38.0]);
    assert_eq!((standin.calls("cublasSgemm_v2"), standin.leaks().library_handles), (1, 1));
    drop(blas);
    assert_eq!(standin.leaks().library_handles, 0);
}

#[test]
fn a_workspace_is_used_and_is_the_library_s_own_again_on_another_stream() {
    let standin = Standin::load().unwrap();
    let (stream, mut blas) = open();
    let one = stream.clone_htod(&[3.0f32]).unwrap();
    let mut c = stream.clone_htod(&[0.0f32]).unwrap();
    let workspace = stream.clone_htod(&[0u8; 1024]).unwrap();
    let address = workspace.device_ptr(&stream).0;
    // SAFETY: the memory outlives the handle, and nobody else uses it.
    let given = unsafe {
        blas_sys::cublasSetWorkspace_v2(*blas.handle(), address as *mut _, workspace.len())
    };
    assert_eq!(given, Status::CUBLAS_STATUS_SUCCESS);
    let single = config(false, false, [1, 1, 1], [1, 1, 1], 1.0, 0.0);
    let taken = || standin.calls("cuMemAlloc_v2") + standin.calls("cuMemAllocAsync");
    let before = taken();
    // SAFETY: matrices of one element.
    unsafe { blas.gemm(single, &one, &one, &mut c) }.unwrap();
    assert_eq!(stream.clone_dtoh(&c).unwrap(), [9.0]);
    assert_eq!(taken(), before);
    let scribbled = stream.clone_dtoh(&workspace).unwrap();
    assert!(scribbled[..256].iter().all(|byte| *byte != 0), "somebody else's bytes would be gone");
    for expected in [before + 1, before + 1] {
        // SAFETY: the stream is the one that the handle has.
        unsafe { blas.set_stream(stream.clone()) }.unwrap();
        // SAFETY: matrices of one element.
        unsafe { blas.gemm(single, &one, &one, &mut c) }.unwrap();
        assert_eq!(taken(), expected, "cuBLAS keeps what it has taken");
    }
    stream.synchronize().unwrap();
}

#[test]
fn bad_arguments_workspaces_and_ranges_are_refused() {
    let standin = Standin::load().unwrap();
    let (stream, blas) = open();
    let small = stream.clone_htod(&[1.0f32; 4]).unwrap();
    let mut c = stream.clone_htod(&[0.0f32; 4]).unwrap();
    let invalid = Err(cudarc::cublas::result::CublasError(Status::CUBLAS_STATUS_INVALID_VALUE));
    for config in [
        config(false, false, [2, 2, 2], [1, 2, 2], 1.0, 0.0),
        GemmConfig { m: -1, ..config(false, false, [2, 2, 2], [2, 2, 2], 1.0, 0.0) },
    ] {
        // SAFETY: refused before it runs.
        assert_eq!(unsafe { blas.gemm(config, &small, &small, &mut c) }, invalid);
    }
    let base = small.device_ptr(&stream).0;
    for (workspace, status) in
        [(base, Status::CUBLAS_STATUS_SUCCESS), (base + 16, Status::CUBLAS_STATUS_INVALID_VALUE)]
    {
        let (handle, at) = (*blas.handle(), workspace as *mut _);
        // SAFETY: no product that would touch the workspace gets as far as that.
        let found = unsafe { blas_sys::cublasSetWorkspace_v2(handle, at, 16) };
        assert_eq!(found, status);
    }
    standin.fail_nth("cublasSgemm_v2", 1, Status::CUBLAS_STATUS_EXECUTION_FAILED as u32);
    let two = config(false, false, [2, 2, 2], [2, 2, 2], 1.0, 0.0);
    // SAFETY: matrices of two by two.
    let failed = unsafe { blas.gemm(two, &small, &small, &mut c) };
    assert_eq!(failed.unwrap_err().0, Status::CUBLAS_STATUS_EXECUTION_FAILED);
    let three = config(false, false, [3, 2, 2], [3, 2, 3], 1.0, 0.0);
    // SAFETY: the stand-in checks the range, which is too long; that is what is tested.
    unsafe { blas.gemm(three, &small, &small, &mut c) }.unwrap();
    assert_eq!(stream.synchronize().unwrap_err().0, sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(
        standin.last_fault().contains("cublasSgemm_v2 touches 24 bytes"),
        "{}",
        standin.last_fault()
    );
}

#[test]
fn a_vector_product_and_the_mixed_precision_product() {
    let _standin = Standin::load().unwrap();
    let (stream, blas) = open();
    let a = stream.clone_htod(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let x = stream.clone_htod(&[1.0f32, 10.0, 100.0]).unwrap();
    let mut y = stream.clone_htod(&[1.0f32, 1.0]).unwrap();
    let gemv = cudarc::cublas::GemvConfig {
        trans: Op::CUBLAS_OP_N,
        m: 2,
        n: 3,
        alpha: 1.0f32,
        lda: 2,
        incx: 1,
        beta: 2.0,
        incy: 1,
    };
    // SAFETY: a matrix of two by three.
    unsafe { cudarc::cublas::Gemv::gemv(&blas, gemv, &a, &x, &mut y) }.unwrap();
    assert_eq!(stream.clone_dtoh(&y).unwrap(), [533.0, 644.0]);

    let half = |values: &[f32]| {
        values.iter().map(|v| half::f16::from_f32(*v).to_bits()).collect::<Vec<u16>>()
    };
    let (h, mut out) = (
        stream.clone_htod(&half(&[1.5, 2.0, -1.0, 0.5])).unwrap(),
        stream.alloc_zeros::<f32>(4).unwrap(),
    );
    let (alpha, beta) = (1.0f32, 0.0f32);
    let (from, to) = (h.device_ptr(&stream).0, out.device_ptr_mut(&stream).0);
    use blas_sys::cudaDataType_t as T;
    // SAFETY: matrices of two by two in the types that are named.
    let status = unsafe {
        blas_sys::cublasGemmEx(
            *blas.handle(),
            Op::CUBLAS_OP_N,
            Op::CUBLAS_OP_T,
            2,
            2,
            2,
            (&raw const alpha).cast(),
            from as *const _,
            T::CUDA_R_16F,
            2,
            from as *const _,
            T::CUDA_R_16F,
            2,
            (&raw const beta).cast(),
            to as *mut _,
            T::CUDA_R_32F,
            2,
            blas_sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            blas_sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    };
    assert_eq!(status, Status::CUBLAS_STATUS_SUCCESS);
    assert_eq!(stream.clone_dtoh(&out).unwrap(), [3.25, 2.5, 2.5, 4.25]);
}
