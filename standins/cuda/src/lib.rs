//! A stand-in for the CUDA driver on host memory, for tests on machines without a GPU.
//!
//! The shared library exports the driver's functions (`cuInit`, `cuMemAlloc_v2`, ...), so that real cudarc, and what is
//! built on it, runs unchanged. [`Standin`] opens it and steers it: how many devices there are, in which order streams
//! run, which call fails, what was leaked. See the crate's README for what it does and does not do.
//!
//! ```no_run
//! use cuda_standin::Standin;
//!
//! let standin = Standin::load().expect("the stand-in is built");
//! // From here on, `cudarc::driver::CudaContext::new(0)` works on host memory.
//! standin.reset(7);
//! assert_eq!(standin.calls("cuMemAlloc_v2"), 0);
//! ```

mod abi;
mod address_space;
mod api;
mod capture;
mod context;
pub mod control;
mod control_ffi;
mod copy;
mod device;
mod driver;
mod error_names;
mod faults;
mod graph;
mod image;
mod leaks;
mod managed;
mod memory;
mod module;
mod pool;
mod ptx;
mod raw;
mod real_driver;
mod schedule;
mod settings;
mod stream;
mod symbols;
mod table;
mod vmm;
mod work;

pub use control::{Addresses, LoadError, Mode, Standin, Threads};
pub use leaks::Leaks;
pub use memory::FRESH_WORD;
pub use real_driver::{NEEDS_STANDIN, REAL_DRIVER};

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
