//! Every kernel on the stand-in driver agrees with the host's kernel of the same name, for odd
//! batches and none, writes all of its outputs without reading them, and repeats to the bit under
//! another order of the device's work.
//!
//! Every output and workspace starts as NaN (routes as 0xFF), so a kernel that read one, or left an
//! element unwritten, would fail the comparison.

use crate::common::{in_pool, random};
use crate::cuda_common::{Bench, assert_near, bits};
use arena_train::backend::cuda::{LossOutput, StepCounter};
use arena_train::backend::host::{self, Activation, AdamConfig, ConvShape, LinearShape, SgdConfig};
use arena_train::data::{Dataset, fill_batch};
use cuda_standin::Standin;
use rstest::rstest;

/// Host and device add the same terms in another order: at most a few thousand here, where the
/// error is far below this share of the largest result.
const TOLERANCE: f32 = 1e-5;

/// Runs on two orders of the device's work and gives the result, which is the same for both.
fn under_two_orders<T: PartialEq>(run: impl Fn(&Bench) -> T) -> T {
    let [first, second] = [0, 1].map(|seed| run(&Bench::on(Standin::load().unwrap(), seed)));
    assert!(first == second, "another order of the device's work gives other bits");
    first
}

fn conv_shape(batch: usize, side: usize, in_channels: usize, kernel: usize) -> ConvShape {
    ConvShape { batch, in_rows: side, in_cols: side, in_channels, out_channels: 32, kernel }
}

/// The operands of a convolution, forward and backward.
struct ConvCase {
    s: ConvShape,
    x: Vec<f32>,
    w: Vec<f32>,
    b: Vec<f32>,
    dy: Vec<f32>,
}

/// The results of one.
#[derive(PartialEq)]
struct ConvResults {
    y: Vec<f32>,
    routes: Vec<u8>,
    dw: Vec<f32>,
    db: Vec<f32>,
    dx: Vec<f32>,
}

impl ConvCase {
    fn new(s: ConvShape) -> Self {
        let (x, w) = (random(1, s.input_len()), random(2, s.weight_len()));
        Self { s, x, w, b: random(3, s.out_channels), dy: random(4, s.output_len()) }
    }

    fn on_the_host(&self) -> ConvResults {
        let Self { s, x, w, b, dy } = self;
        let nan = |len: usize| vec![f32::NAN; len];
        let mut ws = nan((host::conv_relu_pool_workspace_len(s, 1).unwrap())
            .max(host::conv_weight_gradient_workspace_len(s, 1).unwrap()));
        let (mut y, mut routes) = (nan(s.output_len()), vec![0xFF; s.output_len()]);
        let (mut dw, mut db) = (nan(s.weight_len()), nan(s.out_channels));
        let mut dx = Vec::new();
        in_pool(|| {
            host::conv_relu_pool_forward(s, x, w, b, &mut y, &mut routes, &mut ws, 1)?;
            host::conv_weight_gradient(s, x, &routes, dy, &mut dw, &mut db, &mut ws, 1)?;
            if s.in_channels > 1 {
                let mut ws = nan(host::conv_input_gradient_workspace_len(s, 1)?);
                dx = nan(s.input_len());
                host::conv_input_gradient(s, w, &routes, dy, &mut dx, &mut ws, 1)?;
            }
            Ok::<_, host::KernelError>(())
        })
        .unwrap();
        ConvResults { y, routes, dw, db, dx }
    }

    /// The gradients with the given routes.
    fn on_the_device(&self, bench: &Bench, routes: &[u8]) -> ConvResults {
        let Self { s, x, w, b, dy } = self;
        let kernels = &bench.kernels;
        let (x, w, b) = (bench.up(x), bench.up(w), bench.up(b));
        let (dy, given) = (bench.up(dy), bench.up(routes));
        let mut y = bench.stale::<f32>(s.output_len());
        let mut routes = bench.stale::<u8>(s.output_len());
        let mut ws = bench.stale(kernels.conv_forward_workspace_len(s).unwrap());
        kernels
            .conv_forward(
                s,
                bench.input(&x),
                bench.input(&w),
                bench.input(&b),
                bench.output(&mut y),
                bench.output(&mut routes),
                bench.output(&mut ws),
            )
            .unwrap();

        let (mut dw, mut db) = (bench.stale(s.weight_len()), bench.stale(s.out_channels));
        let mut ws = bench.stale(kernels.conv_weight_gradient_workspace_len(s).unwrap());
        kernels
            .conv_weight_gradient(
                s,
                bench.input(&x),
                bench.input(&given),
                bench.input(&dy),
                bench.output(&mut dw),
                bench.output(&mut db),
                bench.output(&mut ws),
            )
            .unwrap();

        let mut dx = bench.stale(s.input_len());
        let mut ws = bench.stale(kernels.conv_input_gradient_workspace_len(s).unwrap());
        kernels
            .conv_input_gradient(
                s,
                bench.input(&w),
                bench.input(&given),
                bench.input(&dy),
                bench.output(&mut dx),
                bench.output(&mut ws),
            )
            .unwrap();
        let (y, dw, db, dx) = (bench.down(&y), bench.down(&dw), bench.down(&db), bench.down(&dx));
        ConvResults { y, routes: bench.down(&routes), dw, db, dx }
    }
}

#[rstest]
#[case::first_layer(conv_shape(1, 28, 1, 5))]
#[case::second_layer(conv_shape(1, 12, 32, 5))]
#[case::three_images(conv_shape(3, 6, 16, 3))]
#[case::five_images(conv_shape(5, 8, 1, 5))]
#[case::kernel_of_one(conv_shape(3, 4, 16, 1))]
#[case::not_square(ConvShape { in_cols: 9, out_channels: 64, ..conv_shape(3, 5, 16, 2) })]
fn convolution_agrees_with_the_host(#[case] shape: ConvShape) {
    let case = ConvCase::new(shape);
    let expected = case.on_the_host();
    let found = under_two_orders(|bench| case.on_the_device(bench, &expected.routes));
    assert_near("output", &found.y, &expected.y, TOLERANCE);
    // Two elements of a window, or a value and zero, may be closer than f32 can tell.
    let pairs = found.routes.iter().zip(&expected.routes);
    let differing = pairs.filter(|(found, expected)| found != expected).count();
    assert!(differing * 10_000 <= expected.routes.len(), "{differing} routes differ");
    assert!(found.routes.contains(&4) && found.routes.contains(&3));
    assert_near("weight gradient", &found.dw, &expected.dw, TOLERANCE);
    assert_near("bias gradient", &found.db, &expected.db, TOLERANCE);
    if shape.in_channels > 1 {
        assert_near("input gradient", &found.dx, &expected.dx, TOLERANCE);
    } else {
        // The host serves no gradient of one channel: the definition has to do.
        let wide = |values: &[f32]| crate::common::wide(values);
        let (x, w, dy) = (wide(&case.x), wide(&case.w), wide(&case.dy));
        let gradients = crate::common::conv_backward(&shape, &x, &w, &expected.routes, &dy);
        crate::common::assert_close("input gradient", &found.dx, &gradients.input, 1e-5);
    }
}

#[test]
fn a_bias_sum_over_many_chunks_agrees_with_the_host() {
    // 5 x 12 x 12 windows: three chunks, the last one short.
    let shape = conv_shape(5, 26, 1, 3);
    let case = ConvCase::new(shape);
    let expected = case.on_the_host();
    let found = under_two_orders(|bench| case.on_the_device(bench, &expected.routes));
    assert_near("bias gradient", &found.db, &expected.db, TOLERANCE);
    assert_near("weight gradient", &found.dw, &expected.dw, TOLERANCE);
}

/// Equal sums: the first of a window wins, and a value of zero is closed.
#[test]
fn of_equal_elements_the_first_wins_and_zero_is_closed() {
    let s = conv_shape(1, 4, 16, 1);
    for (x, b, expected) in [(1.0, 0.5, 0), (0.0, 0.0, 4), (0.0, -1.0, 4), (f32::NAN, 1.0, 0)] {
        let case = ConvCase {
            s,
            x: vec![x; s.input_len()],
            w: vec![1.0; s.weight_len()],
            b: vec![b; s.out_channels],
            dy: vec![0.0; s.output_len()],
        };
        let host = case.on_the_host();
        let found = case.on_the_device(&Bench::new(), &vec![4; s.output_len()]);
        assert_eq!(found.routes, vec![expected; s.output_len()], "{x} {b}");
        assert_eq!(host.routes, found.routes);
        assert_eq!(host.y[0].is_nan(), found.y[0].is_nan(), "a NaN stays a NaN");
    }
}

#[test]
fn a_closed_route_passes_nothing_not_even_nan() {
    let s = conv_shape(1, 4, 16, 1);
    let case = ConvCase { dy: vec![f32::NAN; s.output_len()], ..ConvCase::new(s) };
    let found = case.on_the_device(&Bench::new(), &vec![4; s.output_len()]);
    assert_eq!(bits(&found.dw), vec![0; s.weight_len()]);
    assert_eq!(bits(&found.db), vec![0; s.out_channels]);
    assert_eq!(bits(&found.dx), vec![0; s.input_len()]);
}

#[rstest]
#[case::logits(128, 10)]
#[case::odd(33, 5)]
#[case::single(1, 1)]
#[case::more_columns_than_a_block(7, 67)]
fn linear_agrees_with_the_host(
    #[case] in_features: usize,
    #[case] out_features: usize,
    #[values(1, 3, 5, 37)] batch: usize,
    #[values(Activation::Identity, Activation::Relu)] activation: Activation,
) {
    let s = LinearShape { batch, in_features, out_features };
    // The input doubles as the output of a ReLU before this layer.
    let x: Vec<f32> = random(1, s.input_len()).into_iter().map(|v| v.max(0.0)).collect();
    let (w, b, dy) =
        (random(2, s.weight_len()), random(3, out_features), random(4, s.output_len()));
    let nan = |len: usize| vec![f32::NAN; len];
    let (mut y, mut dw, mut db) = (nan(s.output_len()), nan(s.weight_len()), nan(out_features));
    let (mut dx, mut masked) = (nan(s.input_len()), nan(s.input_len()));
    in_pool(|| {
        host::linear_forward(&s, &x, &w, &b, activation, &mut y, 1)?;
        host::linear_weight_gradient(&s, &x, &dy, &mut dw, &mut db, 1)?;
        host::linear_input_gradient(&s, &w, &dy, None, &mut dx, 1)?;
        host::linear_input_gradient(&s, &w, &dy, Some(&x), &mut masked, 1)
    })
    .unwrap();

    let found = under_two_orders(|bench| {
        let kernels = &bench.kernels;
        let (x, w, b, dy) = (bench.up(&x), bench.up(&w), bench.up(&b), bench.up(&dy));
        let (mut y, mut dw) = (bench.stale(s.output_len()), bench.stale(s.weight_len()));
        let (mut db, mut dx) = (bench.stale(out_features), bench.stale(s.input_len()));
        let mut masked = bench.stale(s.input_len());
        let (x_in, w_in, dy_in) = (bench.input(&x), bench.input(&w), bench.input(&dy));
        let (out, bias) = (bench.output(&mut y), bench.input(&b));
        kernels.linear_forward(&s, x_in, w_in, bias, activation, out).unwrap();
        let (dw_out, db_out) = (bench.output(&mut dw), bench.output(&mut db));
        kernels.linear_weight_gradient(&s, x_in, dy_in, dw_out, db_out).unwrap();
        kernels.linear_input_gradient(&s, w_in, dy_in, None, bench.output(&mut dx)).unwrap();
        let out = bench.output(&mut masked);
        kernels.linear_input_gradient(&s, w_in, dy_in, Some(x_in), out).unwrap();
        [&y, &dw, &db, &dx, &masked].map(|buffer| bench.down(buffer))
    });
    for (what, (found, expected)) in ["output", "weight", "bias", "input", "through ReLU"]
        .into_iter()
        .zip(found.iter().zip([y, dw, db, dx, masked]))
    {
        assert_near(what, found, &expected, TOLERANCE);
    }
}

/// The mean, the hits and the gradient on the device.
fn device_loss(
    bench: &Bench,
    classes: usize,
    logits: &[f32],
    labels: &[u32],
    with_gradient: bool,
) -> (f32, u32, Vec<f32>) {
    let (logits_buffer, labels_buffer) = (bench.up(logits), bench.up(labels));
    let (mut mean, mut hits) = (bench.stale(1), bench.stale(1));
    let mut gradient = bench.stale(logits.len());
    let wanted = with_gradient.then(|| bench.output(&mut gradient));
    let loss = LossOutput { mean: bench.output(&mut mean), hits: bench.output(&mut hits) };
    let (logits, labels) = (bench.input(&logits_buffer), bench.input(&labels_buffer));
    bench.kernels.softmax_cross_entropy(classes, logits, labels, loss, wanted).unwrap();
    (bench.down(&mean)[0], bench.down(&hits)[0], bench.down(&gradient))
}

#[rstest]
fn the_loss_agrees_with_the_host(#[values(1, 3, 5, 300)] batch: usize) {
    let logits: Vec<f32> = random(1, batch * 10).into_iter().map(|v| 8.0 * v).collect();
    let labels: Vec<u32> = (0..batch).map(|image| (image * 7 % 10) as u32).collect();
    let mut gradient = vec![f32::NAN; batch * 10];
    let expected =
        host::softmax_cross_entropy_gradient(10, &logits, &labels, &mut gradient).unwrap();
    let run = |with_gradient| {
        under_two_orders(|bench| {
            let (mean, hits, gradient) = device_loss(bench, 10, &logits, &labels, with_gradient);
            (mean.to_bits(), hits, bits(&gradient))
        })
    };
    let (mean, hits, found) = run(true);
    let found: Vec<f32> = found.into_iter().map(f32::from_bits).collect();
    assert_near("loss", &[f32::from_bits(mean)], &[expected.mean], 1e-6);
    assert_eq!(hits as usize, expected.hits);
    assert_near("gradient", &found, &gradient, 1e-6);
    let (same, hits_again, untouched) = run(false);
    assert_eq!((same, hits_again), (mean, hits));
    assert_eq!(untouched, vec![u32::MAX; batch * 10], "a gradient that nobody asked for");
}

#[test]
fn a_label_that_is_no_class_makes_the_loss_nan_and_reads_nothing_beyond() {
    let bench = Bench::new();
    let (mean, hits, gradient) = device_loss(&bench, 2, &[0.0, 1.0, 3.0, 2.0], &[1, 7], true);
    assert!(mean.is_nan());
    assert_eq!(hits, 1);
    assert!(gradient[..2].iter().all(|value| value.is_finite()));
    assert!(gradient[2..].iter().all(|value| value.is_nan()));
}

#[test]
fn softmax_of_far_apart_logits_is_exact_and_its_logarithm_finite() {
    let bench = Bench::new();
    let zero_logits = [1000.0, 0.0];
    assert_eq!(device_loss(&bench, 2, &zero_logits, &[0], true), (0.0, 1, vec![0.0, 0.0]));
    assert_eq!(device_loss(&bench, 2, &zero_logits, &[1], true), (1000.0, 0, vec![1.0, -1.0]));
    let (_, hits, _) = device_loss(&bench, 10, &[0.5; 10], &[0], false);
    assert_eq!(hits, 1, "equal logits count as the first class");
}

/// Lengths around the size of a block.
const LENS: [usize; 4] = [1, 255, 256, 1000];

#[rstest]
fn sgd_agrees_with_the_host_to_the_bit() {
    let config = SgdConfig { learning_rate: 0.1, momentum: 0.9 };
    for len in LENS {
        let (mut p, mut v) = (random(1, len), random(2, len));
        let found = under_two_orders(|bench| {
            let (mut p, mut v) = (bench.up(&p), bench.up(&v));
            for step in 0..3 {
                let g = bench.up(&random(10 + step, len));
                let (p, v) = (bench.output(&mut p), bench.output(&mut v));
                bench.kernels.sgd_step(&config, p, bench.input(&g), v).unwrap();
                bench.stream.synchronize().unwrap();
            }
            [bits(&bench.down(&p)), bits(&bench.down(&v))]
        });
        for step in 0..3 {
            let g = random(10 + step, len);
            in_pool(|| host::sgd_step(&config, &mut p, &g, &mut v, 1)).unwrap();
        }
        assert!(found == [bits(&p), bits(&v)], "{len} parameters");
    }
}

#[rstest]
fn adam_agrees_with_the_host_to_the_bit(#[values(0.0, 0.1)] weight_decay: f32) {
    let config = AdamConfig { learning_rate: 0.01, weight_decay, ..AdamConfig::default() };
    for len in LENS {
        let (mut p, mut m, mut v) = (random(1, len), vec![0.0; len], vec![0.0; len]);
        let found = under_two_orders(|bench| {
            let (mut p, mut m, mut v) = (bench.up(&p), bench.up(&m), bench.up(&v));
            for step in 1..=3_u64 {
                let g = bench.up(&random(10 + step, len));
                let moments = [bench.output(&mut m), bench.output(&mut v)];
                let (p, g) = (bench.output(&mut p), bench.input(&g));
                bench.kernels.adam_step(&config, step, p, g, moments).unwrap();
                bench.stream.synchronize().unwrap();
            }
            [&p, &m, &v].map(|buffer| bits(&bench.down(buffer)))
        });
        for step in 1..=3_u64 {
            let g = random(10 + step, len);
            in_pool(|| host::adam_step(&config, step, &mut p, &g, &mut m, &mut v, 1)).unwrap();
        }
        assert!(found == [bits(&p), bits(&m), bits(&v)], "{len} parameters");
    }
}

/// The rate as the training loop has it after `done` steps of `total`.
fn rate_factor(done: u64, total: u64) -> f32 {
    if total == 0 { 1.0 } else { 1.0 - done as f32 / total as f32 }
}

#[rstest]
fn a_counter_on_the_device_gives_the_updates_that_the_host_counts(#[values(0, 7)] total: u64) {
    let len = 300;
    let adam = AdamConfig { learning_rate: 0.01, weight_decay: 0.5, ..AdamConfig::default() };
    let sgd = SgdConfig { learning_rate: 0.1, momentum: 0.9 };
    let bench = Bench::new();
    let kernels = &bench.kernels;
    let g = bench.up(&random(10, len));
    let zeros = vec![0.0; len];
    let mut by_value = [random(1, len), zeros.clone(), zeros.clone(), random(2, len), zeros]
        .map(|values| bench.up(&values));
    let mut scheduled = by_value.clone();
    let mut counters = [bench.up(&[0_u64]), bench.up(&[0_u64])];
    let mut rates = bench.stale::<f32>(3);
    for step in 1..=5_u64 {
        let factor = rate_factor(step - 1, total);
        let [p, m, v, q, velocity] = &mut by_value;
        let config = AdamConfig { learning_rate: adam.learning_rate * factor, ..adam };
        let moments = [bench.output(m), bench.output(v)];
        kernels.adam_step(&config, step, bench.output(p), bench.input(&g), moments).unwrap();
        let config = SgdConfig { learning_rate: sgd.learning_rate * factor, ..sgd };
        let (q, velocity) = (bench.output(q), bench.output(velocity));
        kernels.sgd_step(&config, q, bench.input(&g), velocity).unwrap();

        let [p, m, v, q, velocity] = &mut scheduled;
        let [adam_steps, sgd_steps] = &mut counters;
        let counter =
            StepCounter { steps: bench.output(adam_steps), rates: bench.output(&mut rates) };
        kernels.advance_adam(&adam, total, counter).unwrap();
        let moments = [bench.output(m), bench.output(v)];
        let (p, at) = (bench.output(p), bench.input(&rates));
        kernels.adam_scheduled(&adam, at, p, bench.input(&g), moments).unwrap();
        let counter =
            StepCounter { steps: bench.output(sgd_steps), rates: bench.output(&mut rates) };
        kernels.advance_sgd(&sgd, total, counter).unwrap();
        let (q, velocity, at) = (bench.output(q), bench.output(velocity), bench.input(&rates));
        kernels.sgd_scheduled(sgd.momentum, at, q, bench.input(&g), velocity).unwrap();
    }
    for (found, expected) in scheduled.iter().zip(&by_value) {
        assert_near("scheduled", &bench.down(found), &bench.down(expected), 1e-6);
    }
    assert_eq!(counters.map(|counter| bench.down(&counter)[0]), [5, 5]);
}

#[rstest]
fn a_batch_of_bytes_becomes_the_hosts_batch_to_the_bit(#[values(1, 3, 5)] batch: usize) {
    let (rows, cols) = (28, 28);
    let images: Vec<u8> = (0..9 * rows * cols).map(|i| (i * 31 % 256) as u8).collect();
    let dataset = Dataset { images, labels: (0..9).collect(), rows, cols };
    let indices: Vec<u32> = (0..batch as u32).map(|i| i * 5 % 9).collect();
    let (mut pixels, mut labels) = (vec![f32::NAN; batch * 784], vec![u32::MAX; batch]);
    fill_batch(&dataset, &indices, &mut pixels, &mut labels).unwrap();

    let chosen = indices.iter().map(|index| *index as usize);
    let mut bytes: Vec<u8> =
        chosen.clone().flat_map(|i| dataset.images[i * 784..][..784].to_vec()).collect();
    bytes.extend(chosen.map(|index| dataset.labels[index]));
    let found = under_two_orders(|bench| {
        let bytes = bench.up(&bytes);
        let (mut pixels, mut labels) = (bench.stale(batch * 784), bench.stale(batch));
        let (p, l) = (bench.output(&mut pixels), bench.output(&mut labels));
        bench.kernels.load_batch(784, bench.input(&bytes), p, l).unwrap();
        (bits(&bench.down(&pixels)), bench.down(&labels))
    });
    assert!(found == (bits(&pixels), labels));
}

#[test]
fn a_fill_sets_every_element_and_none_beyond() {
    let bench = Bench::new();
    for len in LENS {
        let mut values = bench.stale::<f32>(len + 1);
        let all = bench.output(&mut values);
        // SAFETY: a part of the elements that `all` vouches for.
        let part = unsafe { arena_train::backend::cuda::Output::new(all.address(), len) };
        bench.kernels.fill(part, 2.5).unwrap();
        let found = bench.down(&values);
        assert_eq!(found[..len], vec![2.5; len]);
        assert!(found[len].is_nan());
    }
}
