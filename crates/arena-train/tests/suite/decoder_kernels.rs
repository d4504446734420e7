//! The kernels of the decoder agree with their definitions in f64, and their gradients with central differences of
//! those; they write all of their outputs without reading them, and give the same bits for any number of threads.

use crate::common::*;
use arena_train::backend::host::{
    self, AttentionShape, Dropout, EmbeddingShape, KernelError, LAYER_NORM_EPSILON,
};
use rstest::rstest;

const THREADS: [usize; 4] = [1, 2, 3, 100];

const TOLERANCE: f64 = 2e-6;

fn poison(len: usize) -> Vec<f32> {
    vec![f32::NAN; len]
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs a kernel for several numbers of threads; each writes the same bits over whatever was there.
fn for_any_threads(
    lens: &[usize],
    kernel: impl Fn(&mut [Vec<f32>], usize) -> Result<(), KernelError> + Sync,
) -> Vec<Vec<f32>> {
    let mut first: Option<Vec<Vec<f32>>> = None;
    for threads in THREADS {
        let mut outputs: Vec<Vec<f32>> = lens.iter().map(|len| poison(*len)).collect();
        in_pool(|| kernel(&mut outputs, threads)).unwrap();
        let expected = first.get_or_insert_with(|| outputs.clone());
        for (output, expected) in outputs.iter().zip(expected) {
            assert_eq!(bits(output), bits(expected), "{threads} threads");
        }
    }
    first.unwrap()
}

/// The gradient of `dot(function(point), probe)`, at up to 300 coordinates.
#[track_caller]
fn assert_gradient(
    what: &str,
    point: &[f64],
    found: &[f32],
    probe: &[f64],
    function: impl Fn(&[f64]) -> Vec<f64>,
) {
    // The test of f64 by differences, after rounding: what f32 adds is judged against the largest gradient.
    const STEP: f64 = 1e-5;
    let mut point = point.to_vec();
    assert_eq!(point.len(), found.len(), "{what}: length");
    let scale = found.iter().fold(1.0_f64, |scale, value| scale.max(f64::from(value.abs())));
    assert!(found.iter().any(|value| *value != 0.0), "{what}: zero everywhere");
    for index in (0..point.len()).step_by((point.len() / 300).max(1)) {
        let value = point[index];
        let mut at = |offset: f64| {
            point[index] = value + offset;
            dot(&function(&point), probe)
        };
        let difference = (at(STEP) - at(-STEP)) / (2.0 * STEP);
        point[index] = value;
        let error = (difference - f64::from(found[index])).abs() / scale;
        assert!(error < 5e-6, "{what}[{index}]: {} instead of {difference}", found[index]);
    }
}

pub(crate) fn layer_norm(width: usize, x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let mut output = Vec::new();
    for row in x.chunks_exact(width) {
        let mean = row.iter().sum::<f64>() / width as f64;
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / width as f64;
        let deviation = (variance + f64::from(LAYER_NORM_EPSILON)).sqrt();
        output.extend((0..width).map(|at| (row[at] - mean) / deviation * weight[at] + bias[at]));
    }
    output
}

#[rstest]
#[case::one_row(1, 16)]
#[case::odd(7, 37)]
#[case::one_element(3, 1)]
#[case::more_than_a_part(150, 200)]
fn layer_norm_agrees_with_its_definition(#[case] rows: usize, #[case] width: usize) {
    let (x, weight, bias) = (random(1, rows * width), random(2, width), random(3, width));
    let (above, residual) = (random(4, rows * width), random(5, rows * width));
    let forward = for_any_threads(&[rows * width, rows * 2], |outputs, threads| {
        let [output, statistics] = outputs else { panic!() };
        host::layer_norm_forward(width, &x, &weight, &bias, output, statistics, threads)
    });
    let expected = layer_norm(width, &wide(&x), &wide(&weight), &wide(&bias));
    assert_close("output", &forward[0], &expected, TOLERANCE * 10.0);

    let statistics = &forward[1];
    let backward = for_any_threads(&[rows * width, width, width], |outputs, threads| {
        let [dx, dw, db] = outputs else { panic!() };
        host::layer_norm_input_gradient(
            width,
            &x,
            statistics,
            &weight,
            &above,
            Some(&residual),
            dx,
            threads,
        )?;
        host::layer_norm_weight_gradient(width, &x, statistics, &above, dw, db, threads)
    });
    let without = for_any_threads(&[rows * width], |outputs, threads| {
        let dx = &mut outputs[0];
        host::layer_norm_input_gradient(width, &x, statistics, &weight, &above, None, dx, threads)
    });
    for (at, (with, without)) in backward[0].iter().zip(&without[0]).enumerate() {
        assert_eq!(*with, without + residual[at]);
    }
    let (x, weight, bias, above) = (wide(&x), wide(&weight), wide(&bias), wide(&above));
    if width > 1 {
        assert_gradient("input", &x, &without[0], &above, |x| layer_norm(width, x, &weight, &bias));
        assert_gradient("weight", &weight, &backward[1], &above, |w| {
            layer_norm(width, &x, w, &bias)
        });
    }
    assert_gradient("bias", &bias, &backward[2], &above, |b| layer_norm(width, &x, &weight, b));
}

pub(crate) fn gelu(x: &[f64]) -> Vec<f64> {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let value = |x: &f64| 0.5 * x * (1.0 + (root * (x + 0.044715 * x.powi(3))).tanh());
    x.iter().map(value).collect()
}

#[rstest]
#[case(1)]
#[case(1000)]
#[case(20_001)]
fn gelu_agrees_with_its_definition(#[case] len: usize) {
    let x: Vec<f32> = random(1, len).iter().map(|x| 6.0 * x).collect();
    let above = random(2, len);
    let outputs = for_any_threads(&[len, len], |outputs, threads| {
        let [output, gradient] = outputs else { panic!() };
        host::gelu_forward(&x, output, threads)?;
        host::gelu_input_gradient(&x, &above, gradient, threads)
    });
    assert_close("output", &outputs[0], &gelu(&wide(&x)), TOLERANCE);
    let differences: Vec<f64> = wide(&x)
        .iter()
        .zip(&above)
        .map(|(x, above)| (gelu(&[x + 1e-5])[0] - gelu(&[x - 1e-5])[0]) / 2e-5 * f64::from(*above))
        .collect();
    assert_close("gradient", &outputs[1], &differences, TOLERANCE);
}

/// Attention as it is defined, with the scores kept whole.
pub(crate) fn attention(s: &AttentionShape, x: &[f64]) -> Vec<f64> {
    let (width, d) = (s.width(), s.head_width);
    let mut output = vec![0.0; s.output_len()];
    for sequence in 0..s.batch {
        let token = |t: usize| &x[(sequence * s.context + t) * 3 * width..][..3 * width];
        for head in 0..s.heads {
            for query in 0..s.context {
                let q = &token(query)[head * d..][..d];
                let scores: Vec<f64> = (0..=query)
                    .map(|key| dot(q, &token(key)[width + head * d..][..d]) / (d as f64).sqrt())
                    .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
                for (key, score) in scores.iter().enumerate() {
                    let weight = (score - largest).exp() / sum;
                    for feature in 0..d {
                        output[(sequence * s.context + query) * width + head * d + feature] +=
                            weight * token(key)[2 * width + head * d + feature];
                    }
                }
            }
        }
    }
    output
}

#[rstest]
#[case::one_token(1, 1, 1, 4)]
#[case::small(2, 5, 2, 3)]
#[case::one_tile(1, 64, 1, 8)]
#[case::a_token_more(2, 65, 2, 4)]
#[case::several_tiles(1, 140, 2, 2)]
#[case::odd_heads(1, 70, 2, 33)]
#[case::heads_wider_than_a_tile(1, 66, 1, 130)]
fn attention_agrees_with_its_definition(
    #[case] batch: usize,
    #[case] context: usize,
    #[case] heads: usize,
    #[case] head_width: usize,
) {
    let s = AttentionShape { batch, context, heads, head_width };
    // Large enough that weights differ by orders of magnitude.
    let x: Vec<f32> = random(1, s.input_len()).iter().map(|x| 3.0 * x).collect();
    let above = random(2, s.output_len());
    let run = |threads: usize| {
        let mut output = poison(s.output_len());
        let mut log_sums = poison(s.log_sums_len());
        let mut gradient = poison(s.input_len());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            host::attention_forward(&s, &x, &mut output, &mut log_sums)?;
            host::attention_gradient(&s, &x, &output, &log_sums, &above, &mut gradient)
        })
        .unwrap();
        (output, gradient)
    };
    let (output, gradient) = run(2);
    assert_close("output", &output, &attention(&s, &wide(&x)), TOLERANCE * 5.0);
    assert_gradient("input", &wide(&x), &gradient, &wide(&above), |x| attention(&s, x));
    for threads in [1, 3] {
        let (again, gradient_again) = run(threads);
        assert_eq!((bits(&again), bits(&gradient_again)), (bits(&output), bits(&gradient)));
    }
}

#[test]
fn attention_to_a_score_far_above_the_others_does_not_overflow() {
    let s = AttentionShape { batch: 1, context: 130, heads: 1, head_width: 2 };
    let mut x = vec![0.0; s.input_len()];
    for (token, features) in x.chunks_exact_mut(6).enumerate() {
        // The scores rise from tile to tile, to about 14,000.
        features.copy_from_slice(&[100.0, 0.0, token as f32, 0.0, token as f32, 1.0]);
    }
    let (mut output, mut log_sums) = (poison(s.output_len()), poison(s.log_sums_len()));
    in_pool(|| host::attention_forward(&s, &x, &mut output, &mut log_sums)).unwrap();
    for (token, output) in output.chunks_exact(2).enumerate() {
        assert_eq!(output, [token as f32, 1.0], "each token sees itself alone");
    }
}

#[rstest]
fn the_loss_of_many_classes_agrees_with_its_definition(
    #[values(64, 100, 256)] classes: usize,
    #[values(1, 3, 150)] batch: usize,
) {
    let mut logits: Vec<f32> = random(1, batch * classes).iter().map(|logit| 8.0 * logit).collect();
    let labels: Vec<u32> = (0..batch).map(|row| (row * 7 % classes) as u32).collect();
    // Every third row is a hit.
    for row in (0..batch).step_by(3) {
        logits[row * classes + labels[row] as usize] = 9.0;
    }
    let run = |threads: usize| {
        let mut gradient = poison(batch * classes);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let losses = pool.install(|| {
            let loss = host::softmax_cross_entropy(classes, &logits, &labels)?;
            let same =
                host::softmax_cross_entropy_gradient(classes, &logits, &labels, &mut gradient)?;
            Ok::<_, KernelError>([loss, same])
        });
        let [loss, same] = losses.unwrap();
        assert_eq!(loss, same, "with a gradient and without");
        (loss, gradient)
    };
    let (loss, gradient) = run(2);
    let (mean, hits, expected) = cross_entropy(classes, &wide(&logits), &labels);
    assert_close("loss", &[loss.mean], &[mean], TOLERANCE);
    assert_eq!(loss.hits, hits);
    // Against the largest gradient: the scale of a part of the batch.
    let scale =
        |values: &[f32]| values.iter().map(|value| batch as f32 * value).collect::<Vec<_>>();
    let expected: Vec<f64> = expected.iter().map(|value| batch as f64 * value).collect();
    assert_close("gradient", &scale(&gradient), &expected, TOLERANCE);
    for threads in [1, 3] {
        let (again, gradient_again) = run(threads);
        assert_eq!((again, bits(&gradient_again)), (loss, bits(&gradient)), "{threads} threads");
    }
}

#[test]
fn of_many_classes_a_nan_is_seen_and_a_far_one_has_no_gradient() {
    let mut logits = [0.0; 64];
    logits[63] = 100.0;
    let mut gradient = [f32::NAN; 64];
    let loss = |logits: &[f32], label, gradient: &mut [f32]| {
        host::softmax_cross_entropy_gradient(64, logits, &[label], gradient).unwrap()
    };
    assert_eq!((loss(&logits, 63, &mut gradient).mean, gradient), (0.0, [0.0; 64]));
    let missed = loss(&logits, 0, &mut gradient);
    assert_eq!((missed.mean, missed.hits), (100.0, 0));
    assert_eq!((gradient[0], gradient[1], gradient[63]), (-1.0, 0.0, 1.0));
    for at in [0, 20] {
        logits[at] = f32::NAN;
        assert!(loss(&logits, 0, &mut gradient).mean.is_nan(), "at {at}");
    }
}

#[rstest]
#[case::small(2, 3, 5, 4, 3)]
#[case::longer_table(1, 3, 5, 4, 8)]
#[case::several_parts(9, 40, 60, 50, 40)]
fn embeddings_agree_with_their_definition(
    #[case] batch: usize,
    #[case] context: usize,
    #[case] vocabulary: usize,
    #[case] width: usize,
    #[case] positions: usize,
) {
    let s = EmbeddingShape { batch, context, vocabulary, width };
    let tokens: Vec<u32> = (0..s.tokens()).map(|at| (at * at * 7 % vocabulary) as u32).collect();
    let (table, place) = (random(1, vocabulary * width), random(2, positions * width));
    let (above, tied) = (random(3, s.output_len()), random(4, vocabulary * width));
    let outputs = for_any_threads(
        &[s.output_len(), vocabulary * width, positions * width],
        |outputs, threads| {
            let [output, dtable, dplace] = outputs else { panic!() };
            dtable.copy_from_slice(&tied);
            host::embedding_forward(&s, &tokens, &table, &place, output, threads)?;
            host::embedding_gradient(&s, &tokens, &above, dtable, dplace, threads)
        },
    );
    let (mut dtable, mut dplace) = (wide(&tied), vec![0.0; positions * width]);
    for (at, token) in tokens.iter().enumerate() {
        for feature in 0..width {
            let (row, place_row) = (*token as usize * width, at % context * width);
            let sum = table[row + feature] + place[place_row + feature];
            assert_eq!(outputs[0][at * width + feature], sum);
            let above = f64::from(above[at * width + feature]);
            dtable[row + feature] += above;
            dplace[place_row + feature] += above;
        }
    }
    assert_close("token gradient", &outputs[1], &dtable, TOLERANCE);
    assert_close("position gradient", &outputs[2], &dplace, TOLERANCE);
}

#[test]
fn a_token_beyond_the_vocabulary_is_refused_before_anything_is_written() {
    let s = EmbeddingShape { batch: 1, context: 2, vocabulary: 3, width: 1 };
    let mut output = [7.0; 2];
    let refused =
        host::embedding_forward(&s, &[2, 3], &[0.0; 3], &[0.0; 2], &mut output, 1).unwrap_err();
    assert_eq!(refused, KernelError::Label { index: 1, label: 3, classes: 3 });
    assert_eq!(output, [7.0; 2]);
}

#[test]
fn dropout_drops_its_share_and_scales_the_rest_the_same_way_each_time() {
    let key = Dropout { probability: 0.25, seed: 3, step: 1, layer: 2 };
    let ones = vec![1.0; 100_003];
    let run = |key: Dropout| {
        for_any_threads(&[ones.len()], |outputs, threads| {
            outputs[0].copy_from_slice(&ones);
            host::dropout(key, &mut outputs[0], threads)
        })
        .remove(0)
    };
    let dropped = run(key);
    assert!(dropped.iter().all(|value| *value == 0.0 || *value == 1.0 / 0.75));
    let zeros = dropped.iter().filter(|value| **value == 0.0).count();
    assert!((24_400..25_600).contains(&zeros), "{zeros}");
    for other in
        [Dropout { seed: 4, ..key }, Dropout { step: 2, ..key }, Dropout { layer: 3, ..key }]
    {
        let differing = run(other).iter().zip(&dropped).filter(|(a, b)| a != b).count();
        assert!((35_000..40_000).contains(&differing), "{differing}");
    }
    assert_eq!(run(Dropout { probability: 0.0, ..key }), ones);
    let refused = host::dropout(Dropout { probability: 1.0, ..key }, &mut [1.0], 1);
    assert!(matches!(refused, Err(KernelError::Shape { .. })));
}

#[rstest]
#[case(3)]
#[case(20_001)]
fn sums_are_those_of_their_elements(#[case] len: usize) {
    let (left, right) = (random(1, len), random(2, len));
    let sums = for_any_threads(&[len, len], |outputs, threads| {
        let [sum, scaled] = outputs else { panic!() };
        host::add(&left, &right, sum, threads)?;
        scaled.copy_from_slice(&left);
        host::add_scaled(scaled, 0.5, &right, threads)
    });
    for at in 0..len {
        assert_eq!(sums[0][at], left[at] + right[at]);
        assert_eq!(sums[1][at], left[at] + 0.5 * right[at]);
    }
}
