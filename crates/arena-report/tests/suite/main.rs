//! The report: one test program for all of it.

mod advise;
mod common;
mod events;
mod pages;
mod pickles;
mod program;
mod snapshots;
mod written_snapshots;
