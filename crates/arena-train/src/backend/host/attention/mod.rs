//! Causal attention with several heads, in tiles: the scores of a sequence are never kept whole.
//!
//! Forward, a tile of queries meets one tile of keys after another, with the sums scaled again where a larger score
//! comes (Milakov and Gimelshein, 2018; Dao et al., 2022). What is kept is the logarithm of each query's sum of
//! exponentials. Backward, the weights of a tile are made again from it.
//!
//! A tile's scores have a row for each key. So a vector has those of several queries, and what is done to each query
//! (its largest score, its sum, what it does not see) is done to all lanes alike.

mod forward;
mod gradient;

pub use forward::attention_forward;
pub use gradient::attention_gradient;

use pulp::Simd;

use super::error::KernelError;
use super::product::{Aligned, Left, Product, Rows, Sizes, To, Triangle};

/// Queries of a tile, and keys. A whole number of vectors of any processor.
const TILE: usize = 64;

/// Features that are turned at once.
const FEATURES: usize = 64;

/// Floats of the widest vector.
const LANES: usize = 16;

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

/// The scores of a tile of keys for a tile of queries, row by row of keys.
type Scores = Aligned<{ TILE * TILE }>;

impl<'a> Head<'a> {
    /// Where the head's part of a token begins in `[context, 3, heads, head_width]`.
    fn start(&self, part: Part, tile: Tile) -> usize {
        let width = self.shape.width();
        (tile.first * 3 + part as usize) * width + self.number * self.shape.head_width
    }

    fn part(&self, part: Part, tile: Tile) -> Rows<'a> {
        Rows { values: &self.input[self.start(part, tile)..], stride: 3 * self.shape.width() }
    }

    /// The same place in the gradient.
    fn part_mut<'g>(
        &self,
        gradient: &'g mut [f32],
        part: Part,
        tile: Tile,
        accumulate: bool,
    ) -> To<'g> {
        let values = &mut gradient[self.start(part, tile)..];
        To { values, stride: 3 * self.shape.width(), accumulate }
    }

    /// Where a tile's rows of this head begin in `[context, heads, head_width]`.
    fn output_start(&self, tile: Tile) -> usize {
        tile.first * self.shape.width() + self.number * self.shape.head_width
    }
}

/// A tile's rows of features, turned: a row for each feature, in which each token of the tile has a lane.
struct Turned<'a> {
    rows: Rows<'a>,
    len: usize,
    features: usize,
    /// What the elements are multiplied by.
    scale: f32,
    /// The features from here on are turned.
    from: Option<usize>,
    values: Aligned<{ FEATURES * TILE }>,
}

impl<'a> Turned<'a> {
    fn new(rows: Rows<'a>, tile: Tile, features: usize, scale: f32) -> Self {
        let values = Aligned([0.0; FEATURES * TILE]);
        Self { rows, len: tile.len, features, scale, from: None, values }
    }

    #[inline(always)]
    fn turn(&mut self, from: usize) {
        if self.from == Some(from) {
            return;
        }
        self.from = Some(from);
        let Rows { values, stride } = self.rows;
        let count = FEATURES.min(self.features - from);
        for token in 0..self.len {
            let features = &values[token * stride + from..][..count];
            for (feature, value) in features.iter().enumerate() {
                self.values.0[feature * TILE + token] = value * self.scale;
            }
        }
    }

    /// The products of a tile of rows with these: a row for each of `rows`, a lane for each token here. Lanes behind the
    /// last token have 0. With [`Triangle::Result`] those of hidden tokens have anything.
    #[inline(always)]
    fn products<S: Simd>(
        &mut self,
        simd: S,
        triangle: Triangle,
        rows: Rows<'_>,
        tile: Tile,
        to: &mut Scores,
    ) {
        for from in (0..self.features).step_by(FEATURES) {
            self.turn(from);
            let depth = FEATURES.min(self.features - from);
            Product {
                sizes: Sizes { rows: tile.len, depth, cols: self.len.next_multiple_of(LANES) },
                triangle,
                left: Left::Rows(Rows { values: &rows.values[from..], stride: rows.stride }),
                right: Rows { values: &self.values.0, stride: TILE },
                to: To { values: &mut to.0, stride: TILE, accumulate: from > 0 },
            }
            .run(simd);
        }
    }
}

/// Which of three products' elements there are where a tile of keys is on the diagonal.
#[inline(always)]
fn on_diagonal(queries: Tile, keys: Tile, triangle: Triangle) -> Triangle {
    if keys.first == queries.first { triangle } else { Triangle::Whole }
}

/// How many queries of a tile do not see the key at `row` of its tile: those before it.
#[inline(always)]
fn hidden(queries: Tile, keys: Tile, row: usize) -> usize {
    (keys.first + row).saturating_sub(queries.first).min(TILE)
}
