//! The CUDA device.
//!
//! With one of the `cuda` features, [`Cuda`] is a device with its own stream; libraries are found when the
//! program runs. Without such a feature a type of the same name exists whose constructor always returns an
//! error. It has `new`, `device_count`, `with_ranges` and `memory`, and can be the device of an arena, so a
//! program that only chooses a device compiles in both cases. Everything that names a type of cudarc
//! (streams, contexts, graphs, the module `cuda`) exists only with a feature.

#[cfg(not(feature = "_cuda"))]
mod disabled;
#[cfg(feature = "_cuda")]
pub(crate) mod enabled;

#[cfg(not(feature = "_cuda"))]
pub use disabled::Cuda;
#[cfg(feature = "_cuda")]
pub use enabled::{Cuda, CudaMemory, Event, External, Graph};
