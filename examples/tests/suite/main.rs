//! The programs on CUDA, on the stand-in driver.

mod cnn_reference;
mod cuda_cnn;
