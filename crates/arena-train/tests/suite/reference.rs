//! The f64 reference itself: its gradients are those of its forward functions.
//!
//! `kernels.rs` then checks the kernels against the reference.

use crate::common::*;
use arena_train::backend::host::{ConvShape, LinearShape};
use rstest::rstest;

#[rstest]
#[case::one_channel(ConvShape { batch: 2, in_rows: 8, in_cols: 8, in_channels: 1, out_channels: 32, kernel: 5 })]
#[case::many_channels(ConvShape { batch: 2, in_rows: 6, in_cols: 6, in_channels: 16, out_channels: 32, kernel: 3 })]
fn conv_gradients_are_the_central_differences(#[case] s: ConvShape) {
    let x = wide(&random(1, s.input_len()));
    let w = wide(&random(2, s.weight_len()));
    let b = wide(&random(3, s.out_channels));
    let probe = wide(&random(4, s.output_len()));
    let routes = conv_forward(&s, &x, &w, &b).routes;
    let gradients = conv_backward(&s, &x, &w, &routes, &probe);
    let value = |x: &[f64], w: &[f64], b: &[f64]| dot(&conv_forward(&s, x, w, b).output, &probe);
    assert_central_differences("input", &x, &gradients.input, |x| value(x, &w, &b));
    assert_central_differences("weight", &w, &gradients.weight, |w| value(&x, w, &b));
    assert_central_differences("bias", &b, &gradients.bias, |b| value(&x, &w, b));
}

#[rstest]
fn linear_gradients_are_the_central_differences(#[values(false, true)] relu: bool) {
    let s = LinearShape { batch: 3, in_features: 20, out_features: 7 };
    let x = wide(&random(1, s.input_len()));
    let w = wide(&random(2, s.weight_len()));
    let b = wide(&random(3, s.out_features));
    let probe = wide(&random(4, s.output_len()));
    let output = linear_forward(&s, &x, &w, &b, relu);
    let open = |(gradient, output): (&f64, &f64)| {
        if relu && *output <= 0.0 { 0.0 } else { *gradient }
    };
    let gradient: Vec<f64> = probe.iter().zip(&output).map(open).collect();
    let (dw, db, dx) = linear_backward(&s, &x, &w, &gradient);
    let value = |x: &[f64], w: &[f64], b: &[f64]| dot(&linear_forward(&s, x, w, b, relu), &probe);
    assert_central_differences("input", &x, &dx, |x| value(x, &w, &b));
    assert_central_differences("weight", &w, &dw, |w| value(&x, w, &b));
    assert_central_differences("bias", &b, &db, |b| value(&x, &w, b));
}

#[test]
fn the_loss_gradient_is_the_central_difference() {
    let logits = wide(&random(1, 50));
    let labels = [3, 0, 9, 9, 1];
    let (_, _, gradient) = cross_entropy(10, &logits, &labels);
    assert_central_differences("logits", &logits, &gradient, |logits| {
        cross_entropy(10, logits, &labels).0
    });
}
