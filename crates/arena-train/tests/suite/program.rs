//! The program from outside: what it prints, writes, refuses, and how it ends.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use arena_scope::Placement;
use arena_train::cli::Arguments;
use clap::Parser;
use rstest::rstest;
use serde_json::Value;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/mnist")
}

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_arena-train"));
    command.arg("--data").arg(data()).args(["--threads", "2"]).args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_run_prints_its_summary_and_writes_the_same_figures_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("summary.json");
    let output = run(&["--steps", "12", "--json", json.to_str().unwrap()]);
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for line in [
        "driver allocations 1, after step 1: 0",
        "heap allocations   0 per steady step",
        "addresses          the same in each step of a kind:",
        "used               at the mark after every step",
    ] {
        assert!(printed.contains(line), "`{line}` is missing in:\n{printed}");
    }
    let summary: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(summary["steps"], 12);
    assert_eq!(summary["driver_allocations_total"], 1);
    assert_eq!(summary["driver_allocations_after_first_step"], 0);
    assert_eq!(summary["host_allocations_per_step"], 0);
    assert_eq!(summary["signature_stable"], true);
    assert_eq!(summary["kept_bytes"], 0);
    let bytes = |key: &str| summary[key].as_u64().unwrap();
    let parts = bytes("persistent_bytes") + bytes("peak_transient_bytes");
    assert_eq!(bytes("capacity_bytes"), parts, "just what the run needs");
    for key in ["accuracy", "final_loss", "images_per_second", "library_allocations_per_step"] {
        assert!(summary[key].is_number(), "{key}: {summary}");
    }
}

#[test]
fn a_planned_run_tells_its_plan_and_that_it_kept_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("summary.json");
    let arguments = ["--plan", "--steps", "12", "--json", json.to_str().unwrap()];
    let output = run(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("ms to solve, 0 deviations"), "{}", text(&output.stdout));
    let summary: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(summary["planned_peak_bytes"], summary["live_peak_bytes"]);
    assert!(summary["planned_peak_bytes"].as_u64() < summary["step_sum_bytes"].as_u64());
    assert!(summary["plan_seconds"].is_f64());
    assert_eq!(summary["deviations"], 0);
    assert_eq!(summary["deviation_sites"], serde_json::json!([]));
}

// Each kind of step is at its optimum: a change that keeps a buffer too long shows here, with its line.
#[test]
fn no_earlier_drop_would_lower_the_peaks_of_the_steps() {
    let output = run(&["--advice"]);
    let told = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let kinds: Vec<_> = told.lines().filter(|line| line.starts_with('`')).collect();
    assert_eq!(kinds.len(), 4, "whole batches and the last one, training and evaluation:\n{told}");
    assert!(told.lines().all(|line| line.ends_with("and no earlier drop saves a byte")), "{told}");
}

#[rstest]
#[case::without(&[], (false, None))]
#[case::alone(&["--plan"], (true, None))]
#[case::before_another_option(&["--plan", "--steps", "3"], (true, None))]
#[case::with_a_file(&["--plan", "train.json"], (true, Some("train.json")))]
fn a_plan_is_followed_with_or_without_a_file(
    #[case] arguments: &[&str],
    #[case] expected: (bool, Option<&str>),
) {
    let arguments = Arguments::parse_from([&["arena-train"], arguments].concat());
    let (planned, file) = (arguments.planned(), arguments.saved_plans());
    assert_eq!((planned, file), (expected.0, expected.1.map(std::path::Path::new)));
}

// B078
#[test]
fn that_poison_is_active_is_told() {
    for (reset, is_told) in [("poison", true), ("zero", false), ("keep", false)] {
        let output = run(&["--steps", "1", "--reset", reset]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr).contains("poison is active"), is_told, "{reset}");
    }
}

#[test]
fn the_probe_prints_the_capacity_that_serves_and_no_less_does() {
    let printed = text(&run(&["--device", "probe"]).stdout);
    let line = printed.lines().find(|line| line.starts_with("smallest capacity")).unwrap();
    let bytes: u64 = line.split_whitespace().nth(2).unwrap().parse().unwrap();

    let enough = run(&["--steps", "2", "--capacity", &bytes.to_string()]);
    assert!(enough.status.success(), "{}", text(&enough.stderr));
    let short = run(&["--steps", "2", "--capacity", &(bytes - 1).to_string()]);
    assert_eq!(short.status.code(), Some(1));
    let told = text(&short.stderr);
    assert!(told.contains(&format!("needs {bytes} bytes")) && told.contains("1 more"), "{told}");
    assert!(!told.contains("step"), "refused before the first step: {told}");
}

#[test]
fn a_scope_per_epoch_says_beforehand_that_it_does_not_fit() {
    let output = run(&["--per", "epoch", "--capacity", "1GiB"]);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.contains("a capacity of 1073741824 bytes is too small"), "{told}");
    assert!(told.contains("take a scope per minibatch"), "{told}");
}

#[rstest]
#[case(&["--batch", "0"])]
#[case(&["--lr", "-1"])]
#[case(&["--lr", "NaN"])]
#[case(&["--expect-accuracy", "99"])]
#[case(&["--capacity", "lots"])]
#[case(&["--device", "abacus"])]
#[case(&["--plan", "--placement", "separate"])]
fn arguments_that_make_no_sense_exit_with_2(#[case] arguments: &[&str]) {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn an_accuracy_below_the_expected_one_exits_with_1() {
    let output = run(&["--steps", "1", "--expect-accuracy", "0.99"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is below 0.99"), "{}", text(&output.stderr));
}

#[test]
fn places_are_shuffled_by_the_seed_of_the_run_and_the_loss_is_the_same() {
    let arguments = ["arena-train", "--placement", "shuffled", "--seed", "7"];
    assert_eq!(Arguments::parse_from(arguments).placement(), Placement::Shuffled { seed: 7 });
    let of_line = |name: &str, placement: &str| {
        let output = run(&["--steps", "3", "--seed", "7", "--placement", placement]);
        let printed = text(&output.stdout);
        printed.lines().find(|line| line.starts_with(name)).map(str::to_owned)
    };
    let loss = of_line("final loss", "shuffled");
    assert!(loss.is_some());
    assert_eq!(loss, of_line("final loss", "bump"));
    let allocations = of_line("driver allocations", "shuffled").unwrap();
    assert!(allocations.starts_with("driver allocations 2, after step 1: 0"), "{allocations}");
}

#[test]
fn missing_data_is_an_error_that_names_the_file() {
    let output = Command::new(env!("CARGO_BIN_EXE_arena-train"))
        .args(["--data", "no/such/folder"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.contains("train-images-idx3-ubyte") && told.contains("no/such/folder"), "{told}");
}

#[test]
fn a_batch_larger_than_any_dataset_is_one_step() {
    for batch in ["60001", "1000000"] {
        let output = run(&["--device", "probe", "--plan", "--batch", batch]);
        assert!(output.status.success(), "{batch}: {}", text(&output.stderr));
    }
}

#[test]
fn saved_plans_are_taken_and_those_of_another_run_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.plans");
    let planned =
        |batch| run(&["--device", "probe", "--plan", path.to_str().unwrap(), "--batch", batch]);
    let (solved, loaded) = (planned("64"), planned("64"));
    assert!(solved.status.success() && loaded.status.success(), "{}", text(&loaded.stderr));
    assert_eq!(text(&loaded.stdout), text(&solved.stdout));
    let refused = planned("37");
    assert_eq!(refused.status.code(), Some(1));
    let told = text(&refused.stderr);
    assert!(told.contains("run.plans") && told.contains("is of another program"), "{told}");
}

/// The files that a run of one step writes, with a plan, and the arguments for them.
const FILES: [(&str, &str); 3] =
    [("--plan", "plan.json"), ("--json", "summary.json"), ("--checkpoint", "run.safetensors")];

fn one_step_with_files(folder: &Path) -> Command {
    let mut command = program(&["--steps", "1"]);
    command.current_dir(folder);
    for (option, name) in FILES {
        command.args([option, name]);
    }
    command
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn figures_that_nobody_gets_are_an_error() {
    let mut probe = program(&["--device", "probe"]);
    assert_eq!(probe.stdout(full()).output().unwrap().status.code(), Some(1));
}

#[test]
fn a_run_whose_messages_nobody_reads_goes_on() {
    // After 100 steps there is a line about them.
    for arguments in [["--reset", "poison", "--steps", "1"], ["--per", "epoch", "--steps", "100"]] {
        let output = program(&arguments).stderr(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(text(&output.stdout).starts_with("test accuracy "));
    }
}

#[test]
fn each_file_is_written_through_a_link_and_leaves_nothing_beside() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("below")).unwrap();
    for (_, name) in FILES {
        symlink(format!("below/{name}"), at(name)).unwrap();
    }
    // A second run replaces what the first one wrote, and reads its plan.
    for _ in 0..2 {
        let output = one_step_with_files(folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        for (_, name) in FILES {
            assert!(fs::symlink_metadata(at(name)).unwrap().is_symlink(), "{name}");
            assert!(fs::symlink_metadata(at("below").join(name)).unwrap().is_file(), "{name}");
        }
        assert_eq!(fs::read_dir(at("below")).unwrap().count(), FILES.len());
    }
}

#[rstest]
#[case::plan("--plan", "/dev/zero")]
#[case::checkpoint("--resume", "/dev/zero")]
#[case::data("--data", "below")]
fn what_is_no_regular_file_is_not_read(#[case] option: &str, #[case] path: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("below")).unwrap();
    for part in ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"] {
        symlink("/dev/zero", folder.path().join(format!("below/{part}-ubyte"))).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_arena-train"));
    if option != "--data" {
        command.arg("--data").arg(data());
    }
    let output = command.args([option, path]).current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.contains(path) && told.matches("is no regular file").count() == 1, "{told}");
}

/// The events of a run: how many of each operation, and the last.
fn events_of(arguments: &[&str], code: i32) -> (BTreeMap<String, usize>, Value) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let output = program(arguments).arg("--events").arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    let mut counts = BTreeMap::new();
    let mut last = Value::Null;
    for line in fs::read_to_string(path).unwrap().lines() {
        last = serde_json::from_str(line).unwrap();
        *counts.entry(last["op"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    (counts, last)
}

#[test]
fn events_tell_each_step_with_its_result() {
    let (counts, last) = events_of(&["--steps", "3"], 0);
    assert_eq!((counts["begin"], counts["result"], counts.get("lost")), (1, 3, None));
    assert_eq!(counts["step"], counts["end"]);
    assert!(counts["step"] > 3, "those of the test too: {counts:?}");
    assert_eq!(last["op"], "end");
}

#[rstest]
#[case::a_scope_a_step(&[])]
#[case::a_scope_an_epoch(&["--per", "epoch", "--steps", "100"])]
fn events_of_a_run_that_fails_end_with_its_error(#[case] arguments: &[&str]) {
    let arguments = [&["--optimizer", "sgd", "--lr", "1e30"], arguments].concat();
    let (counts, last) = events_of(&arguments, 1);
    assert_eq!(last["op"], "failed");
    assert!(last["error"].as_str().unwrap().contains("loss"), "{last}");
    assert!(counts["step"] > 0, "the step that failed is there: {counts:?}");
}

#[cfg(not(feature = "mpi"))]
#[test]
fn ranks_without_an_engine_are_refused_with_the_feature_that_has_one() {
    let output = run(&["--ranks", "2"]);
    assert_eq!(output.status.code(), Some(2));
    let told = "arena-train: ranks on the host need the feature `mpi`, with which this program was not built\n";
    assert_eq!(text(&output.stderr), told);
    // What mpirun has started, too.
    let mut started = program(&["--steps", "1"]);
    started.env("OMPI_COMM_WORLD_RANK", "1").env("OMPI_COMM_WORLD_SIZE", "2");
    let output = started.output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), told.to_owned()));
}

#[test]
fn the_probe_tells_what_a_rank_needs() {
    let needed = |arguments: &[&str]| -> u64 {
        let printed = text(&run(&[&["--device", "probe"], arguments].concat()).stdout);
        let line = printed.lines().find(|line| line.contains("capacity")).unwrap().to_owned();
        let digits = line.chars().filter(char::is_ascii_digit).collect::<String>();
        digits.parse().unwrap()
    };
    // The activations of half a batch.
    assert!(needed(&["--ranks", "2"]) < needed(&["--accumulate", "2"]));
}
