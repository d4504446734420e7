//! Kernels for each kind of instruction, compiled by NVRTC, against Rust.

use crate::common::{Bench, assert_close, flat, numbers, shape};
use cuda_standin::Threads;
use cudarc::driver::{LaunchConfig, sys};

const PTX: &str = include_str!("../ptx/numeric.ptx");

#[test]
fn matrix_product_with_shared_tiles() {
    let bench = Bench::new(PTX);
    let n = 32usize;
    let (a, b) = (numbers(n * n, 1), numbers(n * n, 2));
    let wanted: Vec<f32> =
        (0..n * n).map(|i| (0..n).map(|k| a[i / n * n + k] * b[k * n + i % n]).sum()).collect();
    let (d_a, d_b) = (bench.stream.clone_htod(&a).unwrap(), bench.stream.clone_htod(&b).unwrap());
    let mut c = bench.stream.alloc_zeros::<f32>(n * n).unwrap();
    let size = n as i32;
    let config = LaunchConfig { grid_dim: (2, 2, 1), block_dim: (16, 16, 1), shared_mem_bytes: 0 };
    launch!(bench, "matmul", config, &d_a, &d_b, &mut c, &size);
    bench.finish();
    assert_close(&bench.stream.clone_dtoh(&c).unwrap(), &wanted, 1e-5);
}

#[test]
fn layer_norm_in_dynamic_shared_memory() {
    let bench = Bench::new(PTX);
    let (rows, n) = (3usize, 50usize);
    let x = numbers(rows * n, 1);
    let mut wanted = Vec::new();
    for row in x.chunks(n) {
        let mean = row.iter().sum::<f32>() / n as f32;
        let var = row.iter().map(|v| v * v).sum::<f32>() / n as f32 - mean * mean;
        wanted.extend(row.iter().map(|v| (v - mean) / (var + 1e-5).sqrt()));
    }
    let d_x = bench.stream.clone_htod(&x).unwrap();
    let mut y = bench.stream.alloc_zeros::<f32>(rows * n).unwrap();
    let (count, eps) = (n as i32, 1e-5f32);
    let config = LaunchConfig { shared_mem_bytes: 2 * 64 * 4, ..shape(rows as u32, 64) };
    launch!(bench, "layer_norm", config, &d_x, &mut y, &count, &eps);
    bench.finish();
    assert_close(&bench.stream.clone_dtoh(&y).unwrap(), &wanted, 1e-4);
}

#[test]
fn vectors_of_four_floats() {
    let bench = Bench::new(PTX);
    let x = numbers(4 * 10, 1);
    let d_x = bench.stream.clone_htod(&x).unwrap();
    let mut y = bench.stream.alloc_zeros::<f32>(x.len()).unwrap();
    let (by, n) = (3.0f32, 10i32);
    launch!(bench, "scale_float4", flat(10), &d_x, &mut y, &by, &n);
    bench.finish();
    let wanted: Vec<f32> = x.iter().map(|v| v * 3.0).collect();
    assert_eq!(bench.stream.clone_dtoh(&y).unwrap(), wanted);
}

#[test]
fn half_precision_alone_and_in_pairs() {
    let bench = Bench::new(include_str!("../ptx/half.ptx"));
    let half = |x: f32| half::f16::from_f32(x);
    let x: Vec<f32> = numbers(20, 3).iter().map(|v| v * 5.0).collect();
    let d_x = bench.stream.clone_htod(&x).unwrap();
    let mut y = bench.stream.alloc_zeros::<f32>(20).unwrap();
    let mut pairs = bench.stream.alloc_zeros::<u32>(20).unwrap();
    let n = 20i32;
    launch!(bench, "half_math", flat(20), &d_x, &mut y, &mut pairs, &n);
    bench.finish();
    let wanted: Vec<f32> = x.iter().map(|v| half(half(*v).to_f32() * 2.0 + 1.0).to_f32()).collect();
    assert_eq!(bench.stream.clone_dtoh(&y).unwrap(), wanted);
    let two = |v: f32| half(half(v * v).to_f32() + v.max(0.0));
    let wanted: Vec<u32> = (x.iter().map(|v| half(*v).to_f32()))
        .map(|h| u32::from(two(h).to_bits()) | u32::from(two(-h).to_bits()) << 16)
        .collect();
    assert_eq!(bench.stream.clone_dtoh(&pairs).unwrap(), wanted);
}

#[test]
fn votes_of_a_warp() {
    let bench = Bench::new(PTX);
    let x: Vec<i32> = numbers(64, 4).iter().map(|v| (v * 110.0) as i32).collect();
    let d_x = bench.stream.clone_htod(&x).unwrap();
    let mut out = bench.stream.alloc_zeros::<u32>(2).unwrap();
    let mut counts = bench.stream.alloc_zeros::<i32>(2).unwrap();
    launch!(bench, "ballot", shape(1, 64), &d_x, &mut out, &mut counts);
    bench.finish();
    let lanes = |w: &[i32]| (0..32).fold(0u32, |m, i| m | u32::from(w[i] > 0) << i);
    let masks: Vec<u32> = x.chunks(32).map(lanes).collect();
    assert_eq!(bench.stream.clone_dtoh(&out).unwrap(), masks);
    let count = |w: &[i32]| {
        lanes(w).count_ones() as i32 * 100
            + i32::from(w.iter().any(|v| *v > 100)) * 10
            + i32::from(w.iter().all(|v| *v > -100))
    };
    assert_eq!(
        bench.stream.clone_dtoh(&counts).unwrap(),
        x.chunks(32).map(count).collect::<Vec<_>>()
    );
}

#[test]
fn atomics_of_every_kind() {
    let bench = Bench::new(PTX);
    let n = 150usize;
    let x: Vec<f32> = numbers(n, 5).iter().map(|v| v + 2.0).collect();
    let d_x = bench.stream.clone_htod(&x).unwrap();
    let mut best = bench.stream.clone_htod(&[0i32]).unwrap();
    let mut counters = bench.stream.clone_htod(&[0u32, 0, u32::MAX, 0, 0, 0]).unwrap();
    let mut wide = bench.stream.alloc_zeros::<u64>(1).unwrap();
    let count = n as i32;
    launch!(bench, "atomics", flat(n), &d_x, &mut best, &mut counters, &mut wide, &count);
    bench.finish();
    let top = x.iter().copied().reduce(f32::max).unwrap();
    assert_eq!(bench.stream.clone_dtoh(&best).unwrap(), [top.to_bits() as i32]);
    let xor = (0..n as u32).fold(0, |a, i| a ^ i);
    assert_eq!(bench.stream.clone_dtoh(&counters).unwrap(), [150, 149, 0, u32::MAX, xor, 150 % 7]);
    assert_eq!(bench.stream.clone_dtoh(&wide).unwrap(), [(0..n as u64).sum::<u64>() << 20]);
}

#[test]
fn double_precision_with_an_exponential() {
    let bench = Bench::new(PTX);
    let x: Vec<f64> = numbers(40, 6).iter().map(|v| f64::from(*v) * 30.0).collect();
    let d_x = bench.stream.clone_htod(&x).unwrap();
    let mut y = bench.stream.alloc_zeros::<f64>(40).unwrap();
    let n = 40i32;
    launch!(bench, "doubles", flat(40), &d_x, &mut y, &n);
    bench.finish();
    for (x, y) in x.iter().zip(bench.stream.clone_dtoh(&y).unwrap()) {
        let wanted = x.abs().sqrt() + (x * 0.25).exp() - 1.0 / (1.0 + x * x);
        assert!(
            (y - wanted).abs() <= 1e-12 * wanted.abs().max(1.0),
            "{x}: {y} instead of {wanted}"
        );
    }
}

#[test]
fn calls_constants_and_module_variables() {
    let bench = Bench::new(PTX);
    let n = 70usize;
    let x = numbers(n, 7);
    let d_x = bench.stream.clone_htod(&x).unwrap();
    let mut y = bench.stream.alloc_zeros::<f32>(n).unwrap();
    let mut g = bench.stream.alloc_zeros::<i32>(n).unwrap();
    let count = n as i32;
    launch!(bench, "calls_and_constants", flat(n), &d_x, &mut y, &mut g, &count);
    bench.finish();
    let horner = |x: f32| [1.0f32, -2.0, 0.5, 0.25].iter().rev().fold(0.0, |v, c| v * x + c);
    assert_close(
        &bench.stream.clone_dtoh(&y).unwrap(),
        &x.iter().map(|x| horner(*x)).collect::<Vec<_>>(),
        1e-6,
    );
    fn gcd(a: i32, b: i32) -> i32 {
        if b == 0 { a } else { gcd(b, a % b) }
    }
    assert_eq!(
        bench.stream.clone_dtoh(&g).unwrap(),
        (0..70).map(|i| gcd(1 + i * 6, 84)).collect::<Vec<_>>()
    );
}

#[test]
fn threads_that_leave_early_are_not_waited_for_at_a_barrier() {
    let bench = Bench::new(PTX);
    let x: Vec<i32> = (0..40).map(|i| i * i).collect();
    let d_x = bench.stream.clone_htod(&x).unwrap();
    let mut y = bench.stream.alloc_zeros::<i32>(40).unwrap();
    let n = 40i32;
    launch!(bench, "early_return", shape(1, 64), &d_x, &mut y, &n);
    bench.finish();
    assert_eq!(bench.stream.clone_dtoh(&y).unwrap(), x.iter().rev().copied().collect::<Vec<_>>());
}

#[test]
fn mathematical_functions_precise_and_fast() {
    let bench = Bench::new(PTX);
    let n = 60usize;
    // Large arguments take the slow reduction of sine and cosine.
    let x: Vec<f32> = numbers(n, 8)
        .iter()
        .enumerate()
        .map(|(i, v)| if i < 5 { v * 1e7 } else { v * 6.0 })
        .collect();
    let d_x = bench.stream.clone_htod(&x).unwrap();
    let mut precise = bench.stream.alloc_zeros::<f32>(8 * n).unwrap();
    let mut fast = bench.stream.alloc_zeros::<f32>(6 * n).unwrap();
    let count = n as i32;
    launch!(bench, "precise_math", flat(n), &d_x, &mut precise, &count);
    launch!(bench, "fast_math", flat(n), &d_x, &mut fast, &count);
    bench.finish();
    let (precise, fast) =
        (bench.stream.clone_dtoh(&precise).unwrap(), bench.stream.clone_dtoh(&fast).unwrap());
    for (i, v) in x.iter().copied().enumerate() {
        let rounded = v.floor() + v.round() + v.trunc();
        let wanted = [
            v.sin(),
            v.cos(),
            v.tanh(),
            (v * 0.1).exp(),
            (v.abs() + 0.5).ln(),
            (v.abs() + 0.5).powf(1.7),
        ];
        assert_close(&precise[8 * i..][..6], &wanted, 2e-6);
        assert_close(&precise[8 * i + 7..][..1], &[v / 3.0 + rounded + 1f32.copysign(v)], 1e-6);
        if i >= 5 {
            let wanted =
                [v.sin(), v.cos(), (v * 0.1).exp(), (v.abs() + 0.5).ln(), v / 3.0, v.tanh()];
            assert_close(&fast[6 * i..][..6], &wanted, 1e-5);
        }
    }
    // erf has no twin in Rust: known values and symmetry.
    let known = bench.stream.clone_htod(&[0.0f32, 0.5, 1.0, -1.0, 2.5]).unwrap();
    let mut out = bench.stream.alloc_zeros::<f32>(40).unwrap();
    launch!(bench, "precise_math", flat(5), &known, &mut out, &5i32);
    let out = bench.stream.clone_dtoh(&out).unwrap();
    let erf: Vec<f32> = out.chunks(8).map(|c| c[6]).collect();
    assert_close(&erf, &[0.0, 0.520_499_9, 0.842_700_8, -0.842_700_8, 0.999_593], 1e-6);
}

#[test]
fn conversions_bit_tricks_and_a_switch() {
    let bench = Bench::new(PTX);
    let mut x: Vec<f32> = numbers(60, 9).iter().map(|v| v * 1000.0).collect();
    x[..6].copy_from_slice(&[2.5, -2.5, 3e10, -3e10, f32::NAN, 0.0]);
    let big: Vec<i64> = numbers(60, 10).iter().map(|v| (f64::from(*v) * 8e18) as i64).collect();
    let (d_x, d_big) =
        (bench.stream.clone_htod(&x).unwrap(), bench.stream.clone_htod(&big).unwrap());
    let mut out = bench.stream.alloc_zeros::<i64>(16 * 60).unwrap();
    let n = 60i32;
    launch!(bench, "integers", flat(60), &d_x, &d_big, &mut out, &n);
    bench.finish();
    for (i, o) in bench.stream.clone_dtoh(&out).unwrap().chunks(16).enumerate() {
        let (v, b) = (x[i], big[i]);
        let (u, s) = (b as u32, b as i32);
        let permuted = {
            let bytes = [u.to_le_bytes(), (!u).to_le_bytes()].concat();
            u32::from_le_bytes([bytes[0], bytes[4], bytes[1], bytes[5]])
        };
        let find_first = if u == 0 { 0 } else { u.trailing_zeros() + 1 };
        let switched = match u % 7 {
            0 => b.wrapping_mul(3),
            1 => b ^ 0x5555,
            2 => b.wrapping_sub(17),
            3 => !b,
            4 => b << 3,
            5 => b >> 2,
            _ => b.wrapping_neg(),
        };
        let funnel = (((u64::from(!u) << 32 | u64::from(u)) << 7) >> 32) as u32;
        let sum = funnel.wrapping_add(u >> 3).wrapping_add((s >> 3) as u32);
        let wanted = [
            i64::from(v.round_ties_even() as i32),
            i64::from(v as i32),
            i64::from(v.ceil() as i32),
            i64::from(v.floor() as i32),
            i64::from(v as u32),
            i64::from(b as i8),
            i64::from(b as u16),
            b / 7,
            b % 1_000_003,
            (i64::from(s) * 123_456_789) >> 32,
            i64::from((u.leading_zeros() * 10000) + u.count_ones() * 100 + find_first),
            i64::from(u.reverse_bits() ^ permuted),
            i64::from(sum),
            i64::from(s.min(-5).wrapping_add(s.max(5)).wrapping_add(s.wrapping_abs() / 2)),
            ((u128::from(b as u64) * 0x0123_4567_89ab_cdef) >> 64) as i64,
            switched,
        ];
        assert_eq!(o, wanted, "element {i}: {v}, {b:#x}");
    }
}

#[test]
fn local_arrays_and_structures_by_value() {
    let bench = Bench::new(PTX);
    let x = [0, 7, 1_223, 99_199, 123_456_789, 55_555];
    let d_x = bench.stream.clone_htod(&x).unwrap();
    let mut y = bench.stream.alloc_zeros::<i32>(6).unwrap();
    let n = 6i32;
    launch!(bench, "local_array", flat(6), &d_x, &mut y, &n);
    bench.finish();
    assert_eq!(bench.stream.clone_dtoh(&y).unwrap(), [0, 701, 202, 904, 101, 505]);

    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Shape(i32, i32, [f32; 3]);
    // SAFETY: plain numbers in C layout, as the kernel declares them.
    unsafe impl cudarc::driver::DeviceRepr for Shape {}
    let mut y = bench.stream.alloc_zeros::<f32>(12).unwrap();
    let by = Shape(3, 4, [1.0, 10.0, 100.0]);
    launch!(bench, "by_value", flat(12), &mut y, &by);
    bench.finish();
    let wanted: Vec<f32> = (0..12).map(|i| [1.0, 10.0, 100.0][i % 3] * (i / 4) as f32).collect();
    assert_eq!(bench.stream.clone_dtoh(&y).unwrap(), wanted);
}

#[test]
fn an_access_out_of_bounds_names_thread_block_and_line() {
    let bench = Bench::new(PTX);
    // So that it is the first such thread that meets it.
    bench.standin.set_threads(Threads::ByNumber);
    let x = bench.stream.clone_htod(&[1.0f32; 100]).unwrap();
    let mut y = bench.stream.alloc_zeros::<f32>(100).unwrap();
    launch!(bench, "unchecked_copy", shape(2, 64), &x, &mut y);
    assert_eq!(
        bench.stream.synchronize().unwrap_err().0,
        sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
    );
    let fault = bench.standin.last_fault();
    let line = 1 + PTX.lines().position(|l| l.contains("entry unchecked_copy")).unwrap();
    let load = PTX.lines().skip(line).position(|l| l.contains("ld.global.f32")).unwrap() + line + 1;
    for part in [
        "unchecked_copy",
        "thread [36, 0, 0] of block [1, 0, 0]",
        "reads 4 bytes",
        &format!("PTX line {load}"),
    ] {
        assert!(fault.contains(part), "{part} is not in {fault}");
    }
}

#[test]
fn traps_and_deadlocks_end_the_kernel() {
    for (kernel, code, text) in [
        ("traps", sys::CUresult::CUDA_ERROR_LAUNCH_FAILED, "thread [7, 0, 0]"),
        ("stuck", sys::CUresult::CUDA_ERROR_LAUNCH_TIMEOUT, "still running"),
    ] {
        let bench = Bench::new(PTX);
        if kernel == "traps" {
            launch!(bench, kernel, shape(1, 64), &7i32);
        } else {
            let mut y = bench.stream.alloc_zeros::<i32>(1).unwrap();
            launch!(bench, kernel, shape(1, 64), &mut y);
        }
        assert_eq!(bench.stream.synchronize().unwrap_err().0, code, "{kernel}");
        assert!(bench.standin.last_fault().contains(text), "{}", bench.standin.last_fault());
    }
}

#[test]
fn launches_that_no_device_takes_are_refused() {
    let bench = Bench::new(PTX);
    let mut y = bench.stream.alloc_zeros::<f32>(100).unwrap();
    let x = bench.stream.alloc_zeros::<f32>(100).unwrap();
    let kernel = bench.kernel("unchecked_copy");
    for config in [
        shape(1, 1025),
        shape(0, 32),
        LaunchConfig { grid_dim: (1, 65536, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 },
        LaunchConfig { shared_mem_bytes: 48 * 1024 + 1, ..shape(1, 32) },
    ] {
        let mut builder = bench.stream.launch_builder(&kernel);
        cudarc::driver::PushKernelArg::arg(&mut builder, &x);
        cudarc::driver::PushKernelArg::arg(&mut builder, &mut y);
        // SAFETY: the launch is refused before it runs.
        let error = unsafe { builder.launch(config) }.unwrap_err();
        assert_eq!(error.0, sys::CUresult::CUDA_ERROR_INVALID_VALUE, "{config:?}");
    }
    use sys::CUfunction_attribute as A;
    assert_eq!(
        bench.kernel("matmul").get_attribute(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES).unwrap(),
        2048
    );
    assert_eq!(kernel.get_attribute(A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK).unwrap(), 1024);
    assert_eq!(kernel.occupancy_max_active_blocks_per_multiprocessor(256, 0, None).unwrap(), 8);
    kernel.set_attribute(A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 * 1024).unwrap();
    let mut builder = bench.stream.launch_builder(&kernel);
    cudarc::driver::PushKernelArg::arg(&mut builder, &x);
    cudarc::driver::PushKernelArg::arg(&mut builder, &mut y);
    // SAFETY: the arguments are the kernel's.
    unsafe { builder.launch(LaunchConfig { shared_mem_bytes: 64 * 1024, ..shape(1, 32) }) }
        .unwrap();
    bench.finish();
}

#[test]
fn what_is_not_supported_is_named_with_its_line_when_it_is_loaded() {
    let standin = cuda_standin::Standin::load().unwrap();
    let context = cudarc::driver::CudaContext::new(0).unwrap();
    let load = |body: &str| {
        let text = format!(
            ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k()\n{{\n.reg .b32 %r<4>;\n{body}\nret;\n}}\n"
        );
        context.load_module(cudarc::nvrtc::Ptx::from_src(text)).map(|_| ()).map_err(|e| e.0)
    };
    load("mov.u32 %r1, %tid.x;").unwrap();
    for (body, message) in [
        (
            "wmma.frobnicate.u32 %r1, %r2;",
            "PTX line 7: the instruction `wmma.frobnicate.u32` is not supported",
        ),
        ("mov.u32 %r1, %q7;", "PTX line 7: `%q7` is not declared"),
        ("\nbra $nowhere;", "PTX line 8: `$nowhere` is not declared"),
        ("add.u32 %r1 %r2;", "PTX line 7: , or ; expected, found `%r2`"),
    ] {
        assert_eq!(load(body), Err(sys::CUresult::CUDA_ERROR_INVALID_PTX));
        assert!(standin.last_fault().contains(message), "{}", standin.last_fault());
    }
    standin.set_capability(7, 0);
    assert_eq!(load(""), Err(sys::CUresult::CUDA_ERROR_INVALID_PTX), "for a newer device");
}
