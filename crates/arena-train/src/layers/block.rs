//! A block of the decoder: attention and a feed-forward part, each behind a layer norm and with a residual connection
//! round it.

use arena_scope::Scope;

use super::{LayerNorm, Linear, Normed};
use crate::backend::host::{Activation, AttentionShape, Dropout};
use crate::backend::{Buffer, DecoderKernels, In, Out};
use crate::error::TrainError;
use crate::parameters::{NewParameters, Parameters};

/// How many times as wide the feed-forward part is inside.
const EXPANSION: usize = 4;

/// The standard deviation of the weights' first values, as GPT-2 has it.
const DEVIATION: f32 = 0.02;

/// `x + attention(norm(x))`, and of that `y + feed_forward(norm(y))` (the order of GPT-2, Radford et al., 2019).
#[derive(Debug, Clone, Copy)]
pub struct Block {
    heads: usize,
    width: usize,
    norms: [LayerNorm; 2],
    /// To queries, keys and values.
    inward: Linear,
    /// From the heads back.
    outward: Linear,
    up: Linear,
    down: Linear,
}

/// What a block leaves for its backward pass, beside its input: what is costly to make. The backward pass makes the norms
/// and the GELU again, which are more than a third of the block's values and few of its operations.
#[derive(Debug)]
pub struct Kept<'s, B: DecoderKernels> {
    attended: Attended<'s, B>,
    middle: Buffer<'s, B>,
    up: Buffer<'s, B>,
}

/// What the attention leaves.
#[derive(Debug)]
pub struct Attended<'s, B: DecoderKernels> {
    queries_keys_values: Buffer<'s, B>,
    attention: Buffer<'s, B>,
    log_sums: Buffer<'s, B>,
}

/// Which sequences a block works on, and what it drops.
#[derive(Debug, Clone, Copy)]
pub struct Pass {
    /// Tokens of a sequence.
    pub context: usize,
    /// With the block's number, from 0, in `layer`.
    pub dropout: Dropout,
}

impl Pass {
    /// What the block drops behind its attention (0) and behind its feed-forward part (1).
    const fn dropout(&self, part: u32) -> Dropout {
        Dropout { layer: 1 + 2 * self.dropout.layer + part, ..self.dropout }
    }
}

impl Block {
    /// A block with seeded weights, which are added to `parameters`; `depth` blocks add to one residual stream.
    ///
    /// # Errors
    ///
    /// When the parameters are too large.
    pub fn new(
        parameters: &mut NewParameters,
        name: &str,
        (width, heads, depth): (usize, usize, usize),
        (seed, stream): (u64, u64),
    ) -> Result<Self, TrainError> {
        let linear = |parameters: &mut NewParameters, part: &str, features, at, deviation| {
            let (name, identity) = (format!("{name}.{part}"), Activation::Identity);
            let (fan_in, _): (usize, usize) = features;
            // He's distribution has a variance of 2 / fan_in.
            let scale = deviation * (fan_in as f32 / 2.0).sqrt();
            Linear::new(parameters, &name, features, identity, (seed, stream + at, scale))
        };
        // What goes back to the residual stream is smaller by the root of the number of parts that add to it.
        let small = DEVIATION / (2.0 * depth as f32).sqrt();
        let inside = EXPANSION * width;
        Ok(Self {
            heads,
            width,
            norms: [
                LayerNorm::new(parameters, &format!("{name}.norm1"), width)?,
                LayerNorm::new(parameters, &format!("{name}.norm2"), width)?,
            ],
            inward: linear(parameters, "inward", (width, 3 * width), 0, DEVIATION)?,
            outward: linear(parameters, "outward", (width, width), 2, small)?,
            up: linear(parameters, "up", (width, inside), 4, DEVIATION)?,
            down: linear(parameters, "down", (inside, width), 6, small)?,
        })
    }

    fn attention_shape(&self, elements: usize, context: usize) -> AttentionShape {
        let batch = elements / self.width / context.max(1);
        AttentionShape { batch, context, heads: self.heads, head_width: self.width / self.heads }
    }

    /// Writes the block's output, which is as long as its input, and returns what its backward pass needs.
    ///
    /// # Errors
    ///
    /// When the arena has no room, an operand does not fit, or the device refuses.
    pub fn forward<'s, B: DecoderKernels>(
        &self,
        backend: &B,
        parameters: &Parameters<B::Device>,
        step: &Scope<'s, '_, B::Device>,
        pass: Pass,
        input: In<'_, B>,
        output: Out<'_, B>,
    ) -> Result<Kept<'s, B>, TrainError> {
        let (middle, attended) = self.attend(backend, parameters, step, pass, input)?;
        let rows = input.len() / self.width;
        let normed = self.norms[1].forward(backend, parameters, step, middle.view())?.values;
        let up = self.up.forward(backend, parameters, step, rows, normed.view())?;
        drop(normed);
        let mut gelu = step.alloc(up.len())?;
        backend.gelu_forward(up.view(), gelu.view_mut())?;
        let down = self.down.forward(backend, parameters, step, rows, gelu.view())?;
        drop(gelu);
        add(backend, middle.view(), down, pass.dropout(1), output)?;
        Ok(Kept { attended, middle, up })
    }

    /// The first half: `x + attention(norm(x))`, and what it leaves.
    ///
    /// # Errors
    ///
    /// As for [`forward`](Self::forward).
    pub fn attend<'s, B: DecoderKernels>(
        &self,
        backend: &B,
        parameters: &Parameters<B::Device>,
        step: &Scope<'s, '_, B::Device>,
        pass: Pass,
        input: In<'_, B>,
    ) -> Result<(Buffer<'s, B>, Attended<'s, B>), TrainError> {
        let rows = input.len() / self.width;
        let normed = self.norms[0].forward(backend, parameters, step, input)?.values;
        let queries_keys_values =
            self.inward.forward(backend, parameters, step, rows, normed.view())?;
        drop(normed);
        let shape = self.attention_shape(input.len(), pass.context);
        let mut attention = step.alloc(shape.output_len())?;
        let mut log_sums = step.alloc(shape.log_sums_len())?;
        let (to, kept) = (attention.view_mut(), log_sums.view_mut());
        backend.attention_forward(&shape, queries_keys_values.view(), to, kept)?;
        let outward = self.outward.forward(backend, parameters, step, rows, attention.view())?;
        let mut middle = step.alloc(input.len())?;
        add(backend, input, outward, pass.dropout(0), middle.view_mut())?;
        Ok((middle, Attended { queries_keys_values, attention, log_sums }))
    }

    /// The second half of [`forward`](Self::forward), of which nothing is kept: writes `y + feed_forward(norm(y))`.
    ///
    /// # Errors
    ///
    /// As for [`forward`](Self::forward).
    pub fn feed_forward<B: DecoderKernels>(
        &self,
        backend: &B,
        parameters: &Parameters<B::Device>,
        step: &Scope<'_, '_, B::Device>,
        pass: Pass,
        middle: In<'_, B>,
        output: Out<'_, B>,
    ) -> Result<(), TrainError> {
        let rows = middle.len() / self.width;
        let normed = self.norms[1].forward(backend, parameters, step, middle)?.values;
        let up = self.up.forward(backend, parameters, step, rows, normed.view())?;
        drop(normed);
        let mut gelu = step.alloc(up.len())?;
        backend.gelu_forward(up.view(), gelu.view_mut())?;
        drop(up);
        let down = self.down.forward(backend, parameters, step, rows, gelu.view())?;
        drop(gelu);
        add(backend, middle, down, pass.dropout(1), output)
    }

    /// Writes the gradients of the block's parameters, and to `input_gradient` that of its input.
    ///
    /// # Errors
    ///
    /// When the arena has no room, an operand does not fit, or the device refuses.
    #[expect(clippy::too_many_arguments, reason = "the operands, and where they come from")]
    pub fn backward<B: DecoderKernels>(
        &self,
        backend: &B,
        parameters: &mut Parameters<B::Device>,
        step: &Scope<'_, '_, B::Device>,
        pass: Pass,
        input: In<'_, B>,
        kept: Kept<'_, B>,
        output_gradient: Buffer<'_, B>,
        input_gradient: Out<'_, B>,
    ) -> Result<(), TrainError> {
        let Kept { attended, middle, up } = kept;
        let (rows, [norm1, norm2]) = (input.len() / self.width, &self.norms);

        // From the output back to the middle of the block.
        let dropped = dropped(backend, step, &output_gradient, pass.dropout(1))?;
        let above = dropped.as_ref().unwrap_or(&output_gradient).view();
        let mut gelu = step.alloc(up.len())?;
        backend.gelu_forward(up.view(), gelu.view_mut())?;
        self.down.weight_gradient(backend, parameters, rows, gelu.view(), above)?;
        drop(gelu);
        let gelu_gradient =
            self.down.input_gradient(backend, parameters, step, rows, above, None)?;
        drop(dropped);
        let mut up_gradient = step.alloc(up.len())?;
        backend.gelu_input_gradient(up.view(), gelu_gradient.view(), up_gradient.view_mut())?;
        drop((up, gelu_gradient));
        let above = up_gradient.view();
        let Normed { values, statistics } =
            norm2.forward(backend, parameters, step, middle.view())?;
        self.up.weight_gradient(backend, parameters, rows, values.view(), above)?;
        drop(values);
        let gradient = self.up.input_gradient(backend, parameters, step, rows, above, None)?;
        drop(up_gradient);
        let mut middle_gradient = step.alloc(input.len())?;
        norm2.backward(
            backend,
            parameters,
            middle.view(),
            statistics.view(),
            gradient.view(),
            Some(output_gradient.view()),
            middle_gradient.view_mut(),
        )?;
        drop((middle, gradient, output_gradient, statistics));

        // From the middle back to the input.
        let dropped = self::dropped(backend, step, &middle_gradient, pass.dropout(0))?;
        let above = dropped.as_ref().unwrap_or(&middle_gradient).view();
        self.outward.weight_gradient(
            backend,
            parameters,
            rows,
            attended.attention.view(),
            above,
        )?;
        let gradient = self.outward.input_gradient(backend, parameters, step, rows, above, None)?;
        drop(dropped);
        let Attended { queries_keys_values, attention, log_sums } = attended;
        let shape = self.attention_shape(input.len(), pass.context);
        let mut inward_gradient = step.alloc(shape.input_len())?;
        backend.attention_gradient(
            &shape,
            queries_keys_values.view(),
            attention.view(),
            log_sums.view(),
            gradient.view(),
            inward_gradient.view_mut(),
        )?;
        drop((queries_keys_values, attention, log_sums, gradient));
        let above = inward_gradient.view();
        let Normed { values, statistics } = norm1.forward(backend, parameters, step, input)?;
        self.inward.weight_gradient(backend, parameters, rows, values.view(), above)?;
        drop(values);
        let gradient = self.inward.input_gradient(backend, parameters, step, rows, above, None)?;
        drop(inward_gradient);
        norm1.backward(
            backend,
            parameters,
            input,
            statistics.view(),
            gradient.view(),
            Some(middle_gradient.view()),
            input_gradient,
        )
    }
}

/// Writes the sum of the residual stream and what a part of the block adds to it, after dropout.
fn add<B: DecoderKernels>(
    backend: &B,
    stream: In<'_, B>,
    mut part: Buffer<'_, B>,
    dropout: Dropout,
    to: Out<'_, B>,
) -> Result<(), TrainError> {
    backend.dropout(dropout, part.view_mut())?;
    backend.add(stream, part.view(), to)
}

/// A gradient behind dropout; `None` where nothing is dropped.
fn dropped<'s, B: DecoderKernels>(
    backend: &B,
    step: &Scope<'s, '_, B::Device>,
    gradient: &Buffer<'_, B>,
    dropout: Dropout,
) -> Result<Option<Buffer<'s, B>>, TrainError> {
    if dropout.probability == 0.0 {
        return Ok(None);
    }
    let mut dropped = step.alloc(gradient.len())?;
    dropped.view_mut().copy_from(gradient.view())?;
    backend.dropout(dropout, dropped.view_mut())?;
    Ok(Some(dropped))
}
