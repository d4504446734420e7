//! One device region with a mark and an aligned bump pointer above it.
//!
//! This is the lower half of Watermark Arena: it decides where buffers lie ([`layout`] and the
//! zones of a region, pure arithmetic), obtains the memory ([`device`]), and hands out typed
//! buffers in it ([`Persistent`], [`Transient`] and their views). A training loop wants `arena-scope`, whose
//! scopes have lifetimes and keys; [`RawArena`] is an arena without scopes, which goes back to its mark.
//!
//! ```
//! use arena_core::{Alignment, ByteSize, Host, RawArena};
//!
//! let mut arena = RawArena::new(Host::new(), ByteSize::kib(8))?;
//! let weights = arena.persistent_from(&[0.5_f32; 25])?;          // at the bottom
//! arena.set_mark()?;                                             // they end here
//! assert_eq!(arena.stats().mark_bytes, 100);
//!
//! let mut hidden = arena.transient::<f32>(32, Alignment::DEFAULT)?;
//! hidden.view_mut().write(&[1.0; 32])?;
//! assert_eq!((hidden.offset_bytes(), arena.stats().used_bytes), (256, 256 + 128));
//! drop(hidden);
//! arena.reset_to_mark();                                         // needs `&mut`: nothing is alive
//! assert_eq!(arena.stats().used_bytes, 100);
//! assert_eq!(weights.as_slice()[24], 0.5);
//! # Ok::<(), arena_core::Error>(())
//! ```

pub mod device;
pub mod layout;

mod buffer;
mod bytes;
mod capacity;
mod committed;
#[cfg(feature = "_cuda")]
pub mod cuda;
mod demand;
mod detached;
mod error;
#[cfg(test)]
mod error_texts;
mod exhausted;
mod fence;
mod gaps;
mod holders;
mod hunting;
mod kept;
mod named;
mod one_thread;
mod ordered;
mod packed;
mod pin;
mod placement;
mod plan;
mod pressure;
mod random;
mod raw_arena;
mod region;
mod region_kind;
mod reset;
mod shortage;
mod signature;
mod spans;
mod stats;
mod step_log;
mod steps;
mod uses;
mod zones;

pub use buffer::{Persistent, Transient, View, ViewMut};
pub use bytes::{Alignment, BadAlignment, ByteSize, MAX_BYTES, ParseByteSizeError};
pub use capacity::Capacity;
pub use device::{Captures, Cuda, Device, DeviceMemory, Host, HostVisible, Probe};
pub use error::{DeviceError, DeviceErrorKind, Error, ErrorKind, GuardZone, ScopeId};
pub use exhausted::{Cause, Exhausted, Holder, PlanFacts, RecordFacts, Repeats, ScopeFacts};
pub use layout::{RowLayout, Span, bytes_of, elements_of};
pub use pin::RegionPin;
pub use placement::Placement;
pub use plan::{DeviationKind, DeviationSite, Deviations, PlannedSlot, SlotTable, SlotTableError};
pub use pressure::{OnPressure, Pressure};
pub use raw_arena::RawArena;
pub use region_kind::{Keep, RegionKind};
pub use reset::{POISON_BYTE, Reset};
pub use shortage::{LimitedBy, Shortage};
pub use signature::StepSignature;
pub use stats::{Stats, Status};
pub use step_log::{StepEvent, StepLog};
pub use uses::{LastUse, RecordedRequest};

/// What `arena-scope` is built on. No other crate may use it: it can change with every version.
#[doc(hidden)]
pub mod for_scopes {
    #[cfg(feature = "_cuda")]
    pub use crate::cuda::buffers::hand_over;
    #[cfg(feature = "_cuda")]
    pub use crate::cuda::lending::{lend, lend_mut};
    pub use crate::demand::Demand;
    pub use crate::detached::Detached;
    pub use crate::one_thread::UsedOnSeveralThreads;
    pub use crate::plan::PlanId;
    pub use crate::region::Region;
    pub use crate::region_kind::RegionOptions;
    pub use crate::steps::{FrameId, StepFigures, Steps, Watch};
}

pub use bytemuck::{Pod, Zeroable};
/// The bindings that [`Cuda`] is built on, of the version that its buffers implement the traits of.
#[cfg(feature = "_cuda")]
pub use cudarc;
/// [`f16`](half::f16) and [`bf16`](half::bf16), which buffers can hold.
#[cfg(feature = "half")]
pub use half;
/// [`Complex`](num_complex::Complex) numbers, which buffers can hold.
#[cfg(feature = "num-complex")]
pub use num_complex;

// Offsets and addresses are `u64`; slices of them need a `usize` as wide.
static_assertions::const_assert_eq!(usize::BITS, 64);

/// The code in the README of this crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
