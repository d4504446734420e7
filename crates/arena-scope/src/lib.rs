//! Scopes for training steps on one device region.
//!
//! A training loop has two lifetimes. Parameters live for the whole run. Activations, gradients, workspaces and
//! staging buffers die when the step ends. So an [`Arena`] takes one region, puts persistent buffers at its
//! bottom, and sets *the mark* where they end. Each [`Scope`] places its buffers above the mark by moving a
//! cursor, and moves the cursor back when it closes. A buffer has the lifetime of its scope, so a program that
//! uses a buffer after its scope does not compile.
//!
//! An arena does not suit steps that free buffers one by one in an order that changes from step to step. The
//! bump reuses no byte before its scope closes, and a plan reuses bytes only where a step repeats another.
//!
//! ```
//! use arena_scope::{Arena, ByteSize, Host};
//!
//! let mut arena = Arena::builder(Host::new()).capacity(ByteSize::mib(1)).build()?;
//! let weights = arena.persistent_from(&[0.5_f32; 800])?;
//! arena.mark()?;                                        // scopes start above these 3200 bytes
//!
//! for step in 0..3_u8 {
//!     let sum = arena.scope(|scope| {
//!         let x = scope.upload(&[f32::from(step); 800])?;
//!         let mut y = scope.alloc::<f32>(1)?;
//!         y.as_mut_slice()[0] = x.as_slice().iter().zip(weights.as_slice()).map(|(x, w)| x * w).sum();
//!         assert_eq!(scope.stats().used_bytes, 6660);   // 3328 + 3200 rounds up to 6656, plus 4
//!         scope.read_one(y.view())                      // results leave as host values
//!     })?;
//!     assert_eq!(sum, 400.0 * f32::from(step));
//!     assert_eq!(arena.stats().used_bytes, 3200);       // back at the mark
//! }
//! # arena_scope::Ok(())
//! ```
//!
//! | a CPU arena has | here it is |
//! |---|---|
//! | a chunk from `malloc` | the region, obtained once; it never moves, and grows only if it is [`RegionKind::Virtual`] |
//! | a reference `&'a T` | [`Transient`], an address and a length on any device |
//! | `reset(&mut self)` | the end of a [`Scope`]; scopes nest |
//! | no `Drop` | the bump reuses nothing when a buffer is dropped. A plan does: it gives the bytes of a dropped buffer to a later one, so drop early what you no longer need |

#![deny(unsafe_code)]

mod arena;
#[cfg(feature = "_cuda")]
mod external;
mod fence;
mod graph;
mod growth;
mod guard;
mod kinds;
mod observer;
mod options;
mod parameter_block;
mod planner;
mod scope;
#[cfg(feature = "_cuda")]
mod session;
#[cfg(feature = "_cuda")]
mod slots;
mod state;
mod steady_state;
mod step_buffer;
mod step_bump;
mod step_key;
mod workspace;

pub use arena::{Arena, ArenaBuilder};
pub use graph::StepGraph;
pub use guard::Guard;
pub use options::ScopeOptions;
pub use parameter_block::{BlockLayout, ParameterBlock, PartId};
pub use scope::Scope;
pub use step_buffer::StepBuffer;
pub use step_key::StepKey;

#[cfg(feature = "_cuda")]
pub use arena_core::cudarc;
pub use arena_core::{
    Alignment, ByteSize, Capacity, Cuda, Device, Error, ErrorKind, Host, HostVisible, Keep,
    Persistent, Placement, Pod, Pressure, Probe, RegionKind, Reset, Stats, Status, Transient, View,
    ViewMut,
};
pub use arena_core::{device, layout};
pub use bumpalo;

/// For programs with CUDA code: the arena's buffers as arguments of cudarc's calls, cuBLAS in the memory of the
/// arena, input slots, results that are read later, and a session for programs that exist.
///
/// What is lent to code that takes cudarc's slices dies with its scope like every buffer:
///
/// ```compile_fail
/// # use arena_scope::{Arena, ByteSize, Cuda};
/// # let mut arena = Arena::builder(Cuda::new(0).unwrap()).capacity(ByteSize::mib(1)).build().unwrap();
/// let mut late = None;
/// arena.scope(|step| {
///     let x = step.alloc::<f32>(4)?;
///     late = Some(x.view().lend()?); // does not compile: `x` does not live long enough
///     arena_scope::Ok(())
/// });
/// println!("{}", late.unwrap().len());
/// ```
#[cfg(feature = "_cuda")]
pub mod cuda {
    pub use crate::session::{
        Session, SessionLent, SessionLentMut, SessionSlice, SessionStep, SessionView,
        SessionViewMut,
    };
    pub use arena_core::cuda::*;
}

/// The types inside an [`Error`]: the facts of the kinds that have a separate type.
pub mod errors {
    pub use arena_core::{
        BadAlignment, Cause, DeviceError, DeviceErrorKind, Exhausted, GuardZone, Holder, LimitedBy,
        ParseByteSizeError, PlanFacts, RecordFacts, Repeats, ScopeFacts, ScopeId, Shortage,
        SlotTableError,
    };
}

/// Plans: offsets for the buffers of a step that are chosen before it runs, and deviations from them.
///
/// `arena-plan` makes them.
pub mod plan {
    pub use crate::planner::Planner;
    pub use arena_core::{DeviationKind, DeviationSite, Deviations, PlannedSlot, SlotTable};
}

/// What a step did: its signature, and the record of its requests.
pub mod record {
    pub use crate::arena::RunDemand;
    pub use arena_core::{LastUse, RecordedRequest, StepEvent, StepLog, StepSignature};
}

/// The steady state: whether each step of a loop repeats the first step of its kind.
pub mod steady {
    pub use crate::growth::{Again, Growth};
    pub use crate::steady_state::{Divergence, DivergenceAt, NotSteady, SteadyState, StepKind};
}

/// Floats of 16 bits, [`f16`](half::f16) and [`bf16`](half::bf16), which buffers can hold.
///
/// ```
/// use arena_scope::half::bf16;
/// use arena_scope::{Arena, ByteSize, Host, Transient};
///
/// let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
/// let weights = arena.persistent_from(&[bf16::from_f32(0.5); 100])?;
/// assert_eq!(arena.stats().used_bytes, 200);
/// arena.scope(|step| {
///     let mut y: Transient<bf16> = step.alloc_zeroed(100)?;
///     y.view_mut().copy_from(weights.view())?;
///     assert_eq!(y.as_slice()[99].to_f32(), 0.5);
///     arena_scope::Ok(())
/// })?;
/// # arena_scope::Ok(())
/// ```
#[cfg(feature = "half")]
pub use arena_core::half;

/// Complex numbers, which buffers can hold.
///
/// ```
/// use arena_scope::num_complex::Complex;
/// use arena_scope::{Arena, ByteSize, Host};
///
/// let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
/// arena.scope(|step| {
///     let x = step.upload(&[Complex::new(0.0_f32, 1.0); 8])?;
///     assert_eq!(x.as_slice()[7] * x.as_slice()[0], Complex::new(-1.0, 0.0));
///     arena_scope::Ok(())
/// })?;
/// # arena_scope::Ok(())
/// ```
#[cfg(feature = "num-complex")]
pub use arena_core::num_complex;

/// The names that a training loop needs: `use arena_scope::prelude::*;`.
///
/// [`Ok`](crate::Ok) is not in it: it would hide the `Ok` of patterns.
pub mod prelude {
    pub use crate::{
        Arena, ByteSize, Device, Error, Guard, Host, HostVisible, Persistent, Reset, Scope,
        ScopeOptions, StepBuffer, StepKey, Transient, View, ViewMut,
    };
}

/// `Ok` with the error type [`Error`], for the end of a scope's closure. Rust cannot infer the error type of a
/// closure that only uses `?`.
///
/// ```
/// # use arena_scope::{Arena, ByteSize, Host};
/// let mut arena = Arena::builder(Host::new()).capacity(ByteSize::kib(4)).build()?;
/// arena.scope(|step| {
///     step.alloc::<f32>(4)?;
///     arena_scope::Ok(())
/// })?;
/// assert_eq!(arena.stats().used_bytes, 0);
/// # arena_scope::Ok(())
/// ```
///
/// # Errors
///
/// None.
#[expect(non_snake_case, reason = "it stands where `Ok` would")]
pub const fn Ok<T>(value: T) -> Result<T, Error> {
    Result::Ok(value)
}

/// The code in the README of this crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
