//! The gradient.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::{AttentionShape, Head, Part, TILE, Tile, Turned, hidden, on_diagonal};
use crate::backend::host::error::{KernelError, check_len};
use crate::backend::host::math::{exp, sum};
use crate::backend::host::product::{Aligned, Left, Product, Rows, Sizes, Triangle};

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
    let arch = Arch::new();
    input_gradient
        .par_chunks_mut(context * 3 * width)
        .zip(input.par_chunks(context * 3 * width))
        .zip(output.par_chunks(context * width).zip(output_gradient.par_chunks(context * width)))
        .zip(log_sums.par_chunks(context * heads))
        .for_each(|(((gradient, input), (output, output_gradient)), log_sums)| {
            for number in 0..heads {
                let head = Head { shape, input, number };
                for queries in shape.tiles(context) {
                    let kept = Kept { output, output_gradient, log_sums };
                    arch.dispatch(Gradient { head, queries, kept, gradient });
                }
            }
        });
    Ok(())
}

/// What the backward pass reads of a sequence beside queries, keys and values.
struct Kept<'a> {
    output: &'a [f32],
    output_gradient: &'a [f32],
    log_sums: &'a [f32],
}

/// What a tile of queries adds to the gradients, for one head. The tiles come in order: what the first one to reach a
/// place finds there is not read.
struct Gradient<'a> {
    head: Head<'a>,
    queries: Tile,
    kept: Kept<'a>,
    gradient: &'a mut [f32],
}

impl WithSimd for Gradient<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { head, queries, kept, gradient } = self;
        let shape = head.shape;
        let (width, head_width, scale) = (shape.width(), shape.head_width, shape.scale());
        let start = head.output_start(queries);
        let (output, above) = (&kept.output[start..], &kept.output_gradient[start..]);
        let above_rows = Rows { values: above, stride: width };
        // Of each query, the product of its output and that output's gradient.
        let (mut products, mut log_sums) = ([0.0; TILE], [0.0; TILE]);
        for row in 0..queries.len {
            let at = row * width;
            let (output, above) = (&output[at..][..head_width], &above[at..][..head_width]);
            products[row] = sum([output, above], |[output, above]| output * above);
            log_sums[row] = kept.log_sums[(queries.first + row) * shape.heads + head.number];
        }
        let query_rows = head.part(Part::Queries, queries);
        let mut turned_queries = Turned::new(query_rows, queries, head_width, scale);
        let mut turned_above = Turned::new(above_rows, queries, head_width, 1.0);
        let mut weights = Aligned([0.0; TILE * TILE]);
        let mut gradients = Aligned([0.0; TILE * TILE]);
        for keys in shape.tiles(queries.first + queries.len) {
            let key_rows = head.part(Part::Keys, keys);
            let value_rows = head.part(Part::Values, keys);
            let [seen, from_row, to_row] = [Triangle::Result, Triangle::FromRow, Triangle::ToRow]
                .map(|triangle| on_diagonal(queries, keys, triangle));
            turned_queries.products(simd, seen, key_rows, keys, &mut weights);
            turned_above.products(simd, seen, value_rows, keys, &mut gradients);
            let rows = weights.0.as_chunks_mut::<TILE>().0.iter_mut();
            let rows = rows.zip(gradients.0.as_chunks_mut::<TILE>().0).take(keys.len);
            for (row, (weights, gradients)) in rows.enumerate() {
                for lane in 0..TILE {
                    weights[lane] = exp(weights[lane] - log_sums[lane]);
                    gradients[lane] = weights[lane] * (gradients[lane] - products[lane]) * scale;
                }
                let hidden = hidden(queries, keys, row);
                weights[..hidden].fill(0.0);
                gradients[..hidden].fill(0.0);
            }
            let (weights, gradients) = (
                Rows { values: &weights.0, stride: TILE },
                Rows { values: &gradients.0, stride: TILE },
            );
            let by_key = Sizes { rows: keys.len, depth: queries.len, cols: head_width };
            let by_query = Sizes { rows: queries.len, depth: keys.len, cols: head_width };
            let (weights, to_values) = (Left::Rows(weights), (Part::Values, keys));
            let (by_row, to_keys) = (Left::Rows(gradients), (Part::Keys, keys));
            let (by_column, to_queries) = (Left::Columns(gradients), (Part::Queries, queries));
            for (sizes, triangle, left, right, (part, tile)) in [
                (by_key, from_row, weights, above_rows, to_values),
                (by_key, from_row, by_row, query_rows, to_keys),
                (by_query, to_row, by_column, key_rows, to_queries),
            ] {
                // The first to reach a tile of keys are the queries on the diagonal, and of queries the first keys.
                let accumulate = match part {
                    Part::Queries => keys.first > 0,
                    Part::Keys | Part::Values => keys.first < queries.first,
                };
                let to = head.part_mut(gradient, part, tile, accumulate);
                Product { sizes, triangle, left, right, to }.run(simd);
            }
        }
    }
}
