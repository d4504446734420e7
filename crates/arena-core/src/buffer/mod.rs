//! Typed buffers in a region: who owns them, and how long.
//!
//! | type | lives | owns |
//! |---|---|---|
//! | [`Persistent`] | as long as you keep it | its bytes, and a share of the region |
//! | [`Transient`] | `'s`: until its scope closes | its bytes until then |
//! | [`View`], [`ViewMut`] | a borrow of one of them | nothing |
//!
//! All are shape-free: an address and a length in elements.

mod declare;
mod on_host;
mod part;
mod persistent;
mod transient;
mod view;
mod view_mut;

pub use persistent::Persistent;
pub use transient::Transient;
pub use view::View;
pub use view_mut::ViewMut;
