//! The programs on CUDA, on the stand-in driver.

mod cnn_reference;
mod cuda_cnn;
mod cuda_examples;

use arena_testing::{open_nvrtc, skip};
use cuda_standin::Standin;

/// The stand-in, with NVRTC for the kernels.
fn standin() -> Option<Standin> {
    let standin = Standin::load().unwrap();
    if open_nvrtc(cudarc::driver::sys::CUDA_VERSION) {
        return Some(standin);
    }
    skip("NVRTC is not installed; scripts/kernels.sh installs it");
    None
}
