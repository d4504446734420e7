//! Ranks: one test program for all of it.

mod local;
