//! Two networks, an MNIST CNN and a decoder of text, trained inside scopes of one arena: the library behind the program.
//!
//! Every buffer of the loop lies in one region. Parameters, their gradients and the optimizer's state
//! are persistent; everything else dies with its step. From bottom to top: [`data`], the kernels of
//! each [`backend`], the [`layers`], the networks ([`model`], [`decoder`]), and the loop in [`training`], which
//! knows them as a [`network`].

pub mod backend;
pub mod checkpoint;
pub mod cli;
pub mod data;
pub mod decoder;
pub mod error;
pub mod feed;
pub mod heap;
pub mod init;
pub mod launch;
pub mod layers;
pub mod library_mark;
pub mod model;
pub mod network;
pub mod optimizer;
pub mod parameters;
pub mod planning;
pub mod processes;
pub mod progress;
pub mod saving;
pub mod signals;
pub mod summary;
pub mod training;
