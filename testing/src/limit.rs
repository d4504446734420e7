//! A test that would never end.

use std::io::Write;
use std::process;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// Ends the process when it is not dropped in time. Made by [`time_limit`].
#[derive(Debug)]
pub struct TimeLimit {
    _open: Sender<()>,
}

/// Ends this process, and so fails all its tests, unless the value is dropped within the time: for a test whose failure
/// could be that it waits for ever.
#[must_use]
pub fn time_limit(time: Duration) -> TimeLimit {
    let test = thread::current().name().unwrap_or("a test").to_owned();
    let (open, closed) = channel();
    thread::spawn(move || {
        if closed.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
            // Not by `eprintln!`, which the harness keeps until the test ends.
            let _ = writeln!(std::io::stderr(), "{test} does not end within {time:?}");
            process::exit(1);
        }
    });
    TimeLimit { _open: open }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    #[ignore = "run by the next test"]
    fn sleeps() {
        drop(time_limit(Duration::from_millis(1)));
        // The limit that was dropped has no effect.
        thread::sleep(Duration::from_millis(20));
        let _limit = time_limit(Duration::from_millis(50));
        thread::sleep(HOUR);
    }

    #[test]
    fn a_test_that_does_not_end_ends_with_its_process() {
        let mut command = Command::new(env::current_exe().unwrap());
        let output =
            command.args(["limit::tests::sleeps", "--exact", "--ignored"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(output.stderr, b"limit::tests::sleeps does not end within 50ms\n");
    }
}
