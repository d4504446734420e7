//! Tokens to features at the network's begin, and features to logits at its end, with one table for both.

use arena_scope::{PartId, Scope};

use crate::backend::host::{Activation, EmbeddingShape, LinearShape};
use crate::backend::{Buffer, DecoderKernels, In, Tables, Weights, WeightsMut};
use crate::error::TrainError;
use crate::init::Initial;
use crate::parameters::{NewParameters, Parameters};

/// The standard deviation of the tables' first values.
const DEVIATION: f32 = 0.02;

/// A row for each token and one for each position. The logits are products with the tokens' rows: weight tying (Press
/// and Wolf, 2017).
#[derive(Debug, Clone, Copy)]
pub struct Embedding {
    vocabulary: usize,
    width: usize,
    tables: Tables<PartId>,
    /// No biases.
    none: PartId,
}

impl Embedding {
    /// Tables with seeded values, which are added to `parameters`: for `vocabulary` tokens and sequences of at most
    /// `context`.
    ///
    /// # Errors
    ///
    /// When the parameters are too large.
    pub fn new(
        parameters: &mut NewParameters,
        (vocabulary, context, width): (usize, usize, usize),
        (seed, stream): (u64, u64),
    ) -> Result<Self, TrainError> {
        let mut table = |name: &'static str, rows: usize, stream: u64| {
            // He's distribution has a variance of 2 / fan_in.
            let initial = Initial::HeUniform { seed, stream, fan_in: 2, scale: DEVIATION };
            parameters.add(name, rows.saturating_mul(width), initial)
        };
        let tokens = table("embedding.tokens", vocabulary, stream)?;
        let positions = table("embedding.positions", context, stream + 1)?;
        let none = parameters.add("embedding.none", 0, Initial::Value(0.0))?;
        Ok(Self { vocabulary, width, tables: Tables { tokens, positions }, none })
    }

    /// Sequences of `context` tokens.
    fn shape(&self, tokens: usize, context: usize) -> EmbeddingShape {
        let (vocabulary, width) = (self.vocabulary, self.width);
        EmbeddingShape { batch: tokens / context.max(1), context, vocabulary, width }
    }

    /// The features of tokens, in sequences of `context`.
    ///
    /// # Errors
    ///
    /// When the arena has no room, a token is not in the vocabulary, a sequence is longer than the table of positions,
    /// or the device refuses.
    pub fn forward<'s, B: DecoderKernels>(
        &self,
        backend: &B,
        parameters: &Parameters<B::Device>,
        step: &Scope<'s, '_, B::Device>,
        context: usize,
        tokens: In<'_, B, u32>,
    ) -> Result<Buffer<'s, B>, TrainError> {
        let shape = self.shape(tokens.len(), context);
        let mut features = step.alloc(shape.output_len())?;
        let tables = Tables {
            tokens: parameters.value(self.tables.tokens)?,
            positions: parameters.value(self.tables.positions)?,
        };
        backend.embedding_forward(&shape, tokens, tables, features.view_mut())?;
        Ok(features)
    }

    fn logits_shape(&self, features: usize) -> LinearShape {
        let (in_features, out_features) = (self.width, self.vocabulary);
        LinearShape { batch: features / self.width, in_features, out_features }
    }

    /// The logits of features.
    ///
    /// # Errors
    ///
    /// When the arena has no room, or the device refuses.
    pub fn logits<'s, B: DecoderKernels>(
        &self,
        backend: &B,
        parameters: &Parameters<B::Device>,
        step: &Scope<'s, '_, B::Device>,
        features: In<'_, B>,
    ) -> Result<Buffer<'s, B>, TrainError> {
        let shape = self.logits_shape(features.len());
        let mut logits = step.alloc(shape.output_len())?;
        let weights = Weights {
            weight: parameters.value(self.tables.tokens)?,
            bias: parameters.value(self.none)?,
        };
        let identity = Activation::Identity;
        backend.linear_forward(&shape, features, weights, identity, logits.view_mut())?;
        Ok(logits)
    }

    /// Writes the gradient that the logits leave in the tokens' table, and returns that of the features. Before
    /// [`backward`](Self::backward), which adds to that table.
    ///
    /// # Errors
    ///
    /// When the arena has no room, an operand does not fit, or the device refuses.
    pub fn logits_backward<'s, B: DecoderKernels>(
        &self,
        backend: &B,
        parameters: &mut Parameters<B::Device>,
        step: &Scope<'s, '_, B::Device>,
        features: In<'_, B>,
        logits_gradient: In<'_, B>,
    ) -> Result<Buffer<'s, B>, TrainError> {
        let shape = self.logits_shape(features.len());
        let WeightsMut { weight, bias } =
            parameters.gradients_mut([self.tables.tokens, self.none])?;
        let gradients = WeightsMut { weight, bias };
        backend.linear_weight_gradient(&shape, features, logits_gradient, gradients)?;
        let mut gradient = step.alloc(features.len())?;
        let weight = parameters.value(self.tables.tokens)?;
        backend.linear_input_gradient(
            &shape,
            weight,
            logits_gradient,
            None,
            gradient.view_mut(),
        )?;
        Ok(gradient)
    }

    /// Adds the gradient of the features to that of the tokens' table, and writes that of the positions'.
    ///
    /// # Errors
    ///
    /// When an operand does not fit, or the device refuses.
    pub fn backward<B: DecoderKernels>(
        &self,
        backend: &B,
        parameters: &mut Parameters<B::Device>,
        context: usize,
        tokens: In<'_, B, u32>,
        gradient: In<'_, B>,
    ) -> Result<(), TrainError> {
        let shape = self.shape(tokens.len(), context);
        let to = parameters.gradients_mut([self.tables.tokens, self.tables.positions])?;
        let gradients = Tables { tokens: to.weight, positions: to.bias };
        backend.embedding_gradient(&shape, tokens, gradient, gradients)
    }
}
