//! Why an arena is not `Sync`, in words that the compiler prints.

/// Implemented by nothing. `Steps` and `arena-scope`'s state are `Sync` only where this trait holds, so they
/// never are. Without it the compiler would report a separate error for each private cell.
#[diagnostic::on_unimplemented(
    message = "the scopes, guards and transient buffers of an arena stay on its thread",
    label = "this would use them on another thread",
    note = "views can go to other threads: take `buffer.view()` or `buffer.view_mut()` before, and use those",
    note = "see \"What does not compile, and why\" in docs/guide.md"
)]
pub trait UsedOnSeveralThreads {}
