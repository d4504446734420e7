//! The arithmetic of the network, one module for each place it runs.

pub mod host;
