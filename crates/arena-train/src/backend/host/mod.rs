//! The network's arithmetic on the CPU: pure functions over `f32` slices.
//!
//! Every function gets all its memory from the caller, workspace included (each function that
//! needs one has a `..._workspace_len` companion), and writes every element of its outputs without
//! ever reading them first. None allocates on the heap, apart from what the matrix library does
//! inside its own calls (see [`library_mark`](crate::library_mark)).
//!
//! # Layout
//!
//! Images and activations are batch-major with the channels innermost: `[batch, row, column,
//! channel]`. An MNIST image has one channel, so there this is the same as channels first. The
//! weights of a convolution are `[out channel, kernel row, kernel column, in channel]`, those of a
//! linear layer `[out, in]`. A linear layer behind a convolution reads its features in the order
//! row, column, channel.
//!
//! With the channels innermost a kernel's row over an image's row is one contiguous run, so the
//! convolutions need no im2col: they read the image where it lies.
//!
//! Buffers and workspaces may lie anywhere, but the kernels are about a tenth faster where they
//! begin on a multiple of 64 bytes, so that vector loads do not straddle cache lines.
//!
//! # Threads
//!
//! Call the functions inside [`rayon::ThreadPool::install`]: joining from outside a pool allocates.
//! `threads` says into how many parts the work is cut. Each output element is computed by one part,
//! with its sum in a fixed order (the batch in index order where the sum runs over the batch), so
//! the results do not depend on `threads` or on scheduling, to the bit.
//!
//! # Instructions
//!
//! The inner loops are written once over [`pulp`]'s vectors and compiled for AVX-512, AVX2 and
//! plain code; the choice is made at run time. Sums run along vector lanes and never across them,
//! so vector widths agree to the bit wherever the processor fuses multiply and add.

//!
//! # Example
//!
//! ```
//! use arena_train::backend::host::{Activation, KernelError, LinearShape, linear_forward};
//!
//! let shape = LinearShape { batch: 2, in_features: 3, out_features: 1 };
//! let input = [1.0, 2.0, 3.0, -1.0, -2.0, -3.0];
//! let mut output = [f32::NAN; 2];
//! linear_forward(&shape, &input, &[1.0; 3], &[0.5], Activation::Relu, &mut output, 1)?;
//! assert_eq!(output, [6.5, 0.0]);
//! # Ok::<(), KernelError>(())
//! ```

mod attention;
mod conv;
mod elementwise;
mod embedding;
mod error;
mod layer_norm;
mod linear;
mod loss;
mod math;
mod optimizer;
mod product;
mod sgemm;
mod shape;
mod split;

pub use attention::{AttentionShape, attention_forward, attention_gradient};
pub use conv::{
    conv_input_gradient, conv_input_gradient_workspace_len, conv_relu_pool_forward,
    conv_relu_pool_workspace_len, conv_weight_gradient, conv_weight_gradient_workspace_len,
};
pub use elementwise::{Dropout, add, add_scaled, dropout, gelu_forward, gelu_input_gradient};
pub use embedding::{EmbeddingShape, embedding_forward, embedding_gradient};
pub use error::KernelError;
pub use layer_norm::{
    LAYER_NORM_EPSILON, LAYER_NORM_STATISTICS, layer_norm_forward, layer_norm_input_gradient,
    layer_norm_weight_gradient,
};
#[cfg(feature = "_cuda")]
pub(super) use linear::check_bias;
pub use linear::{Activation, linear_forward, linear_input_gradient, linear_weight_gradient};
pub use loss::{BatchLoss, softmax_cross_entropy, softmax_cross_entropy_gradient};
pub use optimizer::{AdamConfig, SgdConfig, adam_step, sgd_step};
pub use sgemm::{MatrixMut, MatrixRef, sgemm};
pub use shape::{ConvShape, LinearShape};
