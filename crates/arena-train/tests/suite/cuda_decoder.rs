//! The decoder's kernels on the stand-in driver agree with the host's of the same names, write all of their outputs
//! without reading them, and repeat to the bit under another order of the device's work.

use crate::common::{in_pool, random};
use crate::cuda_common::{Bench, assert_near, bits};
use arena_train::backend::host::{self, AttentionShape, Dropout, EmbeddingShape, KernelError};
use cuda_standin::Standin;
use cudarc::driver::CudaSlice;
use rstest::rstest;

/// Host and device add the same terms in another order, and their exponentials differ in the last places.
const TOLERANCE: f32 = 1e-5;

type Outputs = Vec<Vec<f32>>;

/// Runs on the host and, under two orders of the device's work, on the device. Outputs start as NaN.
fn agree(
    lens: &[usize],
    on_the_host: impl Fn(&mut [Vec<f32>]) -> Result<(), KernelError> + Sync,
    on_the_device: impl Fn(&Bench, &mut [CudaSlice<f32>]),
) {
    let mut expected: Outputs = lens.iter().map(|len| vec![f32::NAN; *len]).collect();
    in_pool(|| on_the_host(&mut expected)).unwrap();
    let run = |seed: u64| -> Outputs {
        let bench = Bench::on(Standin::load().unwrap(), seed);
        let mut buffers: Vec<_> = lens.iter().map(|len| bench.stale(*len)).collect();
        on_the_device(&bench, &mut buffers);
        buffers.iter().map(|buffer| bench.down(buffer)).collect()
    };
    let [first, second] = [0, 1].map(run);
    for (at, (found, expected)) in first.iter().zip(&expected).enumerate() {
        assert_near(&format!("output {at}"), found, expected, TOLERANCE);
        assert_eq!(bits(found), bits(&second[at]), "another order of the device's work");
    }
}

#[rstest]
#[case::one(1, 1)]
#[case::odd(5, 37)]
#[case::several_blocks(300, 8)]
fn layer_norm_agrees_with_the_host(#[case] rows: usize, #[case] width: usize) {
    let (x, dy, residual) =
        (random(1, rows * width), random(4, rows * width), random(5, rows * width));
    let (w, b) = (random(2, width), random(3, width));
    let len = rows * width;
    agree(
        &[len, rows * 2, len, len, width, width],
        |outputs| {
            let [y, statistics, dx, without, dw, db] = outputs else { panic!() };
            host::layer_norm_forward(width, &x, &w, &b, y, statistics, 1)?;
            let gradient = |residual, to: &mut Vec<f32>| {
                host::layer_norm_input_gradient(width, &x, statistics, &w, &dy, residual, to, 1)
            };
            gradient(Some(&residual[..]), dx)?;
            gradient(None, without)?;
            host::layer_norm_weight_gradient(width, &x, statistics, &dy, dw, db, 1)
        },
        |bench, outputs| {
            let [y, statistics, dx, without, dw, db] = outputs else { panic!() };
            let (x, w, b) = (bench.up(&x), bench.up(&w), bench.up(&b));
            let (dy, residual) = (bench.up(&dy), bench.up(&residual));
            let (input, weight) = (bench.input(&x), bench.input(&w));
            let kernels = &bench.kernels;
            let (to, kept) = (bench.output(y), bench.output(statistics));
            kernels.layer_norm_forward(width, input, [weight, bench.input(&b)], to, kept).unwrap();
            let (kept, above) = (bench.input(statistics), bench.input(&dy));
            for (residual, to) in [(Some(bench.input(&residual)), dx), (None, without)] {
                let to = bench.output(to);
                kernels
                    .layer_norm_input_gradient(width, input, kept, weight, above, residual, to)
                    .unwrap();
            }
            let to = [bench.output(dw), bench.output(db)];
            kernels.layer_norm_weight_gradient(width, input, kept, above, to).unwrap();
        },
    );
}

#[rstest]
#[case(1)]
#[case(257)]
fn what_is_done_to_each_element_agrees_with_the_host(#[case] len: usize) {
    let x: Vec<f32> = random(1, len).iter().map(|x| 4.0 * x).collect();
    let dy = random(2, len);
    let key = Dropout { probability: 0.3, seed: 0x1234_5678_9ABC, step: 7, layer: 9 };
    agree(
        &[len, len, len, len, len],
        |outputs| {
            let [y, dx, sum, scaled, dropped] = outputs else { panic!() };
            host::gelu_forward(&x, y, 1)?;
            host::gelu_input_gradient(&x, &dy, dx, 1)?;
            host::add(&x, &dy, sum, 1)?;
            scaled.copy_from_slice(&x);
            host::add_scaled(scaled, 0.25, &dy, 1)?;
            dropped.copy_from_slice(&x);
            host::dropout(key, dropped, 1)
        },
        |bench, outputs| {
            let [y, dx, sum, scaled, dropped] = outputs else { panic!() };
            let (kernels, dy) = (&bench.kernels, bench.up(&dy));
            *scaled = bench.up(&x);
            *dropped = bench.up(&x);
            let x = bench.up(&x);
            let (input, above) = (bench.input(&x), bench.input(&dy));
            kernels.gelu_forward(input, bench.output(y)).unwrap();
            kernels.gelu_input_gradient(input, above, bench.output(dx)).unwrap();
            kernels.add(input, above, bench.output(sum)).unwrap();
            kernels.add_scaled(bench.output(scaled), 0.25, above).unwrap();
            kernels.dropout(key, bench.output(dropped)).unwrap();
        },
    );
}

#[rstest]
#[case::one(1, 1, 1, 1)]
#[case::small(2, 9, 2, 3)]
#[case::longer_than_a_tile_of_the_host(1, 70, 1, 4)]
fn attention_agrees_with_the_host(
    #[case] batch: usize,
    #[case] context: usize,
    #[case] heads: usize,
    #[case] head_width: usize,
) {
    let s = AttentionShape { batch, context, heads, head_width };
    let x: Vec<f32> = random(1, s.input_len()).iter().map(|x| 3.0 * x).collect();
    let dy = random(2, s.output_len());
    agree(
        &[s.output_len(), s.log_sums_len(), s.input_len()],
        |outputs| {
            let [y, sums, dx] = outputs else { panic!() };
            host::attention_forward(&s, &x, y, sums)?;
            host::attention_gradient(&s, &x, y, sums, &dy, dx)
        },
        |bench, outputs| {
            let [y, sums, dx] = outputs else { panic!() };
            let (x, dy) = (bench.up(&x), bench.up(&dy));
            let (input, above) = (bench.input(&x), bench.input(&dy));
            let (to, kept) = (bench.output(y), bench.output(sums));
            bench.kernels.attention_forward(&s, input, to, kept).unwrap();
            let (y, sums) = (bench.input(y), bench.input(sums));
            let to = bench.output(dx);
            bench.kernels.attention_gradient(&s, input, y, sums, above, to).unwrap();
        },
    );
}

#[rstest]
#[case::small(2, 3, 5, 4, 3)]
#[case::longer_table(3, 3, 5, 4, 100)]
fn embeddings_agree_with_the_host(
    #[case] batch: usize,
    #[case] context: usize,
    #[case] vocabulary: usize,
    #[case] width: usize,
    #[case] positions: usize,
) {
    let s = EmbeddingShape { batch, context, vocabulary, width };
    let tokens: Vec<u32> = (0..s.tokens()).map(|at| (at * 7 % vocabulary) as u32).collect();
    let (table, place) = (random(1, vocabulary * width), random(2, positions * width));
    let (dy, tied) = (random(3, s.output_len()), random(4, vocabulary * width));
    agree(
        &[s.output_len(), table.len(), place.len()],
        |outputs| {
            let [y, dtable, dplace] = outputs else { panic!() };
            dtable.copy_from_slice(&tied);
            host::embedding_forward(&s, &tokens, &table, &place, y, 1)?;
            host::embedding_gradient(&s, &tokens, &dy, dtable, dplace, 1)
        },
        |bench, outputs| {
            let [y, dtable, dplace] = outputs else { panic!() };
            *dtable = bench.up(&tied);
            let (table, place) = (bench.up(&table), bench.up(&place));
            let (dy, tokens) = (bench.up(&dy), bench.up(&tokens));
            let (kernels, at) = (&bench.kernels, bench.input(&tokens));
            let (table, place) = (bench.input(&table), bench.input(&place));
            kernels.embedding_forward(&s, at, table, place, bench.output(y)).unwrap();
            let (dtable, dplace) = (bench.output(dtable), bench.output(dplace));
            kernels.embedding_gradient(&s, at, bench.input(&dy), dtable, dplace).unwrap();
        },
    );
}

#[test]
fn a_token_beyond_the_vocabulary_becomes_nan_and_reads_nothing() {
    let s = EmbeddingShape { batch: 1, context: 2, vocabulary: 3, width: 2 };
    let bench = Bench::new();
    let (tokens, table, place) =
        (bench.up(&[2_u32, 3]), bench.up(&[1.0_f32; 6]), bench.up(&[1.0_f32; 4]));
    let mut output = bench.stale::<f32>(4);
    let (at, to) = (bench.input(&tokens), bench.output(&mut output));
    let (table, place) = (bench.input(&table), bench.input(&place));
    bench.kernels.embedding_forward(&s, at, table, place, to).unwrap();
    let found = bench.down(&output);
    assert_eq!(found[..2], [2.0, 2.0]);
    assert!(found[2].is_nan() && found[3].is_nan());
}
