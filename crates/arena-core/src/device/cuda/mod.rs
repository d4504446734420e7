//! The CUDA device.
//!
//! With one of the `cuda` features [`Cuda`] is a device on a stream of its own; libraries are found
//! when the program runs. Without, the type is there all the same, and making one is a plain error, so
//! that no caller needs to know how it was built.

#[cfg(not(feature = "_cuda"))]
mod disabled;
#[cfg(not(feature = "_cuda"))]
pub use disabled::Cuda;

#[cfg(feature = "_cuda")]
mod buffers;
#[cfg(feature = "_cuda")]
mod code;
#[cfg(feature = "_cuda")]
mod context;
#[cfg(feature = "_cuda")]
mod device;
#[cfg(feature = "_cuda")]
mod event;
#[cfg(feature = "_cuda")]
mod graph;
#[cfg(feature = "_cuda")]
mod presence;
#[cfg(feature = "_cuda")]
pub use device::Cuda;
#[cfg(feature = "_cuda")]
pub use event::Event;
#[cfg(feature = "_cuda")]
pub use graph::Graph;
