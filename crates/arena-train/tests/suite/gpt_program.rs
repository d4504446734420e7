//! The program with the decoder: what it prints and refuses.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rstest::rstest;
use serde_json::Value;

/// A small network, and few bytes of a text that does not change.
const SMALL: [&str; 10] =
    ["--context", "32", "--layers", "2", "--width", "16", "--heads", "2", "--batch", "4"];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_arena-train"));
    command.current_dir(root()).args(["--model", "gpt", "--threads", "2"]).args(arguments);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_decoder_tells_its_loss_on_what_it_never_learnt_and_makes_a_sample() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("summary.json");
    let of_run = ["--data", "LICENSE-APACHE", "--epochs", "2", "--plan", "--expect-loss", "6"];
    let output = run(&[&SMALL[..], &of_run, &["--json", json.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    for line in [
        "test loss ",
        "heap allocations   0 per steady step",
        "addresses          the same in each step of a kind:",
        "used               at the mark after every step",
        "A sample:",
    ] {
        assert!(printed.contains(line), "`{line}` is missing in:\n{printed}");
    }
    let summary: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let loss = summary["test_loss"].as_f64().unwrap();
    // A network that has learnt nothing has log 256.
    assert!(loss > 1.0 && loss < 256.0_f64.ln(), "{loss}");
    assert!(summary["bytes_per_second"].is_f64() && summary.get("images_per_second").is_none());
    assert_eq!(summary["planned_peak_bytes"], summary["live_peak_bytes"]);
    assert_eq!(summary["deviations"], 0);
}

#[test]
fn the_default_text_is_the_folder_of_documents() {
    let output = run(&["--device", "probe"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[rstest]
#[case::plain(&[])]
#[case::several_batches(&["--accumulate", "2"])]
#[case::made_again(&["--recompute"])]
#[case::ragged(&["--ragged"])]
fn no_earlier_drop_would_lower_the_peaks_of_the_decoder_s_steps(#[case] arguments: &[&str]) {
    let output =
        run(&[&["--advice"], &SMALL[..], &["--data", "LICENSE-APACHE"], arguments].concat());
    let told = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(told.lines().count() >= 4, "{told}");
    assert!(told.lines().all(|line| line.ends_with("and no earlier drop saves a byte")), "{told}");
}

#[test]
fn a_test_loss_above_the_expected_one_exits_with_1() {
    let of_run = ["--data", "LICENSE-APACHE", "--steps", "1", "--expect-loss", "1.5"];
    let output = run(&[&SMALL[..], &of_run].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is above 1.5"), "{}", text(&output.stderr));
}

#[rstest]
#[case::heads(&["--heads", "3"], 1, "the width is a multiple of the number of heads")]
#[case::images(&["--data", "data/mnist"], 1, "there is no .md file in data/mnist: --data names a text")]
#[case::nothing(&["--data", "no/such"], 1, "no/such")]
#[case::a_device(&["--data", "/dev/zero"], 1, "is no regular file")]
#[case::too_short(&["--data", "rustfmt.toml"], 1, "is too short")]
#[case::wide(&["--width", "65537"], 2, "from 1 to 65536")]
#[case::deep(&["--layers", "1025"], 2, "from 1 to 1024")]
#[case::dropout(&["--dropout", "1"], 2, "at least 0 and below 1")]
#[case::decay(&["--weight-decay=-1"], 2, "from 0 to 1000")]
#[case::decay_of_sgd(
    &["--weight-decay", "0.1", "--optimizer", "sgd"], 2, "--weight-decay needs --optimizer adam"
)]
#[case::another_network(
    &["--model", "cnn", "--recompute"], 2, "--recompute needs --model gpt"
)]
#[case::huge(
    &["--layers", "1024", "--width", "65536", "--heads", "1"], 1, "this run needs "
)]
fn what_makes_no_sense_is_told_in_one_line(
    #[case] arguments: &[&str],
    #[case] status: i32,
    #[case] reason: &str,
) {
    // The last `--model` counts.
    let mut command = Command::new(env!("CARGO_BIN_EXE_arena-train"));
    command.current_dir(root()).args(["--threads", "2"]);
    if !arguments.contains(&"--model") {
        command.args(["--model", "gpt"]);
    }
    let output = command.args(arguments).output().unwrap();
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{told}");
    assert!(told.contains(reason), "{told}");
    assert!(status == 2 || told.lines().count() == 1, "{told}");
}
