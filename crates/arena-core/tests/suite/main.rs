//! The devices and what lies on them: one test program for all of it.

mod conformance;
mod device_conformance;
mod devices;
mod fills;
mod hooked;
mod hostile;
mod limits;
mod steps;

#[cfg(feature = "_cuda")]
mod cuda_blas;
#[cfg(feature = "_cuda")]
mod cuda_buffers;
#[cfg(feature = "_cuda")]
mod cuda_copies;
#[cfg(feature = "_cuda")]
mod cuda_device;
#[cfg(feature = "_cuda")]
mod cuda_no_driver;
#[cfg(feature = "_cuda")]
mod cuda_no_nvtx;
#[cfg(feature = "_cuda")]
mod cuda_uses;
