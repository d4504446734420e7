//! The forward pass.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::{AttentionShape, Head, Part, TILE, Tile, Turned, hidden, on_diagonal};
use crate::backend::host::error::{KernelError, check_len};
use crate::backend::host::math::exp;
use crate::backend::host::product::{Aligned, Left, Product, Rows, Sizes, To, Triangle};

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
    let arch = Arch::new();
    output
        .par_chunks_mut(context * width)
        .zip(log_sums.par_chunks_mut(context * heads))
        .zip(input.par_chunks(context * 3 * width))
        .for_each(|((output, log_sums), input)| {
            output
                .par_chunks_mut(TILE * width)
                .zip(log_sums.par_chunks_mut(TILE * heads))
                .enumerate()
                .for_each(|(number, (output, log_sums))| {
                    let first = number * TILE;
                    let queries = Tile { first, len: TILE.min(context - first) };
                    for number in 0..heads {
                        let head = Head { shape, input, number };
                        arch.dispatch(Forward { head, queries, output, log_sums });
                    }
                })
        });
    Ok(())
}

/// The rows of a tile of queries, for one head.
struct Forward<'a> {
    head: Head<'a>,
    queries: Tile,
    output: &'a mut [f32],
    log_sums: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { head, queries, output, log_sums } = self;
        let shape = head.shape;
        let (width, head_width) = (shape.width(), shape.head_width);
        let rows = head.part(Part::Queries, queries);
        let mut turned = Turned::new(rows, queries, head_width, shape.scale());
        let mut scores = Aligned([0.0; TILE * TILE]);
        let mut largest = [f32::NEG_INFINITY; TILE];
        let mut sums = [0.0_f32; TILE];
        let output = &mut output[head.number * head_width..];
        for keys in shape.tiles(queries.first + queries.len) {
            let seen = on_diagonal(queries, keys, Triangle::Result);
            turned.products(simd, seen, head.part(Part::Keys, keys), keys, &mut scores);
            let rescale = weigh(queries, keys, &mut scores.0, &mut largest, &mut sums);
            if keys.first > 0 {
                for (row, rescale) in rescale[..queries.len].iter().enumerate() {
                    for value in &mut output[row * width..][..head_width] {
                        *value *= rescale;
                    }
                }
            }
            Product {
                sizes: Sizes { rows: queries.len, depth: keys.len, cols: head_width },
                triangle: on_diagonal(queries, keys, Triangle::ToRow),
                left: Left::Columns(Rows { values: &scores.0, stride: TILE }),
                right: head.part(Part::Values, keys),
                to: To { values: &mut *output, stride: width, accumulate: keys.first > 0 },
            }
            .run(simd);
        }
        for row in 0..queries.len {
            let share = 1.0 / sums[row];
            for value in &mut output[row * width..][..head_width] {
                *value *= share;
            }
            log_sums[row * shape.heads + head.number] = largest[row] + sums[row].ln();
        }
    }
}

/// Turns the scores of a tile of keys into weights, in units of `e^largest`, and adds them to the sums. Returns what the
/// units of before are in the new ones.
#[inline(always)]
fn weigh(
    queries: Tile,
    keys: Tile,
    scores: &mut [f32; TILE * TILE],
    largest: &mut [f32; TILE],
    sums: &mut [f32; TILE],
) -> [f32; TILE] {
    let rows = scores.as_chunks_mut::<TILE>().0;
    let rows = &mut rows[..keys.len];
    let before = *largest;
    for (row, scores) in rows.iter_mut().enumerate() {
        scores[..hidden(queries, keys, row)].fill(f32::NEG_INFINITY);
        for (largest, score) in largest.iter_mut().zip(scores) {
            // NaN is no larger than anything, and makes itself seen in the sum.
            *largest = if *score > *largest { *score } else { *largest };
        }
    }
    let mut rescale = [0.0; TILE];
    // The first tile finds nothing there.
    if keys.first > 0 {
        for (lane, rescale) in rescale.iter_mut().enumerate() {
            *rescale = exp(before[lane] - largest[lane]);
            sums[lane] *= *rescale;
        }
    }
    for (row, scores) in rows.iter_mut().enumerate() {
        for (lane, score) in scores.iter_mut().enumerate() {
            *score = exp(*score - largest[lane]);
        }
        scores[..hidden(queries, keys, row)].fill(0.0);
        for (sum, weight) in sums.iter_mut().zip(scores) {
            *sum += *weight;
        }
    }
    rescale
}
