//! The kernels of a small convolutional network, compiled by NVRTC, against the same sums in Rust.

use crate::common::{Bench, assert_close, flat, numbers, shape};
use cudarc::driver::LaunchConfig;

const PTX: &str = include_str!("../ptx/cnn.ptx");

/// A small convolution: batch, input channels, height, width, output channels, kernel.
const CONV: [i32; 6] = [2, 3, 7, 6, 4, 3];

struct Conv {
    n: usize,
    cin: usize,
    h: usize,
    w: usize,
    cout: usize,
    k: usize,
}

impl Conv {
    fn new() -> Self {
        let [n, cin, h, w, cout, k] = CONV.map(|v| v as usize);
        Self { n, cin, h, w, cout, k }
    }

    fn out(&self) -> (usize, usize) {
        (self.h - self.k + 1, self.w - self.k + 1)
    }

    /// Calls `f` with the indices of input, weight and output for every product.
    fn each(&self, mut f: impl FnMut(usize, usize, usize)) {
        let (oh, ow) = self.out();
        for n in 0..self.n {
            for o in 0..self.cout {
                for (oy, ox) in (0..oh).flat_map(|y| (0..ow).map(move |x| (y, x))) {
                    for c in 0..self.cin {
                        for (ky, kx) in (0..self.k).flat_map(|y| (0..self.k).map(move |x| (y, x))) {
                            f(
                                ((n * self.cin + c) * self.h + oy + ky) * self.w + ox + kx,
                                ((o * self.cin + c) * self.k + ky) * self.k + kx,
                                ((n * self.cout + o) * oh + oy) * ow + ox,
                            );
                        }
                    }
                }
            }
        }
    }

    fn sizes(&self) -> (usize, usize, usize) {
        let (oh, ow) = self.out();
        (
            self.n * self.cin * self.h * self.w,
            self.cout * self.cin * self.k * self.k,
            self.n * self.cout * oh * ow,
        )
    }
}

macro_rules! launch_conv {
    ($bench:expr, $name:expr, $config:expr, $($arg:expr),*) => {{
        let [n, cin, h, w, cout, k] = CONV;
        launch!($bench, $name, $config, $($arg,)* &n, &cin, &h, &w, &cout, &k)
    }};
}

#[test]
fn convolution_forward() {
    let bench = Bench::new(PTX);
    let conv = Conv::new();
    let (xs, ws, ys) = conv.sizes();
    let (x, w, b) = (numbers(xs, 1), numbers(ws, 2), numbers(conv.cout, 3));
    let (oh, ow) = conv.out();
    let mut wanted: Vec<f32> = (0..ys).map(|i| b[i / (oh * ow) % conv.cout]).collect();
    conv.each(|i, j, o| wanted[o] += x[i] * w[j]);
    let (dx, dw, db) = (
        bench.stream.clone_htod(&x).unwrap(),
        bench.stream.clone_htod(&w).unwrap(),
        bench.stream.clone_htod(&b).unwrap(),
    );
    let mut y = bench.stream.alloc_zeros::<f32>(ys).unwrap();
    launch_conv!(bench, "conv_forward", flat(ys), &dx, &dw, &db, &mut y);
    bench.finish();
    assert_close(&bench.stream.clone_dtoh(&y).unwrap(), &wanted, 1e-5);
}

#[test]
fn convolution_backward_to_weights_and_input() {
    let bench = Bench::new(PTX);
    let conv = Conv::new();
    let (xs, ws, ys) = conv.sizes();
    let (x, w, dy) = (numbers(xs, 1), numbers(ws, 2), numbers(ys, 3));
    let (mut wanted_w, mut wanted_x) = (vec![0f32; ws], vec![0f32; xs]);
    conv.each(|i, j, o| {
        wanted_w[j] += x[i] * dy[o];
        wanted_x[i] += w[j] * dy[o];
    });
    let (d_x, d_w, d_dy) = (
        bench.stream.clone_htod(&x).unwrap(),
        bench.stream.clone_htod(&w).unwrap(),
        bench.stream.clone_htod(&dy).unwrap(),
    );
    let mut dw = bench.stream.alloc_zeros::<f32>(ws).unwrap();
    let mut dx = bench.stream.alloc_zeros::<f32>(xs).unwrap();
    launch_conv!(bench, "conv_backward_weight", shape(ws as u32, 64), &d_x, &d_dy, &mut dw);
    launch_conv!(bench, "conv_backward_input", flat(ys), &d_w, &d_dy, &mut dx);
    bench.finish();
    assert_close(&bench.stream.clone_dtoh(&dw).unwrap(), &wanted_w, 1e-5);
    assert_close(&bench.stream.clone_dtoh(&dx).unwrap(), &wanted_x, 1e-5);
}

#[test]
fn columns_of_an_image_with_a_grid_stride_loop() {
    let bench = Bench::new(PTX);
    let conv = Conv::new();
    let (xs, _, _) = conv.sizes();
    let (oh, ow) = conv.out();
    let x = numbers(xs, 5);
    let cols = conv.n * oh * ow;
    let rows = conv.cin * conv.k * conv.k;
    let mut wanted = vec![0f32; rows * cols];
    conv.each(|i, j, o| {
        let (at, channel) = (o % (oh * ow), o / (oh * ow));
        wanted[(j % rows) * cols + channel / conv.cout * oh * ow + at] = x[i];
    });
    let d_x = bench.stream.clone_htod(&x).unwrap();
    let mut col = bench.stream.alloc_zeros::<f32>(rows * cols).unwrap();
    let [n, cin, h, w, _, k] = CONV;
    launch!(bench, "im2col", shape(3, 64), &d_x, &mut col, &n, &cin, &h, &w, &k);
    bench.finish();
    assert_eq!(bench.stream.clone_dtoh(&col).unwrap(), wanted);
}

#[test]
fn bias_relu_and_pooling_with_its_way_back() {
    let bench = Bench::new(PTX);
    let (n, c, h, w) = (2usize, 3usize, 6usize, 8usize);
    let (x, bias) = (numbers(n * c * h * w, 1), numbers(c, 2));
    let outs = n * c * (h / 2) * (w / 2);
    let (mut wanted, mut args) = (vec![0f32; outs], vec![0i32; outs]);
    for i in 0..outs {
        let (px, py, plane) = (i % (w / 2), i / (w / 2) % (h / 2), i / (h / 2 * (w / 2)));
        let four = (0..4).map(|q| (plane * h + 2 * py + q / 2) * w + 2 * px + q % 2);
        let best = four.reduce(|a, b| if x[b] > x[a] { b } else { a }).unwrap();
        (wanted[i], args[i]) = ((x[best] + bias[plane % c]).max(0.0), best as i32);
    }
    let (d_x, d_bias) =
        (bench.stream.clone_htod(&x).unwrap(), bench.stream.clone_htod(&bias).unwrap());
    let mut y = bench.stream.alloc_zeros::<f32>(outs).unwrap();
    let mut arg = bench.stream.alloc_zeros::<i32>(outs).unwrap();
    let dims = [n, c, h, w].map(|v| v as i32);
    let [bn, bc, bh, bw] = &dims;
    launch!(
        bench,
        "bias_relu_maxpool",
        flat(outs),
        &d_x,
        &d_bias,
        &mut y,
        &mut arg,
        bn,
        bc,
        bh,
        bw
    );
    let dy = numbers(outs, 3);
    let d_dy = bench.stream.clone_htod(&dy).unwrap();
    let mut dx = bench.stream.alloc_zeros::<f32>(x.len()).unwrap();
    let count = outs as i32;
    launch!(bench, "maxpool_relu_backward", flat(outs), &d_dy, &y, &arg, &mut dx, &count);
    bench.finish();
    assert_eq!(bench.stream.clone_dtoh(&y).unwrap(), wanted);
    assert_eq!(bench.stream.clone_dtoh(&arg).unwrap(), args);
    let mut wanted_dx = vec![0f32; x.len()];
    for i in (0..outs).filter(|i| wanted[*i] > 0.0) {
        wanted_dx[args[i] as usize] = dy[i];
    }
    assert_eq!(bench.stream.clone_dtoh(&dx).unwrap(), wanted_dx);
}

#[test]
fn softmax_cross_entropy_by_warp_reductions_and_an_atomic() {
    let bench = Bench::new(PTX);
    let (rows, classes) = (5usize, 37usize);
    let logits: Vec<f32> = numbers(rows * classes, 1).iter().map(|x| x * 8.0).collect();
    let labels: Vec<u8> = (0..rows as u8).map(|r| r * 7 + 1).collect();
    let (mut loss, mut grad) = (0f64, vec![0f32; rows * classes]);
    for r in 0..rows {
        let row = &logits[r * classes..][..classes];
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        loss += (sum.ln() - f64::from(row[usize::from(labels[r])])) / rows as f64;
        for c in 0..classes {
            let hit = f64::from(u8::from(c == usize::from(labels[r])));
            grad[r * classes + c] = ((f64::from(row[c]).exp() / sum - hit) / rows as f64) as f32;
        }
    }
    let (d_logits, d_labels) =
        (bench.stream.clone_htod(&logits).unwrap(), bench.stream.clone_htod(&labels).unwrap());
    let mut d_loss = bench.stream.alloc_zeros::<f32>(1).unwrap();
    let mut d_grad = bench.stream.alloc_zeros::<f32>(rows * classes).unwrap();
    let (r, c) = (rows as i32, classes as i32);
    launch!(
        bench,
        "softmax_cross_entropy",
        shape(rows as u32, 32),
        &d_logits,
        &d_labels,
        &mut d_loss,
        &mut d_grad,
        &r,
        &c
    );
    bench.finish();
    assert_close(&bench.stream.clone_dtoh(&d_loss).unwrap(), &[loss as f32], 1e-6);
    assert_close(&bench.stream.clone_dtoh(&d_grad).unwrap(), &grad, 1e-6);
}

#[test]
fn column_sums_across_warps() {
    let bench = Bench::new(PTX);
    let (rows, cols) = (300usize, 9usize);
    let x = numbers(rows * cols, 4);
    let wanted: Vec<f32> = (0..cols).map(|c| (0..rows).map(|r| x[r * cols + c]).sum()).collect();
    let d_x = bench.stream.clone_htod(&x).unwrap();
    let mut out = bench.stream.alloc_zeros::<f32>(cols).unwrap();
    let (r, c) = (rows as i32, cols as i32);
    launch!(bench, "column_sum", shape(cols as u32, 128), &d_x, &mut out, &r, &c);
    bench.finish();
    assert_close(&bench.stream.clone_dtoh(&out).unwrap(), &wanted, 1e-5);
}

#[test]
fn both_optimizers() {
    let bench = Bench::new(PTX);
    let n = 100;
    let (mut w, mut v, g) = (numbers(n, 1), numbers(n, 2), numbers(n, 3));
    let mut m = numbers(n, 4);
    let up = |x: &[f32]| bench.stream.clone_htod(x).unwrap();
    let (mut d_w, mut d_v, d_g, mut d_m) = (up(&w), up(&v), up(&g), up(&m));
    let (rate, momentum, count) = (0.1f32, 0.9f32, n as i32);
    launch!(bench, "sgd_momentum", flat(n), &mut d_w, &mut d_v, &d_g, &rate, &momentum, &count);
    for i in 0..n {
        v[i] = momentum * v[i] + g[i];
        w[i] -= rate * v[i];
    }
    bench.finish();
    assert_close(&bench.stream.clone_dtoh(&d_w).unwrap(), &w, 1e-6);
    v.iter_mut().for_each(|v| *v = v.abs());
    d_v = up(&v);
    let (b1, b2, eps, step) = (0.9f32, 0.999f32, 1e-8f32, 3i32);
    launch!(
        bench,
        "adam",
        flat(n),
        &mut d_w,
        &mut d_m,
        &mut d_v,
        &d_g,
        &rate,
        &b1,
        &b2,
        &eps,
        &step,
        &count
    );
    for i in 0..n {
        m[i] = b1 * m[i] + (1.0 - b1) * g[i];
        v[i] = b2 * v[i] + (1.0 - b2) * g[i] * g[i];
        w[i] -=
            rate * (m[i] / (1.0 - b1.powi(step))) / ((v[i] / (1.0 - b2.powi(step))).sqrt() + eps);
    }
    bench.finish();
    assert_close(&bench.stream.clone_dtoh(&d_w).unwrap(), &w, 1e-5);
}

#[test]
fn fill_and_transpose() {
    let bench = Bench::new(PTX);
    let (rows, cols) = (20usize, 35usize);
    let x = numbers(rows * cols, 6);
    let d_x = bench.stream.clone_htod(&x).unwrap();
    let mut y = bench.stream.alloc_zeros::<f32>(rows * cols).unwrap();
    let (r, c) = (rows as i32, cols as i32);
    let config = LaunchConfig { grid_dim: (3, 2, 1), block_dim: (16, 16, 1), shared_mem_bytes: 0 };
    launch!(bench, "transpose", config, &d_x, &mut y, &r, &c);
    bench.finish();
    let wanted: Vec<f32> = (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect();
    assert_eq!(bench.stream.clone_dtoh(&y).unwrap(), wanted);
    let (value, count) = (2.5f32, 100i32);
    launch!(bench, "fill", flat(128), &mut y, &value, &count);
    bench.finish();
    let after = bench.stream.clone_dtoh(&y).unwrap();
    assert!(after[..100].iter().all(|v| *v == 2.5));
    assert_eq!(after[100..], wanted[100..]);
}
