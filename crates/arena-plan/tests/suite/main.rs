//! Planning: one test program for all of it.

mod advice;
mod draw;
mod events;
mod exact_capacity;
mod files;
mod fit;
mod formats;
mod limits;
mod never_worse;
mod optimum;
mod planned_run;
mod plans;
#[cfg(feature = "cli")]
mod program;
mod programs;
mod public_instances;
mod replay;
mod seeds;
mod steps;
mod varying_lengths;
