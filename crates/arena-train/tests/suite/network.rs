//! The kernels put together: the gradients of the whole network, and steps that repeat to the bit.

use crate::common::*;
use arena_train::backend::host::{
    self, Activation, ConvShape, KernelError, LinearShape, SgdConfig,
};
use arena_train::init::{LOGITS_SCALE, he_uniform};

struct Shapes(ConvShape, ConvShape, LinearShape, LinearShape);

fn shapes(batch: usize) -> Shapes {
    let first =
        ConvShape { batch, in_rows: 28, in_cols: 28, in_channels: 1, out_channels: 32, kernel: 5 };
    let second = ConvShape { in_rows: 12, in_cols: 12, in_channels: 32, out_channels: 64, ..first };
    let hidden = LinearShape { batch, in_features: 1024, out_features: 128 };
    let logits = LinearShape { batch, in_features: 128, out_features: 10 };
    Shapes(first, second, hidden, logits)
}

fn parameters() -> [Vec<f32>; 8] {
    let Shapes(s1, s2, s3, s4) = shapes(1);
    let weight = |stream, fan_in, scale, len| {
        let mut values = vec![0.0; len];
        he_uniform(1, stream, fan_in, scale, &mut values);
        values
    };
    [
        weight(0, 25, 1.0, s1.weight_len()),
        vec![0.01; 32],
        weight(1, 800, 1.0, s2.weight_len()),
        vec![0.01; 64],
        weight(2, 1024, 1.0, s3.weight_len()),
        vec![0.01; 128],
        weight(3, 128, LOGITS_SCALE, s4.weight_len()),
        vec![0.01; 10],
    ]
}

/// The loss and the gradients of all parameters, by the kernels.
fn kernels(
    p: &[Vec<f32>; 8],
    x: &[f32],
    labels: &[u32],
    threads: usize,
) -> Result<(f32, [Vec<f32>; 8]), KernelError> {
    let Shapes(s1, s2, s3, s4) = shapes(labels.len());
    let nan = |len: usize| vec![f32::NAN; len];
    let mut g = [0, 1, 2, 3, 4, 5, 6, 7].map(|i: usize| nan(p[i].len()));
    let [w1, b1, w2, b2, w3, b3, w4, b4] = &mut g;
    let mut ws = nan(1 << 20);
    let (mut y1, mut r1) = (nan(s1.output_len()), vec![0xFF; s1.output_len()]);
    let (mut y2, mut r2) = (nan(s2.output_len()), vec![0xFF; s2.output_len()]);
    let (mut y3, mut y4) = (nan(s3.output_len()), nan(s4.output_len()));
    let (mut dy1, mut dy2) = (y1.clone(), y2.clone());
    let (mut dy3, mut dy4) = (y3.clone(), y4.clone());
    host::conv_relu_pool_forward(&s1, x, &p[0], &p[1], &mut y1, &mut r1, &mut ws, threads)?;
    host::conv_relu_pool_forward(&s2, &y1, &p[2], &p[3], &mut y2, &mut r2, &mut ws, threads)?;
    host::linear_forward(&s3, &y2, &p[4], &p[5], Activation::Relu, &mut y3, threads)?;
    host::linear_forward(&s4, &y3, &p[6], &p[7], Activation::Identity, &mut y4, threads)?;
    let loss = host::softmax_cross_entropy_gradient(10, &y4, labels, &mut dy4)?;
    host::linear_weight_gradient(&s4, &y3, &dy4, w4, b4, threads)?;
    host::linear_input_gradient(&s4, &p[6], &dy4, Some(&y3), &mut dy3, threads)?;
    host::linear_weight_gradient(&s3, &y2, &dy3, w3, b3, threads)?;
    host::linear_input_gradient(&s3, &p[4], &dy3, None, &mut dy2, threads)?;
    host::conv_weight_gradient(&s2, &y1, &r2, &dy2, w2, b2, &mut ws, threads)?;
    host::conv_input_gradient(&s2, &p[2], &r2, &dy2, &mut dy1, &mut ws, threads)?;
    host::conv_weight_gradient(&s1, x, &r1, &dy1, w1, b1, &mut ws, threads)?;
    Ok((loss.mean, g))
}

/// The loss of the network in f64.
fn loss(p: &[Vec<f64>; 8], x: &[f64], labels: &[u32]) -> f64 {
    let Shapes(s1, s2, s3, s4) = shapes(labels.len());
    let y1 = conv_forward(&s1, x, &p[0], &p[1]).output;
    let y2 = conv_forward(&s2, &y1, &p[2], &p[3]).output;
    let y3 = linear_forward(&s3, &y2, &p[4], &p[5], true);
    let y4 = linear_forward(&s4, &y3, &p[6], &p[7], false);
    cross_entropy(10, &y4, labels).0
}

#[test]
fn the_networks_gradients_are_the_central_differences_of_its_loss() {
    const STEP: f64 = 1e-6;
    let p = parameters();
    let x = random(9, 3 * 784);
    let labels = [3, 0, 7];
    let (found_loss, gradients) = in_pool(|| kernels(&p, &x, &labels, 2)).unwrap();
    let (mut p, x) = (p.map(|values| wide(&values)), wide(&x));
    assert_close("loss", &[found_loss], &[loss(&p, &x, &labels)], 1e-6);
    for tensor in 0..8 {
        let gradient = &gradients[tensor];
        let scale = gradient.iter().fold(0.0_f64, |scale, g| scale.max(f64::from(g.abs())));
        assert!(scale > 0.0);
        // The element with the largest gradient, and a few spread over the tensor.
        let largest = gradient.iter().position(|g| f64::from(g.abs()) == scale).unwrap();
        let spread = (0..4).map(|part| part * gradient.len() / 4 + gradient.len() / 8);
        for index in spread.chain([largest]) {
            let value = p[tensor][index];
            p[tensor][index] = value + STEP;
            let above = loss(&p, &x, &labels);
            p[tensor][index] = value - STEP;
            let below = loss(&p, &x, &labels);
            p[tensor][index] = value;
            let difference = (above - below) / (2.0 * STEP);
            let error = (f64::from(gradient[index]) - difference).abs() / scale;
            // The gradient's own f32 rounding through four layers.
            assert!(
                error < 1e-4,
                "parameter {tensor}[{index}]: {} instead of {difference}",
                gradient[index]
            );
        }
    }
}

#[test]
fn steps_repeat_to_the_bit_and_learn() {
    let run = |threads: usize| {
        let mut p = parameters();
        let mut velocity = p.clone().map(|values| vec![0.0; values.len()]);
        let (x, labels) = (random(9, 5 * 784), [3, 0, 7, 7, 1]);
        let config = SgdConfig { learning_rate: 0.02, momentum: 0.9 };
        let losses: Vec<f32> = (0..8)
            .map(|_| {
                in_pool(|| {
                    let (loss, g) = kernels(&p, &x, &labels, threads)?;
                    for ((p, g), v) in p.iter_mut().zip(&g).zip(&mut velocity) {
                        host::sgd_step(&config, p, g, v, threads)?;
                    }
                    Ok::<f32, KernelError>(loss)
                })
                .unwrap()
            })
            .collect();
        let bits: Vec<u32> =
            p.iter().flatten().chain(&losses).map(|value| value.to_bits()).collect();
        (losses, bits)
    };
    let (losses, bits) = run(2);
    assert!(losses[7] < 0.5 * losses[0], "the loss does not fall: {losses:?}");
    assert!(bits == run(2).1, "a second run differs");
    assert!(bits == run(1).1, "one thread differs from two");
}
