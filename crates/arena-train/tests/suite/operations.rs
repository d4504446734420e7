//! The program in the hands of a scheduler and of its user: signals, checkpoints that outlive them, outputs that
//! cannot be written, numbers that make no sense, data that is not there.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use arena_train::cli::{Arguments, Every};
use clap::{CommandFactory, Parser};
use rstest::rstest;
use safetensors::SafeTensors;
use serde_json::Value;
use tempfile::TempDir;

/// A program that heeds signals, also where this test program was started to ignore some: in the background of a script,
/// or by `nohup`.
fn with_default_signals(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["HUP", "INT", "TERM"].map(|signal| format!("--default-signal={signal}")));
    command.arg(program);
    command
}

/// A folder with 200 images to train on and 20 to test with.
struct Place(TempDir);

fn idx(magic: u32, sizes: &[u32], bytes: &[u8]) -> Vec<u8> {
    let numbers = [magic].into_iter().chain(sizes.iter().copied());
    numbers.flat_map(u32::to_be_bytes).chain(bytes.iter().copied()).collect()
}

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.at("data")).unwrap();
        place.images("train", 200, 28);
        place.images("t10k", 20, 28);
        place
    }

    fn images(&self, set: &str, count: u32, side: u32) {
        let pixels: Vec<u8> = (0..count * side * side).map(|n| (n * 31 / 7 % 256) as u8).collect();
        let labels: Vec<u8> = (0..count).map(|n| (n * 7 % 10) as u8).collect();
        let write = |what: &str, bytes| {
            fs::write(self.at(&format!("data/{set}-{what}-ubyte")), bytes).unwrap();
        };
        write("images-idx3", idx(2051, &[count, side, side], &pixels));
        write("labels-idx1", idx(2049, &[count], &labels));
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A program in this folder: a run of 100 steps an epoch.
    fn program(&self, arguments: &[&str]) -> Command {
        let mut command = with_default_signals(env!("CARGO_BIN_EXE_arena-train"));
        command.current_dir(self.0.path());
        command.args(["--data", "data", "--threads", "2", "--batch", "2"]).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.program(arguments).output().unwrap()
    }

    fn start(&self, arguments: &[&str]) -> Running {
        Running::start(self.program(arguments))
    }

    /// What the tensors of a checkpoint hold, and after which step.
    fn checkpoint(&self, name: &str) -> (Vec<(String, Vec<u8>)>, u64) {
        let bytes = fs::read(self.at(name)).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let step = header.metadata().as_ref().unwrap()["step"].parse().unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = tensors.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec()));
        let mut tensors: Vec<_> = tensors.collect();
        tensors.sort();
        (tensors, step)
    }
}

struct Running {
    child: Child,
    told: Lines<BufReader<ChildStderr>>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let told = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, told }
    }

    /// Waits for a line that begins so.
    #[track_caller]
    fn until(&mut self, begin: &str) {
        let found = self.told.by_ref().map(Result::unwrap).find(|line| line.starts_with(begin));
        assert!(found.is_some(), "it ended before `{begin}`");
    }

    fn signal(&self, signal: &str) {
        let (option, id) = (format!("-{signal}"), self.child.id().to_string());
        assert!(Command::new("kill").args([option, id]).status().unwrap().success());
    }

    /// How it ended, with what it told from here on.
    fn end(mut self) -> Output {
        let told: Vec<String> = self.told.by_ref().map(Result::unwrap).collect();
        let mut stdout = Vec::new();
        self.child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        let status = self.child.wait().unwrap();
        Output { status, stdout, stderr: told.join("\n").into_bytes() }
    }
}

/// A test that fails leaves no program behind.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// It failed with this status, and one line that holds all of `parts`.
#[track_caller]
fn refused(output: &Output, status: i32, parts: &[&str]) {
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{told}");
    for part in parts {
        assert!(told.contains(part), "`{part}` is missing in: {told}");
    }
    if status == 1 {
        assert_eq!((told.lines().count(), output.stdout.len()), (1, 0), "{told}");
    }
}

const FOREVER: [&str; 2] = ["--epochs", "1000000"];

// Signals

#[rstest]
#[case("INT", 130)]
#[case("TERM", 143)]
#[case("HUP", 129)]
fn a_signal_stops_after_the_step_with_checkpoint_json_and_summary(
    #[case] signal: &str,
    #[case] status: i32,
) {
    let place = Place::new();
    let files = ["--checkpoint", "run.st", "--json", "run.json"];
    let mut running = place.start(&[&FOREVER[..], &files].concat());
    running.until("step 100/");
    running.signal(signal);
    let output = running.end();
    assert_eq!(output.status.code(), Some(status), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert!(printed.starts_with("stopped            on request, after step "), "{printed}");
    assert!(printed.contains("used               at the mark after every step"), "{printed}");
    let summary: Value = serde_json::from_slice(&fs::read(place.at("run.json")).unwrap()).unwrap();
    let step = place.checkpoint("run.st").1;
    assert!(step >= 100);
    assert_eq!((&summary["interrupted"], &summary["steps"]), (&Value::Bool(true), &step.into()));
    assert_eq!(summary["accuracy"], Value::Null, "it did not look at the test images");
}

/// A step of seconds, in which the second signal comes.
#[test]
fn a_second_signal_ends_it_at_once() {
    let place = Place::new();
    place.images("train", 20_000, 28);
    let long = ["--batch", "20000", "--reset", "poison", "--checkpoint", "run.st"];
    let mut command = with_default_signals(env!("CARGO_BIN_EXE_arena-train"));
    command.current_dir(place.0.path()).args(["--data", "data", "--threads", "1"]).args(long);
    let mut running = Running::start(command);
    running.until("poison is active");
    // Two of one kind could become one.
    running.signal("TERM");
    running.signal("INT");
    let output = running.end();
    assert!(matches!(output.status.code(), Some(130 | 143)), "{:?}", output.status);
    assert!(output.stdout.is_empty() && !place.at("run.st").exists(), "it did not end at once");
}

#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_arena-train");
    let mut command = with_default_signals("sh");
    let script = "trap '' HUP; exec \"$0\" --data data --batch 2 --threads 2 --epochs 1000000";
    command.args(["-c", script, program]).current_dir(place.0.path());
    let mut running = Running::start(command);
    running.until("step 100/");
    running.signal("HUP");
    running.until("step 500/");
    running.signal("TERM");
    assert_eq!(running.end().status.code(), Some(143));
}

#[test]
fn a_signal_in_the_evaluation_ends_it_and_the_checkpoint_is_there() {
    let place = Place::new();
    place.images("t10k", 20_000, 28);
    let files = ["--steps", "1", "--checkpoint", "run.st", "--json", "run.json"];
    let running = place.start(&files);
    // It is written when the training is over.
    while !place.at("run.st").exists() {
        std::thread::yield_now();
    }
    running.signal("TERM");
    let output = running.end();
    assert_eq!(output.status.code(), Some(143));
    let printed = text(&output.stdout);
    assert!(printed.contains("test accuracy      not known"), "{printed}");
    assert_eq!(place.checkpoint("run.st").1, 1);
}

// Checkpoints

/// Stopped twice by signals, and once killed, after its last checkpoint.
#[test]
fn a_run_that_was_stopped_and_resumed_ends_in_the_bits_of_one_that_was_not() {
    let place = Place::new();
    let whole = place.run(&["--epochs", "5", "--checkpoint", "whole.st"]);
    assert!(whole.status.success(), "{}", text(&whole.stderr));

    let again = ["--epochs", "5", "--checkpoint", "run.st"];
    let resume = ["--resume", "run.st"];
    let mut step = 0;
    for (part, (until, signal)) in
        [("step 100/", "TERM"), ("step 200/", "HUP"), ("step 300/", "KILL")].into_iter().enumerate()
    {
        let every = ["--checkpoint-every", "30"];
        let arguments = [&again[..], if part > 0 { &resume } else { &[] }, &every].concat();
        let mut running = place.start(&arguments);
        running.until(until);
        running.signal(signal);
        let output = running.end();
        if signal == "KILL" && output.status.signal() != Some(9) {
            panic!("{:?}", output.status);
        }
        let stands = place.checkpoint("run.st").1;
        assert!(stands > step, "{stands} after {step}");
        step = stands;
    }
    let last = place.run(&[&again[..], &resume].concat());
    assert!(last.status.success(), "{}", text(&last.stderr));
    assert!(place.checkpoint("run.st") == place.checkpoint("whole.st"));
    let of_line = |output: &Output| {
        let printed = text(&output.stdout);
        printed.lines().find(|line| line.starts_with("final loss")).map(str::to_owned)
    };
    assert_eq!(of_line(&last), of_line(&whole));
}

#[rstest]
#[case::seed(&["--seed", "2"], "has seed 1, this one 2")]
#[case::batch(&["--batch", "3"], "has batch 2, this one 3")]
#[case::epochs(&["--epochs", "3"], "has epochs 2, this one 3")]
#[case::optimizer(&["--optimizer", "sgd"], "has optimizer adam")]
#[case::rate(&["--lr", "0.5"], "has lr 0.002, this one 0.5")]
#[case::a_shorter_run(&["--steps", "2"], "stands after step 3, and this run ends at 2")]
#[case::data(&["--data", "other"], "has data 200 training images of 28 x 28")]
fn resume_refuses_another_run_and_names_what_differs(#[case] other: &[&str], #[case] what: &str) {
    let place = Place::new();
    let saved = place.run(&["--steps", "3", "--checkpoint", "run.st"]);
    assert!(saved.status.success(), "{}", text(&saved.stderr));
    fs::create_dir(place.at("other")).unwrap();
    for entry in fs::read_dir(place.at("data")).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, place.at("other").join(from.file_name().unwrap())).unwrap();
    }
    let path = place.at("other/train-labels-idx1-ubyte");
    let mut labels = fs::read(&path).unwrap();
    *labels.last_mut().unwrap() = 9;
    fs::write(path, labels).unwrap();

    let mut command = with_default_signals(env!("CARGO_BIN_EXE_arena-train"));
    command.current_dir(place.0.path()).args(["--resume", "run.st"]).args(other);
    for (option, value) in [("--data", "data"), ("--batch", "2")] {
        if !other.contains(&option) {
            command.args([option, value]);
        }
    }
    refused(&command.output().unwrap(), 1, &["run.st", what]);
}

#[rstest]
#[case("500", Every::Steps(std::num::NonZeroU64::new(500).unwrap()))]
#[case("10m", Every::Time(std::time::Duration::from_secs(600)))]
fn a_checkpoint_is_asked_for_by_steps_or_minutes(#[case] given: &str, #[case] expected: Every) {
    let arguments = ["arena-train", "--checkpoint", "x", "--checkpoint-every", given];
    assert_eq!(Arguments::parse_from(arguments).checkpoint_every, Some(expected));
}

// Outputs

#[rstest]
fn an_output_that_cannot_be_written_is_told_before_the_first_step(
    #[values("--json", "--checkpoint", "--plan")] option: &str,
    #[values(
        ("no/such/file", "No such file or directory"),
        ("data", ""),
        ("/sys/file", "Permission denied")
    )]
    (path, reason): (&str, &str),
) {
    let place = Place::new();
    let output = place.run(&[&FOREVER[..], &[option, path]].concat());
    refused(&output, 1, &["arena-train: cannot ", path, reason]);
}

#[test]
fn a_file_that_can_no_longer_be_written_costs_nothing_but_itself() {
    let place = Place::new();
    fs::create_dir(place.at("below")).unwrap();
    let files = ["--checkpoint", "below/run.st", "--json", "run.json"];
    let mut running = place.start(&[&FOREVER[..], &files].concat());
    running.until("step 100/");
    fs::remove_dir_all(place.at("below")).unwrap();
    running.signal("TERM");
    let output = running.end();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("arena-train: cannot write below/run.st: No such"));
    assert!(text(&output.stdout).starts_with("stopped "));
    assert!(place.at("run.json").exists());
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

#[rstest]
#[case::closed_output(|| Stdio::piped(), || Stdio::null())]
#[case::full_output(full, || Stdio::null())]
#[case::full_messages(|| Stdio::null(), full)]
#[case::both_full(full, full)]
fn what_nobody_reads_costs_the_text_alone(
    #[case] stdout: fn() -> Stdio,
    #[case] stderr: fn() -> Stdio,
) {
    let place = Place::new();
    let arguments =
        ["--epochs", "2", "--reset", "poison", "--json", "run.json", "--checkpoint", "run.st"];
    let mut command = place.program(&arguments);
    let mut child = command.stdout(stdout()).stderr(stderr()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(place.checkpoint("run.st").1, 200);
    assert!(place.at("run.json").exists());
}

#[test]
fn the_probe_writes_its_figures_as_json_too() {
    let place = Place::new();
    let output = place.run(&["--device", "probe", "--plan", "--json", "needs.json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let needs: Value = serde_json::from_slice(&fs::read(place.at("needs.json")).unwrap()).unwrap();
    let capacity = needs["capacity_bytes"].as_u64().unwrap();
    assert!(text(&output.stdout).contains(&format!("smallest capacity  {capacity} bytes")));
    assert!(needs["persistent_bytes"].as_u64().unwrap() < capacity);
    assert!(needs["live_peak_bytes"].is_u64());
}

#[test]
fn the_help_fits_80_columns() {
    let help = Arguments::command().render_long_help().to_string();
    let output = Place::new().run(&["--help"]);
    for line in help.lines().chain(text(&output.stdout).lines()) {
        assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
    }
    assert!(text(&output.stdout).contains("--checkpoint-every"));
}

// Numbers

#[test]
fn a_loss_that_is_no_number_stops_the_run_and_leaves_the_last_checkpoint() {
    let place = Place::new();
    assert!(place.run(&["--steps", "3", "--checkpoint", "run.st"]).status.success());
    let before = fs::read(place.at("run.st")).unwrap();
    let output = place.run(&["--lr", "1e38", "--checkpoint", "run.st", "--json", "run.json"]);
    refused(&output, 1, &["the loss of step ", "a lower --lr may help"]);
    assert!(fs::read(place.at("run.st")).unwrap() == before);
    assert!(!place.at("run.json").exists());
}

#[rstest]
fn every_count_has_a_bound_and_an_answer_at_once(
    #[values("--epochs", "--batch", "--steps", "--threads", "--checkpoint-every")] option: &str,
    #[values("1099511627776", "9223372036854775808", "18446744073709551615", "-1", "1e3")]
    count: &str,
) {
    let mut command = with_default_signals(env!("CARGO_BIN_EXE_arena-train"));
    let output = command.args(["--checkpoint", "x"]).arg(format!("{option}={count}")).output();
    refused(&output.unwrap(), 2, &[option, count, "must be a "]);
}

#[rstest]
#[case(&["--threads", "100000"])]
#[case(&["--checkpoint-every", "0", "--checkpoint", "x"])]
#[case(&["--checkpoint-every", "5"])]
#[case(&["--checkpoint-every", "5h", "--checkpoint", "x"])]
fn a_count_without_sense_exits_with_2(#[case] arguments: &[&str]) {
    assert_eq!(Place::new().run(arguments).status.code(), Some(2));
}

#[test]
fn the_largest_counts_are_served() {
    let counts =
        ["--epochs", "1000000", "--steps", "1000000000000", "--device", "probe", "--threads", "9"];
    assert_eq!(Place::new().run(&counts).status.code(), Some(2), "threads are named twice");
    let output = Place::new().run(&counts[..6]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

// Data

#[rstest]
fn an_empty_set_and_images_of_another_size_are_errors(
    #[values("train", "t10k")] set: &str,
    #[values((0, 28, "holds no image"), (5, 14, "14 x 14 pixels: 28 x 28 are wanted"))]
    (count, side, what): (u32, u32, &str),
) {
    let place = Place::new();
    place.images(set, count, side);
    let file = format!("{set}-images-idx3-ubyte");
    refused(&place.run(&[]), 1, &[&file, what]);
}

#[rstest]
#[case::pipe(true)]
#[case::device(false)]
fn what_is_no_file_is_not_read_as_data(#[case] is_pipe: bool) {
    let place = Place::new();
    let path = place.at("data/train-labels-idx1-ubyte");
    fs::remove_file(&path).unwrap();
    if is_pipe {
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    } else {
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    }
    refused(&place.run(&[]), 1, &["train-labels-idx1-ubyte", "is no regular file"]);
}

#[test]
fn data_that_is_not_there_is_told_with_the_place_and_the_option() {
    let place = Place::new();
    let folder = place.at("elsewhere");
    fs::create_dir(&folder).unwrap();
    let mut command = with_default_signals(env!("CARGO_BIN_EXE_arena-train"));
    let output = command.current_dir(&folder).output().unwrap();
    let looked = fs::canonicalize(&folder).unwrap().join("data/mnist");
    refused(&output, 1, &[looked.to_str().unwrap(), "train-images-idx3-ubyte", "--data"]);
}
