//! Instructions by hand, one line each: those that NVRTC's output above happens not to hold, and their corner cases.

use crate::common::{Bench, shape};

/// Launches `k` with so many threads on the three inputs; gives a word for each thread.
fn launch_words(bench: &Bench, threads: u32, inputs: [u64; 3]) -> Vec<u64> {
    let mut out = bench.stream.alloc_zeros::<u64>(threads as usize).unwrap();
    let [a, b, c] = &inputs;
    launch!(bench, "k", shape(1, threads), &mut out, a, b, c);
    bench.finish();
    bench.stream.clone_dtoh(&out).unwrap()
}

/// Runs a body on the 64-bit values `%rd1`, `%rd2` and `%rd3`, whose low halves are `%r1` to `%r3`; gives `%rd9`.
fn run(body: &str, inputs: [u64; 3]) -> u64 {
    let text = format!(
        ".version 8.5\n.target sm_90\n.address_size 64\n
        .shared .align 8 .b8 area[64];
        .visible .entry k(.param .u64 out, .param .u64 a, .param .u64 b, .param .u64 c) {{
        .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<19>; .reg .f32 %f<9>; .reg .b64 %rd<19>; .reg .f64 %fd<9>;
        .local .align 8 .b8 depot[32];
        ld.param.u64 %rd8, [out]; ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c];
        cvt.u32.u64 %r1, %rd1; cvt.u32.u64 %r2, %rd2; cvt.u32.u64 %r3, %rd3;
        mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.b32 %f3, %r3; mov.u64 %rd9, 0; mov.u32 %r9, 0;
        {body}
        st.global.u64 [%rd8], %rd9; ret; }}"
    );
    let bench = Bench::new(&text);
    launch_words(&bench, 1, inputs)[0]
}

/// A body whose result is the 32 bits of `%r9`.
fn run32(body: &str, inputs: [u64; 3]) -> u32 {
    run(&format!("{body} cvt.u64.u32 %rd9, %r9;"), inputs) as u32
}

/// A body on floats whose result is `%f8`.
fn run_f32(body: &str, inputs: [f32; 3]) -> f32 {
    let bits = inputs.map(|x| u64::from(x.to_bits()));
    f32::from_bits(run32(&format!("{body} mov.b32 %r9, %f8;"), bits))
}

#[test]
fn integers_of_32_bits() {
    let minus = |x: i32| u64::from(x as u32);
    for (body, inputs, wanted) in [
        ("div.u32 %r9, %r1, %r2;", [7, 0, 0], u32::MAX),
        ("rem.s32 %r9, %r1, %r2;", [minus(-7), 3, 0], -1i32 as u32),
        ("div.s32 %r9, %r1, %r2;", [minus(i32::MIN), minus(-1), 0], i32::MIN as u32),
        ("shl.b32 %r9, %r1, %r2;", [1, 32, 0], 0),
        ("shr.s32 %r9, %r1, %r2;", [minus(-8), 99, 0], u32::MAX),
        ("shr.u32 %r9, %r1, %r2;", [0x8000_0000, 31, 0], 1),
        ("add.sat.s32 %r9, %r1, %r2;", [minus(i32::MAX), 5, 0], i32::MAX as u32),
        ("mul.hi.u32 %r9, %r1, %r2;", [0xFFFF_FFFF, 0xFFFF_FFFF, 0], 0xFFFF_FFFE),
        ("mad.hi.s32 %r9, %r1, %r2, %r3;", [minus(-1), 1, 5], 4),
        ("sad.s32 %r9, %r1, %r2, %r3;", [minus(-5), 5, 1], 11),
        ("abs.s32 %r9, %r1;", [minus(-5), 0, 0], 5),
        ("cnot.b32 %r9, %r1;", [0, 0, 0], 1),
        ("bfe.u32 %r9, %r1, %r2, %r3;", [0x00AB_CD00, 8, 8], 0xCD),
        ("bfe.s32 %r9, %r1, %r2, %r3;", [0x00AB_CD00, 8, 8], 0xCDu8 as i8 as u32),
        ("bfe.s32 %r9, %r1, %r2, %r3;", [0x8000_0000, 28, 16], -8i32 as u32),
        ("bfi.b32 %r9, %r1, %r2, 4, 8;", [0xFFF, 0, 0], 0xFF0),
        ("bfind.u32 %r9, %r1;", [0x10, 0, 0], 4),
        ("bfind.s32 %r9, %r1;", [minus(-1), 0, 0], u32::MAX),
        ("bfind.shiftamt.u32 %r9, %r1;", [0x10, 0, 0], 27),
        ("clz.b32 %r9, %r1;", [0, 0, 0], 32),
        ("prmt.b32 %r9, %r1, %r2, 0x8040;", [0x8070_6050, 0x4433_2211, 0], 0x0050_1150),
        ("shf.r.wrap.b32 %r9, %r1, %r2, 36;", [0x1234_5678, 0xABCD_EF01, 0], 0x1123_4567),
        ("shf.l.clamp.b32 %r9, %r1, %r2, 36;", [0x1234_5678, 0xABCD_EF01, 0], 0x1234_5678),
        ("lop3.b32 %r9, %r1, %r2, %r3, 0xE8;", [0b1100, 0b1010, 0b1001], 0b1000),
        ("setp.lo.u32 %p1, %r1, %r2; selp.u32 %r9, 3, 4, %p1;", [1, 0xFFFF_FFFF, 0], 3),
        ("setp.lt.and.s32 %p1|%p2, %r1, 5, %p0; selp.u32 %r9, 3, 4, %p2;", [9, 0, 0], 4),
        ("setp.ge.or.s32 %p1, %r1, 5, !%p0; selp.u32 %r9, 3, 4, %p1;", [1, 0, 0], 3),
        ("setp.eq.s32 %p1, %r1, 1; @!%p1 mov.u32 %r9, 6; @%p1 mov.u32 %r9, 7;", [1, 0, 0], 7),
        ("mov.b32 {%rs1, %rs2}, %r1; mov.b32 %r9, {%rs2, %rs1};", [0x1234_5678, 0, 0], 0x5678_1234),
        ("add.cc.u32 %r4, %r1, %r2; addc.u32 %r9, %r3, 0;", [0xFFFF_FFFF, 1, 9], 10),
        ("sub.cc.u32 %r4, %r1, %r2; subc.u32 %r9, %r3, 0;", [0, 1, 9], 8),
    ] {
        assert_eq!(run32(body, inputs), wanted, "{body} {inputs:x?}");
    }
}

#[test]
fn integers_of_64_bits_and_addresses() {
    let far = "$far: .branchtargets $one, $two, $three; brx.idx %r1, $far; \
               $one: mov.u64 %rd9, 11; bra $end; $two: mov.u64 %rd9, 22; bra $end; $three: mov.u64 %rd9, 33; $end:";
    for (body, inputs, wanted) in [
        ("div.s64 %rd9, %rd1, %rd2;", [-9i64 as u64, 2, 0], -4i64 as u64),
        ("rem.u64 %rd9, %rd1, %rd2;", [9, 0, 0], 9),
        ("mul.hi.s64 %rd9, %rd1, %rd2;", [-1i64 as u64, 5, 0], u64::MAX),
        ("mad.wide.s32 %rd9, %r1, %r2, %rd3;", [u64::from(-2i32 as u32), 3, 100], 94),
        ("brev.b64 %rd9, %rd1;", [1, 0, 0], 1 << 63),
        ("popc.b64 %r9, %rd1; cvt.u64.u32 %rd9, %r9;", [u64::MAX, 0, 0], 64),
        ("bfi.b64 %rd9, %rd1, %rd2, 60, 8;", [0xFF, 1, 0], 0xF << 60 | 1),
        ("cvt.s64.s8 %rd9, %rd1;", [0x80, 0, 0], -128i64 as u64),
        ("cvt.sat.u8.s32 %r9, %r1; cvt.u64.u32 %rd9, %r9;", [u64::from(-3i32 as u32), 0, 0], 0),
        ("cvt.sat.s16.s64 %rd9, %rd1;", [1 << 40, 0, 0], 32767),
        (far, [0, 0, 0], 11),
        (far, [2, 0, 0], 33),
        // Generic addresses of shared and local memory, and back.
        (
            "mov.u64 %rd4, area; cvta.shared.u64 %rd5, %rd4; st.u64 [%rd5+8], %rd1; ld.shared.u64 %rd9, [area+8];",
            [77, 0, 0],
            77,
        ),
        (
            "mov.u64 %rd4, depot; cvta.local.u64 %rd5, %rd4; st.u32 [%rd5+4], %r1; cvta.to.local.u64 %rd6, %rd5; ld.local.u32 %rd9, [%rd6+4];",
            [78, 0, 0],
            78,
        ),
        (
            "st.local.v2.u32 [depot+8], {%r1, %r2}; ld.local.u64 %rd9, [depot+8];",
            [1, 2, 0],
            2 << 32 | 1,
        ),
        (
            "mov.u32 %r4, area; st.shared.u32 [%r4], %r1; atom.shared.add.u32 %r5, [%r4], %r2; ld.shared.u32 %r6, [%r4]; mul.wide.u32 %rd9, %r5, %r6;",
            [5, 2, 0],
            35,
        ),
        (
            "st.global.u64 [%rd8], %rd1; atom.global.cas.b64 %rd4, [%rd8], %rd1, %rd2; ld.global.u64 %rd9, [%rd8];",
            [5, 6, 0],
            6,
        ),
        (
            "st.global.u64 [%rd8], %rd1; red.global.max.s64 [%rd8], %rd2; ld.global.u64 %rd9, [%rd8];",
            [-5i64 as u64, 6, 0],
            6,
        ),
        (
            "st.global.u32 [%rd8], %r1; atom.global.dec.u32 %r4, [%rd8], 9; ld.global.u32 %rd9, [%rd8];",
            [0, 0, 0],
            9,
        ),
        ("st.global.u8 [%rd8+3], %r1; ld.global.s8 %rd9, [%rd8+3];", [0xFE, 0, 0], -2i64 as u64),
    ] {
        assert_eq!(run(body, inputs), wanted, "{body} {inputs:x?}");
    }
}

#[test]
fn floats_with_rounding_saturation_and_nans() {
    let nan = f32::NAN;
    for (body, inputs, wanted) in [
        ("add.rz.f32 %f8, %f1, %f2;", [1.0, 1.0e-9, 0.0], 1.0),
        ("add.rp.f32 %f8, %f1, %f2;", [1.0, 1.0e-9, 0.0], 1.0f32.next_up()),
        ("mul.rm.f32 %f8, %f1, %f2;", [0.1, 0.1, 0.0], 0.01),
        ("fma.rn.f32 %f8, %f1, %f2, %f3;", [3.0, 1.0 / 3.0, -1.0], 2.980_232_2e-8),
        ("add.sat.f32 %f8, %f1, %f2;", [0.7, 0.7, 0.0], 1.0),
        ("min.f32 %f8, %f1, %f2;", [nan, 2.0, 0.0], 2.0),
        ("copysign.f32 %f8, %f1, %f2;", [-1.0, 3.0, 0.0], -3.0),
        (
            "setp.ne.f32 %p1, %f1, %f2; selp.f32 %f8, 0f3F800000, 0f00000000, %p1;",
            [nan, 1.0, 0.0],
            0.0,
        ),
        (
            "setp.neu.f32 %p1, %f1, %f2; selp.f32 %f8, 0f3F800000, 0f00000000, %p1;",
            [nan, 1.0, 0.0],
            1.0,
        ),
        (
            "setp.leu.f32 %p1, %f1, %f2; selp.f32 %f8, 0f3F800000, 0f00000000, %p1;",
            [nan, 1.0, 0.0],
            1.0,
        ),
        ("cvt.rni.f32.f32 %f8, %f1;", [2.5, 0.0, 0.0], 2.0),
        ("cvt.rpi.f32.f32 %f8, %f1;", [-2.5, 0.0, 0.0], -2.0),
        ("cvt.sat.f32.f32 %f8, %f1;", [nan, 0.0, 0.0], 0.0),
        ("cvt.rn.bf16.f32 %rs1, %f1; cvt.f32.bf16 %f8, %rs1;", [1.003_906_3, 0.0, 0.0], 1.0),
        ("cvt.rn.f16.f32 %rs1, %f1; cvt.f32.f16 %f8, %rs1;", [1e6, 0.0, 0.0], f32::INFINITY),
        (
            "cvt.f64.f32 %fd1, %f1; sqrt.rn.f64 %fd2, %fd1; cvt.rz.f32.f64 %f8, %fd2;",
            [2.0, 0.0, 0.0],
            2f32.sqrt(),
        ),
        ("tanh.approx.f32 %f8, %f1;", [0.5, 0.0, 0.0], 0.462_117_17),
        ("rsqrt.approx.ftz.f32 %f8, %f1;", [4.0, 0.0, 0.0], 0.5),
        ("ex2.approx.f32 %f7, %f1; lg2.approx.f32 %f8, %f7;", [3.5, 0.0, 0.0], 3.5),
    ] {
        let found = run_f32(body, inputs);
        let tolerance = if body.contains("approx") { 2e-7 } else { 0.0 };
        let close = (found - wanted).abs() <= tolerance * wanted.abs() || found == wanted;
        assert!(close, "{body} {inputs:?}: {found} instead of {wanted}");
    }
}

/// Runs a body in a warp of 32 lanes on `%r1`, the lane's number; gives each lane's `%rd9`.
fn warp(body: &str) -> Vec<u64> {
    let text = format!(
        ".version 8.5\n.target sm_90\n.address_size 64\n
        .visible .entry k(.param .u64 out, .param .u64 a, .param .u64 b, .param .u64 c) {{
        .reg .pred %p<9>; .reg .b32 %r<19>; .reg .b64 %rd<19>;
        ld.param.u64 %rd8, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd7, %r1, 8; add.s64 %rd8, %rd8, %rd7;
        mov.u32 %r9, 0;
        {body}
        cvt.u64.u32 %rd9, %r9; st.global.u64 [%rd8], %rd9; ret; }}"
    );
    launch_words(&Bench::new(&text), 32, [0; 3])
}

#[test]
fn lanes_of_a_warp_together() {
    type PerLane = fn(u64) -> u64;
    let cases: [(&str, PerLane); 13] = [
        ("shfl.sync.up.b32 %r9|%p1, %r1, 3, 0, 0xffffffff;", |i| if i < 3 { i } else { i - 3 }),
        ("shfl.sync.up.b32 %r4|%p1, %r1, 3, 0, 0xffffffff; selp.u32 %r9, 1, 0, %p1;", |i| {
            u64::from(i >= 3)
        }),
        (
            "shfl.sync.down.b32 %r9, %r1, 2, 0x181f, 0xffffffff;",
            |i| if i % 8 < 6 { i + 2 } else { i },
        ),
        ("shfl.sync.idx.b32 %r9, %r1, 5, 0x181f, 0xffffffff;", |i| i / 8 * 8 + 5),
        ("shfl.sync.bfly.b32 %r9, %r1, 1, 31, 0xffffffff;", |i| i ^ 1),
        ("shr.u32 %r2, %r1, 3; match.any.sync.b32 %r9, %r2, 0xffffffff;", |i| 0xFF << (i / 8 * 8)),
        ("mov.u32 %r2, 4; match.all.sync.b32 %r9|%p1, %r2, 0xffffffff;", |_| 0xFFFF_FFFF),
        ("redux.sync.add.s32 %r9, %r1, 0xffffffff;", |_| 496),
        ("sub.s32 %r2, 5, %r1; redux.sync.min.s32 %r9, %r2, 0xffffffff;", |_| {
            u64::from(-26i32 as u32)
        }),
        ("mov.u32 %r9, %lanemask_lt;", |i| (1 << i) - 1),
        ("mov.u32 %r9, %laneid;", |i| i),
        // Half of the warp takes another way and votes there by itself.
        (
            "setp.lt.u32 %p1, %r1, 16; @%p1 bra $low; activemask.b32 %r9; bra $end; \
             $low: vote.sync.ballot.b32 %r9, %p1, 0xffff; $end: bar.warp.sync 0xffffffff;",
            |i| if i < 16 { 0xFFFF } else { 0xFFFF_0000 },
        ),
        (
            "setp.ge.u32 %p1, %r1, 30; vote.sync.uni.pred %p2, %p1, 0xffffffff; vote.sync.any.pred %p3, !%p1, 0xffffffff; \
             selp.u32 %r9, 1, 0, %p2; @%p3 add.u32 %r9, %r9, 2;",
            |_| 2,
        ),
    ];
    for (body, lane) in cases {
        assert_eq!(warp(body), (0..32).map(lane).collect::<Vec<_>>(), "{body}");
    }
}
