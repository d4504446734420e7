//! The report: one test program for all of it.

mod common;
mod events;
mod pickles;
mod snapshots;
