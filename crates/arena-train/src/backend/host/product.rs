//! Products of small matrices where they lie: nothing is packed, and nothing is allocated.
//!
//! For matrices that are in the cache already, such as the tiles of [`attention`](super::attention). Larger ones are
//! faster packed, with [`sgemm`](super::sgemm()).

use pulp::{Simd, WithSimd};

/// Vectors that a block of the result is wide.
const VECTORS: usize = 2;

/// An array that begins with a cache line: a vector that lies in two of them takes two loads.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Aligned<const LEN: usize>(pub(super) [f32; LEN]);

/// Rows of a matrix, of which one begins `stride` elements behind the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) values: &'a [f32],
    pub(super) stride: usize,
}

/// The left one of two factors.
#[derive(Debug, Clone, Copy)]
pub(super) enum Left<'a> {
    /// A matrix with these rows.
    Rows(Rows<'a>),
    /// A matrix with these columns.
    Columns(Rows<'a>),
}

/// Rows and columns of the result, and the terms of each sum.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) rows: usize,
    pub(super) depth: usize,
    pub(super) cols: usize,
}

/// What of a product is there at all, where its matrices are tiles on the diagonal of larger ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Triangle {
    /// All of it.
    Whole,
    /// Nobody needs the elements of the result whose column is below their row: some are not written.
    Result,
    /// The left factor has 0 where the term is below the row.
    FromRow,
    /// The left factor has 0 where the term is above the row.
    ToRow,
}

/// Where the result goes: rows like those of [`Rows`].
#[derive(Debug)]
pub(super) struct To<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) stride: usize,
    /// Whether the result is added to what is there. Else nothing is read.
    pub(super) accumulate: bool,
}

/// `to = left * right`, each sum in the order of its terms.
///
/// Panics where a matrix is smaller than the sizes say.
#[derive(Debug)]
pub(super) struct Product<'a> {
    pub(super) sizes: Sizes,
    pub(super) triangle: Triangle,
    pub(super) left: Left<'a>,
    pub(super) right: Rows<'a>,
    pub(super) to: To<'a>,
}

impl Product<'_> {
    /// Runs it in a function of its own: inlined, each call would have all the blocks' code.
    #[inline(always)]
    pub(super) fn run<S: Simd>(self, simd: S) {
        simd.vectorize(self);
    }
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // A block of R rows and V vectors holds R x V sums, and needs V + 1 registers more.
        if S::REGISTER_COUNT >= 32 {
            self.all::<S, 8>(simd);
        } else {
            self.all::<S, 4>(simd);
        }
    }
}

impl Product<'_> {
    #[inline(always)]
    fn all<S: Simd, const ROWS: usize>(mut self, simd: S) {
        let whole = self.sizes.rows / ROWS * ROWS;
        for row in (0..whole).step_by(ROWS) {
            self.rows::<S, ROWS>(simd, row);
        }
        for row in whole..self.sizes.rows {
            self.rows::<S, 1>(simd, row);
        }
    }

    #[inline(always)]
    fn rows<S: Simd, const ROWS: usize>(&mut self, simd: S, row: usize) {
        let depth = self.sizes.depth;
        let (from, end) = match self.triangle {
            Triangle::FromRow => (row.min(depth.saturating_sub(1)), depth),
            Triangle::ToRow => (0, depth.min(row + ROWS)),
            Triangle::Whole | Triangle::Result => (0, depth),
        };
        let terms = end - from;
        match self.left {
            Left::Rows(Rows { values, stride }) => {
                let rows: [&[f32]; ROWS] =
                    std::array::from_fn(|at| &values[(row + at) * stride + from..][..terms]);
                self.blocks::<S, ROWS>(
                    simd,
                    row,
                    (from, terms),
                    #[inline(always)]
                    |term| rows.each_ref().map(|row| &row[term]),
                );
            }
            Left::Columns(Rows { values, stride }) => {
                let values = &values[from * stride + row..];
                self.blocks::<S, ROWS>(
                    simd,
                    row,
                    (from, terms),
                    #[inline(always)]
                    |term| values[term * stride..][..ROWS].as_array::<ROWS>().unwrap().each_ref(),
                );
            }
        }
    }

    #[inline(always)]
    fn blocks<'l, S: Simd, const ROWS: usize>(
        &mut self,
        simd: S,
        row: usize,
        terms: (usize, usize),
        left: impl Fn(usize) -> [&'l f32; ROWS],
    ) {
        let (lanes, cols) = (S::F32_LANES, self.sizes.cols);
        let mut col = 0;
        if self.triangle == Triangle::Result {
            col = row / (VECTORS * lanes) * (VECTORS * lanes);
        }
        while col + VECTORS * lanes <= cols {
            self.block::<S, ROWS, VECTORS>(simd, (row, col), VECTORS * lanes, terms, &left);
            col += VECTORS * lanes;
        }
        while col < cols {
            let len = lanes.min(cols - col);
            self.block::<S, ROWS, 1>(simd, (row, col), len, terms, &left);
            col += len;
        }
    }

    /// A block of the result: `len` columns, of which only the last vector may be short. `left` has the left factor of a
    /// term, by its number behind the first one: as references, of which each is loaded into all lanes at once.
    #[inline(always)]
    fn block<'l, S: Simd, const ROWS: usize, const WIDTH: usize>(
        &mut self,
        simd: S,
        (row, col): (usize, usize),
        len: usize,
        (from, terms): (usize, usize),
        left: impl Fn(usize) -> [&'l f32; ROWS],
    ) {
        let lanes = S::F32_LANES;
        let Rows { values, stride } = self.right;
        let right = &values[from * stride + col..];
        let mut sums = [[simd.splat_f32s(0.0); WIDTH]; ROWS];
        for term in 0..terms {
            let right = &right[term * stride..][..len];
            let right: [S::f32s; WIDTH] = if len == WIDTH * lanes {
                S::as_simd_f32s(right).0.as_chunks().0[0]
            } else {
                [simd.partial_load_f32s(right); WIDTH]
            };
            for (sums, left) in sums.iter_mut().zip(left(term)) {
                let left = simd.splat_f32s(*left);
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = simd.mul_add_e_f32s(left, right, *sum);
                }
            }
        }
        for (at, sums) in sums.iter().enumerate() {
            let to = &mut self.to.values[(row + at) * self.to.stride + col..][..len];
            if len == WIDTH * lanes {
                for (to, sum) in S::as_mut_simd_f32s(to).0.iter_mut().zip(sums) {
                    *to = if self.to.accumulate { simd.add_f32s(*to, *sum) } else { *sum };
                }
            } else {
                let mut sum = sums[0];
                if self.to.accumulate {
                    sum = simd.add_f32s(simd.partial_load_f32s(to), sum);
                }
                simd.partial_store_f32s(to, sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Left, Product, Rows, Sizes, To, Triangle};
    use pulp::{Arch, Scalar};

    fn values(len: usize, factor: usize) -> Vec<f32> {
        (0..len).map(|at| (at * factor % 23) as f32 - 11.0).collect()
    }

    /// With the widest vectors of this processor, with narrower ones, and without.
    fn run(vectors: usize, product: Product<'_>) {
        #[cfg(target_arch = "x86_64")]
        if let (1, Some(narrower)) = (vectors, pulp::x86::V3::try_new()) {
            return product.run(narrower);
        }
        if vectors == 2 { product.run(Scalar::new()) } else { Arch::new().dispatch(product) }
    }

    /// Of whole numbers: each sum is exact.
    #[test]
    fn a_product_is_that_of_its_definition_for_odd_sizes_and_triangles() {
        for (rows, depth, cols) in [(1, 1, 1), (4, 3, 16), (7, 20, 33), (17, 17, 40), (8, 9, 100)] {
            for triangle in [Triangle::Whole, Triangle::Result, Triangle::FromRow, Triangle::ToRow]
            {
                for (is_turned, accumulate) in [(false, false), (true, true)] {
                    let mut left = values(rows * depth, 7);
                    for (at, value) in left.iter_mut().enumerate() {
                        let (row, term) = (at / depth, at % depth);
                        if triangle == Triangle::FromRow && term < row
                            || triangle == Triangle::ToRow && term > row
                        {
                            *value = 0.0;
                        }
                    }
                    // Rows two elements apart, and after them elements that nobody may read or write.
                    let right = values(depth * (cols + 2), 5);
                    let mut found = values(rows * (cols + 3), 3);
                    let mut expected = found.clone();
                    for row in 0..rows {
                        for col in 0..cols {
                            let terms = (0..depth).map(|term| {
                                left[row * depth + term] * right[term * (cols + 2) + col]
                            });
                            let sum: f32 = terms.sum();
                            let to = &mut expected[row * (cols + 3) + col];
                            *to = if accumulate { *to + sum } else { sum };
                        }
                    }
                    let turned: Vec<f32> = (0..depth)
                        .flat_map(|term| (0..rows).map(move |row| (row, term)))
                        .map(|(row, term)| left[row * depth + term])
                        .collect();
                    let before = found.clone();
                    for vectors in 0..3 {
                        found.copy_from_slice(&before);
                        let product = Product {
                            sizes: Sizes { rows, depth, cols },
                            triangle,
                            left: if is_turned {
                                Left::Columns(Rows { values: &turned, stride: rows })
                            } else {
                                Left::Rows(Rows { values: &left, stride: depth })
                            },
                            right: Rows { values: &right, stride: cols + 2 },
                            to: To { values: &mut found, stride: cols + 3, accumulate },
                        };
                        run(vectors, product);
                        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                            let (row, col) = (at / (cols + 3), at % (cols + 3));
                            let needed = triangle != Triangle::Result || col >= row || col >= cols;
                            assert!(
                                !needed || found == expected,
                                "{row}, {col}: {found}, {expected}"
                            );
                        }
                    }
                }
            }
        }
    }
}
