//! The operations in f64, written as their definitions, and helpers that the tests share.

#![allow(unreachable_pub, reason = "it is no library")]

use arena_train::backend::host::{ConvShape, LinearShape};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// Values between -1 and 1, the same for the same seed.
pub fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| (rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// Runs inside a pool of two threads, as the program does.
pub fn in_pool<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap().install(run)
}

/// Each value within `tolerance` of the expected one, relative to the largest expected magnitude
/// (or to 1, if that is larger): the error of a sum goes with the size of its terms.
#[track_caller]
pub fn assert_close(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    let scale = expected.iter().fold(1.0_f64, |scale, value| scale.max(value.abs()));
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs() / scale;
        assert!(
            error <= tolerance,
            "{what}[{index}]: {found} instead of {expected}, relative error {error:e}"
        );
    }
}

/// `gradient` agrees with central differences of `function` at `point`, at up to 300 coordinates
/// spread over it.
#[track_caller]
pub fn assert_central_differences(
    what: &str,
    point: &[f64],
    gradient: &[f64],
    function: impl Fn(&[f64]) -> f64,
) {
    assert_eq!(point.len(), gradient.len(), "{what}: length");
    const STEP: f64 = 1e-6;
    let mut point = point.to_vec();
    let stride = (point.len() / 300).max(1);
    let mut nonzero = 0;
    for index in (0..point.len()).step_by(stride) {
        let value = point[index];
        point[index] = value + STEP;
        let above = function(&point);
        point[index] = value - STEP;
        let below = function(&point);
        point[index] = value;
        let difference = (above - below) / (2.0 * STEP);
        let error = (difference - gradient[index]).abs() / gradient[index].abs().max(1.0);
        assert!(
            error < 1e-6,
            "{what}[{index}]: gradient {}, central difference {difference}",
            gradient[index]
        );
        nonzero += usize::from(gradient[index] != 0.0);
    }
    assert!(nonzero > 0, "{what}: a gradient that is zero everywhere checks nothing");
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub struct Pooled {
    pub output: Vec<f64>,
    pub routes: Vec<u8>,
}

/// Offsets of the elements that the kernel covers at an output pixel before the pool.
fn taps(s: &ConvShape, row: usize, col: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
    (0..s.kernel).flat_map(move |y| {
        (0..s.kernel * s.in_channels).map(move |x| {
            let weight = y * s.kernel * s.in_channels + x;
            let input = ((row + y) * s.in_cols + col) * s.in_channels + x;
            (weight, input)
        })
    })
}

fn windows(s: &ConvShape) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
    (0..s.out_rows()).flat_map(move |row| {
        (0..s.out_cols()).map(move |col| (row, col, (row * s.out_cols() + col) * s.out_channels))
    })
}

pub fn conv_forward(s: &ConvShape, input: &[f64], weight: &[f64], bias: &[f64]) -> Pooled {
    let mut output = vec![f64::NAN; s.output_len()];
    let mut routes = vec![0; s.output_len()];
    for image in 0..s.batch {
        let x = &input[image * s.image_len()..][..s.image_len()];
        for (row, col, at) in windows(s) {
            for channel in 0..s.out_channels {
                let filter = &weight[channel * s.filter_len()..][..s.filter_len()];
                let mut best = (f64::NEG_INFINITY, 0);
                for route in 0..4_u8 {
                    let (y, x0) =
                        (2 * row + usize::from(route / 2), 2 * col + usize::from(route % 2));
                    let sum: f64 = taps(s, y, x0).map(|(w, i)| filter[w] * x[i]).sum();
                    if sum > best.0 {
                        best = (sum, route);
                    }
                }
                let value = best.0 + bias[channel];
                let at = image * s.out_image_len() + at + channel;
                output[at] = value.max(0.0);
                routes[at] = if value > 0.0 { best.1 } else { 4 };
            }
        }
    }
    Pooled { output, routes }
}

pub struct ConvGradients {
    pub weight: Vec<f64>,
    pub bias: Vec<f64>,
    pub input: Vec<f64>,
}

pub fn conv_backward(
    s: &ConvShape,
    input: &[f64],
    weight: &[f64],
    routes: &[u8],
    output_gradient: &[f64],
) -> ConvGradients {
    let mut gradients = ConvGradients {
        weight: vec![0.0; s.weight_len()],
        bias: vec![0.0; s.out_channels],
        input: vec![0.0; s.input_len()],
    };
    for image in 0..s.batch {
        let first = image * s.image_len();
        for (row, col, at) in windows(s) {
            for channel in 0..s.out_channels {
                let at = image * s.out_image_len() + at + channel;
                if routes[at] == 4 {
                    continue;
                }
                let (gradient, route) = (output_gradient[at], usize::from(routes[at]));
                gradients.bias[channel] += gradient;
                for (w, i) in taps(s, 2 * row + route / 2, 2 * col + route % 2) {
                    let w = channel * s.filter_len() + w;
                    gradients.weight[w] += gradient * input[first + i];
                    gradients.input[first + i] += gradient * weight[w];
                }
            }
        }
    }
    gradients
}

pub fn linear_forward(
    s: &LinearShape,
    input: &[f64],
    weight: &[f64],
    bias: &[f64],
    relu: bool,
) -> Vec<f64> {
    let mut output = Vec::with_capacity(s.output_len());
    for row in input.chunks_exact(s.in_features) {
        for (weight, bias) in weight.chunks_exact(s.in_features).zip(bias) {
            let sum = dot(row, weight) + bias;
            output.push(if relu { sum.max(0.0) } else { sum });
        }
    }
    output
}

/// Gradients of weight, bias and input, from the gradient before the activation.
pub fn linear_backward(
    s: &LinearShape,
    input: &[f64],
    weight: &[f64],
    output_gradient: &[f64],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let mut weight_gradient = vec![0.0; s.weight_len()];
    let mut bias_gradient = vec![0.0; s.out_features];
    let mut input_gradient = vec![0.0; s.input_len()];
    for image in 0..s.batch {
        for out in 0..s.out_features {
            let gradient = output_gradient[image * s.out_features + out];
            bias_gradient[out] += gradient;
            for feature in 0..s.in_features {
                let (w, i) = (out * s.in_features + feature, image * s.in_features + feature);
                weight_gradient[w] += gradient * input[i];
                input_gradient[i] += gradient * weight[w];
            }
        }
    }
    (weight_gradient, bias_gradient, input_gradient)
}

/// Mean cross-entropy, hits, and the gradient of the mean.
pub fn cross_entropy(classes: usize, logits: &[f64], labels: &[u32]) -> (f64, usize, Vec<f64>) {
    let (mut sum, mut hits, mut gradient) = (0.0, 0, Vec::new());
    for (row, label) in logits.chunks_exact(classes).zip(labels) {
        let label = *label as usize;
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = largest + row.iter().map(|v| (v - largest).exp()).sum::<f64>().ln();
        sum += log_sum - row[label];
        hits += usize::from(row.iter().position(|v| *v == largest) == Some(label));
        gradient.extend(row.iter().enumerate().map(|(class, v)| {
            ((v - log_sum).exp() - f64::from(u8::from(class == label))) / labels.len() as f64
        }));
    }
    (sum / labels.len() as f64, hits, gradient)
}

/// What a checkpoint says of its run, and the bytes of its tensors.
#[cfg(any(feature = "mpi", feature = "nccl"))]
pub fn checkpoint(path: &std::path::Path) -> (serde_json::Value, Vec<u8>) {
    let file = std::fs::read(path).unwrap();
    let (len, rest) = file.split_first_chunk().unwrap();
    let (header, tensors) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    (header["__metadata__"].clone(), tensors.to_vec())
}

/// The `--steps` that end a run two steps after this checkpoint.
#[cfg(any(feature = "mpi", feature = "nccl"))]
pub fn two_more_steps(path: &std::path::Path) -> String {
    let step: u64 = checkpoint(path).0["step"].as_str().unwrap().parse().unwrap();
    (step + 2).to_string()
}
