//! The network of the example: its buffers, and its step over them.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use arena_train::backend::host::{
    Activation, AdamConfig, BatchLoss, ConvShape, KernelError, LinearShape, SgdConfig, adam_step,
    conv_input_gradient, conv_input_gradient_workspace_len, conv_relu_pool_forward,
    conv_relu_pool_workspace_len, conv_weight_gradient, conv_weight_gradient_workspace_len,
    linear_forward, linear_input_gradient, linear_weight_gradient, sgd_step,
    softmax_cross_entropy_gradient,
};
use arena_train::init::{LOGITS_SCALE, he_uniform};

/// The parameters in the order of the layers: weight, bias, weight, bias, ...
const PARAMETERS: [(usize, usize); 8] = [
    // (elements, fan in; 0 for a bias)
    (32 * 25, 25),
    (32, 0),
    (64 * 800, 800),
    (64, 0),
    (128 * 1024, 1024),
    (128, 0),
    (10 * 128, 128),
    (10, 0),
];

pub(crate) struct Shapes {
    pub(crate) conv1: ConvShape,
    conv2: ConvShape,
    hidden: LinearShape,
    pub(crate) logits: LinearShape,
}

impl Shapes {
    pub(crate) fn new(batch: usize) -> Self {
        let conv1 = ConvShape {
            batch,
            in_rows: 28,
            in_cols: 28,
            in_channels: 1,
            out_channels: 32,
            kernel: 5,
        };
        let conv2 = ConvShape {
            batch,
            in_rows: 12,
            in_cols: 12,
            in_channels: 32,
            out_channels: 64,
            kernel: 5,
        };
        let hidden = LinearShape { batch, in_features: 1024, out_features: 128 };
        let logits = LinearShape { batch, in_features: 128, out_features: 10 };
        Self { conv1, conv2, hidden, logits }
    }
}

/// Elements aligned to a cache line, as an arena's buffers are: the vector loads of a kernel then
/// do not straddle lines.
pub(crate) struct Aligned {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f32; 16]);

impl Aligned {
    fn zeros(len: usize) -> Self {
        Self { lines: vec![Line([0.0; 16]); len.div_ceil(16)], len }
    }
}

impl Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

/// Every buffer of a step, for the largest batch.
pub(crate) struct Buffers {
    pub(crate) input: Aligned,
    pub(crate) labels: Vec<u32>,
    pooled1: Aligned,
    routes1: Vec<u8>,
    pooled2: Aligned,
    routes2: Vec<u8>,
    hidden: Aligned,
    pub(crate) logits: Aligned,
    logits_gradient: Aligned,
    hidden_gradient: Aligned,
    pooled2_gradient: Aligned,
    pooled1_gradient: Aligned,
    workspace: Aligned,
}

impl Buffers {
    pub(crate) fn new(batch: usize, threads: usize) -> Result<Self, KernelError> {
        let s = Shapes::new(batch);
        let workspace = [
            conv_relu_pool_workspace_len(&s.conv1, threads)?,
            conv_relu_pool_workspace_len(&s.conv2, threads)?,
            conv_weight_gradient_workspace_len(&s.conv1, threads)?,
            conv_weight_gradient_workspace_len(&s.conv2, threads)?,
            conv_input_gradient_workspace_len(&s.conv2, threads)?,
        ];
        Ok(Self {
            input: Aligned::zeros(s.conv1.input_len()),
            labels: vec![0; batch],
            pooled1: Aligned::zeros(s.conv1.output_len()),
            routes1: vec![0; s.conv1.output_len()],
            pooled2: Aligned::zeros(s.conv2.output_len()),
            routes2: vec![0; s.conv2.output_len()],
            hidden: Aligned::zeros(s.hidden.output_len()),
            logits: Aligned::zeros(s.logits.output_len()),
            logits_gradient: Aligned::zeros(s.logits.output_len()),
            hidden_gradient: Aligned::zeros(s.hidden.output_len()),
            pooled2_gradient: Aligned::zeros(s.hidden.input_len()),
            pooled1_gradient: Aligned::zeros(s.conv2.input_len()),
            workspace: Aligned::zeros(workspace.into_iter().max().unwrap_or(0)),
        })
    }
}

pub(crate) struct Model {
    parameters: Vec<Aligned>,
    gradients: Vec<Aligned>,
    first_moments: Vec<Aligned>,
    second_moments: Vec<Aligned>,
    threads: usize,
    pub(crate) steps: u64,
}

#[derive(Clone, Copy)]
pub(crate) enum Optimizer {
    Sgd(SgdConfig),
    Adam(AdamConfig),
}

/// Time spent in each kernel, where it is asked for.
pub(crate) type Times = BTreeMap<&'static str, Vec<Duration>>;

fn timed<T>(times: &mut Option<Times>, name: &'static str, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = run();
    if let Some(times) = times {
        times.entry(name).or_default().push(start.elapsed());
    }
    result
}

impl Model {
    pub(crate) fn new(seed: u64, threads: usize) -> Self {
        let zeros = || Vec::from(PARAMETERS.map(|(len, _)| Aligned::zeros(len)));
        let mut parameters = zeros();
        for ((stream, values), (_, fan_in)) in (0..).zip(&mut parameters).zip(PARAMETERS) {
            if fan_in > 0 {
                let scale = if stream == 6 { LOGITS_SCALE } else { 1.0 };
                he_uniform(seed, stream, fan_in, scale, values);
            }
        }
        Self {
            parameters,
            gradients: zeros(),
            first_moments: zeros(),
            second_moments: zeros(),
            threads,
            steps: 0,
        }
    }

    pub(crate) fn forward(
        &self,
        s: &Shapes,
        b: &mut Buffers,
        times: &mut Option<Times>,
    ) -> Result<(), KernelError> {
        let (p, t) = (&self.parameters, self.threads);
        let out1 = s.conv1.output_len();
        let out2 = s.conv2.output_len();
        let hidden = s.hidden.output_len();
        timed(times, "01 conv1 forward", || {
            conv_relu_pool_forward(
                &s.conv1,
                &b.input[..s.conv1.input_len()],
                &p[0],
                &p[1],
                &mut b.pooled1[..out1],
                &mut b.routes1[..out1],
                &mut b.workspace,
                t,
            )
        })?;
        timed(times, "02 conv2 forward", || {
            conv_relu_pool_forward(
                &s.conv2,
                &b.pooled1[..out1],
                &p[2],
                &p[3],
                &mut b.pooled2[..out2],
                &mut b.routes2[..out2],
                &mut b.workspace,
                t,
            )
        })?;
        timed(times, "03 hidden forward", || {
            linear_forward(
                &s.hidden,
                &b.pooled2[..out2],
                &p[4],
                &p[5],
                Activation::Relu,
                &mut b.hidden[..hidden],
                t,
            )
        })?;
        timed(times, "04 logits forward", || {
            linear_forward(
                &s.logits,
                &b.hidden[..hidden],
                &p[6],
                &p[7],
                Activation::Identity,
                &mut b.logits[..s.logits.output_len()],
                t,
            )
        })
    }

    fn backward(
        &mut self,
        s: &Shapes,
        b: &mut Buffers,
        times: &mut Option<Times>,
    ) -> Result<BatchLoss, KernelError> {
        let (p, t) = (&self.parameters, self.threads);
        let [w1, b1, w2, b2, w3, b3, w4, b4] = self.gradients.as_mut_slice() else {
            return Err(KernelError::Shape { reason: "eight parameters" });
        };
        let (out1, out2) = (s.conv1.output_len(), s.conv2.output_len());
        let (hidden, logits) = (s.hidden.output_len(), s.logits.output_len());
        let loss = timed(times, "05 loss", || {
            softmax_cross_entropy_gradient(
                10,
                &b.logits[..logits],
                &b.labels[..s.logits.batch],
                &mut b.logits_gradient[..logits],
            )
        })?;
        timed(times, "06 logits backward", || {
            let gradient = &b.logits_gradient[..logits];
            let input = &b.hidden[..hidden];
            linear_weight_gradient(&s.logits, input, gradient, w4, b4, t)?;
            let input_gradient = &mut b.hidden_gradient[..hidden];
            linear_input_gradient(&s.logits, &p[6], gradient, Some(input), input_gradient, t)
        })?;
        let gradient = &b.hidden_gradient[..hidden];
        timed(times, "07 hidden dW", || {
            linear_weight_gradient(&s.hidden, &b.pooled2[..out2], gradient, w3, b3, t)
        })?;
        timed(times, "08 hidden dX", || {
            let input_gradient = &mut b.pooled2_gradient[..out2];
            linear_input_gradient(&s.hidden, &p[4], gradient, None, input_gradient, t)
        })?;
        timed(times, "09 conv2 dW", || {
            conv_weight_gradient(
                &s.conv2,
                &b.pooled1[..out1],
                &b.routes2[..out2],
                &b.pooled2_gradient[..out2],
                w2,
                b2,
                &mut b.workspace,
                t,
            )
        })?;
        timed(times, "10 conv2 dX", || {
            conv_input_gradient(
                &s.conv2,
                &p[2],
                &b.routes2[..out2],
                &b.pooled2_gradient[..out2],
                &mut b.pooled1_gradient[..out1],
                &mut b.workspace,
                t,
            )
        })?;
        timed(times, "11 conv1 dW", || {
            conv_weight_gradient(
                &s.conv1,
                &b.input[..s.conv1.input_len()],
                &b.routes1[..out1],
                &b.pooled1_gradient[..out1],
                w1,
                b1,
                &mut b.workspace,
                t,
            )
        })?;
        Ok(loss)
    }

    fn update(
        &mut self,
        optimizer: Optimizer,
        times: &mut Option<Times>,
    ) -> Result<(), KernelError> {
        self.steps += 1;
        timed(times, "12 update", || {
            let moments = self.first_moments.iter_mut().zip(&mut self.second_moments);
            let tensors = self.parameters.iter_mut().zip(&self.gradients).zip(moments);
            for ((parameters, gradients), (first, second)) in tensors {
                match optimizer {
                    Optimizer::Sgd(config) => {
                        sgd_step(&config, parameters, gradients, first, self.threads)?;
                    }
                    Optimizer::Adam(config) => adam_step(
                        &config,
                        self.steps,
                        parameters,
                        gradients,
                        first,
                        second,
                        self.threads,
                    )?,
                }
            }
            Ok(())
        })
    }

    pub(crate) fn step(
        &mut self,
        s: &Shapes,
        b: &mut Buffers,
        optimizer: Optimizer,
        times: &mut Option<Times>,
    ) -> Result<BatchLoss, KernelError> {
        self.forward(s, b, times)?;
        let loss = self.backward(s, b, times)?;
        self.update(optimizer, times)?;
        Ok(loss)
    }
}
