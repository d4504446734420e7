//! Causal attention with several heads, in tiles: the scores of a sequence are never kept whole.
//!
//! Forward, a tile of queries meets one tile of keys after another, with the sums scaled again where a larger score
//! comes (Milakov and Gimelshein, 2018; Dao et al., 2022). What is kept is the logarithm of each query's sum of
//! exponentials. Backward, the weights of a tile are made again from it.

use pulp::Arch;
use rayon::prelude::*;

use super::error::{KernelError, check_len};
use super::math::{exp, sum};
use super::sgemm::{MatrixMut, MatrixRef, sgemm};

/// Queries of a tile, and keys.
const TILE: usize = 64;

/// Sequences, and how their features are split among heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: usize,
    /// Tokens of a sequence. Each sees itself and those before it.
    pub context: usize,
    /// Heads.
    pub heads: usize,
    /// Features of a head.
    pub head_width: usize,
}

impl AttentionShape {
    /// Features of a token: those of its heads, one after another.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Elements of queries, keys and values: `[batch, context, 3, heads, head_width]`.
    #[must_use]
    pub const fn input_len(&self) -> usize {
        3 * self.output_len()
    }

    /// Elements of the output: `[batch, context, heads, head_width]`.
    #[must_use]
    pub const fn output_len(&self) -> usize {
        self.batch * self.context * self.width()
    }

    /// What the forward pass keeps of each query: `[batch, context, heads]` logarithms of sums.
    #[must_use]
    pub const fn log_sums_len(&self) -> usize {
        self.batch * self.context * self.heads
    }

    /// What scores are multiplied by: one over the root of a head's width.
    pub(in crate::backend) fn scale(&self) -> f32 {
        1.0 / (self.head_width as f32).sqrt()
    }

    pub(in crate::backend) fn check(&self) -> Result<(), KernelError> {
        if self.heads == 0 || self.head_width == 0 || self.context == 0 {
            return Err(KernelError::Shape { reason: "attention has heads, features and tokens" });
        }
        let width = self.heads.checked_mul(self.head_width);
        let token = width.and_then(|width| width.checked_mul(3));
        let tokens = self.batch.checked_mul(self.context);
        let len = token.zip(tokens).and_then(|(token, tokens)| token.checked_mul(tokens));
        len.map(drop).ok_or(KernelError::Overflow)
    }

    /// Tiles that the tokens up to `end` begin.
    fn tiles(&self, end: usize) -> impl Iterator<Item = Tile> + use<> {
        let context = self.context;
        (0..end).step_by(TILE).map(move |first| Tile { first, len: TILE.min(context - first) })
    }
}

/// Some neighbouring tokens of a sequence.
#[derive(Debug, Clone, Copy)]
struct Tile {
    first: usize,
    len: usize,
}

/// Queries, keys or values of a head, in the rows of one sequence.
#[derive(Debug, Clone, Copy)]
enum Part {
    Queries = 0,
    Keys = 1,
    Values = 2,
}

/// One head of one sequence.
#[derive(Debug, Clone, Copy)]
struct Head<'a> {
    shape: &'a AttentionShape,
    /// The sequence's queries, keys and values.
    input: &'a [f32],
    number: usize,
}

/// The scores of a tile of queries for a tile of keys, row by row of queries.
type Scores = [f32; TILE * TILE];

impl Head<'_> {
    /// Where the head's part of a token begins in `[context, 3, heads, head_width]`.
    fn start(&self, part: Part, tile: Tile) -> usize {
        let width = self.shape.width();
        (tile.first * 3 + part as usize) * width + self.number * self.shape.head_width
    }

    fn part(&self, part: Part, tile: Tile) -> Result<MatrixRef<'_>, KernelError> {
        let values = &self.input[self.start(part, tile)..];
        MatrixRef::block(values, tile.len, self.shape.head_width, 3 * self.shape.width())
    }

    /// The same place in the gradient.
    fn part_mut<'g>(
        &self,
        gradient: &'g mut [f32],
        part: Part,
        tile: Tile,
    ) -> Result<MatrixMut<'g>, KernelError> {
        let values = &mut gradient[self.start(part, tile)..];
        MatrixMut::block(values, tile.len, self.shape.head_width, 3 * self.shape.width())
    }

    /// The products of queries and keys, not scaled yet.
    fn products(&self, queries: Tile, keys: Tile, to: &mut Scores) -> Result<(), KernelError> {
        let mut product = MatrixMut::block(&mut to[..], queries.len, keys.len, TILE)?;
        let keys = self.part(Part::Keys, keys)?.transposed();
        sgemm(self.part(Part::Queries, queries)?, keys, &mut product, false)
    }

    /// Where this head's features begin in a tile's rows of `[context, heads, head_width]`.
    fn column(&self) -> usize {
        self.number * self.shape.head_width
    }
}

/// How many keys of a tile the query at `row` of its tile sees.
#[inline(always)]
fn seen(queries: Tile, keys: Tile, row: usize) -> usize {
    (queries.first + row + 1).saturating_sub(keys.first).min(keys.len)
}

/// `output = softmax(queries * keys^T / sqrt(head_width)) * values`, where a token sees itself and those before it.
///
/// Shapes: `input` `[batch, context, 3, heads, head_width]`: queries, keys and values of a token; `output` `[batch,
/// context, heads, head_width]`; `log_sums` `[batch, context, heads]`, which the gradient needs.
///
/// # Errors
///
/// [`KernelError`] when a slice does not fit the shape; nothing is written.
pub fn attention_forward(
    shape: &AttentionShape,
    input: &[f32],
    output: &mut [f32],
    log_sums: &mut [f32],
) -> Result<(), KernelError> {
    shape.check()?;
    check_len("input", input.len(), shape.input_len())?;
    check_len("output", output.len(), shape.output_len())?;
    check_len("log sums", log_sums.len(), shape.log_sums_len())?;
    let (context, width, heads) = (shape.context, shape.width(), shape.heads);
    output
        .par_chunks_mut(context * width)
        .zip(log_sums.par_chunks_mut(context * heads))
        .zip(input.par_chunks(context * 3 * width))
        .try_for_each(|((output, log_sums), input)| {
            output
                .par_chunks_mut(TILE * width)
                .zip(log_sums.par_chunks_mut(TILE * heads))
                .enumerate()
                .try_for_each(|(number, (output, log_sums))| {
                    let first = number * TILE;
                    let queries = Tile { first, len: TILE.min(context - first) };
                    (0..heads).try_for_each(|number| {
                        let head = Head { shape, input, number };
                        forward_tile(&head, queries, output, log_sums)
                    })
                })
        })
}

/// The rows of a tile of queries, for one head.
fn forward_tile(
    head: &Head<'_>,
    queries: Tile,
    output: &mut [f32],
    log_sums: &mut [f32],
) -> Result<(), KernelError> {
    let (arch, shape) = (Arch::new(), head.shape);
    let (width, head_width) = (shape.width(), shape.head_width);
    let mut scores = [0.0; TILE * TILE];
    let mut largest = [f32::NEG_INFINITY; TILE];
    let mut sums = [0.0_f32; TILE];
    let output = &mut output[head.column()..];
    for keys in shape.tiles(queries.first + queries.len) {
        head.products(queries, keys, &mut scores)?;
        arch.dispatch(
            #[inline(always)]
            || {
                for row in 0..queries.len {
                    let (weights, hidden) =
                        scores[row * TILE..][..keys.len].split_at_mut(seen(queries, keys, row));
                    let before = largest[row];
                    let (most, added) = weigh(weights, shape.scale(), before);
                    hidden.fill(0.0);
                    // What was summed up so far is in units of `e^before`. The first tile finds nothing there.
                    let rescale = if keys.first == 0 { 0.0 } else { exp(before - most) };
                    sums[row] = sums[row] * rescale + added;
                    largest[row] = most;
                    if keys.first > 0 {
                        for value in &mut output[row * width..][..head_width] {
                            *value *= rescale;
                        }
                    }
                }
            },
        );
        let weights = MatrixRef::block(&scores[..], queries.len, keys.len, TILE)?;
        let mut sum = MatrixMut::block(output, queries.len, head_width, width)?;
        sgemm(weights, head.part(Part::Values, keys)?, &mut sum, keys.first > 0)?;
    }
    for row in 0..queries.len {
        for value in &mut output[row * width..][..head_width] {
            *value /= sums[row];
        }
        log_sums[row * shape.heads + head.number] = largest[row] + sums[row].ln();
    }
    Ok(())
}

/// Turns the products of one query into weights in units of `e^most`, and returns `most`, the largest score so far, and
/// their sum.
#[inline(always)]
fn weigh(products: &mut [f32], scale: f32, before: f32) -> (f32, f32) {
    let mut most = before;
    for product in products.iter_mut() {
        *product *= scale;
        most = most.max(*product);
    }
    for product in products.iter_mut() {
        *product = exp(*product - most);
    }
    (most, sum(products.len(), |at| products[at]))
}

/// The gradients of queries, keys and values.
///
/// The work is cut by sequence.
///
/// Shapes: `input` and `input_gradient` `[batch, context, 3, heads, head_width]`, `output` and `output_gradient`
/// `[batch, context, heads, head_width]`, `log_sums` `[batch, context, heads]`; `output` and `log_sums` as the forward
/// pass left them.
///
/// # Errors
///
/// [`KernelError`] when a slice does not fit the shape; nothing is written.
pub fn attention_gradient(
    shape: &AttentionShape,
    input: &[f32],
    output: &[f32],
    log_sums: &[f32],
    output_gradient: &[f32],
    input_gradient: &mut [f32],
) -> Result<(), KernelError> {
    shape.check()?;
    check_len("input", input.len(), shape.input_len())?;
    check_len("output", output.len(), shape.output_len())?;
    check_len("log sums", log_sums.len(), shape.log_sums_len())?;
    check_len("output gradient", output_gradient.len(), shape.output_len())?;
    check_len("input gradient", input_gradient.len(), shape.input_len())?;
    let (context, width, heads) = (shape.context, shape.width(), shape.heads);
    input_gradient
        .par_chunks_mut(context * 3 * width)
        .zip(input.par_chunks(context * 3 * width))
        .zip(output.par_chunks(context * width).zip(output_gradient.par_chunks(context * width)))
        .zip(log_sums.par_chunks(context * heads))
        .try_for_each(|(((gradient, input), (output, output_gradient)), log_sums)| {
            gradient.fill(0.0);
            (0..heads).try_for_each(|number| {
                let head = Head { shape, input, number };
                let kept = Kept { output, output_gradient, log_sums };
                let mut tiles = shape.tiles(context);
                tiles.try_for_each(|queries| backward_tile(&head, queries, &kept, gradient))
            })
        })
}

/// What the backward pass reads of a sequence beside queries, keys and values.
struct Kept<'a> {
    output: &'a [f32],
    output_gradient: &'a [f32],
    log_sums: &'a [f32],
}

/// What a tile of queries adds to the gradients, for one head.
fn backward_tile(
    head: &Head<'_>,
    queries: Tile,
    kept: &Kept<'_>,
    gradient: &mut [f32],
) -> Result<(), KernelError> {
    let (arch, shape) = (Arch::new(), head.shape);
    let (width, head_width, scale) = (shape.width(), shape.head_width, shape.scale());
    let start = queries.first * width + head.column();
    let (output, above) = (&kept.output[start..], &kept.output_gradient[start..]);
    let output_gradient = MatrixRef::block(above, queries.len, head_width, width)?;
    // Of each query, the product of its output and that output's gradient.
    let mut products = [0.0; TILE];
    for (row, product) in products[..queries.len].iter_mut().enumerate() {
        let at = row * width;
        *product = sum(head_width, |feature| output[at + feature] * above[at + feature]);
    }
    let (mut weights, mut gradients) = ([0.0; TILE * TILE], [0.0; TILE * TILE]);
    for keys in shape.tiles(queries.first + queries.len) {
        head.products(queries, keys, &mut weights)?;
        let mut product = MatrixMut::block(&mut gradients[..], queries.len, keys.len, TILE)?;
        let values = head.part(Part::Values, keys)?.transposed();
        sgemm(output_gradient, values, &mut product, false)?;
        arch.dispatch(
            #[inline(always)]
            || {
                for row in 0..queries.len {
                    let token = queries.first + row;
                    let log_sum = kept.log_sums[token * shape.heads + head.number];
                    let seen = seen(queries, keys, row);
                    let (weights, hidden) = weights[row * TILE..][..keys.len].split_at_mut(seen);
                    let (gradients, hidden_gradients) =
                        gradients[row * TILE..][..keys.len].split_at_mut(seen);
                    for (weight, gradient) in weights.iter_mut().zip(gradients) {
                        *weight = exp(*weight * scale - log_sum);
                        *gradient = *weight * (*gradient - products[row]) * scale;
                    }
                    hidden.fill(0.0);
                    hidden_gradients.fill(0.0);
                }
            },
        );
        let weights = MatrixRef::block(&weights[..], queries.len, keys.len, TILE)?;
        let gradients = MatrixRef::block(&gradients[..], queries.len, keys.len, TILE)?;
        let mut to = head.part_mut(gradient, Part::Values, keys)?;
        sgemm(weights.transposed(), output_gradient, &mut to, true)?;
        let mut to = head.part_mut(gradient, Part::Queries, queries)?;
        sgemm(gradients, head.part(Part::Keys, keys)?, &mut to, true)?;
        let mut to = head.part_mut(gradient, Part::Keys, keys)?;
        sgemm(gradients.transposed(), head.part(Part::Queries, queries)?, &mut to, true)?;
    }
    Ok(())
}
