//! The CUDA device of a program that was built with it. Nothing outside this folder calls the driver.

pub(crate) mod code;
pub(crate) mod context;
mod contexts;
pub(crate) mod device;
pub(crate) mod event;
mod graph;
mod peers;
pub(crate) mod pinned;
mod presence;
mod ranges;
mod staging;

pub use device::Cuda;
pub use event::Event;
pub use graph::Graph;
