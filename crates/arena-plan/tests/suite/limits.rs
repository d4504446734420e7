//! Time limits and budgets are kept, with a margin of three.
//!
//! The time is that of the processor, where other programs on the machine do not count.

use std::fs;
use std::time::Duration;

use arena_plan::{Buffer, Instance, Options, Stage, solve};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use rstest::rstest;

/// Births in `0..span`, lifetimes of at most `longest`.
fn random(count: usize, span: u64, longest: u64) -> Vec<Buffer> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut buffer = || {
        let birth = random.random_range(0..span);
        let death = birth + random.random_range(1..=longest);
        Buffer::new(birth, death, random.random_range(1..=1 << 24))
    };
    (0..count).map(|_| buffer()).collect()
}

/// Every tenth buffer is fixed, far from each other.
fn with_fixed(mut buffers: Vec<Buffer>) -> Vec<Buffer> {
    for (index, buffer) in buffers.iter_mut().enumerate().step_by(10) {
        *buffer = buffer.fixed_at(index as u64 * (1 << 24));
    }
    buffers
}

/// How long the calling thread, which is the only one that solves, has run so far.
fn processor_time() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

fn time_to_solve(buffers: Vec<Buffer>, options: &Options) -> Duration {
    let instance = Instance::new(buffers).unwrap();
    let begin = processor_time();
    let _ = solve(&instance, options);
    processor_time() - begin
}

#[rstest]
#[case::dense(random(4_000, 100_000, 50_000), 400)]
#[case::too_many_pairs_to_search(random(20_000, 100_000, 50_000), 400)]
#[case::short_lived(random(100_000, 100_000, 20), 400)]
#[case::fixed_offsets(with_fixed(random(40_000, 100_000, 1_000)), 400)]
#[case::no_time_at_all(random(4_000, 100_000, 50_000), 0)]
fn a_time_limit_is_kept(#[case] buffers: Vec<Buffer>, #[case] limit_ms: u64) {
    let limit = Duration::from_millis(limit_ms);
    let elapsed = time_to_solve(buffers, &Options::within(limit));
    let over = Duration::from_millis(50).max(limit / 10);
    assert!(elapsed <= limit + 3 * over, "{elapsed:?}");
}

#[test]
fn a_plan_for_which_there_was_no_time_is_that_of_an_allocator() {
    let instance = Instance::new(random(4_000, 100_000, 50_000)).unwrap();
    let solution = solve(&instance, &Options::within(Duration::ZERO));
    assert_eq!(solution.stage, Stage::Sweep);
    let bound = solution.plan.bound().rounded_bytes as f64;
    assert!((solution.plan.peak_bytes() as f64) < 1.2 * bound);
}

#[rstest]
#[case::dense(random(4_000, 100_000, 50_000))]
#[case::denser(random(20_000, 100_000, 50_000))]
fn a_node_budget_is_over_after_some_seconds_however_much_a_node_looks_at(
    #[case] buffers: Vec<Buffer>,
) {
    // A twelfth of the default, which takes about a second.
    let options = Options { node_budget: 500_000, ..Options::default() };
    let elapsed = time_to_solve(buffers, &options);
    assert!(elapsed <= Duration::from_secs(3), "{elapsed:?}");
}

#[test]
fn the_default_takes_some_ten_seconds_for_what_it_cannot_solve() {
    let elapsed = time_to_solve(random(4_000, 100_000, 50_000), &Options::default());
    assert!(elapsed <= Duration::from_secs(30), "{elapsed:?}");
}

#[test]
#[cfg(all(feature = "cli", target_os = "linux"))]
fn a_million_short_lived_buffers_are_planned_within_the_limit_and_one_gibibyte() {
    use std::fmt::Write as _;

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("million.csv");
    let mut text = "id,lower,upper,size\n".to_owned();
    for (index, buffer) in random(1_000_000, 1_000_000, 20).into_iter().enumerate() {
        writeln!(text, "{index},{},{},{}", buffer.birth, buffer.death, buffer.size_bytes).unwrap();
    }
    std::fs::write(&file, text).unwrap();
    // The shell's limit is in KiB of address space, which is more than the memory in use.
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -v 1048576; exec \"$0\" solve \"$1\" --seconds 2"])
        .args([env!("CARGO_BIN_EXE_arena-plan").as_ref(), file.as_os_str()])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seconds = text.split("seconds=").nth(1).and_then(|rest| rest.split(' ').next());
    assert!(seconds.unwrap().parse::<f64>().unwrap() <= 6.0, "{text}");
}
