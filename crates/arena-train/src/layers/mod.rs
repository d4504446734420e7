//! The layers: each allocates from the scope and hands views to the backend.
//!
//! A layer knows the ids of its parameters, which lie in the network's blocks, and owns nothing. What its
//! backward pass needs, it returns to the caller, who owns it and drops it as early as it can.

mod block;
mod conv;
mod embedding;
mod layer_norm;
mod linear;
mod loss;

pub use block::{Block, Kept, Pass};
pub use conv::{Conv, Pooled};
pub use embedding::Embedding;
pub use layer_norm::{LayerNorm, Normed};
pub use linear::Linear;
pub use loss::{Loss, loss, loss_and_gradient};
