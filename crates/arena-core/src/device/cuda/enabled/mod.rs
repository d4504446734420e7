//! The CUDA device of a program that was built with it. Nothing outside this folder calls the driver.

pub(crate) mod code;
pub(crate) mod context;
mod contexts;
pub(crate) mod device;
pub(crate) mod event;
mod every_stream;
mod external;
mod graph;
pub(crate) mod lent_slices;
mod over;
mod peers;
pub(crate) mod pinned;
mod presence;
mod ranges;
mod staging;
mod virtual_memory;

pub use device::Cuda;
pub use event::Event;
pub use external::{CudaMemory, External};
pub use graph::Graph;
