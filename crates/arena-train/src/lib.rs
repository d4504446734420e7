//! Training of a small convolutional network on MNIST: the data, the arithmetic, the loop.

pub mod backend;
pub mod data;
pub mod init;
pub mod library_mark;
