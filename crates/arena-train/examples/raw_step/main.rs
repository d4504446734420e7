//! The kernels alone: whole training steps over plain vectors, without an arena.
//!
//! ```text
//! cargo run --release -p arena-train --example raw_step -- bench [BATCH] [THREADS] [SECONDS]
//! cargo run --release -p arena-train --example raw_step -- train [SEED] [THREADS] [sgd|adam] [RATE] [EPOCHS]
//! ```
//!
//! `bench` prints the median and the spread of the step, the evaluation and each kernel.
//! `train` runs the real MNIST from `data/mnist` and prints the test accuracy.

mod model;

use std::path::Path;
use std::time::{Duration, Instant};

use arena_train::backend::host::{AdamConfig, SgdConfig, softmax_cross_entropy};
use arena_train::data::{Mnist, fill_batch, shuffled_order};
use model::{Buffers, Model, Optimizer, Shapes, Times};

type Error = Box<dyn std::error::Error + Send + Sync>;

fn load() -> Result<Mnist, Error> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/mnist");
    Ok(Mnist::load(&directory)?)
}

/// Median, tenth and ninetieth percentile.
fn spread(samples: &mut [Duration]) -> (Duration, Duration, Duration) {
    samples.sort_unstable();
    let at = |share: usize| samples[(samples.len() - 1) * share / 10];
    (at(5), at(1), at(9))
}

fn bench(batch: usize, threads: usize, seconds: f64) -> Result<(), Error> {
    let mnist = load()?;
    let shapes = Shapes::new(batch);
    let mut buffers = Buffers::new(batch, threads)?;
    let mut model = Model::new(1, threads);
    let mut order = vec![0; mnist.train.len()];
    shuffled_order(1, 0, &mut order);
    let optimizer = Optimizer::Adam(AdamConfig::default());
    let (mut steps, mut evaluations) = (Vec::new(), Vec::new());
    let (mut cold, mut times) = (None, Some(Times::new()));
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    for indices in order.chunks_exact(batch).cycle() {
        // The first steps warm up: threads, caches, and a model that is no longer random.
        let warm = model.steps >= 100;
        let start = Instant::now();
        fill_batch(&mnist.train, indices, &mut buffers.input, &mut buffers.labels)?;
        model.step(&shapes, &mut buffers, optimizer, if warm { &mut times } else { &mut cold })?;
        let step = start.elapsed();
        let start = Instant::now();
        fill_batch(&mnist.train, indices, &mut buffers.input, &mut buffers.labels)?;
        model.forward(&shapes, &mut buffers, &mut None)?;
        softmax_cross_entropy(10, &buffers.logits, &buffers.labels)?;
        if warm {
            steps.push(step);
            evaluations.push(start.elapsed());
        }
        if Instant::now() >= end && !steps.is_empty() {
            break;
        }
    }
    let print = |name: &str, samples: &mut [Duration]| {
        let (median, low, high) = spread(samples);
        let rate = |time: Duration| batch as f64 / time.as_secs_f64();
        println!(
            "{name:20} {:9.1} us ({:.1} to {:.1})  {:9.0} images/s ({:.0} to {:.0})",
            median.as_secs_f64() * 1e6,
            low.as_secs_f64() * 1e6,
            high.as_secs_f64() * 1e6,
            rate(median),
            rate(high),
            rate(low),
        );
    };
    println!(
        "batch {batch}, {threads} threads, median (10th to 90th percentile) of {}",
        steps.len()
    );
    print("step", &mut steps);
    print("evaluation", &mut evaluations);
    for (name, samples) in times.iter_mut().flatten() {
        print(name, samples);
    }
    Ok(())
}

fn train(seed: u64, threads: usize, optimizer: Optimizer, epochs: u64) -> Result<(), Error> {
    const BATCH: usize = 64;
    let mnist = load()?;
    let mut buffers = Buffers::new(BATCH, threads)?;
    let mut model = Model::new(seed, threads);
    let mut order = vec![0; mnist.train.len()];
    let start = Instant::now();
    let mut loss = 0.0;
    for epoch in 0..epochs {
        shuffled_order(seed, epoch, &mut order);
        let total = epochs as f32 * order.len().div_ceil(BATCH) as f32;
        for indices in order.chunks(BATCH) {
            let len = indices.len();
            let shapes = Shapes::new(len);
            fill_batch(
                &mnist.train,
                indices,
                &mut buffers.input[..shapes.conv1.input_len()],
                &mut buffers.labels[..len],
            )?;
            let progress = model.steps as f32 / total;
            let optimizer = scheduled(optimizer, progress);
            loss = model.step(&shapes, &mut buffers, optimizer, &mut None)?.mean;
        }
    }
    let trained = start.elapsed();
    let start = Instant::now();
    let mut hits = 0;
    let all: Vec<u32> = (0..).take(mnist.test.len()).collect();
    for indices in all.chunks(BATCH) {
        let len = indices.len();
        let shapes = Shapes::new(len);
        fill_batch(
            &mnist.test,
            indices,
            &mut buffers.input[..shapes.conv1.input_len()],
            &mut buffers.labels[..len],
        )?;
        model.forward(&shapes, &mut buffers, &mut None)?;
        let logits = &buffers.logits[..shapes.logits.output_len()];
        hits += softmax_cross_entropy(10, logits, &buffers.labels[..len])?.hits;
    }
    println!(
        "seed {seed}: {:.2} % of {} right, last loss {loss:.6}, {:.2} s training ({:.0} images/s), {:.2} s evaluation",
        100.0 * hits as f64 / mnist.test.len() as f64,
        mnist.test.len(),
        trained.as_secs_f64(),
        epochs as f64 * mnist.train.len() as f64 / trained.as_secs_f64(),
        start.elapsed().as_secs_f64(),
    );
    Ok(())
}

/// The optimizer with a rate that falls in a line from its own to zero over the run.
fn scheduled(optimizer: Optimizer, progress: f32) -> Optimizer {
    let factor = 1.0 - progress;
    match optimizer {
        Optimizer::Sgd(config) => {
            Optimizer::Sgd(SgdConfig { learning_rate: config.learning_rate * factor, ..config })
        }
        Optimizer::Adam(config) => {
            Optimizer::Adam(AdamConfig { learning_rate: config.learning_rate * factor, ..config })
        }
    }
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize| arguments.get(index).map(String::as_str);
    let number = |index: usize, default: f64| argument(index).map_or(Ok(default), str::parse);
    let threads = number(2, 2.0)? as usize;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    match argument(0) {
        Some("bench") => {
            let (batch, seconds) = (number(1, 64.0)? as usize, number(3, 5.0)?);
            pool.install(|| bench(batch, threads, seconds))
        }
        Some("train") => {
            let seed = number(1, 1.0)? as u64;
            let optimizer = match argument(3) {
                Some("sgd") => Optimizer::Sgd(SgdConfig {
                    learning_rate: number(4, 0.05)? as f32,
                    momentum: 0.9,
                }),
                _ => Optimizer::Adam(AdamConfig {
                    learning_rate: number(4, 2e-3)? as f32,
                    ..AdamConfig::default()
                }),
            };
            let epochs = number(5, 2.0)? as u64;
            pool.install(|| train(seed, threads, optimizer, epochs))
        }
        _ => Err("say bench or train, see the top of the example".into()),
    }
}
