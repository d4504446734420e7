//! The CUDA device of a program that was built with it. Nothing outside this folder calls the driver.

mod blas;
mod buffers;
mod code;
mod context;
mod device;
mod event;
mod graph;
mod pinned;
mod presence;
mod ranges;
mod slots;
mod transfer;

pub use blas::Blas;
pub use device::Cuda;
pub use event::Event;
pub use graph::Graph;
pub use slots::{InputSlots, ResultQueue};
