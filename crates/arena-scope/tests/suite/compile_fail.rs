//! Promise 1: what would use memory too late does not compile. The compiler's words are pinned for
//! the toolchain of this workspace; with another one set `TRYBUILD=overwrite` and read the change.

#[test]
fn what_would_use_memory_too_late_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/compile_fail/*.rs");
}
