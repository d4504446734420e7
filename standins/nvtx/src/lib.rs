//! A stand-in for NVTX: it remembers which ranges a program began and ended, and a test reads them.
//!
//! [`Recorder::load`] opens the shared library, so that a later `dlopen("libnvToolsExt.so")` of the same process finds
//! it. Only `nvtxRangeStartA` and `nvtxRangeEnd` are there.

mod library;
mod recorder;

pub use recorder::{Call, LoadError, Recorder};
