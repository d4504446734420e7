//! Convolution, bias, ReLU and 2x2 max-pool as one operation, forward and backward.
//!
//! The activation before the pool is never stored. The backward pass needs of it only which of a
//! window's four elements won, and whether it was positive: one byte for each pooled element, the
//! *route*: 0 to 3 in the order top left, top right, bottom left, bottom right, or
//! [`CLOSED`] where ReLU lets no gradient through.
//!
//! At most one element in four of the gradient before the pool is not zero. Both gradient kernels
//! use that: they walk over the open routes and skip the zeros, which cuts their arithmetic to
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
