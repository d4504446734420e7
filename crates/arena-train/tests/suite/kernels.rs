//! Every kernel agrees with the f64 reference, for odd batches and any number of threads, writes
//! all of its outputs without reading them, and gives the same bits for any number of threads.
//!
//! Every output and workspace starts as NaN (routes as 0xFF), so a kernel that read one, or left
//! an element unwritten, would fail the comparison (B016, B017).

use crate::common::*;
use arena_train::backend::host::{self, Activation, AdamConfig, ConvShape, LinearShape, SgdConfig};
use rstest::rstest;

/// Threads to cut the work for: fewer, as many and more than there are images or channels.
const THREADS: [usize; 5] = [1, 2, 3, 5, 100];

/// An f32 sum of n terms in order errs by at most n/2 units in the last place of its size; the
/// longest here has about 9,000 terms of both signs, where the error is far below that.
const TOLERANCE: f64 = 1e-5;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn poison(len: usize) -> Vec<f32> {
    vec![f32::NAN; len]
}

#[rstest]
#[case::first_layer(28, 28, 1, 32, 5, &[1, 3, 37])]
#[case::second_layer(12, 12, 32, 64, 5, &[1, 3, 37])]
#[case::kernel_of_one(4, 8, 16, 32, 1, &[2])]
#[case::kernel_of_two(5, 9, 16, 64, 2, &[3])]
#[case::kernel_of_three(6, 14, 48, 32, 3, &[2])]
#[case::one_channel_kernel_of_three(10, 14, 1, 64, 3, &[3])]
#[case::one_channel_kernel_of_seven(12, 10, 1, 32, 7, &[3])]
#[case::one_channel_kernel_of_eighteen(19, 21, 1, 32, 18, &[3])]
fn conv_agrees_with_the_reference(
    #[case] in_rows: usize,
    #[case] in_cols: usize,
    #[case] in_channels: usize,
    #[case] out_channels: usize,
    #[case] kernel: usize,
    #[case] batches: &[usize],
) {
    for &batch in batches {
        let s = ConvShape { batch, in_rows, in_cols, in_channels, out_channels, kernel };
        let x = random(1, s.input_len());
        let w = random(2, s.weight_len());
        let b = random(3, s.out_channels);
        let dy = random(4, s.output_len());
        let expected = conv_forward(&s, &wide(&x), &wide(&w), &wide(&b));
        let gradients = conv_backward(&s, &wide(&x), &wide(&w), &expected.routes, &wide(&dy));

        let mut first: Option<Vec<u32>> = None;
        for threads in THREADS {
            let mut output = poison(s.output_len());
            let mut routes = vec![0xFF; s.output_len()];
            let mut workspace = poison(host::conv_relu_pool_workspace_len(&s, threads).unwrap());
            in_pool(|| {
                host::conv_relu_pool_forward(
                    &s,
                    &x,
                    &w,
                    &b,
                    &mut output,
                    &mut routes,
                    &mut workspace,
                    threads,
                )
            })
            .unwrap();
            assert_close("output", &output, &expected.output, TOLERANCE);
            // Two elements of a window, or a value and zero, may be closer than f32 can tell.
            let differing = routes.iter().zip(&expected.routes).filter(|(a, b)| a != b).count();
            assert!(differing * 10_000 <= routes.len(), "{differing} routes differ");

            let mut dw = poison(s.weight_len());
            let mut db = poison(s.out_channels);
            let len = host::conv_weight_gradient_workspace_len(&s, threads).unwrap();
            let mut workspace = poison(len);
            in_pool(|| {
                host::conv_weight_gradient(
                    &s,
                    &x,
                    &expected.routes,
                    &dy,
                    &mut dw,
                    &mut db,
                    &mut workspace,
                    threads,
                )
            })
            .unwrap();
            assert_close("weight gradient", &dw, &gradients.weight, TOLERANCE);
            assert_close("bias gradient", &db, &gradients.bias, TOLERANCE);

            let mut all = [bits(&output), bits(&dw), bits(&db)].concat();
            all.extend(routes.iter().map(|route| u32::from(*route)));
            if in_channels > 1 {
                let mut dx = poison(s.input_len());
                let len = host::conv_input_gradient_workspace_len(&s, threads).unwrap();
                let mut workspace = poison(len);
                in_pool(|| {
                    host::conv_input_gradient(
                        &s,
                        &w,
                        &expected.routes,
                        &dy,
                        &mut dx,
                        &mut workspace,
                        threads,
                    )
                })
                .unwrap();
                assert_close("input gradient", &dx, &gradients.input, TOLERANCE);
                all.extend(bits(&dx));
            }
            match &first {
                None => first = Some(all),
                Some(first) => assert!(*first == all, "{threads} threads give other bits"),
            }
        }
    }
}

#[rstest]
#[case::hidden(1024, 128)]
#[case::logits(128, 10)]
#[case::odd(33, 5)]
#[case::single(1, 1)]
fn linear_agrees_with_the_reference(
    #[case] in_features: usize,
    #[case] out_features: usize,
    #[values(1, 3, 37)] batch: usize,
    #[values(Activation::Identity, Activation::Relu)] activation: Activation,
) {
    let s = LinearShape { batch, in_features, out_features };
    // The input doubles as the output of a ReLU before this layer.
    let x: Vec<f32> = random(1, s.input_len()).into_iter().map(|v| v.max(0.0)).collect();
    let w = random(2, s.weight_len());
    let b = random(3, s.out_features);
    let dy = random(4, s.output_len());
    let relu = activation == Activation::Relu;
    let output = linear_forward(&s, &wide(&x), &wide(&w), &wide(&b), relu);
    let (dw, db, dx) = linear_backward(&s, &wide(&x), &wide(&w), &wide(&dy));
    let through_relu: Vec<f64> =
        dx.iter().zip(&x).map(|(dx, x)| if *x > 0.0 { *dx } else { 0.0 }).collect();

    let mut first: Option<Vec<u32>> = None;
    for threads in THREADS {
        let mut found = poison(s.output_len());
        let (mut found_dw, mut found_db) = (poison(s.weight_len()), poison(s.out_features));
        let (mut found_dx, mut found_relu) = (poison(s.input_len()), poison(s.input_len()));
        in_pool(|| {
            host::linear_forward(&s, &x, &w, &b, activation, &mut found, threads)?;
            host::linear_weight_gradient(&s, &x, &dy, &mut found_dw, &mut found_db, threads)?;
            host::linear_input_gradient(&s, &w, &dy, None, &mut found_dx, threads)?;
            host::linear_input_gradient(&s, &w, &dy, Some(&x), &mut found_relu, threads)
        })
        .unwrap();
        assert_close("output", &found, &output, TOLERANCE);
        assert_close("weight gradient", &found_dw, &dw, TOLERANCE);
        assert_close("bias gradient", &found_db, &db, TOLERANCE);
        assert_close("input gradient", &found_dx, &dx, TOLERANCE);
        assert_close("gradient through ReLU", &found_relu, &through_relu, TOLERANCE);
        let all =
            [bits(&found), bits(&found_dw), bits(&found_db), bits(&found_dx), bits(&found_relu)]
                .concat();
        match &first {
            None => first = Some(all),
            Some(first) => assert!(*first == all, "{threads} threads give other bits"),
        }
    }
}

#[rstest]
fn the_loss_agrees_with_the_reference(#[values(1, 3, 37)] batch: usize) {
    let logits: Vec<f32> = random(1, batch * 10).into_iter().map(|v| 8.0 * v).collect();
    let labels: Vec<u32> = (0..batch).map(|image| (image * 7 % 10) as u32).collect();
    let (mean, hits, gradient) = cross_entropy(10, &wide(&logits), &labels);
    let mut found = poison(batch * 10);
    let loss = host::softmax_cross_entropy_gradient(10, &logits, &labels, &mut found).unwrap();
    assert_close("loss", &[loss.mean], &[mean], 1e-6);
    assert_eq!(loss.hits, hits);
    assert_close("gradient", &found, &gradient, 1e-6);
    assert_eq!(host::softmax_cross_entropy(10, &logits, &labels), Ok(loss));
}

/// B087: the ends of softmax and log-softmax.
#[test]
fn softmax_of_far_apart_logits_is_exact_and_its_logarithm_finite() {
    let mut gradient = [f32::NAN; 2];
    let loss =
        host::softmax_cross_entropy_gradient(2, &[1000.0, 0.0], &[0], &mut gradient).unwrap();
    // The softmax is [1, 0]: nothing to learn for label 0 ...
    assert_eq!((loss.mean, loss.hits, gradient), (0.0, 1, [0.0, 0.0]));
    // ... and for label 1 the log-softmax is -1000, not minus infinity.
    let loss =
        host::softmax_cross_entropy_gradient(2, &[1000.0, 0.0], &[1], &mut gradient).unwrap();
    assert_eq!((loss.mean, loss.hits, gradient), (1000.0, 0, [1.0, -1.0]));
}

#[test]
fn equal_logits_count_as_the_first_class() {
    let logits = [0.5; 10];
    assert_eq!(host::softmax_cross_entropy(10, &logits, &[0]).unwrap().hits, 1);
    assert_eq!(host::softmax_cross_entropy(10, &logits, &[1]).unwrap().hits, 0);
}

/// B086: zero weights, inputs and output gradients give zero gradients, over stale memory.
#[rstest]
#[case(64, 64, 16)]
#[case(512, 512, 64)]
#[case(37, 784, 1024)]
fn linear_zero_in_is_exactly_zero_out(
    #[case] batch: usize,
    #[case] in_features: usize,
    #[case] out_features: usize,
) {
    let s = LinearShape { batch, in_features, out_features };
    let (x, w) = (vec![0.0; s.input_len()], vec![0.0; s.weight_len()]);
    let (b, dy) = (vec![0.0; out_features], vec![0.0; s.output_len()]);
    for _ in 0..3 {
        let mut y = poison(s.output_len());
        let (mut dw, mut db) = (poison(s.weight_len()), poison(out_features));
        let mut dx = poison(s.input_len());
        in_pool(|| {
            host::linear_forward(&s, &x, &w, &b, Activation::Relu, &mut y, 2)?;
            host::linear_weight_gradient(&s, &x, &dy, &mut dw, &mut db, 2)?;
            host::linear_input_gradient(&s, &w, &dy, Some(&x), &mut dx, 2)
        })
        .unwrap();
        for value in [y, dw, db, dx].concat() {
            assert_eq!(value, 0.0);
        }
    }
}

/// B086 for the convolutions.
#[rstest]
fn conv_zero_in_is_exactly_zero_out(#[values(1, 32)] in_channels: usize) {
    let s =
        ConvShape { batch: 5, in_rows: 12, in_cols: 12, in_channels, out_channels: 64, kernel: 5 };
    let (x, w) = (vec![0.0; s.input_len()], vec![0.0; s.weight_len()]);
    let (b, dy) = (vec![0.0; 64], vec![0.0; s.output_len()]);
    let (mut y, mut routes) = (poison(s.output_len()), vec![0xFF; s.output_len()]);
    let (mut dw, mut db) = (poison(s.weight_len()), poison(64));
    let mut workspace = poison(1 << 20);
    in_pool(|| {
        host::conv_relu_pool_forward(&s, &x, &w, &b, &mut y, &mut routes, &mut workspace, 2)?;
        workspace.fill(f32::NAN);
        host::conv_weight_gradient(&s, &x, &routes, &dy, &mut dw, &mut db, &mut workspace, 2)
    })
    .unwrap();
    assert!(routes.iter().all(|route| *route == 4), "ReLU is closed at zero");
    let mut all = [y, dw, db].concat();
    if in_channels > 1 {
        let mut dx = poison(s.input_len());
        workspace.fill(f32::NAN);
        in_pool(|| host::conv_input_gradient(&s, &w, &routes, &dy, &mut dx, &mut workspace, 2))
            .unwrap();
        all.extend(dx);
    }
    for value in all {
        assert_eq!(value, 0.0);
    }
}

/// B017: the product with beta 0.
#[test]
fn a_product_does_not_read_what_it_overwrites() {
    let (identity, b) = ([1.0, 0.0, 0.0, 1.0], [1.0, 2.0, 3.0, 4.0]);
    let mut c = [f32::NAN; 4];
    let matrix = |values| host::MatrixRef::row_major(values, 2, 2).unwrap();
    let mut product = host::MatrixMut::row_major(&mut c, 2, 2).unwrap();
    host::sgemm(matrix(&identity), matrix(&b), &mut product, false).unwrap();
    host::sgemm(matrix(&identity), matrix(&b), &mut product, true).unwrap();
    assert_eq!(c, [2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn an_empty_batch_is_legal_and_gives_zero_gradients() {
    let s = LinearShape { batch: 0, in_features: 8, out_features: 4 };
    let (mut dw, mut db) = (poison(32), poison(4));
    in_pool(|| {
        host::linear_forward(&s, &[], &[0.0; 32], &[0.0; 4], Activation::Relu, &mut [], 2)?;
        host::linear_weight_gradient(&s, &[], &[], &mut dw, &mut db, 2)?;
        host::linear_input_gradient(&s, &[0.0; 32], &[], None, &mut [], 2)
    })
    .unwrap();
    assert_eq!((dw, db), (vec![0.0; 32], vec![0.0; 4]));
    let s = ConvShape {
        batch: 0,
        in_rows: 12,
        in_cols: 12,
        in_channels: 1,
        out_channels: 32,
        kernel: 5,
    };
    let (mut dw, mut db) = (poison(s.weight_len()), poison(32));
    let mut workspace = poison(1 << 16);
    in_pool(|| {
        let (w, b) = (vec![0.0; s.weight_len()], [0.0; 32]);
        host::conv_relu_pool_forward(&s, &[], &w, &b, &mut [], &mut [], &mut workspace, 2)?;
        host::conv_weight_gradient(&s, &[], &[], &[], &mut dw, &mut db, &mut workspace, 2)
    })
    .unwrap();
    assert_eq!((dw, db), (vec![0.0; s.weight_len()], vec![0.0; 32]));
    assert_eq!(
        host::softmax_cross_entropy(10, &[], &[]),
        Ok(host::BatchLoss { mean: 0.0, hits: 0 })
    );
}

#[test]
fn not_a_number_is_seen_and_not_clipped_to_zero() {
    let s = ConvShape {
        batch: 1,
        in_rows: 12,
        in_cols: 12,
        in_channels: 1,
        out_channels: 32,
        kernel: 5,
    };
    let (x, w) = (vec![1.0; s.input_len()], vec![f32::NAN; s.weight_len()]);
    let (mut y, mut routes) = (vec![0.0; s.output_len()], vec![0; s.output_len()]);
    let mut workspace = poison(s.weight_len());
    in_pool(|| {
        host::conv_relu_pool_forward(&s, &x, &w, &[0.0; 32], &mut y, &mut routes, &mut workspace, 2)
    })
    .unwrap();
    assert!(y.iter().all(|value| value.is_nan()));
}

#[rstest]
fn sgd_agrees_with_its_definition(#[values(1, 1000, 20_003)] len: usize) {
    let config = SgdConfig { learning_rate: 0.1, momentum: 0.9 };
    let mut first: Option<Vec<u32>> = None;
    for threads in THREADS {
        let (mut p, mut v) = (random(1, len), vec![0.0; len]);
        let (mut expected_p, mut expected_v) = (wide(&p), vec![0.0; len]);
        for step in 0..3 {
            let g = random(10 + step, len);
            in_pool(|| host::sgd_step(&config, &mut p, &g, &mut v, threads)).unwrap();
            for ((p, v), g) in expected_p.iter_mut().zip(&mut expected_v).zip(wide(&g)) {
                *v = 0.9 * *v + g;
                *p -= 0.1 * *v;
            }
        }
        assert_close("parameters", &p, &expected_p, 1e-6);
        assert_close("velocity", &v, &expected_v, 1e-6);
        let all = [bits(&p), bits(&v)].concat();
        assert_eq!(*first.get_or_insert_with(|| all.clone()), all);
    }
}

#[rstest]
fn adam_agrees_with_its_definition(
    #[values(1, 1000, 20_003)] len: usize,
    #[values(0.0, 0.5)] weight_decay: f32,
) {
    let config = AdamConfig { learning_rate: 0.01, weight_decay, ..AdamConfig::default() };
    let mut first: Option<Vec<u32>> = None;
    for threads in THREADS {
        let (mut p, mut m, mut v) = (random(1, len), vec![0.0; len], vec![0.0; len]);
        let mut expected_p = wide(&p);
        let (mut expected_m, mut expected_v) = (vec![0.0; len], vec![0.0; len]);
        for step in 1..=3_u64 {
            let g = random(10 + step, len);
            in_pool(|| host::adam_step(&config, step, &mut p, &g, &mut m, &mut v, threads))
                .unwrap();
            let (c1, c2) = (1.0 - 0.9_f64.powf(step as f64), 1.0 - 0.999_f64.powf(step as f64));
            for (i, g) in wide(&g).into_iter().enumerate() {
                expected_m[i] = 0.9 * expected_m[i] + 0.1 * g;
                expected_v[i] = 0.999 * expected_v[i] + 0.001 * g * g;
                let (m, v) = (expected_m[i] / c1, expected_v[i] / c2);
                expected_p[i] *= 1.0 - 0.01 * f64::from(weight_decay);
                expected_p[i] -= 0.01 * m / (v.sqrt() + 1e-8);
            }
        }
        assert_close("parameters", &p, &expected_p, 1e-6);
        assert_close("mean", &m, &expected_m, 1e-6);
        assert_close("mean square", &v, &expected_v, 1e-6);
        let all = [bits(&p), bits(&m), bits(&v)].concat();
        assert_eq!(*first.get_or_insert_with(|| all.clone()), all);
    }
}

#[test]
fn without_weight_decay_adam_subtracts_its_step_and_rounds_nothing_else() {
    let config = AdamConfig { learning_rate: 0.01, ..AdamConfig::default() };
    let (before, gradients) = (random(1, 1000), random(2, 1000));
    let (mut p, mut m, mut v) = (before.clone(), vec![0.0; 1000], vec![0.0; 1000]);
    in_pool(|| host::adam_step(&config, 1, &mut p, &gradients, &mut m, &mut v, 2)).unwrap();
    let (c1, root) = (1.0 - f64::from(0.9_f32), (1.0 - f64::from(0.999_f32)).sqrt());
    let (rate, epsilon) = (f64::from(0.01_f32) * root / c1, f64::from(1e-8_f32) * root);
    let moments = m.iter().zip(&v).map(|(m, v)| rate as f32 * m / (v.sqrt() + epsilon as f32));
    let expected: Vec<f32> = before.iter().zip(moments).map(|(p, step)| p - step).collect();
    assert_eq!(bits(&p), bits(&expected));
}
