//! Plans the offsets of a step's buffers, so that the step fits into the bytes that are live at once.
//!
//! A bump arena needs the *sum* of a step's buffers. But a step repeats: its sizes, births and deaths are
//! known after one run, and offsets can be solved for once. The most bytes that are live at once are a
//! lower bound for every plan; on recorded training steps the solver reaches it, which proves the plan
//! optimal.
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
//! Two functions tie it to an arena: [`trace_of`] reads what an arena recorded, [`slot_table`] turns a plan
//! into what an arena replays; [`PlannedStep`] does both. The solver itself knows nothing of arenas and
//! devices. Everything here is deterministic for a seed, as long
//! as no time limit strikes and one thread searches.
//!
//! | module | idea |
//! |---|---|
//! | [`Trace`], [`formats`] | where a step comes from: a recorder or a file |
//! | [`PlannedStep`] | from an arena's record to a plan that it replays |
//! | [`AutoPlan`] | the same by itself, while the loop runs |
//! | [`Instance`], [`Sections`] | what is to be planned, and its compressed time |
//! | [`lower_bound`] | what no plan can stay below |
//! | [`solve()`] | the stages, from microseconds to a search |
//! | [`validate()`] | the independent judge that every plan passes |
//! | [`Plan`] | what is saved and replayed |
//! | [`draw()`] | a picture of a step, bumped and planned |
//! | [`generate`] | hard instances with a known optimum, for measuring |
#![forbid(unsafe_code)]

mod auto;
mod bound;
mod draw;
pub mod formats;
pub mod generate;
mod greedy;
mod instance;
mod packing;
mod plan;
mod record;
mod restarts;
mod search;
mod sections;
mod skyline;
mod solve;
mod trace;
mod validate;

pub use auto::{AutoPlan, BackgroundPlanner, PATIENCE};
pub use bound::{Bound, lower_bound};
pub use draw::draw;
pub use instance::{Buffer, Instance, InstanceError};
pub use plan::{Plan, PlanError};
pub use record::{PlannedStep, StepError, slot_table, trace_of};
pub use sections::Sections;
pub use solve::{Options, Solution, Stage, solve};
pub use trace::{Trace, TraceError};
pub use validate::{Violation, validate, validate_peak};
