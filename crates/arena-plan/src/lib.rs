//! Plans the offsets of a step's buffers, so that the step fits into the bytes that are live at once.
//!
//! A bump arena needs the *sum* of a step's buffers. But a training step repeats: after one run its sizes, births
//! and deaths are known, and the offsets can be solved once. No plan can need less than the most bytes that are
//! live at one moment. On recorded training steps the solver reaches this lower bound, which proves that the
//! plan is optimal.
//!
//! ```
//! use arena_plan::{Options, Trace, solve};
//!
//! let mut step = Trace::new();
//! let activation = step.alloc(4096, 256);
//! let scratch = step.alloc(1024, 256);
//! step.free(scratch)?;
//! let gradient = step.alloc(1000, 256); // takes the place of the scratch
//! step.free(activation)?;
//! step.free(gradient)?;
//!
//! let solution = solve(&step.instance()?, &Options::default());
//! assert_eq!(solution.plan.instance().sum_bytes(), 6144); // what a bump arena needs
//! assert_eq!(solution.plan.peak_bytes(), 5120);
//! assert!(solution.is_optimal());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Two functions connect it to an arena: [`trace_of`] reads what an arena recorded, and [`slot_table`] turns a
//! plan into slots that an arena replays. [`PlannedStep`] does both. The solver itself does not know arenas or
//! devices. Equal seeds give equal results, if one thread searches and no time limit is reached.
//!
//! | module | idea |
//! |---|---|
//! | [`Trace`], [`formats`] | where a step comes from: a recorder or a file |
//! | [`PlannedStep`] | from an arena's record to a plan that it replays |
//! | [`PlannedRun`] | from a whole program to an arena of just the bytes that its planned steps need |
//! | [`Advice`] | where dropping buffers earlier would save more |
//! | [`AutoPlan`] | the same automatically, while the loop runs |
//! | [`Instance`], [`Sections`] | what is to be planned, and its compressed time |
//! | [`lower_bound`] | the bytes that every plan needs at least |
//! | [`solve()`] | the stages, from microseconds to a search |
//! | [`validate()`] | the independent judge that every plan passes |
//! | [`Plan`] | what is saved and replayed |
//! | [`draw()`] | a picture of a step, bumped and planned |
//! | [`files`] | files written whole or not at all, and read within a limit |
//! | [`generate`] | hard instances with a known optimum, for measuring |
#![forbid(unsafe_code)]

mod advice;
mod auto;
mod below_bump;
mod bound;
mod deadline;
mod draw;
mod events;
pub mod files;
pub mod formats;
pub mod generate;
mod greedy;
mod instance;
mod ladder;
mod lives;
mod on_demand;
mod packing;
mod plan;
mod planned_run;
mod record;
mod repair;
mod restarts;
mod run_planner;
mod search;
mod sections;
mod skyline;
mod solve;
mod sweep;
mod trace;
mod validate;

pub use advice::{Advice, DropAdvice, KindAdvice};
pub use auto::{AutoPlan, BackgroundPlanner, PATIENCE};
pub use bound::{Bound, lower_bound};
pub use draw::draw;
pub use events::{EventWriter, FORMAT as EVENTS_FORMAT, Lost};
pub use instance::{Buffer, Instance, InstanceError};
pub use plan::{Plan, PlanError};
pub use planned_run::{PlannedKind, PlannedRun, RunFileError, saved_plans};
pub use record::{PlannedStep, StepError, slot_table, trace_of};
pub use sections::Sections;
pub use solve::{Options, Solution, Stage, solve};
pub use trace::{Trace, TraceError};
pub use validate::{Violation, validate, validate_peak};

/// The code in the README of this crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
