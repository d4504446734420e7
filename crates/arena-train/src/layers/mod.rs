//! The layers: each allocates from the scope and hands views to the backend.
//!
//! A layer owns its parameters and nothing else. What its backward pass needs, it returns to the
//! caller, who owns it and drops it as early as it can.

mod conv;
mod linear;
mod loss;

pub use conv::{Conv, Pooled};
pub use linear::Linear;
pub use loss::{Loss, loss, loss_and_gradient};
