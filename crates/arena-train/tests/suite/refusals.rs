//! What a kernel refuses, it refuses with an error that says why, before it writes anything.

use arena_train::backend::host::{
    self, Activation, AdamConfig, ConvShape, KernelError, LinearShape,
};
use rstest::rstest;

const CONV: ConvShape =
    ConvShape { batch: 2, in_rows: 12, in_cols: 12, in_channels: 32, out_channels: 64, kernel: 5 };

#[rstest]
#[case(ConvShape { kernel: 0, ..CONV })]
#[case(ConvShape { kernel: 13, ..CONV })]
#[case(ConvShape { in_channels: 0, ..CONV })]
#[case(ConvShape { in_channels: 3, ..CONV })]
#[case(ConvShape { out_channels: 0, ..CONV })]
#[case(ConvShape { out_channels: 48, ..CONV })]
#[case(ConvShape { in_rows: 13, ..CONV })]
#[case(ConvShape { in_cols: 14, ..CONV })]
fn a_shape_that_is_not_served_is_refused(#[case] shape: ConvShape) {
    assert!(matches!(shape.check(), Err(KernelError::Shape { .. })), "{:?}", shape.check());
}

#[rstest]
#[case(ConvShape { batch: usize::MAX, ..CONV })]
#[case(ConvShape { in_rows: usize::MAX - 1, ..CONV })]
#[case(ConvShape { batch: 1 << 20, ..CONV })]
fn a_shape_whose_counts_overflow_is_refused(#[case] shape: ConvShape) {
    assert_eq!(shape.check(), Err(KernelError::Overflow));
}

#[test]
fn the_input_gradient_of_one_channel_is_refused() {
    let shape = ConvShape { in_channels: 1, ..CONV };
    assert!(matches!(
        host::conv_input_gradient_workspace_len(&shape, 2),
        Err(KernelError::Shape { .. })
    ));
}

/// Makes one operand at a time one element too short.
#[rstest]
#[case("input")]
#[case("weight")]
#[case("bias")]
#[case("output")]
#[case("routes")]
fn a_conv_operand_of_the_wrong_length_is_named(#[case] wrong: &str) {
    let len = |operand: &str, len: usize| if operand == wrong { len - 1 } else { len };
    let mut output = vec![7.0; len("output", CONV.output_len())];
    let mut routes = vec![7; len("routes", CONV.output_len())];
    let result = host::conv_relu_pool_forward(
        &CONV,
        &vec![0.0; len("input", CONV.input_len())],
        &vec![0.0; len("weight", CONV.weight_len())],
        &vec![0.0; len("bias", CONV.out_channels)],
        &mut output,
        &mut routes,
        &mut vec![0.0; CONV.weight_len()],
        2,
    );
    assert!(
        matches!(result, Err(KernelError::Length { operand, .. }) if operand == wrong),
        "{result:?}"
    );
    assert!(output.iter().all(|value| *value == 7.0) && routes.iter().all(|route| *route == 7));
}

#[test]
fn a_workspace_one_element_short_is_refused() {
    let threads = 3;
    let (x, dy) = (vec![0.0; CONV.input_len()], vec![0.0; CONV.output_len()]);
    let (w, b) = (vec![0.0; CONV.weight_len()], vec![0.0; CONV.out_channels]);
    let (mut y, mut routes) = (dy.clone(), vec![0; CONV.output_len()]);
    let (mut dx, mut dw, mut db) = (x.clone(), w.clone(), b.clone());
    let short = |needed: usize| {
        (KernelError::Workspace { needed, found: needed - 1 }, vec![0.0; needed - 1])
    };

    let (error, mut workspace) = short(host::conv_relu_pool_workspace_len(&CONV, threads).unwrap());
    let result = host::conv_relu_pool_forward(
        &CONV,
        &x,
        &w,
        &b,
        &mut y,
        &mut routes,
        &mut workspace,
        threads,
    );
    assert_eq!(result, Err(error));

    let needed = host::conv_weight_gradient_workspace_len(&CONV, threads).unwrap();
    let (error, mut workspace) = short(needed);
    let result = host::conv_weight_gradient(
        &CONV,
        &x,
        &routes,
        &dy,
        &mut dw,
        &mut db,
        &mut workspace,
        threads,
    );
    assert_eq!(result, Err(error));

    let needed = host::conv_input_gradient_workspace_len(&CONV, threads).unwrap();
    let (error, mut workspace) = short(needed);
    let result =
        host::conv_input_gradient(&CONV, &w, &routes, &dy, &mut dx, &mut workspace, threads);
    assert_eq!(result, Err(error));
}

#[test]
fn a_linear_operand_of_the_wrong_length_is_named() {
    let shape = LinearShape { batch: 2, in_features: 3, out_features: 4 };
    let mut output = [0.0; 8];
    let result = host::linear_forward(
        &shape,
        &[0.0; 5],
        &[0.0; 12],
        &[0.0; 4],
        Activation::Identity,
        &mut output,
        1,
    );
    assert_eq!(result, Err(KernelError::Length { operand: "input", expected: 6, found: 5 }));
    let shape = LinearShape { batch: usize::MAX, in_features: 3, out_features: 4 };
    assert_eq!(shape.check(), Err(KernelError::Overflow));
}

#[test]
fn a_label_that_is_not_a_class_is_named_and_no_gradient_written() {
    let mut gradient = [7.0; 20];
    let result = host::softmax_cross_entropy_gradient(10, &[0.0; 20], &[9, 10], &mut gradient);
    assert_eq!(result, Err(KernelError::Label { index: 1, label: 10, classes: 10 }));
    assert_eq!(gradient, [7.0; 20]);
}

#[test]
fn adam_refuses_step_zero() {
    let [mut p, g, mut m, mut v] = [[1.0; 4]; 4];
    let result = host::adam_step(&AdamConfig::default(), 0, &mut p, &g, &mut m, &mut v, 1);
    assert!(matches!(result, Err(KernelError::Shape { .. })));
    assert_eq!(p, [1.0; 4]);
}

#[test]
fn matrices_whose_sizes_do_not_match_are_refused() {
    let values = [0.0; 6];
    let a = host::MatrixRef::row_major(&values, 2, 3).unwrap();
    let mut c = [7.0; 4];
    let mut product = host::MatrixMut::row_major(&mut c, 2, 2).unwrap();
    assert!(matches!(host::sgemm(a, a, &mut product, false), Err(KernelError::Shape { .. })));
    assert!(host::sgemm(a, a.transposed(), &mut product, false).is_ok());
    let refused = host::MatrixRef::row_major(&values, 2, 2).map(drop);
    let expected = KernelError::Length { operand: "matrix", expected: 4, found: 6 };
    assert_eq!(refused, Err(expected));
    for first in [2, usize::MAX] {
        assert!(matches!(a.columns(first, 2), Err(KernelError::Shape { .. })), "{first}");
    }
    assert!(a.columns(3, 0).is_ok());
}
