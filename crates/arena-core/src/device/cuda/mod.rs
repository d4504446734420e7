//! The CUDA device.
//!
//! With one of the `cuda` features [`Cuda`] is a device on a stream of its own; libraries are found
//! when the program runs. Without, the type is there all the same, and making one is a plain error, so
//! that no caller needs to know how it was built.

#[cfg(not(feature = "_cuda"))]
mod disabled;
#[cfg(feature = "_cuda")]
pub(crate) mod enabled;

#[cfg(not(feature = "_cuda"))]
pub use disabled::Cuda;
#[cfg(feature = "_cuda")]
pub use enabled::{Cuda, Event, Graph};
