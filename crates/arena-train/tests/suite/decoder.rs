//! The decoder: its loss and gradients are those of a reference in f64, in every placement, with blocks that are kept
//! and blocks that are made again, and with dropout.

use std::collections::HashMap;

use crate::common::*;
use crate::decoder_kernels::{attention, gelu, layer_norm};
use arena_plan::{Options, PlannedRun};
use arena_scope::{Arena, ByteSize, Host, Placement, Probe, Scope};
use arena_train::backend::host::{AdamConfig, AttentionShape, LinearShape};
use arena_train::backend::{DecoderKernels, HostBackend, ProbeBackend};
use arena_train::decoder::{Decoder, DecoderConfig, Sequences, VOCABULARY};
use arena_train::error::TrainError;
use arena_train::network::Network;
use arena_train::optimizer::Optimizer;
use arena_train::training::RunConfig;
use rstest::rstest;

const SMALL: DecoderConfig =
    DecoderConfig { context: 6, layers: 2, width: 8, heads: 2, dropout: 0.0, recompute: false };

const ADAM: Optimizer = Optimizer::Adam(AdamConfig {
    learning_rate: 1e-2,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.0,
});

/// Two sequences, of which each token's successor is the target.
fn text(context: usize) -> (Vec<u32>, Vec<u32>) {
    let bytes: Vec<u32> = (0..=2 * context as u32).map(|at| (at * at + 7 * at) % 251).collect();
    (bytes[..2 * context].to_vec(), bytes[1..].to_vec())
}

fn batch<'s, B: DecoderKernels>(
    step: &Scope<'s, '_, B::Device>,
    context: usize,
) -> Result<Sequences<'s, B>, TrainError> {
    let (tokens, targets) = text(context);
    Ok(Sequences { context, tokens: step.upload(&tokens)?, targets: step.upload(&targets)? })
}

fn train<B: DecoderKernels>(
    arena: &mut Arena<B::Device>,
    model: &mut Decoder<B>,
    steps: u32,
) -> Result<Vec<f32>, TrainError> {
    let context = model.config().context;
    (0..steps)
        .map(|number| {
            let loss = arena.scope_named("train", |step| {
                let batch = batch(step, context)?;
                let loss = model.gradients(step, number, batch)?;
                Ok::<_, TrainError>(step.read_one(loss.view())?)
            })?;
            model.update(u64::from(number) + 1, 1.0)?;
            Ok(loss)
        })
        .collect()
}

fn arena(placement: Placement) -> Arena {
    let builder = Arena::builder(Host::new()).capacity(ByteSize::mib(64));
    builder.placement(placement).build().unwrap()
}

fn model(arena: &mut Arena, config: DecoderConfig) -> Decoder<HostBackend> {
    let model = Decoder::new(arena, HostBackend::new(2), &RunConfig::new(config, ADAM, 5)).unwrap();
    arena.mark().unwrap();
    model
}

type Tensors = HashMap<String, Vec<f64>>;

fn tensors(
    model: &Decoder<HostBackend>,
    read: impl Fn(arena_scope::PartId) -> Vec<f32>,
) -> Tensors {
    model.parameters().parts().map(|(part, name)| (name.to_owned(), wide(&read(part)))).collect()
}

fn linear(p: &Tensors, name: &str, features: (usize, usize), x: &[f64]) -> Vec<f64> {
    let s = LinearShape {
        batch: x.len() / features.0,
        in_features: features.0,
        out_features: features.1,
    };
    linear_forward(&s, x, &p[&format!("{name}.weight")], &p[&format!("{name}.bias")], false)
}

fn norm(p: &Tensors, name: &str, width: usize, x: &[f64]) -> Vec<f64> {
    layer_norm(width, x, &p[&format!("{name}.weight")], &p[&format!("{name}.bias")])
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// The loss as it is defined.
fn reference(c: &DecoderConfig, p: &Tensors) -> f64 {
    let (tokens, targets) = text(c.context);
    let w = c.width;
    let table = &p["embedding.tokens"];
    let mut x: Vec<f64> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let token = &table[*token as usize * w..][..w];
        x.extend(sum(token, &p["embedding.positions"][at % c.context * w..][..w]));
    }
    for layer in 0..c.layers {
        let name = |part: &str| format!("block{layer}.{part}");
        let inward = linear(p, &name("inward"), (w, 3 * w), &norm(p, &name("norm1"), w, &x));
        let (batch, context, heads) = (2, c.context, c.heads);
        let shape = AttentionShape { batch, context, heads, head_width: w / c.heads };
        let middle = sum(&x, &linear(p, &name("outward"), (w, w), &attention(&shape, &inward)));
        let up = linear(p, &name("up"), (w, 4 * w), &norm(p, &name("norm2"), w, &middle));
        x = sum(&middle, &linear(p, &name("down"), (4 * w, w), &gelu(&up)));
    }
    let x = norm(p, "norm", w, &x);
    let s = LinearShape { batch: tokens.len(), in_features: w, out_features: VOCABULARY };
    let logits = linear_forward(&s, &x, table, &vec![0.0; VOCABULARY], false);
    cross_entropy(VOCABULARY, &logits, &targets).0
}

#[rstest]
fn loss_and_gradients_are_those_of_the_definition(#[values(false, true)] recompute: bool) {
    let config = DecoderConfig { recompute, ..SMALL };
    in_pool(|| {
        let mut arena = arena(Placement::Bump);
        let mut model = model(&mut arena, config);
        // Biases and norms that are 0 and 1 would hide mistakes.
        train(&mut arena, &mut model, 3).unwrap();
        let values =
            tensors(&model, |part| model.parameters().value(part).unwrap().to_vec().unwrap());
        let loss = arena
            .scope(|step| {
                let batch = batch(step, config.context)?;
                let loss = model.gradients(step, 3, batch)?;
                Ok::<_, TrainError>(step.read_one(loss.view())?)
            })
            .unwrap();
        let expected = reference(&config, &values);
        assert!((f64::from(loss) - expected).abs() < 1e-5, "{loss} instead of {expected}");
        let gradients =
            tensors(&model, |part| model.parameters().gradient(part).unwrap().to_vec().unwrap());
        for (name, gradient) in &gradients {
            let scale = gradient.iter().fold(1e-3_f64, |scale, value| scale.max(value.abs()));
            let mut moved = values.clone();
            for at in (0..gradient.len()).step_by((gradient.len() / 12).max(1)) {
                let value = values[name][at];
                let mut loss_at = |offset: f64| {
                    moved.get_mut(name).unwrap()[at] = value + offset;
                    reference(&config, &moved)
                };
                let difference = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5;
                moved.get_mut(name).unwrap()[at] = value;
                let error = (difference - gradient[at]).abs() / scale;
                assert!(error < 1e-3, "{name}[{at}]: {} instead of {difference}", gradient[at]);
            }
        }
        let evaluated = arena
            .scope(|step| {
                let batch = batch(step, config.context)?;
                let loss = model.evaluate(step, batch)?;
                Ok::<_, TrainError>(step.read_one(loss.mean.view())?)
            })
            .unwrap();
        assert_eq!(evaluated.to_bits(), loss.to_bits(), "nothing is dropped here");
    });
}

/// Losses of four steps, as bits.
fn losses(config: DecoderConfig, mut arena: Arena) -> Vec<u32> {
    in_pool(|| {
        let mut model = model(&mut arena, config);
        let losses = train(&mut arena, &mut model, 4).unwrap();
        assert!(losses[3] < losses[0], "{losses:?}");
        losses.iter().map(|loss| loss.to_bits()).collect()
    })
}

fn probed(config: DecoderConfig) -> PlannedRun {
    let backend = HostBackend::new(2);
    PlannedRun::probe(&Host::new(), &Options::default(), |arena: &mut Arena<Probe>| {
        let mut model =
            Decoder::new(arena, ProbeBackend::of(&backend), &RunConfig::new(config, ADAM, 5))?;
        arena.mark()?;
        train(arena, &mut model, 1).map(drop)
    })
    .unwrap()
}

#[rstest]
fn every_placement_and_recomputing_give_the_same_bits(#[values(0.0, 0.2)] dropout: f32) {
    let config = DecoderConfig { dropout, ..SMALL };
    let expected = losses(config, arena(Placement::Bump));
    for recompute in [false, true] {
        let config = DecoderConfig { recompute, ..config };
        for placement in [Placement::Bump, Placement::Separate, Placement::Shuffled { seed: 3 }] {
            assert_eq!(losses(config, arena(placement)), expected, "{placement:?} {recompute}");
        }
        let planned = probed(config).build(Host::new()).unwrap();
        assert_eq!(losses(config, planned), expected, "planned {recompute}");
    }
}

#[test]
fn a_plan_needs_the_live_peak_and_recomputing_lowers_it() {
    let config = DecoderConfig { layers: 6, context: 32, width: 16, ..SMALL };
    let peak = |recompute: bool| {
        let run = probed(DecoderConfig { recompute, ..config });
        let [kind] = run.kinds() else { panic!("one kind of step") };
        let step = kind.step.as_ref().unwrap();
        assert_eq!(step.plan.peak_bytes(), step.bound.rounded_bytes, "the live peak");
        (step.plan.peak_bytes(), step.sum_bytes)
    };
    let ((kept, kept_sum), (again, again_sum)) = (peak(false), peak(true));
    assert!(2 * again < kept, "{again} and {kept}");
    assert!(again_sum > kept_sum, "the blocks' forward pass is there twice");
}

#[rstest]
#[case::no_layers(DecoderConfig { layers: 0, ..SMALL })]
#[case::heads_that_do_not_divide(DecoderConfig { heads: 3, ..SMALL })]
#[case::everything_dropped(DecoderConfig { dropout: 1.0, ..SMALL })]
fn sizes_that_make_no_network_are_refused(#[case] config: DecoderConfig) {
    let arena = arena(Placement::Bump);
    let refused =
        Decoder::new(&arena, HostBackend::new(1), &RunConfig::new(config, ADAM, 1)).unwrap_err();
    assert!(matches!(refused, TrainError::Decoder { .. }), "{refused}");
}
