//! Planning: one test program for all of it.

mod draw;
mod formats;
mod limits;
mod optimum;
mod plans;
#[cfg(feature = "cli")]
mod program;
mod programs;
mod public_instances;
mod replay;
mod seeds;
mod steps;
