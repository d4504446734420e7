//! A decoder of bytes: the network that predicts the next one.

mod sample;

use arena_scope::bumpalo::collections::Vec as BumpVec;
use arena_scope::{Arena, Scope};

use crate::backend::host::Dropout;
use crate::backend::{Buffer, DecoderKernels, ProbeBackend};
use crate::data::{Split, Text};
use crate::error::TrainError;
use crate::layers::{Block, Embedding, Kept, LayerNorm, Loss, Pass, loss, loss_and_gradient};
use crate::network::Network;
use crate::parameters::{NewParameters, Parameters};
use crate::training::{RunConfig, Trainer};
use sample::sample;

pub use sample::SAMPLE;

/// Tokens are bytes.
pub const VOCABULARY: usize = 256;

/// More sequences than a step has: see [`Network::variant`].
const MOST_SEQUENCES: u64 = 10_000_000;

/// Streams of random numbers that a layer's first values may use.
const STREAMS_PER_LAYER: u64 = 8;

/// The network's sizes, and how it is trained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecoderConfig {
    /// Tokens of the longest sequence.
    pub context: usize,
    /// Blocks.
    pub layers: usize,
    /// Features of a token.
    pub width: usize,
    /// Heads of each block's attention; the width is a multiple.
    pub heads: usize,
    /// The share of features that dropout drops.
    pub dropout: f32,
    /// Whether a block keeps its input alone, and its backward pass makes the rest again.
    pub recompute: bool,
}

impl DecoderConfig {
    fn check(&self) -> Result<(), TrainError> {
        let refuse = |reason| Err(TrainError::Decoder { reason });
        if [self.context, self.layers, self.width, self.heads].contains(&0) {
            return refuse("context, layers, width and heads are at least 1");
        }
        if !self.width.is_multiple_of(self.heads) {
            return refuse("the width is a multiple of the number of heads");
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return refuse("dropout is at least 0 and below 1");
        }
        Ok(())
    }
}

/// Bytes of several sequences of equal length, and the byte that follows each of them.
#[derive(Debug)]
pub struct Sequences<'s, B: DecoderKernels> {
    /// Tokens of a sequence.
    pub context: usize,
    /// `[sequences, context]`.
    pub tokens: Buffer<'s, B, u32>,
    /// `[sequences, context]`.
    pub targets: Buffer<'s, B, u32>,
}

/// Embeddings, blocks, a layer norm, and logits by the same table as the embedding.
#[derive(Debug)]
pub struct Decoder<B: DecoderKernels> {
    backend: B,
    config: DecoderConfig,
    seed: u64,
    parameters: Parameters<B::Device>,
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

impl<B: DecoderKernels> Decoder<B> {
    /// The network with seeded weights, and state for the optimizer, persistent in `arena`. The seed is that of
    /// dropout too.
    ///
    /// # Errors
    ///
    /// When the sizes make no network, the arena has no room, or the device refuses.
    pub fn new(
        arena: &Arena<B::Device>,
        mut backend: B,
        run: &RunConfig<DecoderConfig>,
    ) -> Result<Self, TrainError> {
        let (config, seed) = (run.network, run.seed);
        config.check()?;
        let workspace_bytes = backend.library_workspace_bytes();
        if workspace_bytes > 0 {
            backend.take_library_workspace(arena.persistent(workspace_bytes)?)?;
        }
        let DecoderConfig { context, layers, width, heads, .. } = config;
        let mut new = NewParameters::new();
        let embedding = Embedding::new(&mut new, (VOCABULARY, context, width), (seed, 0))?;
        let blocks = (0..layers)
            .map(|number| {
                let stream = STREAMS_PER_LAYER * (number as u64 + 1);
                let sizes = (width, heads, layers);
                Block::new(&mut new, &format!("block{number}"), sizes, (seed, stream))
            })
            .collect::<Result<_, _>>()?;
        let norm = LayerNorm::new(&mut new, "norm", width)?;
        let parameters = new.build::<B>(arena, run)?;
        Ok(Self { backend, config, seed, parameters, embedding, blocks, norm })
    }

    /// The kernels.
    #[must_use]
    pub const fn backend(&self) -> &B {
        &self.backend
    }

    /// The sizes.
    #[must_use]
    pub const fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// The parameters.
    #[must_use]
    pub const fn parameters(&self) -> &Parameters<B::Device> {
        &self.parameters
    }

    /// The parameters, to be changed.
    pub const fn parameters_mut(&mut self) -> &mut Parameters<B::Device> {
        &mut self.parameters
    }

    /// What is dropped in the step of this number; the embedding is layer 0, and a block's number is `layer`.
    fn pass(&self, context: usize, step: u32, layer: usize) -> Pass {
        let (probability, seed) = (self.config.dropout, self.seed);
        Pass { context, dropout: Dropout { probability, seed, step, layer: layer as u32 } }
    }

    /// The logits `[tokens.len(), VOCABULARY]` of what follows each token; nothing is dropped, and nothing is kept.
    /// Takes the tokens, so that they are gone when their features are there.
    ///
    /// # Errors
    ///
    /// When the arena has no room, the tokens do not fit, or the device refuses.
    pub fn predict<'s>(
        &self,
        step: &mut Scope<'s, '_, B::Device>,
        context: usize,
        tokens: Buffer<'_, B, u32>,
    ) -> Result<Buffer<'s, B>, TrainError> {
        let Self { backend, parameters, embedding, norm, .. } = self;
        let mut x = embedding.forward(backend, parameters, step, context, tokens.view())?;
        drop(tokens);
        let pass = Pass { context, dropout: Dropout { probability: 0.0, ..Dropout::default() } };
        for block in &self.blocks {
            let mut output = step.alloc(x.len())?;
            let to = output.view_mut();
            step.scope(|inner| {
                let (middle, _) = block.attend(backend, parameters, inner, pass, x.view())?;
                drop(x);
                block.feed_forward(backend, parameters, inner, pass, middle.view(), to)
            })?;
            x = output;
        }
        let normed = norm.forward(backend, parameters, step, x.view())?.values;
        drop(x);
        embedding.logits(backend, parameters, step, normed.view())
    }

    /// The loss of sequences, for evaluation.
    ///
    /// # Errors
    ///
    /// As for [`predict`](Self::predict).
    pub fn evaluate<'s>(
        &self,
        step: &mut Scope<'s, '_, B::Device>,
        batch: Sequences<'_, B>,
    ) -> Result<Loss<'s, B>, TrainError> {
        let Sequences { context, tokens, targets } = batch;
        let logits = self.predict(step, context, tokens)?;
        loss(&self.backend, step, VOCABULARY, logits.view(), targets.view())
    }

    /// The mean loss of sequences, one element; every parameter's gradient is written. `number` is that of the step, for dropout.
    ///
    /// # Errors
    ///
    /// As for [`predict`](Self::predict).
    pub fn gradients<'s>(
        &mut self,
        step: &mut Scope<'s, '_, B::Device>,
        number: u32,
        batch: Sequences<'_, B>,
    ) -> Result<Buffer<'s, B>, TrainError> {
        let Sequences { context, tokens, targets } = batch;
        let whole = self.pass(context, number, 0);
        let passes = |layer: usize| Pass {
            dropout: Dropout { layer: layer as u32, ..whole.dropout },
            ..whole
        };
        let Self { backend, parameters, embedding, blocks, norm, config, .. } = self;

        let mut x = embedding.forward(backend, parameters, step, context, tokens.view())?;
        backend.dropout(whole.dropout, x.view_mut())?;
        // The input of each block, and what it keeps.
        let mut kept: BumpVec<'_, (Buffer<'s, B>, Option<Kept<'s, B>>)> =
            BumpVec::with_capacity_in(blocks.len(), step.host_bump());
        for (layer, block) in blocks.iter().enumerate() {
            let mut output = step.alloc(x.len())?;
            let (input, to, pass) = (x.view(), output.view_mut(), passes(layer));
            let inside = if config.recompute {
                step.scope(|inner| {
                    let (middle, _) = block.attend(backend, parameters, inner, pass, input)?;
                    block.feed_forward(backend, parameters, inner, pass, middle.view(), to)
                })?;
                None
            } else {
                Some(block.forward(backend, parameters, step, pass, input, to)?)
            };
            kept.push((x, inside));
            x = output;
        }

        let normed = norm.forward(backend, parameters, step, x.view())?;
        let logits = embedding.logits(backend, parameters, step, normed.values.view())?;
        let (Loss { mean, .. }, gradient) =
            loss_and_gradient(backend, step, VOCABULARY, logits.view(), targets.view())?;
        drop((logits, targets));
        let (values, above) = (normed.values.view(), gradient.view());
        let above = embedding.logits_backward(backend, parameters, step, values, above)?;
        drop((normed.values, gradient));
        let mut gradient = step.alloc(x.len())?;
        let (input, statistics, to) = (x.view(), normed.statistics.view(), gradient.view_mut());
        norm.backward(backend, parameters, input, statistics, above.view(), None, to)?;
        drop((above, normed.statistics, x));

        for (layer, block) in blocks.iter().enumerate().rev() {
            let Some((x, inside)) = kept.pop() else { break };
            let mut below = step.alloc(x.len())?;
            let (input, to, pass) = (x.view(), below.view_mut(), passes(layer));
            match inside {
                Some(inside) => {
                    block.backward(backend, parameters, step, pass, input, inside, gradient, to)?
                }
                None => step.scope(|inner| {
                    let mut output = inner.alloc(input.len())?;
                    let again = output.view_mut();
                    let inside = block.forward(backend, parameters, inner, pass, input, again)?;
                    drop(output);
                    block.backward(backend, parameters, inner, pass, input, inside, gradient, to)
                })?,
            }
            gradient = below;
        }
        backend.dropout(whole.dropout, gradient.view_mut())?;
        embedding.backward(backend, parameters, context, tokens.view(), gradient.view())?;
        Ok(mean)
    }
}

impl<B: DecoderKernels> Network for Decoder<B> {
    type Backend = B;
    type Probe<'b>
        = Decoder<ProbeBackend<'b, B>>
    where
        B: 'b;
    type Sizes = DecoderConfig;
    type Data = Text;
    type Batch<'s> = Sequences<'s, B>;

    const PREDICTIONS: &'static str = "bytes";

    fn new(
        arena: &Arena<B::Device>,
        backend: B,
        config: &RunConfig<DecoderConfig>,
    ) -> Result<Self, TrainError> {
        Self::new(arena, backend, config)
    }

    fn describe(sizes: &DecoderConfig) -> String {
        let DecoderConfig { context, layers, width, heads, dropout, recompute: _ } = sizes;
        format!(
            "gpt, context {context}, layers {layers}, width {width}, heads {heads}, dropout {dropout}"
        )
    }

    fn parameters(&self) -> &Parameters<B::Device> {
        &self.parameters
    }

    fn parts_mut(&mut self) -> (&B, &mut Parameters<B::Device>) {
        (&self.backend, &mut self.parameters)
    }

    /// The length of the sequences, times ten millions, and their number.
    fn variant(data: &Text, examples: &[u32]) -> u64 {
        let length = examples.first().map_or(0, |sequence| data.length(*sequence));
        length as u64 * MOST_SEQUENCES + examples.len() as u64
    }

    fn predictions(data: &Text, examples: &[u32]) -> u64 {
        examples.iter().map(|sequence| data.length(*sequence) as u64).sum()
    }

    fn load<'s>(
        &self,
        scope: &Scope<'s, '_, B::Device>,
        data: &Text,
        examples: &[u32],
    ) -> Result<Sequences<'s, B>, TrainError> {
        let context = examples.first().map_or(0, |sequence| data.length(*sequence));
        let bump = scope.host_bump();
        let upload = |skipped: usize| {
            let sequences = examples.iter().map(|sequence| &data.sequence(*sequence)[skipped..]);
            let tokens =
                sequences.flat_map(|bytes| bytes[..context].iter().copied().map(u32::from));
            let mut found = BumpVec::with_capacity_in(examples.len() * context, bump);
            found.extend(tokens);
            scope.upload(&found)
        };
        Ok(Sequences { context, tokens: upload(0)?, targets: upload(1)? })
    }

    fn gradients<'s>(
        &mut self,
        scope: &mut Scope<'s, '_, B::Device>,
        number: u64,
        batch: Sequences<'s, B>,
    ) -> Result<Buffer<'s, B>, TrainError> {
        self.gradients(scope, number as u32, batch)
    }

    fn evaluate<'s>(
        &self,
        scope: &mut Scope<'s, '_, B::Device>,
        batch: Sequences<'s, B>,
    ) -> Result<Loss<'s, B>, TrainError> {
        self.evaluate(scope, batch)
    }

    fn sample(
        trainer: &mut Trainer<Self>,
        data: &Split<Text>,
    ) -> Result<Option<String>, TrainError> {
        sample(trainer, &data.test).map(Some)
    }
}
