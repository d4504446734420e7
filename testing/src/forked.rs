//! A fork of a test's process.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(code: i32) -> !;
}

/// Runs `body` on `value` in a fork of this process, and waits for its end. The fork has a copy of the value, which it
/// may drop; the caller gets its own back.
///
/// The calling test should be [`alone`](crate::alone): a fork has only the thread that made it, and locks that other
/// threads held stay locked in it.
///
/// # Panics
///
/// When the body panics there, and when there is no fork.
#[track_caller]
pub fn in_fork<T>(value: T, body: impl FnOnce(T)) -> T {
    // SAFETY: the child goes on with this thread alone, and ends by `_exit`: nothing of the test harness runs in it.
    let child = unsafe { fork() };
    assert!(child >= 0, "no fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let ended = catch_unwind(AssertUnwindSafe(|| body(value)));
        if let Err(cause) = &ended {
            let text = cause.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            // Not by `eprintln!`: the harness, which would print what that tells, is not in this process.
            let _ = writeln!(std::io::stderr(), "in the fork: {text}");
        }
        // SAFETY: it ends this process, with nothing of the parent's after it.
        unsafe { _exit(i32::from(ended.is_err())) };
    }
    let mut status = -1;
    // SAFETY: the status is an integer of this frame.
    let waited = unsafe { waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the fork did not end as it should");
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_fork_does_is_its_own_and_its_panic_is_the_test_s() {
        crate::alone(|| {
            let mut count = 1;
            let text = in_fork("one".to_owned(), |text| {
                count += 1;
                assert_eq!((text.as_str(), count), ("one", 2));
            });
            assert_eq!((text.as_str(), count), ("one", 1));
            assert!(catch_unwind(|| in_fork((), |()| panic!("on purpose"))).is_err());
        });
    }
}
