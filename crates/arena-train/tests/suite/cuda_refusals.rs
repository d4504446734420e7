//! What the kernels refuse before anything is queued, what they do for an empty batch, and how the
//! device's own refusals come out.

use crate::cuda_common::{Bench, bits};
use arena_train::backend::cuda::{CudaError, Input, Kernels, LossOutput, Output};
use arena_train::backend::host::{Activation, AdamConfig, ConvShape, KernelError, LinearShape};
use cuda_standin::Standin;
use rstest::rstest;

const EMPTY: ConvShape =
    ConvShape { batch: 0, in_rows: 6, in_cols: 6, in_channels: 16, out_channels: 32, kernel: 3 };

/// No element to read.
fn none<T>() -> Input<'static, T> {
    // SAFETY: there is no element.
    unsafe { Input::new(0, 0) }
}

/// No element to write.
fn nothing<T>() -> Output<'static, T> {
    // SAFETY: there is no element.
    unsafe { Output::new(0, 0) }
}

#[test]
fn an_empty_batch_gives_zero_gradients_and_a_loss_of_zero() {
    let bench = Bench::new();
    let kernels = &bench.kernels;
    let (w, b) = (bench.up(&vec![1.0; EMPTY.weight_len()]), bench.up(&[1.0; 32]));
    let (w, b) = (bench.input(&w), bench.input(&b));
    // None is needed but for the alignment of its parts.
    let mut ws = bench.stale(kernels.conv_weight_gradient_workspace_len(&EMPTY).unwrap());
    let mut ws = bench.output(&mut ws);
    let (mut dw, mut db) = (bench.stale(EMPTY.weight_len()), bench.stale(32));
    kernels.conv_forward(&EMPTY, none(), w, b, nothing(), nothing(), ws.reborrow()).unwrap();
    let (dw_out, db_out) = (bench.output(&mut dw), bench.output(&mut db));
    kernels
        .conv_weight_gradient(&EMPTY, none(), none(), none(), dw_out, db_out, ws.reborrow())
        .unwrap();
    kernels.conv_input_gradient(&EMPTY, w, none(), none(), nothing(), ws).unwrap();
    assert_eq!(bits(&bench.down(&dw)), vec![0; EMPTY.weight_len()]);
    assert_eq!(bits(&bench.down(&db)), [0; 32]);

    let s = LinearShape { batch: 0, in_features: 3, out_features: 2 };
    let (w, b) = (bench.up(&[1.0; 6]), bench.up(&[1.0; 2]));
    let (w, b) = (bench.input(&w), bench.input(&b));
    let (mut dw, mut db) = (bench.stale(6), bench.stale(2));
    kernels.linear_forward(&s, none(), w, b, Activation::Relu, nothing()).unwrap();
    let (dw_out, db_out) = (bench.output(&mut dw), bench.output(&mut db));
    kernels.linear_weight_gradient(&s, none(), none(), dw_out, db_out).unwrap();
    kernels.linear_input_gradient(&s, w, none(), Some(none()), nothing()).unwrap();
    assert_eq!(bits(&bench.down(&dw)), [0; 6]);
    assert_eq!(bits(&bench.down(&db)), [0; 2]);

    let (mut mean, mut hits) = (bench.stale(1), bench.stale(1));
    let loss = LossOutput { mean: bench.output(&mut mean), hits: bench.output(&mut hits) };
    kernels.softmax_cross_entropy(10, none(), none(), loss, Some(nothing())).unwrap();
    assert_eq!((bits(&bench.down(&mean)), bench.down(&hits)), (vec![0], vec![0]));

    // What cuBLAS does to a product's result where nothing is added up, it does not say.
    if !bench.standin.is_real_driver() {
        assert_eq!(bench.standin.calls("cublasSgemm_v2"), 0);
    }
    bench.standin.clear_calls();
    kernels.load_batch(784, none(), nothing(), nothing()).unwrap();
    let config = AdamConfig::default();
    kernels.adam_step(&config, 1, nothing(), none(), [nothing(), nothing()]).unwrap();
    kernels.fill(nothing(), 1.0).unwrap();
    if !bench.standin.is_real_driver() {
        assert_eq!(bench.standin.calls("cuLaunchKernel"), 0, "nothing to launch");
    }
    bench.stream.synchronize().unwrap();
}

/// What an error says about the operands, or a panic.
#[track_caller]
fn operands(result: Result<(), CudaError>) -> KernelError {
    match result {
        Err(CudaError::Operands(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn operands_that_do_not_fit_are_named_and_nothing_is_queued() {
    let bench = Bench::new();
    let kernels = &bench.kernels;
    let s = ConvShape { batch: 1, ..EMPTY };
    let x = bench.up(&vec![0.0; s.input_len()]);
    let (w, b) = (bench.up(&vec![0.0; s.weight_len()]), bench.up(&[0.0; 32]));
    let y = bench.up(&vec![0.0; s.output_len()]);
    let routes = bench.up(&vec![0_u8; s.output_len()]);
    let short = bench.up(&[0.0; 5]);
    let needed = kernels.conv_forward_workspace_len(&s).unwrap();
    let ws = bench.up(&vec![0.0; needed]);

    let lens = ["input", "weight", "bias", "output", "routes"];
    for (wrong, operand) in lens.into_iter().enumerate() {
        let pick = |index, right| bench.input(if index == wrong { &short } else { right });
        let (mut out, mut out_short, mut ws) = (y.clone(), short.clone(), ws.clone());
        let (mut r, mut r_short) = (routes.clone(), bench.up(&[0_u8; 5]));
        let y = bench.output(if wrong == 3 { &mut out_short } else { &mut out });
        let r = bench.output(if wrong == 4 { &mut r_short } else { &mut r });
        let (x, w, b) = (pick(0, &x), pick(1, &w), pick(2, &b));
        let error = operands(kernels.conv_forward(&s, x, w, b, y, r, bench.output(&mut ws)));
        assert!(
            matches!(error, KernelError::Length { operand: named, found: 5, .. } if named == operand),
            "{error:?} instead of {operand}"
        );
    }
    let (mut out, mut r) = (y.clone(), routes.clone());
    let mut ws_short = bench.up(&vec![0.0; needed - 1]);
    let (out, r, short_out) =
        (bench.output(&mut out), bench.output(&mut r), bench.output(&mut ws_short));
    let (x_in, w_in, b_in) = (bench.input(&x), bench.input(&w), bench.input(&b));
    let error = operands(kernels.conv_forward(&s, x_in, w_in, b_in, out, r, short_out));
    assert_eq!(error, KernelError::Workspace { needed, found: needed - 1 });
    if !bench.standin.is_real_driver() {
        assert_eq!(bench.standin.calls("cuLaunchKernel"), 0);
        assert_eq!(bench.standin.calls("cublasSgemm_v2"), 0);
    }
}

#[rstest]
#[case::more_patches_than_are_counted(ConvShape { batch: 1_500_000, ..EMPTY }, true)]
#[case::odd_rows(ConvShape { in_rows: 7, ..EMPTY }, false)]
#[case::no_kernel(ConvShape { kernel: 0, ..EMPTY }, false)]
fn a_shape_that_is_not_served_has_no_workspace(#[case] shape: ConvShape, #[case] overflows: bool) {
    let bench = Bench::new();
    let kernels = &bench.kernels;
    for len in [
        kernels.conv_forward_workspace_len(&shape),
        kernels.conv_weight_gradient_workspace_len(&shape),
        kernels.conv_input_gradient_workspace_len(&shape),
    ] {
        let error = len.unwrap_err();
        let is_expected = match error {
            KernelError::Overflow => overflows,
            KernelError::Shape { .. } => !overflows,
            _ => false,
        };
        assert!(is_expected, "{error}");
    }
}

#[test]
fn step_zero_of_adam_is_refused() {
    let bench = Bench::new();
    let g = bench.up(&[0.0]);
    let mut state = [g.clone(), g.clone(), g.clone()];
    let [p, m, v] = state.each_mut().map(|buffer| bench.output(buffer));
    let config = AdamConfig::default();
    let error = operands(bench.kernels.adam_step(&config, 0, p, bench.input(&g), [m, v]));
    assert!(matches!(error, KernelError::Shape { .. }));
}

#[rstest]
#[case("cuLaunchKernel", 1)]
#[case("cublasSgemm_v2", 13)]
fn a_call_that_the_device_refuses_is_an_error_that_names_it(#[case] call: &str, #[case] code: u32) {
    let bench = Bench::new();
    let s = LinearShape { batch: 1, in_features: 2, out_features: 2 };
    let (x, w, b) = (bench.up(&[0.0; 2]), bench.up(&[0.0; 4]), bench.up(&[0.0; 2]));
    let mut y = bench.stale(2);
    bench.standin.fail_nth(call, 1, code);
    let (x, w, b) = (bench.input(&x), bench.input(&w), bench.input(&b));
    let identity = Activation::Identity;
    let error =
        bench.kernels.linear_forward(&s, x, w, b, identity, bench.output(&mut y)).unwrap_err();
    let told = error.to_string();
    match error {
        CudaError::Driver { call, code: 1, .. } => {
            assert_eq!(call, "bias_activation");
            assert_eq!(told, "bias_activation: CUDA error 1 (CUDA_ERROR_INVALID_VALUE)");
        }
        CudaError::Blas(refused) => {
            assert_eq!(refused.call, "cublasSgemm");
            assert!(told.contains("CUBLAS_STATUS_EXECUTION_FAILED (13)"), "{told}");
        }
        other => panic!("{other:?}"),
    }
    bench.kernels.linear_forward(&s, x, w, b, identity, bench.output(&mut y)).unwrap();
    assert_eq!(bench.down(&y), [0.0; 2], "usable afterwards");
}

#[test]
fn ptx_that_is_none_is_refused_by_the_driver() {
    let bench = Bench::new();
    let error = Kernels::from_ptx(&bench.stream, "not PTX").unwrap_err();
    assert!(matches!(error, CudaError::Driver { call: "cuModuleLoadData", .. }), "{error}");
}

/// Nothing is left when the kernels and their buffers are gone.
#[test]
fn dropping_the_kernels_leaves_nothing_behind() {
    let standin = Standin::load().unwrap();
    let Bench { kernels, stream, standin } = Bench::on(standin, 0);
    drop(kernels);
    drop(stream);
    assert!(standin.leaks().is_clean(), "{:?}", standin.leaks());
}
