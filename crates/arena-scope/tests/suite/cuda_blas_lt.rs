//! cuBLASLt in the arena's memory.

use crate::cuda::side_stream;
use arena_scope::cuda::BlasLt;
use arena_scope::cudarc::cublaslt::{Activation, MatmulConfig};
use arena_scope::cudarc::driver::DevicePtr;
use arena_scope::{Arena, ByteSize, Cuda, Device, Error, Persistent};
use cuda_standin::Standin;
use rstest::rstest;

const WORKSPACE: usize = 4 << 20;
const M: usize = 3;
const N: usize = 2;
const K: usize = 4;

fn arena() -> Arena<Cuda> {
    Arena::builder(Cuda::new(0).unwrap()).capacity(ByteSize::mib(8)).build().unwrap()
}

/// A handle on the arena's stream, with a workspace in it.
fn blas(arena: &Arena<Cuda>) -> BlasLt {
    BlasLt::on(arena.device().stream(), arena.persistent(WORKSPACE).unwrap()).unwrap()
}

/// One product, or a batch of them one behind the other.
#[derive(Clone, Copy)]
struct Case {
    transposed: [bool; 2],
    factors: [f32; 2],
    batch: Option<i32>,
    has_bias: bool,
    relu: bool,
}

const PLAIN: Case =
    Case { transposed: [false; 2], factors: [1.0, 0.0], batch: None, has_bias: false, relu: false };

impl Case {
    fn config(&self) -> MatmulConfig {
        let [transa, transb] = self.transposed;
        let stride = |elements: usize| self.batch.map(|_| i64::try_from(elements).unwrap());
        let leading = |is_transposed, rows: usize, cols: usize| {
            i64::try_from(if is_transposed { cols } else { rows }).unwrap()
        };
        MatmulConfig {
            transa,
            transb,
            transc: false,
            m: M as u64,
            n: N as u64,
            k: K as u64,
            alpha: self.factors[0],
            lda: leading(transa, M, K),
            ldb: leading(transb, K, N),
            beta: self.factors[1],
            ldc: leading(false, M, N),
            stride_a: stride(M * K),
            stride_b: stride(K * N),
            stride_c: stride(M * N),
            stride_bias: stride(M),
            batch_size: self.batch,
        }
    }

    fn count(&self) -> usize {
        usize::try_from(self.batch.unwrap_or(1)).unwrap()
    }

    /// The same by loops, of matrices by columns.
    fn reference(&self, a: &[f32], b: &[f32], c: &[f32], bias: &[f32]) -> Vec<f32> {
        let at = |is_transposed, rows: usize, cols: usize, row: usize, col: usize| {
            if is_transposed { col + row * cols } else { row + col * rows }
        };
        let mut result = c.to_vec();
        for n in 0..self.count() {
            let (a, b, bias) = (&a[n * M * K..], &b[n * K * N..], &bias[n * M..]);
            for (row, col) in (0..M).flat_map(|row| (0..N).map(move |col| (row, col))) {
                let sum: f32 = (0..K)
                    .map(|k| {
                        a[at(self.transposed[0], M, K, row, k)]
                            * b[at(self.transposed[1], K, N, k, col)]
                    })
                    .sum();
                let cell = &mut result[n * M * N + row + col * M];
                *cell = self.factors[0] * sum + self.factors[1] * *cell;
                if self.has_bias {
                    *cell += bias[row];
                }
                if self.relu {
                    *cell = cell.max(0.0);
                }
            }
        }
        result
    }
}

/// Small whole numbers of both signs: their sums are exact.
fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|n| ((n * 7 + seed * 5) % 11) as f32 - 5.0).collect()
}

#[rstest]
#[case::plain(PLAIN)]
#[case::transposed_left(Case { transposed: [true, false], ..PLAIN })]
#[case::transposed_right(Case { transposed: [false, true], ..PLAIN })]
#[case::scaled_and_added(Case { factors: [2.0, -3.0], ..PLAIN })]
#[case::bias(Case { has_bias: true, ..PLAIN })]
#[case::relu(Case { relu: true, ..PLAIN })]
#[case::bias_and_relu(Case { has_bias: true, relu: true, ..PLAIN })]
#[case::batch(Case { batch: Some(3), transposed: [true, true], factors: [1.0, 1.0], has_bias: true, relu: true })]
fn a_product_of_persistent_and_transient_operands_is_what_loops_compute(#[case] case: Case) {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let mut blas = blas(&arena);
    let count = case.count();
    let [a, b, c, bias] =
        [M * K, K * N, M * N, M].map(|len| numbers(len * count, len)).map(Vec::into_boxed_slice);
    let weights = arena.persistent_from(&a).unwrap();
    standin.clear_calls();
    let found = arena.scope(|step| {
        let x = step.upload(&b)?;
        let mut y = step.upload(&c)?;
        let of_rows = step.upload(&bias)?;
        let lent = x.lend()?;
        let bias = case.has_bias.then_some(&of_rows as &dyn DevicePtr<f32>);
        let activation = case.relu.then_some(&Activation::Relu);
        // SAFETY: the sizes are those of the buffers.
        unsafe { blas.matmul(&case.config(), &weights, &*lent, &mut y, bias, activation) }?;
        step.read(y.view())
    });
    assert_eq!(found.unwrap(), case.reference(&a, &b, &c, &bias));
    if !standin.is_real_driver() {
        assert_eq!(standin.calls("cuMemAlloc_v2"), 0);
    }
}

fn step(arena: &mut Arena<Cuda>, blas: &mut BlasLt) -> Result<Vec<f32>, Error> {
    let config = MatmulConfig { m: 2, n: 2, k: 2, lda: 2, ldb: 2, ldc: 2, ..PLAIN.config() };
    arena.scope(|step| {
        let x = step.upload(&[1.0_f32, 0.0, 2.0, 1.0])?;
        let mut y = step.alloc::<f32>(4)?;
        step.declare_stream(blas.stream())?;
        // SAFETY: all operands have two rows and two columns.
        unsafe { blas.matmul(&config, &x, &x, &mut y, None, None) }?;
        step.wait_for_stream(blas.stream())?;
        step.read(y.view())
    })
}

const SQUARE: [f32; 4] = [1.0, 0.0, 4.0, 1.0];

#[test]
fn a_hundred_steps_take_nothing_from_the_driver_and_work_inside_the_region() {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let workspace: Persistent<u8, Cuda> = arena.persistent(WORKSPACE).unwrap();
    arena.mark().unwrap();
    let (address, end_bytes) =
        (workspace.address(), workspace.offset_bytes() + workspace.len() as u64);
    assert!(end_bytes <= arena.stats().mark_bytes, "below the mark");
    let mut blas = BlasLt::on(arena.device().stream(), workspace).unwrap();
    assert_eq!((blas.workspace_address(), blas.workspace_bytes()), (address, WORKSPACE as u64));
    let device_memory = |arena: &Arena<Cuda>| arena.device().memory().unwrap().free_bytes;
    assert_eq!(step(&mut arena, &mut blas).unwrap(), SQUARE);
    let warm = device_memory(&arena);
    standin.clear_calls();
    for n in 0..100 {
        assert_eq!(step(&mut arena, &mut blas).unwrap(), SQUARE);
        assert_eq!(device_memory(&arena), warm, "step {n}");
    }
    if !standin.is_real_driver() {
        let calls =
            ["cublasLtMatmul", "cuMemAlloc_v2", "cuMemAllocAsync"].map(|name| standin.calls(name));
        assert_eq!(calls, [100, 0, 0]);
    }
    assert_eq!(arena.stats().driver_allocations, 1);
    drop((blas, arena));
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}

/// cuBLASLt leaves something in its workspace, so a buffer that got the bytes too early would show it.
#[test]
fn the_workspace_s_bytes_are_used_again_after_the_work_on_another_stream() {
    let standin = Standin::load().unwrap();
    for seed in 0..40 {
        standin.reset(seed);
        let mut arena = arena();
        arena.mark().unwrap();
        let side = side_stream(&arena);
        let workspace: Persistent<u8, Cuda> = arena.persistent(1 << 10).unwrap();
        assert!(workspace.is_kept());
        let offset_bytes = workspace.offset_bytes();
        let mut blas = BlasLt::on(&side, workspace).unwrap();
        // Not of the arena, which would declare the stream for them.
        let x = side.clone_htod(&SQUARE).map_err(|error| error.0).unwrap();
        let mut y = x.clone();
        side.synchronize().map_err(|error| error.0).unwrap();
        let config = MatmulConfig { m: 2, n: 2, k: 2, lda: 2, ldb: 2, ldc: 2, ..PLAIN.config() };
        // SAFETY: all operands have two rows and two columns.
        unsafe { blas.matmul(&config, &x, &x, &mut y, None, None) }.unwrap();
        drop(blas);
        // A close gives kept bytes back.
        arena.scope(|_| arena_scope::Ok(())).unwrap();
        let next = arena.persistent_from(&[7_u8; 1 << 10]).unwrap();
        assert_eq!(next.offset_bytes(), offset_bytes, "the same bytes");
        side.synchronize().map_err(|error| error.0).unwrap();
        assert_eq!(next.view().to_vec().unwrap(), [7; 1 << 10], "seed {seed}");
    }
}

#[rstest]
#[case("cublasLtMatmulDescCreate")]
#[case("cublasLtMatmulDescSetAttribute")]
#[case("cublasLtMatrixLayoutCreate")]
#[case("cublasLtMatmulPreferenceCreate")]
#[case("cublasLtMatmulPreferenceSetAttribute")]
#[case("cublasLtMatmulAlgoGetHeuristic")]
#[case("cublasLtMatmul")]
fn a_refusal_names_the_call_and_leaves_nothing_behind(#[case] call: &str) {
    let standin = Standin::load().unwrap();
    let mut arena = arena();
    let mut blas = blas(&arena);
    standin.clear_calls();
    standin.fail_nth(call, 1, 14);
    let refused = step(&mut arena, &mut blas).unwrap_err().to_string();
    assert!(refused.contains(call) && refused.contains("INTERNAL_ERROR (14)"), "{refused}");
    for kind in ["MatmulDesc", "MatrixLayout", "MatmulPreference"] {
        let [made, gone] =
            ["Create", "Destroy"].map(|what| standin.calls(&format!("cublasLt{kind}{what}")));
        let refused = u64::from(call == format!("cublasLt{kind}Create"));
        assert_eq!(made - refused, gone, "{kind}");
    }
    assert_eq!(step(&mut arena, &mut blas).unwrap(), SQUARE);
}
