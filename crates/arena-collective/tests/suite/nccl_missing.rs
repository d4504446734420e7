//! A machine without NCCL: nothing here loads the stand-in.

use arena_collective::{CollectiveError, Nccl};
use arena_testing::{alone, skip};

#[test]
fn without_the_library_a_plain_error_says_so() {
    alone(|| {
        // SAFETY: loading NCCL, if it is there, runs its initialisers, as any program may.
        if unsafe { arena_scope::cudarc::nccl::sys::is_culib_present() } {
            return skip("NCCL is installed");
        }
        let error = Nccl::unique_id().unwrap_err();
        let reason = "the loader finds no libnccl.so".to_owned();
        assert_eq!(error, CollectiveError::NotStarted { engine: "NCCL", reason });
    });
}
