//! `arena-train` on MPI: processes that `mpirun` has started. With the feature `mpi`, and MPI installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{checkpoint, two_more_steps};
use rstest::rstest;
use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_arena-train");
/// No test waits longer for the processes.
const LIMIT: Duration = Duration::from_secs(90);

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/mnist")
}

/// `mpirun` for a user of any name, who has fewer processors than ranks.
fn mpirun() -> Command {
    let mut command = Command::new("mpirun");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(["--oversubscribe", "--bind-to", "none"]);
    command
}

/// One group of processes after the other, each with its arguments.
fn started(groups: &[(u32, &[&str])]) -> Child {
    let mut command = mpirun();
    for (number, (ranks, arguments)) in groups.iter().enumerate() {
        if number > 0 {
            command.arg(":");
        }
        command.args(["-n", &ranks.to_string(), PROGRAM, "--threads", "1"]);
        if !arguments.contains(&"--data") {
            command.arg("--data").arg(data());
        }
        command.args(*arguments);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("mpirun is installed")
}

/// Its output, within the time.
fn ended(mut child: Child) -> Output {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > LIMIT {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("it did not end: {}", String::from_utf8_lossy(&output.stderr));
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

fn run(groups: &[(u32, &[&str])]) -> Output {
    ended(started(groups))
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder with the files of a run.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// The tensors of a checkpoint, without what it says of its run.
    fn tensors(&self, name: &str) -> Vec<u8> {
        checkpoint(Path::new(&self.at(name))).1
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.at(name)).unwrap()).unwrap()
    }
}

/// The processes of a run by their ranks: those that have this text among their arguments.
fn pid(rank: u32, argument: &str) -> i32 {
    let begin = Instant::now();
    while begin.elapsed() < LIMIT {
        for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
            let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
            let has = |text: &[u8], part: &str| {
                text.split(|byte| *byte == 0).any(|word| word == part.as_bytes())
            };
            if has(&read("cmdline"), argument)
                && has(&read("environ"), &format!("OMPI_COMM_WORLD_RANK={rank}"))
            {
                return entry.file_name().to_str().unwrap().parse().unwrap();
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("there is no rank {rank}")
}

fn signal(name: &str, pid: i32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn wait_for(path: &str) {
    let begin = Instant::now();
    while !Path::new(path).exists() {
        assert!(begin.elapsed() < LIMIT, "{path} was not written");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn two_ranks_have_the_bits_of_one_process_that_accumulates_their_parts() {
    let place = Place::new();
    let (ranks, alone) = (place.at("ranks"), place.at("alone"));
    let (json, its_json) = (place.at("json"), place.at("its_json"));
    let common = ["--steps", "20", "--plan"];
    let output = run(&[(2, &[&common[..], &["--checkpoint", &ranks, "--json", &json]].concat())]);
    assert!(output.status.success(), "{}", told(&output));
    let parts = ["--batch", "32", "--accumulate", "2", "--checkpoint", &alone, "--json", &its_json];
    let mut command = Command::new(PROGRAM);
    command.args(["--threads", "1", "--data"]).arg(data()).args(common).args(parts);
    assert!(command.output().unwrap().status.success());
    assert!(place.tensors("ranks") == place.tensors("alone"), "the same bits");
    let (json, alone) = (place.json("json"), place.json("its_json"));
    assert_eq!(json["final_loss"], alone["final_loss"]);
    assert_eq!(json["accuracy"], alone["accuracy"]);
    for figure in ["host_allocations_per_step", "driver_allocations_after_first_step"] {
        assert_eq!(json[figure], 0, "{figure}");
    }
    // One process has printed, and the figures are the most of any.
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed.matches("test accuracy").count(), 1, "{printed}");
}

#[test]
fn four_ranks_repeat_themselves_and_are_close_to_the_whole_batch() {
    let place = Place::new();
    let loss = |name: &str, arguments: &[&str], ranks: u32| -> f64 {
        let (checkpoint, json) = (place.at(name), place.at(&format!("{name}.json")));
        let files = ["--checkpoint", &checkpoint, "--json", &json, "--steps", "50"];
        let output = run(&[(ranks, &[arguments, &files].concat())]);
        assert!(output.status.success(), "{}", told(&output));
        place.json(&format!("{name}.json"))["final_loss"].as_f64().unwrap()
    };
    // With a higher rate the loss is chaotic: other roundings, as of a batch in parts, lead to other losses.
    let sgd = ["--optimizer", "sgd", "--lr", "0.001"];
    let (first, again) = (loss("first", &sgd, 4), loss("again", &sgd, 4));
    assert!(first == again && place.tensors("first") == place.tensors("again"));
    for ranks in [1, 2] {
        let other = loss("other", &sgd, ranks);
        assert!((first - other).abs() <= 1e-5 * other.max(1.0), "{first} and {other} with {ranks}");
    }
}

#[rstest]
#[case::settings(&["--lr", "0.003"], "rank 1: it has other settings than rank 0")]
#[case::not_ready(&["--capacity", "1MiB"], "rank 1: a capacity of 1048576 bytes is too small")]
#[case::no_data(&["--data", "no/such/folder"], "rank 1: ")]
fn a_rank_that_is_not_like_the_first_ends_all_before_the_first_step(
    #[case] arguments: &[&str],
    #[case] cause: &str,
) {
    let output = run(&[(1, &["--steps", "5"]), (1, &[&["--steps", "5"], arguments].concat())]);
    let told = told(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    // Each rank says so.
    assert_eq!(told.matches(&format!("arena-train: {cause}")).count(), 2, "{told}");
}

#[test]
fn a_signal_to_one_rank_stops_all_with_a_checkpoint_and_the_run_goes_on_to_the_bit() {
    let place = Place::new();
    let (file, whole) = (place.at("file"), place.at("whole"));
    let run_to = |file: &str, more: &[&str]| {
        run(&[(2, &[&["--steps", "60", "--checkpoint", file], more].concat())])
    };
    assert!(run_to(&whole, &[]).status.success());
    let every = ["--steps", "60", "--checkpoint", &file, "--checkpoint-every", "1"];
    let child = started(&[(2, &every)]);
    wait_for(&file);
    signal("-TERM", pid(1, &file));
    let output = ended(child);
    assert_eq!(output.status.code(), Some(143), "{}", told(&output));
    assert!(place.tensors("file") != place.tensors("whole"));
    assert!(run_to(&file, &["--resume", &file]).status.success());
    assert!(place.tensors("file") == place.tensors("whole"), "to the bit");
}

#[test]
fn a_rank_that_is_killed_ends_the_others_and_the_last_checkpoint_is_whole() {
    let place = Place::new();
    let file = place.at("file");
    let arguments = ["--epochs", "2", "--checkpoint", &file, "--checkpoint-every", "1"];
    let child = started(&[(2, &arguments)]);
    wait_for(&file);
    signal("-KILL", pid(1, &file));
    let output = ended(child);
    assert!(!output.status.success());
    assert!(told(&output).contains("rank 1"), "{}", told(&output));
    let steps = two_more_steps(Path::new(&file));
    let resumed = ["--epochs", "2", "--steps", &steps, "--resume", &file];
    let output = run(&[(2, &resumed)]);
    assert!(output.status.success(), "{}", told(&output));
}

#[test]
fn a_rank_that_hangs_is_named_after_the_timeout() {
    let place = Place::new();
    let file = place.at("file");
    let begin = Instant::now();
    let limits = ["--rank-timeout", "8", "--checkpoint", &file, "--checkpoint-every", "1"];
    let child = started(&[(3, &[&["--epochs", "2"], &limits[..]].concat())]);
    wait_for(&file);
    signal("-STOP", pid(1, &file));
    let output = ended(child);
    let told = told(&output);
    assert!(!output.status.success() && begin.elapsed() < LIMIT);
    assert!(told.contains("rank 1 did not come"), "{told}");
    assert!(
        !told.contains("rank 0 did not come") && !told.contains("rank 2 did not come"),
        "{told}"
    );
}

#[test]
fn another_number_of_ranks_than_was_started_is_refused() {
    let output = run(&[(2, &["--ranks", "3"])]);
    let told = told(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("arena-train: --ranks needs as many processes as were started"),
        "{told}"
    );
}
