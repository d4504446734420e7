//! The same tests on the machine's own driver.

/// The environment variable that, set to 1, runs tests on the machine's own driver.
pub const REAL_DRIVER: &str = "ARENA_REAL_DRIVER";

/// How the message of a test begins that ends on a real driver because it needs the stand-in.
pub const NEEDS_STANDIN: &str = "only the stand-in has";

pub(crate) fn is_asked_for() -> bool {
    std::env::var_os(REAL_DRIVER).is_some_and(|value| value == "1")
}
