//! What an arena with scopes holds, as small cases. Numbers such as `B019` name the scenario that a
//! case comes from: a fault that happened to somebody, with the right values.

#[macro_use]
mod common;

mod align;
mod exhaust;
mod grow;
mod model;
mod placements;
mod planned;
mod poison;
mod programs;
mod promises;
mod retain;
mod rust_soundness;
mod scope_order;
mod shuffled;
mod size;
mod stale;
mod threads;
mod use_after_reset;
mod workspaces;
