//! The kernels agree with PyTorch's layers, and the decoder's training with that of the same network: with tables of
//! values that `scripts/torch_layers.py` and `scripts/torch_gpt.py` made with PyTorch 2.15 on one thread.

use crate::common::{in_pool, wide};
use arena_scope::{Arena, ByteSize, Host};
use arena_train::backend::HostBackend;
use arena_train::backend::host::{
    self, Activation, AdamConfig, AttentionShape, EmbeddingShape, KernelError, LinearShape,
};
use arena_train::decoder::{Decoder, DecoderConfig, Sequences};
use arena_train::error::TrainError;
use arena_train::network::Network;
use arena_train::optimizer::Optimizer;
use arena_train::training::RunConfig;
use rstest::rstest;

const TABLE: &str = include_str!("../torch/layers.txt");

/// A network, how it is trained, and its losses.
const STEPS: &str = include_str!("../torch/gpt_steps.txt");

/// Both round sums of a few dozen terms to f32.
const TOLERANCE: f64 = 2e-6;

fn values(name: &str) -> Vec<f64> {
    row(TABLE, name)
}

fn row(table: &str, name: &str) -> Vec<f64> {
    let line = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let line = line.unwrap_or_else(|| panic!("{name} is in the table"));
    line.split(' ').map(|value| value.parse().unwrap()).collect()
}

/// Element i is sin(1.7 i + seed), as in the script.
fn sines(seed: u32, len: usize) -> Vec<f32> {
    (0..len).map(|i| (1.7 * i as f64 + f64::from(seed)).sin() as f32).collect()
}

fn times(factor: f32, values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| factor * value).collect()
}

#[track_caller]
fn assert_is(name: &str, found: &[f32]) {
    let expected = values(name);
    assert_eq!(found.len(), expected.len(), "{name}");
    for (at, (found, expected)) in wide(found).iter().zip(&expected).enumerate() {
        let error = (found - expected).abs();
        assert!(error <= TOLERANCE * expected.abs().max(1.0), "{name}[{at}]: {found}, {expected}");
    }
}

fn run(kernels: impl FnOnce() -> Result<(), KernelError> + Send) {
    in_pool(kernels).unwrap();
}

#[test]
fn layer_norm_is_pytorchs() {
    let (x, weight, bias, above) = (sines(1, 60), sines(2, 12), sines(3, 12), sines(4, 60));
    let (mut y, mut kept, mut dx) = ([0.0; 60], [0.0; 10], [0.0; 60]);
    let (mut dweight, mut dbias) = ([0.0; 12], [0.0; 12]);
    run(|| {
        host::layer_norm_forward(12, &x, &weight, &bias, &mut y, &mut kept, 2)?;
        host::layer_norm_input_gradient(12, &x, &kept, &weight, &above, None, &mut dx, 2)?;
        host::layer_norm_weight_gradient(12, &x, &kept, &above, &mut dweight, &mut dbias, 2)
    });
    assert_is("layer_norm", &y);
    assert_is("layer_norm.input", &dx);
    assert_is("layer_norm.weight", &dweight);
    assert_is("layer_norm.bias", &dbias);
}

#[test]
fn gelu_is_pytorchs() {
    let (x, above) = (times(4.0, &sines(1, 40)), sines(4, 40));
    let (mut y, mut dx) = ([0.0; 40], [0.0; 40]);
    run(|| {
        host::gelu_forward(&x, &mut y, 2)?;
        host::gelu_input_gradient(&x, &above, &mut dx, 2)
    });
    assert_is("gelu", &y);
    assert_is("gelu.input", &dx);
}

#[test]
fn attention_is_pytorchs() {
    let s = AttentionShape { batch: 2, context: 7, heads: 3, head_width: 4 };
    // The table has the gradient of what is doubled here.
    let (x, above) = (times(2.0, &sines(1, s.input_len())), sines(4, s.output_len()));
    let (mut y, mut kept) = (vec![0.0; s.output_len()], vec![0.0; s.log_sums_len()]);
    let mut dx = vec![0.0; s.input_len()];
    run(|| {
        host::attention_forward(&s, &x, &mut y, &mut kept)?;
        host::attention_gradient(&s, &x, &y, &kept, &above, &mut dx)
    });
    assert_is("attention", &y);
    assert_is("attention.input", &times(2.0, &dx));
}

#[test]
fn embeddings_are_pytorchs() {
    let s = EmbeddingShape { batch: 2, context: 4, vocabulary: 5, width: 6 };
    let tokens = [2, 0, 2, 4, 1, 2, 3, 0];
    let (table, places, above) = (sines(1, 30), sines(2, 24), sines(4, 48));
    let (mut y, mut dtable, mut dplaces) = ([0.0; 48], [0.0; 30], [0.0; 24]);
    run(|| {
        host::embedding_forward(&s, &tokens, &table, &places, &mut y, 2)?;
        host::embedding_gradient(&s, &tokens, &above, &mut dtable, &mut dplaces, 2)
    });
    assert_is("embedding", &y);
    assert_is("embedding.tokens", &dtable);
    assert_is("embedding.positions", &dplaces);
}

#[test]
fn the_loss_is_pytorchs() {
    let (logits, labels) = (times(3.0, &sines(1, 54)), [0, 8, 3, 3, 1, 5]);
    let mut gradient = [0.0; 54];
    let loss = host::softmax_cross_entropy_gradient(9, &logits, &labels, &mut gradient).unwrap();
    assert_is("cross_entropy", &[loss.mean]);
    assert_is("cross_entropy.logits", &times(3.0, &gradient));
}

#[test]
fn a_linear_layer_is_pytorchs() {
    let s = LinearShape { batch: 4, in_features: 10, out_features: 6 };
    let (x, weight, bias, above) = (sines(1, 40), sines(2, 60), sines(3, 6), sines(4, 24));
    let (mut y, mut dweight, mut dbias, mut dx) = ([0.0; 24], [0.0; 60], [0.0; 6], [0.0; 40]);
    run(|| {
        host::linear_forward(&s, &x, &weight, &bias, Activation::Identity, &mut y, 2)?;
        host::linear_weight_gradient(&s, &x, &above, &mut dweight, &mut dbias, 2)?;
        host::linear_input_gradient(&s, &weight, &above, None, &mut dx, 2)
    });
    assert_is("linear", &y);
    assert_is("linear.weight", &dweight);
    assert_is("linear.bias", &dbias);
    assert_is("linear.input", &dx);
}

#[rstest]
#[case::adam("adam", 0.0)]
#[case::adam_w("adam_w", 0.5)]
fn adam_is_pytorchs(#[case] name: &str, #[case] weight_decay: f32) {
    let config = AdamConfig { learning_rate: 0.01, weight_decay, ..AdamConfig::default() };
    let (mut x, mut mean, mut square) = (sines(1, 8), [0.0; 8], [0.0; 8]);
    run(|| {
        (0..3).try_for_each(|step| {
            let gradient = sines(10 + step, 8);
            let number = u64::from(step) + 1;
            host::adam_step(&config, number, &mut x, &gradient, &mut mean, &mut square, 2)
        })
    });
    assert_is(name, &x);
}

/// `formula` in the script: values between -1 and 1.
fn formula(seed: u64, at: u64) -> f64 {
    let number = (7919 * at + seed) % 65_521;
    (number * number % 65_521) as f64 * (2.0 / 65_521.0) - 1.0
}

/// `fill` in the script: the values of a tensor, by its name.
fn weights(name: &str, width: usize, to: &mut [f32]) {
    // A table is the weight of a layer there.
    let tables = ["embedding.tokens", "embedding.positions"];
    let is_table = tables.contains(&name);
    let whole = if is_table { format!("{name}.weight") } else { name.to_owned() };
    let short = whole.strip_prefix("embedding.").unwrap_or(&whole);
    let seed = short.bytes().fold(0, |seed, byte| (31 * seed + u64::from(byte)) % 65_521);
    let columns = if name.ends_with("down.weight") { 4 * width } else { width } as f64;
    for (at, to) in (0..).zip(to) {
        let value = formula(seed, at);
        *to = match name {
            _ if is_table || name.ends_with("bias") => 0.1 * value,
            _ if name.contains("norm") => 1.0 + 0.1 * value,
            _ => value / columns.sqrt(),
        } as f32;
    }
}

/// `text` in the script: the tokens of a batch, and of each the one that follows.
fn text(number: u32, tokens: usize) -> (Vec<u32>, Vec<u32>) {
    let first = 1000 * number;
    let all: Vec<u32> = (first..=first + tokens as u32).map(|at| at * at % 97 + at % 5).collect();
    (all[..tokens].to_vec(), all[1..].to_vec())
}

/// The losses of the table's steps in our network.
fn losses(recompute: bool) -> Result<Vec<f32>, TrainError> {
    let number = |name: &str| row(STEPS, name)[0];
    let size = |name: &str| number(name) as usize;
    let (context, layers, width, heads) =
        (size("context"), size("layers"), size("width"), size("heads"));
    let (learning_rate, weight_decay) = (number("rate") as f32, number("weight_decay") as f32);
    let adam = AdamConfig { learning_rate, weight_decay, ..AdamConfig::default() };
    let config = DecoderConfig { context, layers, width, heads, dropout: 0.0, recompute };

    let mut arena = Arena::builder(Host::new()).capacity(ByteSize::mib(16)).build()?;
    let mut model = Decoder::new(
        &arena,
        HostBackend::new(2),
        &RunConfig::new(config, Optimizer::Adam(adam), 1),
    )?;
    for (name, mut view) in model.parameters_mut().saved_mut() {
        if !name.contains(".state") {
            let mut values = view.view().to_vec()?;
            weights(&name, width, &mut values);
            view.write(&values)?;
        }
    }
    arena.mark()?;

    let steps = row(STEPS, "losses").len() as u32;
    (0..steps)
        .map(|step| {
            let batch = text(step % size("batches") as u32, size("batch") * context);
            let loss = arena.scope(|scope| {
                let (tokens, targets) = (scope.upload(&batch.0)?, scope.upload(&batch.1)?);
                let loss = model.gradients(scope, step, Sequences { context, tokens, targets })?;
                Ok::<_, TrainError>(scope.read_one(loss.view())?)
            })?;
            model.update(u64::from(step) + 1, 1.0 - step as f32 / steps as f32)?;
            Ok(loss)
        })
        .collect()
}

#[test]
fn thirty_steps_lose_what_they_lose_in_pytorch_also_with_blocks_made_again() {
    let [kept, again] = [false, true].map(|recompute| in_pool(|| losses(recompute)).unwrap());
    assert_eq!(kept, again, "blocks that are made again give the same bits");
    let expected = row(STEPS, "losses");
    assert_eq!(expected.len(), 30);
    let differences = wide(&kept).into_iter().zip(&expected).map(|(a, b)| (a - b).abs());
    let largest = differences.fold(0.0, f64::max);
    // 9.5e-7 where this was written; another processor sums in another order.
    assert!(largest < 1e-5, "{largest}: {kept:?} instead of {expected:?}");
}
