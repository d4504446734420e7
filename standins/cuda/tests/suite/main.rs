//! The stand-in through cudarc: one test program for all of it.

#[macro_use]
mod common;

mod capture;
mod context_events;
mod instructions;
mod managed;
mod matrix_products;
mod network_kernels;
mod nvrtc;
mod ordering;
mod races;
mod readme;
mod refusals;
mod settings;
mod single_instructions;
mod two_devices;
mod virtual_memory;
