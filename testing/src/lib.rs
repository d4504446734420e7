//! What the tests of several crates share.

mod forked;
mod limit;
mod nvrtc;

use std::env;
use std::io::Write;
use std::process::{Command, Stdio};

pub use forked::in_fork;
pub use limit::{TimeLimit, time_limit};
pub use nvrtc::open_nvrtc;

/// The environment variable that, set to 1, lets a test that cannot run here pass.
pub const ALLOW_SKIPS: &str = "ARENA_ALLOW_SKIPS";

/// Set in the process of a test that runs [`alone`].
const ALONE: &str = "ARENA_TEST_ALONE";

/// Says that the calling test cannot run here. The test returns after it.
///
/// # Panics
///
/// Unless [`ALLOW_SKIPS`] is 1: what was not tested must not look as if it had passed.
#[track_caller]
pub fn skip(reason: &str) {
    // Not by `eprintln!`: the test harness shows what that prints only when the test fails.
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
    let is_allowed = env::var_os(ALLOW_SKIPS).is_some_and(|value| value == "1");
    assert!(is_allowed, "this test cannot run here: {reason} ({ALLOW_SKIPS}=1 lets it pass)");
}

/// Runs the body of the calling test in a process of its own: the same test program, for this test alone.
///
/// For a body that needs a process in which no other test has loaded a library or touched memory.
///
/// # Panics
///
/// When the body panics there, and when it cannot be run.
#[track_caller]
pub fn alone<F: FnOnce()>(body: F) {
    if env::var_os(ALONE).is_some() {
        return body();
    }
    // The type of a closure is called `program::module::test::{{closure}}`.
    let closure = std::any::type_name::<F>();
    let (_program, test) = closure.split_once("::").expect("a path");
    let test = test.trim_end_matches("::{{closure}}");
    let program = env::current_exe().expect("the path of this program");
    let output = Command::new(program)
        .args([test, "--exact", "--include-ignored"])
        .env(ALONE, "1")
        .stderr(Stdio::inherit())
        .output()
        .expect("this program runs");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{test}: {told}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(test: &str, allow: Option<&str>) -> bool {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([test, "--exact", "--ignored"]).env_remove(ALLOW_SKIPS);
        command.envs(allow.map(|value| (ALLOW_SKIPS, value)));
        let output = command.output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.contains("running 1 test\n"), "{told}");
        assert_eq!(test == "tests::skips", output.stderr.starts_with(b"skipped: for this test\n"));
        output.status.success()
    }

    #[test]
    #[ignore = "run by the next test"]
    fn skips() {
        skip("for this test");
    }

    #[test]
    fn a_skip_fails_unless_the_variable_allows_it() {
        let seen = [None, Some("0"), Some("1")].map(|allow| passes("tests::skips", allow));
        assert_eq!(seen, [false, false, true]);
    }

    #[test]
    #[ignore = "run by the test after the next"]
    fn fails_alone() {
        alone(|| panic!("on purpose"));
    }

    #[test]
    #[ignore = "run by the next test"]
    fn passes_alone() {
        let parent = env::var_os(ALONE).is_none().then(std::process::id);
        alone(|| assert_eq!(parent, None, "the body runs in the child only"));
    }

    #[test]
    fn a_body_runs_in_a_process_of_its_own_and_its_failure_is_the_test_s() {
        assert!(passes("tests::passes_alone", None));
        assert!(!passes("tests::fails_alone", None));
    }
}
