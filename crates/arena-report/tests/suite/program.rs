//! The program: what it prints, its files, its exit status.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rstest::rstest;
use serde_json::Value;

use crate::common::data;

fn run(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_arena-report"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_last_line_of_the_advice_is_the_one_to_act_on_and_json_has_it_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = data("training.pickle");
    let output = run(folder.path(), &["advise", file.to_str().unwrap(), "--json", "advice.json"]);
    let (status, said, errors) = told(&output);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    let last = said.lines().last().unwrap();
    assert_eq!(last, "this step fits in 7.35 MiB; PyTorch held 10.00 MiB");
    let json: Value =
        serde_json::from_slice(&fs::read(folder.path().join("advice.json")).unwrap()).unwrap();
    assert_eq!(json["line"], last);
    assert_eq!(json["held_bytes"], 10_485_760);
    let kinds = json["kinds"].as_array().unwrap();
    assert_eq!(
        (kinds[1]["steps"].as_u64(), kinds[1]["sum_bytes"].as_u64()),
        (Some(4), Some(8_100_004))
    );
}

#[test]
fn a_written_snapshot_is_read_again_and_steps_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let file = data("training.pickle");
    let arguments = [file.to_str().unwrap(), "--pytorch", "step.pickle", "--step", "step 2"];
    assert_eq!(told(&run(folder.path(), &arguments)), (Some(0), String::new(), String::new()));
    let (status, said, _) = told(&run(folder.path(), &["step.pickle"]));
    let line = "    1  the whole history: 15 buffers, at most 7.35 MiB live; ";
    assert!(status == Some(0) && said.lines().nth(1).unwrap().starts_with(line), "{said}");
}

#[rstest]
#[case::nothing(&[], 2, "")]
#[case::unknown_option(&["step.csv", "--nonsense"], 2, "")]
#[case::two_files(&["step.csv", "step.csv"], 2, "")]
#[case::no_file(&["nowhere.csv"], 1, "arena-report: cannot read nowhere.csv: ")]
#[case::no_file_to_advise(&["advise", "nowhere.csv"], 1, "arena-report: cannot read nowhere.csv: ")]
#[case::wrong_table(&["advise", "wrong.csv"], 1, "arena-report: wrong.csv:2:5: \"x\" is not a whole number")]
#[case::wrong_events(&["wrong.jsonl"], 1, "arena-report: wrong.jsonl:2: ")]
#[case::wrong_plan(&["wrong.json"], 1, "arena-report: wrong.json: ")]
#[case::wrong_pickle(&["wrong.pickle"], 1, "arena-report: wrong.pickle: byte 3: the file ends too early")]
#[case::no_such_step(&["step.csv", "--step", "7"], 1, "arena-report: step.csv: it has no step \"7\", only 1")]
#[case::unwritable(&["advise", "step.csv", "--json", "no/where"], 1, "arena-report: cannot write no/where: ")]
fn an_error_is_one_line_that_names_the_file(
    #[case] arguments: &[&str],
    #[case] status: i32,
    #[case] begin: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let begin_of_events = r#"{"op":"begin","format":"watermark-arena events 1"}"#;
    for (name, text) in [
        ("step.csv", b"id,lower,upper,size\na,0,4,100\n".to_vec()),
        ("wrong.csv", b"id,lower,upper,size\na,0,x,100\n".to_vec()),
        ("wrong.jsonl", format!("{begin_of_events}\nnonsense\n").into_bytes()),
        ("wrong.json", b"{\"format\":\"else\"}".to_vec()),
        ("wrong.pickle", b"\x80\x04}".to_vec()),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let (code, _, errors) = told(&run(folder.path(), arguments));
    assert_eq!(code, Some(status), "{errors}");
    assert!(errors.starts_with(begin), "{errors}");
    assert!(status == 2 || errors.lines().count() == 1, "{errors}");
}
