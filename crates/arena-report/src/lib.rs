//! Shows who holds the memory of a training step, and whether it would fit.
//!
//! [`read`] takes the events of an arena, the traces, tables and plans that `arena-plan` reads, and the memory snapshots
//! of PyTorch. All of them become a [`Recording`] of [`Step`]s.
#![forbid(unsafe_code)]

mod advise;
mod import;
mod measure;
mod model;
mod names;
mod page;
mod pickle;
mod repetition;
mod sites;
mod snapshot_out;
mod split;

pub use advise::{Advice, AdviceError, HeldAdvice, KindAdvice, advise};
pub use import::{ImportError, parse, read};
pub use measure::{LivePeak, live_bytes, live_peak, readable, readable_need};
pub use model::{Buffer, Figures, Held, Origin, Recording, Region, Source, Step, Told};
pub use names::{NameId, Names, SiteId};
pub use page::page;
pub use pickle::{PickleError, PickleProblem};
pub use sites::{SiteFigures, sites};
pub use snapshot_out::snapshot_of;
