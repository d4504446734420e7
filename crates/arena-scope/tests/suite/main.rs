//! What an arena with scopes holds, as small cases. Numbers such as `B019` name the scenario that a
//! case comes from: a fault that happened to somebody, with the right values.

#[macro_use]
mod common;
mod heap;

#[cfg(feature = "half")]
mod half_floats;

mod align;
mod capacities;
mod causes;
#[cfg(not(feature = "_cuda"))]
// With it, rustc writes some names in full: the texts are pinned without.
mod compile_fail;
mod deferred;
mod exhaust;
mod forks;
mod grow;
mod growth;
mod hostile;
mod model;
mod needs;
mod no_heap;
mod page_faults;
mod parameter_blocks;
mod placements;
mod planned;
mod planner;
mod poison;
mod programs;
mod promises;
mod regions;
mod retain;
mod rust_soundness;
mod scenario_table;
mod scope_order;
mod shuffled;
mod sites;
mod size;
mod stale;
mod step_buffer_programs;
mod step_buffers;
mod step_memory;
mod threads;
mod use_after_reset;
mod uses;
mod workspaces;
mod written;

#[cfg(feature = "_cuda")]
mod cuda;
#[cfg(feature = "_cuda")]
mod cuda_blas;
#[cfg(feature = "_cuda")]
mod cuda_blas_lt;
#[cfg(feature = "_cuda")]
mod cuda_declared;
#[cfg(feature = "_cuda")]
mod cuda_driver_errors;
#[cfg(feature = "_cuda")]
mod cuda_external;
#[cfg(feature = "_cuda")]
mod cuda_fences;
#[cfg(feature = "_cuda")]
mod cuda_graph;
#[cfg(feature = "_cuda")]
mod cuda_lend_as;
#[cfg(feature = "_cuda")]
mod cuda_lending;
#[cfg(feature = "_cuda")]
mod cuda_neighbours;
#[cfg(feature = "_cuda")]
mod cuda_no_heap;
#[cfg(feature = "_cuda")]
mod cuda_planned;
#[cfg(feature = "_cuda")]
mod cuda_ranges;
#[cfg(feature = "_cuda")]
mod cuda_regions;
#[cfg(feature = "_cuda")]
mod cuda_scenarios;
#[cfg(feature = "_cuda")]
mod cuda_separate;
#[cfg(feature = "_cuda")]
mod cuda_session;
#[cfg(feature = "_cuda")]
mod cuda_slots;
#[cfg(feature = "_cuda")]
mod cuda_steps;
#[cfg(feature = "_cuda")]
mod cuda_teardown;
