//! A small CNN on MNIST, in plain cudarc: cuBLAS for the products, a few kernels for the rest.
//!
//! ```text
//! cargo run --release -p arena-examples --features cuda --example cudarc_cnn -- --steps 1000
//! ```

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use arena_scope::cuda::{Session, SessionSlice as CudaSlice};
use arena_scope::{Arena, ByteSize, Cuda, RegionKind};
use cudarc::cublas::sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig};
use cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::compile_ptx;
use flate2::read::GzDecoder;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

const SIDE: usize = 28;
const PIXELS: usize = SIDE * SIDE;
const CLASSES: usize = 10;
const KERNEL: usize = 3;

pub(crate) struct Options {
    pub(crate) data: PathBuf,
    pub(crate) steps: usize,
    pub(crate) batch: usize,
    pub(crate) channels: [usize; 2],
    pub(crate) hidden: usize,
    pub(crate) learning_rate: f32,
    pub(crate) test_images: usize,
    pub(crate) seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            data: "data/mnist".into(),
            steps: 500,
            batch: 64,
            channels: [16, 32],
            hidden: 128,
            learning_rate: 1e-3,
            test_images: 2000,
            seed: 1,
        }
    }
}

impl Options {
    fn from_args() -> Result<Self> {
        let mut options = Self::default();
        let mut args = std::env::args().skip(1);
        while let Some(name) = args.next() {
            let value = args.next().with_context(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--data" => options.data = value.into(),
                "--steps" => options.steps = value.parse()?,
                "--batch" => options.batch = value.parse()?,
                "--hidden" => options.hidden = value.parse()?,
                "--lr" => options.learning_rate = value.parse()?,
                "--test-images" => options.test_images = value.parse()?,
                "--seed" => options.seed = value.parse()?,
                _ => bail!("unknown option {name}"),
            }
        }
        Ok(options)
    }
}

// ---- data ----

pub(crate) struct Mnist {
    images: Vec<u8>,
    labels: Vec<u8>,
}

impl Mnist {
    pub(crate) fn load(folder: &Path, part: &str) -> Result<Self> {
        let images = read_idx(&folder.join(format!("{part}-images-idx3-ubyte.gz")), 16)?;
        let labels = read_idx(&folder.join(format!("{part}-labels-idx1-ubyte.gz")), 8)?;
        ensure!(images.len() == labels.len() * PIXELS, "images and labels do not match");
        Ok(Self { images, labels })
    }

    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The `index`-th batch. Starts over when there is no whole batch left.
    pub(crate) fn batch(&self, index: usize, size: usize) -> (Vec<f32>, Vec<i32>) {
        let start = index % (self.len() / size) * size;
        let end = start + size;
        let images = self.images[start * PIXELS..end * PIXELS].iter();
        let labels = self.labels[start..end].iter();
        let images = images.map(|&pixel| f32::from(pixel) / 255.0).collect();
        (images, labels.map(|&label| i32::from(label)).collect())
    }
}

fn read_idx(path: &Path, header: usize) -> Result<Vec<u8>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes)?;
    ensure!(bytes.len() > header, "{} is too short", path.display());
    Ok(bytes.split_off(header))
}

// ---- device ----

pub(crate) struct Gpu {
    pub(crate) stream: Session,
    blas: CudaBlas,
    im2col: CudaFunction,
    col2im: CudaFunction,
    add_bias: CudaFunction,
    relu_backward: CudaFunction,
    bias_backward: CudaFunction,
    max_pool: CudaFunction,
    max_pool_backward: CudaFunction,
    softmax_cross_entropy: CudaFunction,
    adam: CudaFunction,
}

impl Gpu {
    fn new(ordinal: usize) -> Result<Self> {
        let context = CudaContext::new(ordinal)?;
        let device = Cuda::on(context.new_stream()?)?;
        // Nobody knows what a step needs before it has run: see `run`.
        let builder = Arena::builder(device).capacity(ByteSize::gib(64));
        let stream = Session::new(builder.region(RegionKind::Virtual).build()?);
        let module = context.load_module(compile_ptx(include_str!("cudarc_cnn.cu"))?)?;
        Ok(Self {
            blas: CudaBlas::new(stream.clone())?,
            im2col: module.load_function("im2col")?,
            col2im: module.load_function("col2im")?,
            add_bias: module.load_function("add_bias")?,
            relu_backward: module.load_function("relu_backward")?,
            bias_backward: module.load_function("bias_backward")?,
            max_pool: module.load_function("max_pool")?,
            max_pool_backward: module.load_function("max_pool_backward")?,
            softmax_cross_entropy: module.load_function("softmax_cross_entropy")?,
            adam: module.load_function("adam")?,
            stream,
        })
    }

    /// `c = a * b` with row-major matrices: `a` is m x k and `b` is k x n, once transposed where
    /// asked for. cuBLAS is column-major, so it computes `c^T = b^T * a^T`.
    fn matmul(
        &self,
        a: &CudaSlice<f32>,
        a_transposed: bool,
        b: &CudaSlice<f32>,
        b_transposed: bool,
        c: &mut CudaSlice<f32>,
        (m, k, n): (usize, usize, usize),
    ) -> Result<()> {
        let config = GemmConfig {
            transa: if b_transposed { CUBLAS_OP_T } else { CUBLAS_OP_N },
            transb: if a_transposed { CUBLAS_OP_T } else { CUBLAS_OP_N },
            m: n as i32,
            n: m as i32,
            k: k as i32,
            alpha: 1.0,
            lda: if b_transposed { k } else { n } as i32,
            ldb: if a_transposed { m } else { k } as i32,
            beta: 0.0,
            ldc: n as i32,
        };
        // SAFETY: the matrices have the sizes in the config.
        unsafe { self.blas.gemm(config, b, a, c) }?;
        Ok(())
    }

    fn add_bias(&self, y: &mut CudaSlice<f32>, bias: &CudaSlice<f32>, relu: bool) -> Result<()> {
        let (n, channels, relu) = (y.len() as i32, bias.len() as i32, i32::from(relu));
        let mut launch = self.stream.launch_builder(&self.add_bias);
        launch.arg(y).arg(bias).arg(&n).arg(&channels).arg(&relu);
        // SAFETY: the arguments are those of the kernel, which checks its bounds.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n as u32)) }?;
        Ok(())
    }

    fn relu_backward(&self, y: &CudaSlice<f32>, dy: &mut CudaSlice<f32>) -> Result<()> {
        let n = y.len() as i32;
        let mut launch = self.stream.launch_builder(&self.relu_backward);
        launch.arg(y).arg(dy).arg(&n);
        // SAFETY: the arguments are those of the kernel, which checks its bounds.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n as u32)) }?;
        Ok(())
    }

    fn bias_backward(&self, dy: &CudaSlice<f32>, channels: usize) -> Result<CudaSlice<f32>> {
        let mut dbias = self.stream.alloc_zeros::<f32>(channels)?;
        let (rows, columns) = ((dy.len() / channels) as i32, channels as i32);
        let mut launch = self.stream.launch_builder(&self.bias_backward);
        launch.arg(dy).arg(&mut dbias).arg(&rows).arg(&columns);
        let config = LaunchConfig {
            grid_dim: (channels as u32, 1, 1),
            block_dim: (256, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the arguments are those of the kernel, which has a block for each channel.
        unsafe { launch.launch(config) }?;
        Ok(dbias)
    }
}

// ---- layers ----

pub(crate) struct Param {
    pub(crate) value: CudaSlice<f32>,
    pub(crate) m: CudaSlice<f32>,
    pub(crate) v: CudaSlice<f32>,
}

impl Param {
    fn new(gpu: &Gpu, values: &[f32]) -> Result<Self> {
        Ok(Self {
            value: gpu.stream.clone_htod(values)?,
            m: gpu.stream.alloc_zeros(values.len())?,
            v: gpu.stream.alloc_zeros(values.len())?,
        })
    }

    /// He initialisation, uniform.
    fn random(gpu: &Gpu, rng: &mut ChaCha8Rng, len: usize, fan_in: usize) -> Result<Self> {
        let bound = (6.0 / fan_in as f32).sqrt();
        let values: Vec<f32> = (0..len).map(|_| rng.random_range(-bound..bound)).collect();
        Self::new(gpu, &values)
    }
}

struct LayerGradients {
    weight: CudaSlice<f32>,
    bias: CudaSlice<f32>,
}

/// A convolution that keeps the size of the image, with ReLU.
pub(crate) struct Conv {
    pub(crate) weight: Param,
    pub(crate) bias: Param,
    size: usize,
    inputs: usize,
    outputs: usize,
}

impl Conv {
    fn new(
        gpu: &Gpu,
        rng: &mut ChaCha8Rng,
        size: usize,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self> {
        let patch = KERNEL * KERNEL * inputs;
        let weight = Param::random(gpu, rng, outputs * patch, patch)?;
        let bias = Param::new(gpu, &vec![0.0; outputs])?;
        Ok(Self { weight, bias, size, inputs, outputs })
    }

    fn patch(&self) -> usize {
        KERNEL * KERNEL * self.inputs
    }

    fn im2col(&self, gpu: &Gpu, x: &CudaSlice<f32>, batch: usize) -> Result<CudaSlice<f32>> {
        let len = batch * self.size * self.size * self.patch();
        let mut cols = gpu.stream.alloc_zeros::<f32>(len)?;
        let (b, size, channels, kernel) =
            (batch as i32, self.size as i32, self.inputs as i32, KERNEL as i32);
        let mut launch = gpu.stream.launch_builder(&gpu.im2col);
        launch.arg(x).arg(&mut cols).arg(&b).arg(&size).arg(&channels).arg(&kernel);
        // SAFETY: the arguments are those of the kernel, which checks its bounds.
        unsafe { launch.launch(LaunchConfig::for_num_elems(len as u32)) }?;
        Ok(cols)
    }

    fn forward(&self, gpu: &Gpu, cols: &CudaSlice<f32>, batch: usize) -> Result<CudaSlice<f32>> {
        let rows = batch * self.size * self.size;
        let mut y = gpu.stream.alloc_zeros::<f32>(rows * self.outputs)?;
        let shape = (rows, self.patch(), self.outputs);
        gpu.matmul(cols, false, &self.weight.value, true, &mut y, shape)?;
        gpu.add_bias(&mut y, &self.bias.value, true)?;
        Ok(y)
    }

    /// `dy` is the gradient behind the ReLU, and is that before it afterwards.
    fn backward(
        &self,
        gpu: &Gpu,
        cols: &CudaSlice<f32>,
        y: &CudaSlice<f32>,
        dy: &mut CudaSlice<f32>,
    ) -> Result<LayerGradients> {
        gpu.relu_backward(y, dy)?;
        let mut weight = gpu.stream.alloc_zeros::<f32>(self.weight.value.len())?;
        let shape = (self.outputs, y.len() / self.outputs, self.patch());
        gpu.matmul(dy, true, cols, false, &mut weight, shape)?;
        let bias = gpu.bias_backward(dy, self.outputs)?;
        Ok(LayerGradients { weight, bias })
    }

    fn input_gradient(
        &self,
        gpu: &Gpu,
        dy: &CudaSlice<f32>,
        batch: usize,
    ) -> Result<CudaSlice<f32>> {
        let rows = batch * self.size * self.size;
        let mut dcols = gpu.stream.alloc_zeros::<f32>(rows * self.patch())?;
        let shape = (rows, self.outputs, self.patch());
        gpu.matmul(dy, false, &self.weight.value, false, &mut dcols, shape)?;

        let mut dx = gpu.stream.alloc_zeros::<f32>(rows * self.inputs)?;
        let (b, size, channels, kernel) =
            (batch as i32, self.size as i32, self.inputs as i32, KERNEL as i32);
        let config = LaunchConfig::for_num_elems(dx.len() as u32);
        let mut launch = gpu.stream.launch_builder(&gpu.col2im);
        launch.arg(&dcols).arg(&mut dx).arg(&b).arg(&size).arg(&channels).arg(&kernel);
        // SAFETY: the arguments are those of the kernel, which checks its bounds.
        unsafe { launch.launch(config) }?;
        Ok(dx)
    }
}

/// The maximum of each 2 x 2 window.
struct MaxPool {
    size: usize,
    channels: usize,
}

impl MaxPool {
    fn forward(&self, gpu: &Gpu, x: &CudaSlice<f32>) -> Result<(CudaSlice<f32>, CudaSlice<i32>)> {
        let mut y = gpu.stream.alloc_zeros::<f32>(x.len() / 4)?;
        let mut argmax = gpu.stream.alloc_zeros::<i32>(x.len() / 4)?;
        let (n, size, channels) = (y.len() as i32, self.size as i32, self.channels as i32);
        let mut launch = gpu.stream.launch_builder(&gpu.max_pool);
        launch.arg(x).arg(&mut y).arg(&mut argmax).arg(&n).arg(&size).arg(&channels);
        // SAFETY: the arguments are those of the kernel, which checks its bounds.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n as u32)) }?;
        Ok((y, argmax))
    }

    fn backward(
        &self,
        gpu: &Gpu,
        argmax: &CudaSlice<i32>,
        dy: &CudaSlice<f32>,
    ) -> Result<CudaSlice<f32>> {
        let mut dx = gpu.stream.alloc_zeros::<f32>(dy.len() * 4)?;
        let n = dy.len() as i32;
        let mut launch = gpu.stream.launch_builder(&gpu.max_pool_backward);
        launch.arg(dy).arg(argmax).arg(&mut dx).arg(&n);
        // SAFETY: the arguments are those of the kernel; `argmax` has indices of `dx`.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n as u32)) }?;
        Ok(dx)
    }
}

pub(crate) struct Linear {
    pub(crate) weight: Param,
    pub(crate) bias: Param,
    inputs: usize,
    outputs: usize,
    relu: bool,
}

impl Linear {
    fn new(
        gpu: &Gpu,
        rng: &mut ChaCha8Rng,
        inputs: usize,
        outputs: usize,
        relu: bool,
    ) -> Result<Self> {
        let weight = Param::random(gpu, rng, outputs * inputs, inputs)?;
        let bias = Param::new(gpu, &vec![0.0; outputs])?;
        Ok(Self { weight, bias, inputs, outputs, relu })
    }

    fn forward(&self, gpu: &Gpu, x: &CudaSlice<f32>) -> Result<CudaSlice<f32>> {
        let batch = x.len() / self.inputs;
        let mut y = gpu.stream.alloc_zeros::<f32>(batch * self.outputs)?;
        let shape = (batch, self.inputs, self.outputs);
        gpu.matmul(x, false, &self.weight.value, true, &mut y, shape)?;
        gpu.add_bias(&mut y, &self.bias.value, self.relu)?;
        Ok(y)
    }

    /// The gradients of the layer and of its input.
    fn backward(
        &self,
        gpu: &Gpu,
        x: &CudaSlice<f32>,
        y: &CudaSlice<f32>,
        dy: &mut CudaSlice<f32>,
    ) -> Result<(LayerGradients, CudaSlice<f32>)> {
        if self.relu {
            gpu.relu_backward(y, dy)?;
        }
        let batch = x.len() / self.inputs;
        let mut weight = gpu.stream.alloc_zeros::<f32>(self.weight.value.len())?;
        gpu.matmul(dy, true, x, false, &mut weight, (self.outputs, batch, self.inputs))?;
        let bias = gpu.bias_backward(dy, self.outputs)?;

        let mut dx = gpu.stream.alloc_zeros::<f32>(x.len())?;
        let shape = (batch, self.outputs, self.inputs);
        gpu.matmul(dy, false, &self.weight.value, false, &mut dx, shape)?;
        Ok((LayerGradients { weight, bias }, dx))
    }
}

// ---- the network ----

pub(crate) struct Model {
    pub(crate) conv1: Conv,
    pool1: MaxPool,
    pub(crate) conv2: Conv,
    pool2: MaxPool,
    pub(crate) fc1: Linear,
    pub(crate) fc2: Linear,
}

/// What the backward pass needs of the forward pass.
struct Activations {
    cols1: CudaSlice<f32>,
    conv1: CudaSlice<f32>,
    argmax1: CudaSlice<i32>,
    cols2: CudaSlice<f32>,
    conv2: CudaSlice<f32>,
    pool2: CudaSlice<f32>,
    argmax2: CudaSlice<i32>,
    hidden: CudaSlice<f32>,
    logits: CudaSlice<f32>,
}

struct Gradients {
    conv1: LayerGradients,
    conv2: LayerGradients,
    fc1: LayerGradients,
    fc2: LayerGradients,
}

impl Model {
    fn new(gpu: &Gpu, options: &Options) -> Result<Self> {
        let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
        let [c1, c2] = options.channels;
        let features = SIDE / 4 * (SIDE / 4) * c2;
        Ok(Self {
            conv1: Conv::new(gpu, &mut rng, SIDE, 1, c1)?,
            pool1: MaxPool { size: SIDE, channels: c1 },
            conv2: Conv::new(gpu, &mut rng, SIDE / 2, c1, c2)?,
            pool2: MaxPool { size: SIDE / 2, channels: c2 },
            fc1: Linear::new(gpu, &mut rng, features, options.hidden, true)?,
            fc2: Linear::new(gpu, &mut rng, options.hidden, CLASSES, false)?,
        })
    }

    fn forward(&self, gpu: &Gpu, images: &CudaSlice<f32>) -> Result<Activations> {
        let batch = images.len() / PIXELS;
        let cols1 = self.conv1.im2col(gpu, images, batch)?;
        let conv1 = self.conv1.forward(gpu, &cols1, batch)?;
        let (pool1, argmax1) = self.pool1.forward(gpu, &conv1)?;
        let cols2 = self.conv2.im2col(gpu, &pool1, batch)?;
        let conv2 = self.conv2.forward(gpu, &cols2, batch)?;
        let (pool2, argmax2) = self.pool2.forward(gpu, &conv2)?;
        let hidden = self.fc1.forward(gpu, &pool2)?;
        let logits = self.fc2.forward(gpu, &hidden)?;
        Ok(Activations { cols1, conv1, argmax1, cols2, conv2, pool2, argmax2, hidden, logits })
    }

    fn backward(
        &self,
        gpu: &Gpu,
        acts: &Activations,
        dlogits: &mut CudaSlice<f32>,
    ) -> Result<Gradients> {
        let batch = acts.logits.len() / CLASSES;
        let (fc2, mut dhidden) = self.fc2.backward(gpu, &acts.hidden, &acts.logits, dlogits)?;
        let (fc1, dpool2) = self.fc1.backward(gpu, &acts.pool2, &acts.hidden, &mut dhidden)?;
        let mut dconv2 = self.pool2.backward(gpu, &acts.argmax2, &dpool2)?;
        let conv2 = self.conv2.backward(gpu, &acts.cols2, &acts.conv2, &mut dconv2)?;
        let dpool1 = self.conv2.input_gradient(gpu, &dconv2, batch)?;
        let mut dconv1 = self.pool1.backward(gpu, &acts.argmax1, &dpool1)?;
        let conv1 = self.conv1.backward(gpu, &acts.cols1, &acts.conv1, &mut dconv1)?;
        Ok(Gradients { conv1, conv2, fc1, fc2 })
    }
}

/// The loss of each image, and the gradient of their mean.
fn cross_entropy(
    gpu: &Gpu,
    logits: &CudaSlice<f32>,
    labels: &CudaSlice<i32>,
) -> Result<(CudaSlice<f32>, CudaSlice<f32>)> {
    let mut losses = gpu.stream.alloc_zeros::<f32>(labels.len())?;
    let mut dlogits = gpu.stream.alloc_zeros::<f32>(logits.len())?;
    let (batch, classes) = (labels.len() as i32, CLASSES as i32);
    let mut launch = gpu.stream.launch_builder(&gpu.softmax_cross_entropy);
    launch.arg(logits).arg(labels).arg(&mut losses).arg(&mut dlogits).arg(&batch).arg(&classes);
    // SAFETY: the arguments are those of the kernel, which checks its bounds.
    unsafe { launch.launch(LaunchConfig::for_num_elems(batch as u32)) }?;
    Ok((losses, dlogits))
}

// ---- training ----

struct Adam {
    learning_rate: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
    step: i32,
}

impl Adam {
    fn update(&self, gpu: &Gpu, param: &mut Param, gradient: &CudaSlice<f32>) -> Result<()> {
        let n = gradient.len() as i32;
        let scale1 = 1.0 / (1.0 - self.beta1.powi(self.step));
        let scale2 = 1.0 / (1.0 - self.beta2.powi(self.step));
        let mut launch = gpu.stream.launch_builder(&gpu.adam);
        launch.arg(&mut param.value).arg(&mut param.m).arg(&mut param.v).arg(gradient).arg(&n);
        launch.arg(&self.learning_rate).arg(&self.beta1).arg(&self.beta2).arg(&self.eps);
        launch.arg(&scale1).arg(&scale2);
        // SAFETY: the arguments are those of the kernel, which checks its bounds.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n as u32)) }?;
        Ok(())
    }
}

pub(crate) struct Trainer {
    pub(crate) gpu: Gpu,
    pub(crate) model: Model,
    adam: Adam,
}

impl Trainer {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let gpu = Gpu::new(0)?;
        let model = Model::new(&gpu, options)?;
        let learning_rate = options.learning_rate;
        let adam = Adam { learning_rate, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: 0 };
        Ok(Self { gpu, model, adam })
    }

    /// One step of training; the mean loss of the batch before it.
    pub(crate) fn step(&mut self, images: &[f32], labels: &[i32]) -> Result<f32> {
        let gpu = &self.gpu;
        let _step = gpu.stream.enter()?;
        let images = gpu.stream.clone_htod(images)?;
        let labels = gpu.stream.clone_htod(labels)?;
        let acts = self.model.forward(gpu, &images)?;
        let (losses, mut dlogits) = cross_entropy(gpu, &acts.logits, &labels)?;
        let grads = self.model.backward(gpu, &acts, &mut dlogits)?;

        self.adam.step += 1;
        let Model { conv1, conv2, fc1, fc2, .. } = &mut self.model;
        for (weight, bias, gradients) in [
            (&mut conv1.weight, &mut conv1.bias, &grads.conv1),
            (&mut conv2.weight, &mut conv2.bias, &grads.conv2),
            (&mut fc1.weight, &mut fc1.bias, &grads.fc1),
            (&mut fc2.weight, &mut fc2.bias, &grads.fc2),
        ] {
            self.adam.update(gpu, weight, &gradients.weight)?;
            self.adam.update(gpu, bias, &gradients.bias)?;
        }

        let losses = gpu.stream.clone_dtoh(&losses)?;
        Ok(losses.iter().sum::<f32>() / losses.len() as f32)
    }

    /// The part of the images that are recognised.
    pub(crate) fn accuracy(&self, data: &Mnist, images: usize, batch: usize) -> Result<f32> {
        let mut correct = 0;
        let batches = images / batch;
        let mut logits = vec![0.0; batch * CLASSES];
        for index in 0..batches {
            let (images, labels) = data.batch(index, batch);
            let _step = self.gpu.stream.enter()?;
            let images = self.gpu.stream.clone_htod(&images)?;
            let acts = self.model.forward(&self.gpu, &images)?;
            self.gpu.stream.memcpy_dtoh(&acts.logits, &mut logits)?;
            self.gpu.stream.synchronize()?;
            for (row, label) in logits.chunks_exact(CLASSES).zip(labels) {
                let best = (0..CLASSES).max_by(|&a, &b| row[a].total_cmp(&row[b]));
                correct += usize::from(best == Some(label as usize));
            }
        }
        Ok(correct as f32 / (batches * batch) as f32)
    }
}

/// Trains, and returns the loss of each step.
pub(crate) fn run(options: &Options) -> Result<Vec<f32>> {
    let train = Mnist::load(&options.data, "train")?;
    let mut trainer = Trainer::new(options)?;
    let mut losses = Vec::with_capacity(options.steps);
    for step in 0..options.steps {
        let (images, labels) = train.batch(step, options.batch);
        let loss = trainer.step(&images, &labels)?;
        if step == 0 {
            trainer.gpu.stream.fit()?;
        }
        if step % 10 == 0 || step + 1 == options.steps {
            println!("step {step}: loss {loss:.4}");
        }
        losses.push(loss);
    }
    if options.test_images >= options.batch {
        let test = Mnist::load(&options.data, "t10k")?;
        let accuracy =
            trainer.accuracy(&test, options.test_images.min(test.len()), options.batch)?;
        println!("test accuracy {:.2} %", accuracy * 100.0);
    }
    Ok(losses)
}

fn main() -> Result<()> {
    run(&Options::from_args()?).map(drop)
}
