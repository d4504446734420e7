//! Convolution, bias, ReLU and 2x2 max-pool as one operation, forward and backward.
//!
//! The activation before the pool is never stored. The backward pass needs of it only which of a
//! window's four elements won, and whether it was positive: one byte for each pooled element, the
//! *route*: 0 to 3 in the order top left, top right, bottom left, bottom right, or
//! [`CLOSED`] where ReLU lets no gradient through.
//!
//! At most one in four elements of the gradient before the pool gets one. Both gradient kernels
//! use that: they walk over the open routes and skip the rest, which cuts their arithmetic to
//! less than a quarter of the dense product's.

mod forward;
mod input_gradient;
mod routes;
mod weight_gradient;

pub use forward::{conv_relu_pool_forward, conv_relu_pool_workspace_len};
pub use input_gradient::{conv_input_gradient, conv_input_gradient_workspace_len};
pub use weight_gradient::{conv_weight_gradient, conv_weight_gradient_workspace_len};

/// The route of a pooled element that passes no gradient.
pub(super) const CLOSED: u8 = 4;

#[cfg(test)]
mod tests {
    use pulp::{Arch, Scalar, Simd, WithSimd};

    use super::forward::{Forward, PackWeights};
    use super::input_gradient::{InputGradient, part_workspace_len};
    use super::routes::ENTRY_LEN;
    use super::weight_gradient::{PartLens, WeightGradient};
    use crate::backend::host::shape::ConvShape;
    use crate::init::he_uniform;

    /// Which code to run: the processor's widest, or one that it would not choose by itself.
    #[derive(Clone, Copy)]
    enum Width {
        Widest,
        #[cfg(target_arch = "x86_64")]
        Avx2(pulp::x86::V3),
        Scalar,
    }

    impl Width {
        fn run(self, work: impl WithSimd<Output = ()>) {
            match self {
                Self::Widest => Arch::new().dispatch(work),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2(simd) => Simd::vectorize(simd, work),
                Self::Scalar => Simd::vectorize(Scalar, work),
            }
        }
    }

    fn random(stream: u64, len: usize) -> Vec<f32> {
        let mut values = vec![0.0; len];
        he_uniform(1, stream, 6, 1.0, &mut values);
        values
    }

    /// Output, weight gradient, bias gradient and input gradient, with all memory NaN before.
    fn run(shape: &ConvShape, width: Width) -> [Vec<f32>; 4] {
        let nan = |len: usize| vec![f32::NAN; len];
        let (x, w) = (random(0, shape.input_len()), random(1, shape.weight_len()));
        let (b, dy) = (random(2, shape.out_channels), random(3, shape.output_len()));

        let (mut packed, mut y) = (nan(shape.weight_len()), nan(shape.output_len()));
        let mut routes = vec![0xFF; shape.output_len()];
        width.run(PackWeights { shape, weight: &w, packed: &mut packed });
        width.run(Forward {
            shape,
            input: &x,
            packed: &packed,
            bias: &b,
            output: &mut y,
            routes: &mut routes,
        });

        let lens = PartLens::new(shape, shape.out_channels);
        let (mut list, mut bias_partial) = (nan(lens.list), nan(lens.bias));
        let (mut images, mut sums) = (nan(lens.images), nan(lens.sums));
        let (mut dw, mut db) = (nan(shape.weight_len()), nan(shape.out_channels));
        width.run(WeightGradient {
            shape,
            first_channel: 0,
            input: &x,
            routes: &routes,
            output_gradient: &dy,
            weight_gradient: &mut dw,
            bias_gradient: &mut db,
            lists: bytemuck::cast_slice_mut(&mut list),
            bias_partial: &mut bias_partial,
            images: &mut images,
            sums: &mut sums,
        });

        let mut dx = Vec::new();
        if shape.in_channels > 1 {
            dx = nan(shape.input_len());
            let mut workspace = nan(part_workspace_len(shape));
            let (list, ends) = workspace.split_at_mut(shape.out_image_len() * ENTRY_LEN);
            width.run(InputGradient {
                shape,
                weight: &w,
                routes: &routes,
                output_gradient: &dy,
                input_gradient: &mut dx,
                list: bytemuck::cast_slice_mut(list),
                ends: bytemuck::cast_slice_mut(ends),
            });
        }
        [y, dw, db, dx]
    }

    #[test]
    fn every_vector_width_computes_the_same() {
        for (in_channels, kernel, side) in [(1, 5, 12), (32, 5, 8), (16, 3, 10), (1, 9, 12)] {
            let shape = ConvShape {
                batch: 3,
                in_rows: side,
                in_cols: side,
                in_channels,
                out_channels: 64,
                kernel,
            };
            shape.check().unwrap();
            let widest = run(&shape, Width::Widest);
            #[cfg(target_arch = "x86_64")]
            if let Some(simd) = pulp::x86::V3::try_new() {
                // Both fuse multiply and add, so not a bit differs.
                assert!(run(&shape, Width::Avx2(simd)) == widest, "{shape:?}");
            }
            // Plain code rounds twice, so it agrees only within the rounding error.
            for (scalar, widest) in run(&shape, Width::Scalar).iter().zip(&widest) {
                let scale = widest.iter().fold(1.0_f32, |scale, value| scale.max(value.abs()));
                assert!(scale.is_finite());
                for (scalar, widest) in scalar.iter().zip(widest) {
                    assert!((scalar - widest).abs() <= 1e-5 * scale, "{scalar} {widest}");
                }
            }
        }
    }
}
