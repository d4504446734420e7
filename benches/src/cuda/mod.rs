//! A training step's requests on a CUDA device, from this arena and from the driver.
//!
//! What is compared is memory management alone: the requests, their sizes, order and drops are those
//! of one training step of the CNN, and where the network would launch kernels each buffer is filled
//! once on the stream. At its end each step waits for the stream, as a step that reads its loss does.

mod allocators;
mod graph;
mod measure;
mod requests;

pub use allocators::{Clock, DeviceAllocator, DriverAsync, DriverSync, Watermark};
pub use graph::Graph;
pub use measure::{Figures, Spread, measure};
pub use requests::{Request, Requests};
